"""What an operation may do in PostgreSQL, so that it does the same on every replica of the same state.

The server says itself how it understands a statement: a function with the statement as its body is made in a schema of
our own, its tree is read from the catalog, and the function is taken back. So names, casts and overloads are seen as
they will be executed. IMMUTABLE functions are allowed, of the others those whose answer depends on settings that every
replica has alike. Where rows may come in any order (no two replicas keep them in the same places) nothing may depend
on it. What no tree shows, the bodies of functions in PL/pgSQL, is read for words only: they are declared deterministic.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.postgres.connection import PostgresConnection, PostgresValue
from unisono.replicas.determinism import check_words
from unisono.replicas.postgres.plans import WhatMayFail
from unisono.replicas.postgres.texts import MOMENTS, check_ddl, check_names, first_words, names_a_moment, words_of
from unisono.replicas.postgres.trees import TreeNode, nodes_of

SCHEMA = "_unisono"
USERS_FIRST_OID = 16_384  # what lies below came with the server

# What is STABLE because it depends on settings, which are the same at every replica.
_OF_SETTINGS = frozenset(
    (
        *("anytextcat", "textanycat", "array_to_json", "array_to_string", "concat", "concat_ws", "date", "date_part"),
        *("date_trunc", "extract", "format", "generate_series", "interval_pl_timestamptz", "json_agg"),
        *("json_build_array", "json_build_object", "json_object_agg", "jsonb_agg", "jsonb_build_array"),
        *("jsonb_build_object", "jsonb_object_agg", "length", "make_timestamptz", "numeric", "overlaps"),
        *("plainto_tsquery", "phraseto_tsquery", "quote_literal", "quote_nullable", "row_to_json", "time"),
        *("timestamp", "timestamptz", "timestamptz_mi_interval", "timestamptz_pl_interval", "timetz", "timezone"),
        *("to_char", "to_date", "to_json", "to_jsonb", "to_number", "to_timestamp", "to_tsquery", "to_tsvector"),
        "websearch_to_tsquery",
    )
)
_COMPARES_TIMES = re.compile(r"(date|timestamp|timestamptz)_(cmp|eq|ge|gt|le|lt|ne)_(date|timestamp|timestamptz)")
_IN_ORDER_OF_ROWS = frozenset(
    (
        *("array_agg", "string_agg", "json_agg", "jsonb_agg", "json_object_agg", "jsonb_object_agg", "xmlagg"),
        "range_agg",
    )
)
_FORBIDDEN_WORDS = frozenset(
    (
        *("now", "random", "nextval", "currval", "lastval", "setval", "clock_timestamp", "statement_timestamp"),
        *("transaction_timestamp", "timeofday", "gen_random_uuid", "current_timestamp", "current_date"),
        *("current_time", "localtime", "localtimestamp", "current_user", "session_user", "pg_backend_pid"),
        *("txid_current", "ctid", "commit", "rollback", "savepoint", "dblink", "pg_notify", "notify"),
        *("execute", "set_config", "current_setting", "setseed", "reset", "call", "copy", "xmin", "xmax", "tableoid"),
        *("inet_server_addr", "inet_client_addr", "version", "uuid_generate_v4", "uuid_generate_v1", "random_normal"),
    )
)
_BEGINS_STATEMENT = frozenset((";", "begin", "then", "else", "loop"))
_OF_THE_LIBRARY = frozenset(
    (
        *("acos", "acosd", "acosh", "asin", "asind", "asinh", "atan", "atan2", "atan2d", "atand", "atanh", "cbrt"),
        *("cos", "cosd", "cosh", "cot", "cotd", "exp", "ln", "log", "log10", "pow", "power", "sin", "sind", "sinh"),
        *("tan", "tand", "tanh", "erf", "erfc", "dexp", "dlog1", "dlog10", "dpow", "dcbrt"),
    )
)
"""Of the machine's library of mathematics, for floats: versions of it differ in the last digit."""
_ARRAY_OF_ROWS = "6"  # ARRAY(SELECT …)
_TIED = frozenset(("row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"))
"""Functions over windows that tell rows of equal rank apart."""
_JOIN = "2"  # its rows are those of its tables
_BY_ROWS = 0x04  # a frame that counts rows
_TIMES = frozenset((1082, 1083, 1114, 1184, 1266, 1182, 1183, 1115, 1185, 1270, 3908, 3910, 3912, 4533, 4534, 4535))
_OBJECTS = frozenset((24, 26, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191))
_PLAIN_COLLATIONS = frozenset((0, 100, 950, 951))  # none, the database's, C, POSIX
_FLOATS = frozenset(("700", "701"))

_DDL = frozenset(
    {
        *(
            (verb, kind)
            for verb in ("create", "alter", "drop")
            for kind in ("table", "index", "view", "type", "domain")
        ),
        *((verb, kind) for verb in ("create", "alter", "drop") for kind in ("schema", "function", "trigger")),
        *(("create", "unique"), ("create", "or"), ("comment", "on")),
    }
)
_TAGS = frozenset(
    {
        *(f"{verb} {kind}" for verb in ("CREATE", "ALTER", "DROP") for kind in ("TABLE", "INDEX", "VIEW", "TYPE")),
        *(f"{verb} {kind}" for verb in ("CREATE", "ALTER", "DROP") for kind in ("DOMAIN", "SCHEMA", "FUNCTION")),
        *("CREATE TRIGGER", "ALTER TRIGGER", "DROP TRIGGER", "COMMENT", "TRUNCATE TABLE"),
    }
)
_DML = frozenset(("select", "insert", "update", "delete", "merge", "values", "with", "("))

_USERS = f"n.nspname NOT IN ('{SCHEMA}', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%'"
_SEQUENCES = f"""SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'S' AND {_USERS} ORDER BY 1"""
_LIGHT_TABLES = f"""SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 'p' AND {_USERS} ORDER BY 1"""
_DEFERRED = f"""SELECT k.conname FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace
    WHERE k.condeferred AND {_USERS} ORDER BY 1"""
_COLLATED = f"""
    SELECT c.relname || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE a.attcollation NOT IN (0, 100, 950, 951) AND {_USERS}
    UNION ALL SELECT t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    LEFT JOIN pg_range r ON r.rngtypid = t.oid
    WHERE (t.typcollation NOT IN (0, 100, 950, 951) OR r.rngcollation NOT IN (0, 100, 950, 951)) AND {_USERS}
    ORDER BY 1"""
_TREES = f"""
    SELECT 'the default of ' || c.relname || '.' || a.attname, d.adbin::text
    FROM pg_attrdef d JOIN pg_class c ON c.oid = d.adrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum WHERE {_USERS}
    UNION ALL SELECT 'the constraint ' || k.conname, k.conbin::text
    FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace WHERE k.conbin IS NOT NULL AND {_USERS}
    UNION ALL SELECT 'the view ' || c.relname, r.ev_action::text
    FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_USERS}
    UNION ALL SELECT 'the condition of trigger ' || t.tgname, t.tgqual::text
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE t.tgqual IS NOT NULL AND {_USERS}
    UNION ALL SELECT 'the default of type ' || t.typname, t.typdefaultbin::text
    FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.typdefaultbin IS NOT NULL AND {_USERS}
    UNION ALL SELECT 'the function ' || p.proname, p.prosqlbody::text
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.prosqlbody IS NOT NULL AND {_USERS}
    ORDER BY 1"""
_BODIES = f"""SELECT p.proname, l.lanname, coalesce(p.prosrc, '') FROM pg_proc p
    JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
    WHERE p.prosqlbody IS NULL AND {_USERS} ORDER BY 1, 2, 3"""

_KEYS = """SELECT i.indkey::text, i.indpred IS NULL AND i.indexprs IS NULL AND i.indisunique FROM pg_index i
    WHERE i.indrelid = $1::int8::oid AND i.indimmediate AND (i.indisunique OR i.indisexclusion) ORDER BY 1"""


_WHOLE_KEYS = """SELECT i.indkey::text FROM pg_index i WHERE i.indrelid = $1::int8::oid AND i.indisunique
    AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AND NOT EXISTS (
        SELECT FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) AND NOT a.attnotnull)
    ORDER BY 1"""


@lru_cache(maxsize=256)
def is_ddl(sql: str) -> bool:
    """It changes the schema, or empties a table as if it did."""
    words = first_words(sql)
    return words in _DDL or words[:1] == ("truncate",)


class CheckedStatement(Struct, frozen=True):
    """What is known of a statement that may run."""

    is_ddl: bool
    is_sorted: bool
    """Its rows come in the order that it asks for."""
    parameters: int
    times: tuple[int, ...] = ()
    """Which of its parameters are dates or times."""


class DeterminismCheck:
    """What the server understands, asked once per text and schema."""

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection
        self._known: dict[str, CheckedStatement] = {}
        self._functions: dict[int, tuple[str, str]] = {}  # of the server: name and volatility
        self._never_fail: set[int] = set()
        self._plans = WhatMayFail(lambda oid: self._functions.get(oid, ("", ""))[0], self._never_fail.__contains__)
        self._kinds: dict[int, str] = {}  # of types that users have made

    def forget(self) -> None:
        """The schema is another one."""
        self._known.clear()
        self._kinds.clear()

    def check(self, sql: str, params: tuple[PostgresValue, ...]) -> CheckedStatement:
        """Raises MisuseError, or StatementError for what the server does not understand."""
        known = self._known.get(sql)
        if known is None:
            known = self._look_at(sql)
            if len(self._known) >= 1000:
                self._known.clear()
            self._known[sql] = known
        if len(params) != known.parameters:
            raise MisuseError(
                f"the statement has {known.parameters} parameters ($1, $2, …), and {len(params)} are bound"
            )
        for index in known.times:
            value = params[index]
            if isinstance(value, str) and MOMENTS.search(value):
                raise MisuseError(f"{value!r} differs between replicas: bind the time itself")
        return known

    def check_tag(self, tag: str) -> None:
        """After a change of the schema: it was one of those that may be, and has made nothing that differs."""
        words = " ".join(word for word in tag.split() if not word.isdigit())
        if words not in _TAGS:
            raise MisuseError(f"{words or 'this statement'} is none of the statements that replicas carry out")
        self.forget()
        self._check_schema()

    def _look_at(self, sql: str) -> CheckedStatement:
        check_words(words_of(sql))
        check_names(sql)
        low = sql.lower()
        if SCHEMA in low:
            raise MisuseError(f"{SCHEMA} is the replica's own")
        if "pg_temp" in low:
            raise MisuseError("temporary tables are not replicated")
        if is_ddl(sql):
            check_ddl(sql)
            return CheckedStatement(is_ddl=True, is_sorted=True, parameters=0)
        words = first_words(sql)
        if not words or words[0] not in _DML:
            raise MisuseError(
                f"{' '.join(words).upper() or 'nothing'} is none of the statements that replicas carry out"
            )
        return self._understood(sql)

    def _understood(self, sql: str) -> CheckedStatement:
        run = self._connection.run
        self._connection.later("SAVEPOINT looking")
        run(f"PREPARE {SCHEMA}_look AS {sql}")  # one statement that reads or changes rows, or an error
        types = self._connection.texts(
            "SELECT unnest(parameter_types)::oid::text, unnest(parameter_types)::text FROM pg_prepared_statements "
            "WHERE name = $1",
            (f"{SCHEMA}_look",),
        )
        run(f"DEALLOCATE {SCHEMA}_look")
        arguments = ", ".join(name for _, name in types)
        run(f"CREATE FUNCTION {SCHEMA}.look({arguments}) RETURNS void BEGIN ATOMIC {sql}\n; END")
        tree = self._connection.texts(
            "SELECT p.prosqlbody::text FROM pg_proc p WHERE p.pronamespace = $1::regnamespace AND p.proname = 'look'",
            (SCHEMA,),
        )[0][0]
        self._connection.later("ROLLBACK TO looking")
        self._connection.later("RELEASE looking")
        nodes = nodes_of(tree)
        self._check_nodes(nodes, f"'{sql}'" if names_a_moment(sql) else "")
        changed = [relation for node in nodes if (relation := _changed_by(node))]
        if len(changed) > len(set(changed)):
            raise MisuseError("one table is changed twice in a statement: which change a row gets may differ")
        times = tuple(index for index, (oid, _) in enumerate(types) if self._holds_times(int(oid)))
        queries = [node for node in nodes if node.name == "QUERY"]
        is_sorted = bool(queries) and queries[0].first("sortClause") != "<>"
        return CheckedStatement(False, is_sorted, len(types), times)

    def _check_schema(self) -> None:
        for text, why in (
            (_SEQUENCES, "a sequence (serial, identity): what it gave is not taken back; bind the id instead"),
            (_LIGHT_TABLES, "an unlogged table: it is empty after a crash"),
            (_COLLATED, "a collation of this machine: that of the database, C and POSIX may be"),
            (_DEFERRED, "a deferred constraint: it would fail after the operation has ended; IMMEDIATE it may be"),
        ):
            for (name,) in self._connection.texts(text):
                raise MisuseError(f"{name} is {why}")
        for what, tree in self._connection.texts(_TREES):
            try:
                self._check_nodes(nodes_of(tree), "")
            except MisuseError as error:
                raise MisuseError(f"{what} is not the same everywhere: {error}") from None
        for name, language, body in self._connection.texts(_BODIES):
            if language not in ("sql", "plpgsql"):
                raise MisuseError(f"the function {name} is written in {language}: in sql and plpgsql they may be")
            check_words(words_of(body))
            before = ";"
            for word in [*words_of(body), *(quoted.lower() for quoted in re.findall(r'"(\w+)"', body))]:
                if (
                    word in _FORBIDDEN_WORDS
                    or word.startswith("pg_")
                    or (word == "set" and before in _BEGINS_STATEMENT)
                ):
                    raise MisuseError(f"the function {name} says {word}, which differs between replicas")
                before = word

    def _check_nodes(self, nodes: list[TreeNode], moment: str) -> None:
        """`moment`: a text that names a moment, if there is any."""
        self._learn(nodes)
        for node in nodes:
            reason = self._why_not(node, moment)
            if reason is not None:
                raise MisuseError(reason)

    def _why_not(self, node: TreeNode, moment: str) -> str | None:
        match node.name:
            case "SQLVALUEFUNCTION":
                return "the current time, date or user differs between replicas: bind the value instead"
            case "NEXTVALUEEXPR":
                return "a sequence gives other numbers after a rollback: bind the id instead"
            case "TABLESAMPLECLAUSE":
                return "TABLESAMPLE differs between replicas"
            case "VAR" if node.number("varattno") < 0:
                return "system columns (ctid, xmin, …) differ between replicas"
            case "RANGETBLENTRY" if 0 < node.number("relid") < USERS_FIRST_OID:
                return "the catalogs of the server differ between replicas"
            case "CONST" if node.number("consttype") in _OBJECTS:
                return "numbers of tables, types and functions differ between replicas"
            case "CONST" if moment and self._holds_times(node.number("consttype")):
                return f"a time in {moment} differs between replicas: bind the time itself"
            case "COLLATEEXPR" if node.number("collOid") not in _PLAIN_COLLATIONS:
                return "collations differ between machines: that of the database, C and POSIX may be"
            case "COERCEVIAIO" if node.number("resulttype") in _OBJECTS or self._holds_times(node.number("resulttype")):
                return "a text that is read as a time may say 'now': bind the time itself, or use to_timestamp, to_date"
            case "SUBLINK" if node.first("subLinkType") == _ARRAY_OF_ROWS and any(
                map(_is_unordered, node.nodes("subselect"))
            ):
                return "ARRAY(SELECT …) without ORDER BY: its elements come as the rows stand; add ORDER BY"
            case "ROWMARKCLAUSE" if node.first("waitPolicy") != "0":
                return "SKIP LOCKED and NOWAIT depend on who else works in the database"
            case "QUERY":
                return _order_of(node) or self._ties(node) or self._key_change(node) or self._plans.why_not(node)
            case "AGGREF":
                return self._aggregate(node)
            case _:
                return self._function(node)

    def _aggregate(self, node: TreeNode) -> str | None:
        name = self._functions.get(node.number("aggfnoid"), ("", ""))[0]
        depends = name in _IN_ORDER_OF_ROWS or not _FLOATS.isdisjoint(node.fields.get("aggargtypes", ()))
        if depends and node.first("aggorder") == "<>" and name != "count":
            what = name if name in _IN_ORDER_OF_ROWS else f"{name}, of floats,"
            return f"{what} may give something else in another order of the rows: say {name}(… ORDER BY …)"
        return self._function(node)

    def _ties(self, query: TreeNode) -> str | None:
        """What picks some of the rows that its order leaves equal: which ones differs between replicas."""
        picks = query.first("hasDistinctOn") == "true" or (
            query.first("limitOption") != "1"  # WITH TIES
            and any(query.first(field) != "<>" for field in ("limitCount", "limitOffset"))
        )
        if picks and not self._tells_apart(query, query.nodes("sortClause"), query.nodes("targetList")):
            return (
                "LIMIT, or DISTINCT ON, with an ORDER BY that leaves rows equal: which of them it means may differ; "
                "order by a key, or by every column of the result"
            )
        windows = {window.first("winref"): window for window in query.nodes("windowClause")}
        for call in _of_this_query(query):
            if call.name == "AGGREF" and call.nodes("aggorder") and not self._sorts_all(query, call):
                return "an aggregate whose ORDER BY leaves different rows equal: order by a key, or by what it gathers"
            window = windows.get(call.first("winref"))
            if call.name != "WINDOWFUNC" or window is None:
                continue
            name = self._functions.get(call.number("winfnoid"), ("", ""))[0]
            by_rows = window.number("frameOptions") & _BY_ROWS and call.first("winagg") == "true"
            if by_rows or name in _TIED | _IN_ORDER_OF_ROWS or call.first("wintype") in _FLOATS:
                order = [*window.nodes("orderClause"), *window.nodes("partitionClause")]
                if not self._tells_apart(query, order, []):
                    return f"{name}() over a window that leaves rows equal: order it by a key"
        return None

    def _sorts_all(self, query: TreeNode, call: TreeNode) -> bool:
        """What an aggregate gathers in an order, if it does, is in one order only."""
        name = self._functions.get(call.number("aggfnoid"), ("", ""))[0]
        if name not in _IN_ORDER_OF_ROWS and _FLOATS.isdisjoint(call.fields.get("aggargtypes", ())):
            return True
        gathered = [arg for arg in call.nodes("args") if any(map(_depends_on_rows, arg.nodes("expr")))]
        sorted_by = {clause.first("tleSortGroupRef") for clause in call.nodes("aggorder")}
        results = [arg for arg in gathered if arg.first("resjunk") != "true"]
        if all(arg.first("ressortgroupref") in sorted_by for arg in results):
            return True
        return self._are_keys(query, [arg for arg in gathered if arg.first("ressortgroupref") in sorted_by])

    def _tells_apart(self, query: TreeNode, order: list[TreeNode], results: list[TreeNode]) -> bool:
        """No two rows are equal in this order, or those that are give the same results."""
        sorted_by = {clause.first("tleSortGroupRef") for clause in order}
        seen = [target for target in results if target.first("resjunk") != "true"]
        if seen and all(target.first("ressortgroupref") in sorted_by for target in seen):
            return True
        if any(query.first(field) != "<>" for field in ("groupClause", "distinctClause", "setOperations")):
            return False
        return self._are_keys(
            query, [target for target in query.nodes("targetList") if target.first("ressortgroupref") in sorted_by]
        )

    def _are_keys(self, query: TreeNode, targets: list[TreeNode]) -> bool:
        """These say of every table of the query which row it is."""
        columns: dict[int, set[int]] = {}
        for value in [_plain(value) for target in targets for value in target.nodes("expr")]:
            if value.name == "VAR" and value.first("varlevelsup") == "0":
                columns.setdefault(value.number("varno"), set()).add(value.number("varattno"))
        return all(
            source.first("rtekind") == _JOIN or self._has_key(source, columns.get(at, set()))
            for at, source in enumerate(query.nodes("rtable"), 1)
        )

    def _has_key(self, source: TreeNode, columns: set[int]) -> bool:
        """These columns say which row it is. (A function's or a query's rows have no key.)"""
        if source.first("rtekind") != "0":
            return False
        keys = self._connection.texts(_WHOLE_KEYS, (source.number("relid"),))
        return any({int(column) for column in key.split()} <= columns for (key,) in keys)

    def _function(self, node: TreeNode) -> str | None:
        for oid in _called(node):
            name, volatility = self._functions.get(oid, ("", "i"))
            kind = next((node.first(field) for field in ("funcresulttype", "opresulttype") if field in node.fields), "")
            if name in _OF_THE_LIBRARY and kind in _FLOATS:
                return f"{name}() may differ in its last digit between machines: compute the value first and bind it"
            if volatility == "i" or name in _OF_SETTINGS or _COMPARES_TIMES.fullmatch(name):
                continue
            return f"{name}() differs between replicas: compute the value first and bind it"
        return None

    def _key_change(self, query: TreeNode) -> str | None:
        """Rows get other keys one after the other: whether two are equal in between depends on which comes first."""
        target = query.number("resultRelation")
        if query.first("commandType") != "2" or not 0 < target <= len(query.nodes("rtable")):
            return None
        relation = query.nodes("rtable")[target - 1].number("relid")
        changed, pinned = _columns_of(query), _pinned(query, self._is_equality)
        is_one_row, in_danger = False, False
        for columns, is_plain in self._connection.texts(_KEYS, (relation,)):
            key = {int(column) for column in columns.split()}
            is_one_row |= is_plain == "True" and key <= pinned
            in_danger |= 0 in key or not key.isdisjoint(changed)
        if in_danger and not is_one_row:
            return (
                "an UPDATE of several rows that changes a unique column: whether keys meet in between depends on which "
                "row comes first; name one row by its key, or make the constraint DEFERRABLE INITIALLY IMMEDIATE"
            )
        return None

    def _is_equality(self, node: TreeNode) -> bool:
        return self._functions.get(node.number("opfuncid"), ("", ""))[0].endswith("eq")

    def _learn(self, nodes: list[TreeNode]) -> None:
        """Functions of the server; those of users have been looked at where they were made."""
        called = {oid for node in nodes for oid in _called(node) if 0 < oid < USERS_FIRST_OID}
        unknown = sorted(called - self._functions.keys())
        if unknown:
            asked = "{" + ",".join(map(str, unknown)) + "}"
            found = self._connection.texts(
                "SELECT oid::int8, proname::text, provolatile::text, proleakproof::text FROM pg_proc "
                "WHERE oid = ANY ($1::oid[])",
                (asked,),
            )
            self._functions.update((int(oid), (name, kind)) for oid, name, kind, _ in found)
            self._never_fail.update(int(oid) for oid, _, _, is_leakproof in found if is_leakproof == "true")

    def _holds_times(self, kind: int) -> bool:
        """A text that is read as this type may say 'now'. Of the types of users only enumerations may not."""
        if kind < USERS_FIRST_OID:
            return kind in _TIMES
        if kind not in self._kinds:
            found = self._connection.texts("SELECT typtype::text FROM pg_type WHERE oid = $1::int8::oid", (kind,))
            self._kinds[kind] = found[0][0] if found else ""
        return self._kinds[kind] != "e"


def _changed_by(query: TreeNode) -> int:
    """The table that a query changes; 0: it reads."""
    target, tables = query.number("resultRelation"), query.nodes("rtable")
    is_change = query.name == "QUERY" and query.first("commandType") in ("2", "3", "4", "5")
    return tables[target - 1].number("relid") if is_change and 0 < target <= len(tables) else 0


def _of_this_query(query: TreeNode) -> Iterator[TreeNode]:
    """The nodes of its results, but those of queries within it."""
    left = [node for target in query.nodes("targetList") for node in target.nodes("expr")]
    while left:
        node = left.pop()
        yield node
        if node.name != "QUERY":
            left += [inner for field in node.fields for inner in node.nodes(field) if inner.name != "QUERY"]


def _is_unordered(query: TreeNode) -> bool:
    return query.first("sortClause") == "<>" and bool(query.nodes("rtable"))


def _called(node: TreeNode) -> list[int]:
    return [node.number(field) for field in ("funcid", "opfuncid", "aggfnoid", "winfnoid") if field in node.fields]


def _order_of(query: TreeNode) -> str | None:
    """Why the effect of a query depends on the order in which its rows come."""
    is_sorted = query.first("sortClause") != "<>"
    if not is_sorted and (query.first("limitCount") != "<>" or query.first("limitOffset") != "<>"):
        return "LIMIT without ORDER BY: which rows it means differs between replicas; add ORDER BY"
    if not is_sorted and query.first("hasDistinctOn") == "true":
        return "DISTINCT ON without ORDER BY: which rows it means differs between replicas; add ORDER BY"
    unsorted = {each.first("winref") for each in query.nodes("windowClause") if each.first("orderClause") == "<>"}
    if any(each.first("winagg") == "false" and each.first("winref") in unsorted for each in query.walk()):
        return "a window without ORDER BY numbers rows as they come: add ORDER BY"
    sources = query.nodes("rtable")
    match query.first("commandType"):
        case "2" if len(sources) > 1:
            return "UPDATE … FROM: which of several rows it takes may differ; take the value from a subquery"
        case "3" if query.first("onConflict") != "<>" and any(_is_unsorted(source) for source in sources):
            return "INSERT … SELECT … ON CONFLICT: which row comes first differs between replicas; add ORDER BY"
        case "5":
            return "MERGE does what its rows say in the order in which they come: use INSERT … ON CONFLICT, or UPDATE"
        case _:
            return None


def _is_unsorted(source: TreeNode) -> bool:
    """The rows of a query, in no order that it says."""
    return any(query.first("sortClause") == "<>" for query in source.nodes("subquery"))


def _columns_of(update: TreeNode) -> set[int]:
    """Which columns it gives other values."""
    return {target.number("resno") for target in update.nodes("targetList") if target.first("resjunk") != "true"}


def _pinned(update: TreeNode, is_equality: Callable[[TreeNode], bool]) -> set[int]:
    """Columns of the table that its condition says are equal to something that is the same for all rows."""
    found: set[int] = set()
    left = [node for tree in update.nodes("jointree") for node in tree.nodes("quals")]
    while left:
        node = left.pop()
        if node.name == "BOOLEXPR" and node.first("boolop") == "and":
            left += node.nodes("args")
        elif node.name == "OPEXPR" and is_equality(node):
            sides = [_plain(side) for side in node.nodes("args")]
            for side, other in zip(sides, reversed(sides)):
                if side.name == "VAR" and side.first("varlevelsup") == "0" and not _depends_on_rows(other):
                    found.add(side.number("varattno"))
    return found


def _plain(node: TreeNode) -> TreeNode:
    """A value in another type of the same bytes is that value."""
    while node.name == "RELABELTYPE" and node.nodes("arg"):
        node = node.nodes("arg")[0]
    return node


def _depends_on_rows(node: TreeNode) -> bool:
    return any(each.name in ("VAR", "SUBLINK") for each in node.walk())
