"""What an operation may do, so that it does the same on every replica of the same state.

SQLite is asked while it compiles (its authorizer), so triggers and views are seen through. Its date functions are
replaced by ones that refuse the current time and the local time zone. Defaults of columns are not compiled when a row
is inserted: they are evaluated once, when the table is made. What no compiler tells is read from the text: a LIMIT
without ORDER BY, and the words that would end the transaction around the operation.

Compiling is most of the work of a small statement, so what was compiled is kept; and nobody is asked again. So the text
of an operation's statement begins with the number of the schema that it was looked at under, and that of a query with a
mark: neither is ever taken for the other, for what the replica says itself, or for what it meant in another schema.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal

from unisono.errors import MisuseError

FORBIDDEN_FUNCTIONS = frozenset(
    (
        *("random", "randomblob", "last_insert_rowid", "changes", "total_changes", "load_extension"),
        *("current_timestamp", "current_date", "current_time"),
        *("sqlite_version", "sqlite_source_id", "sqlite_compileoption_get", "sqlite_compileoption_used"),
        *("sqlite_log", "sqlite_offset", "fts3_tokenizer"),  # side effects, places in the file and in memory
        *("bm25", "fts5", "fts5_source_id", "highlight", "match", "matchinfo", "offsets", "optimize", "snippet"),
        *("rtreecheck", "rtreedepth", "rtreenode"),  # of virtual tables
    )
)
LIBRARY_FUNCTIONS = frozenset(
    (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "exp", "ln", "log", "log10"),
        *("log2", "pow", "power", "sin", "sinh", "tan", "tanh"),
    )
)
"""Of the machine's library of mathematics: versions of it differ in the last digit."""
DATE_FUNCTIONS = ("date", "time", "datetime", "julianday", "strftime", "unixepoch", "timediff")
FORBIDDEN_MOMENTS = frozenset(("now", "localtime", "utc"))
MOMENTS_ALONE = frozenset(("subsec", "subsecond"))
"""In place of a time these mean now; after one they are about digits."""
SHARED_MODULES = frozenset(("json_each", "json_tree", "generate_series"))
"""Virtual tables that are functions of their arguments. Others tell of this file, this connection or this build."""
READABLE_PRAGMAS = frozenset(
    ("table_info", "table_xinfo", "index_info", "index_xinfo", "index_list", "foreign_key_list")
)
SEEN_MAX = 1000
"""Statements of which is remembered what the compiler told; then all are looked at anew."""
OWN_TABLES = "_unisono_"
_OF_ALTER = ("sqlite_rename_", "sqlite_drop_", "sqlite_add_")
"""What ALTER TABLE calls; nobody else can."""

_FORBIDDEN_ACTIONS = {
    sqlite3.SQLITE_TRANSACTION: "BEGIN, COMMIT and ROLLBACK: an operation is one transaction as it is",
    sqlite3.SQLITE_SAVEPOINT: "SAVEPOINT: an operation is one transaction as it is",
    sqlite3.SQLITE_ATTACH: "ATTACH and VACUUM: only the replica's own file is replicated",
    sqlite3.SQLITE_DETACH: "DETACH: only the replica's own file is replicated",
    sqlite3.SQLITE_ANALYZE: "ANALYZE: statistics choose plans, and are not replicated",
    sqlite3.SQLITE_CREATE_VTABLE: "virtual tables: nobody knows what their modules do",
    sqlite3.SQLITE_DROP_VTABLE: "virtual tables: nobody knows what their modules do",
    sqlite3.SQLITE_CREATE_TEMP_TABLE: "temporary tables: they are not replicated",
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER: "temporary triggers: they are not replicated",
    sqlite3.SQLITE_CREATE_TEMP_VIEW: "temporary views: they are not replicated",
    sqlite3.SQLITE_CREATE_TEMP_INDEX: "temporary indexes: they are not replicated",
}
_WRITES = frozenset((sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE))
_PUTS = frozenset((sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE))
_READS = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE))

_TOKENS = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
      | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
      | (?P<variable>[$@:#](?:[\w$]|::)+(?:\([^\s)]*\))?)
      | (?P<word>[A-Za-z_\x80-\U0010ffff][\w$]*)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def words_of(sql: str) -> Iterator[str]:
    """Words in lower case, and brackets and commas; neither comments nor anything quoted."""
    for token in _TOKENS.finditer(sql):
        if token.lastgroup == "word":
            yield token.group().lower()
        elif token.lastgroup == "other" and token.group() in "(),;":
            yield token.group()


@lru_cache(maxsize=256)
def check_text(sql: str) -> None:
    """Raises MisuseError for what depends on a plan, or would end the transaction of the operations around it."""
    check_words(words_of(sql))


def check_words(words: Iterable[str]) -> None:
    """The same of a text in whatever dialect, as its words."""
    sorted_at = [False]
    for word in words:
        match word:
            case "explain":
                raise MisuseError("EXPLAIN tells how this replica would do it: ask in a query")
            case "(":
                sorted_at.append(False)
            case ")" if len(sorted_at) > 1:
                sorted_at.pop()
            case "select" | "update" | "delete" | "values":
                sorted_at[-1] = False
            case "order":
                sorted_at[-1] = True
            case "limit" if not sorted_at[-1]:
                raise MisuseError(
                    "LIMIT without ORDER BY: which rows it means may differ between replicas; add ORDER BY"
                )
            case "rollback":
                raise MisuseError("ROLLBACK would take back what others have done: use ABORT or FAIL instead")
            case "deferred":
                raise MisuseError("DEFERRED constraints would fail after the operation has ended: use IMMEDIATE")
            case _:
                pass


@lru_cache(maxsize=256)
def names_parameters(sql: str) -> bool:
    """It has parameters with names."""
    return any(token.lastgroup == "variable" for token in _TOKENS.finditer(sql))


@lru_cache(maxsize=256)
def _first_word(sql: str) -> str:
    return next(words_of(sql), "")


class Authorizer:
    """What SQLite asks while it compiles. `reason` says why it last refused."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.reason: str | None = None
        self.changes_schema = False
        self.written: set[str] = set()
        """The tables that rows are put into, by triggers and cascades too."""
        self._seen: dict[str, tuple[frozenset[str], bool]] = {}  # what the compiler told of statements in this schema
        self._schema = 0
        self._asks: Literal["replica", "operation", "query"] = "replica"
        self._drops = False  # dropping a table is reading where it stands
        modules = {str(name).lower() for (name,) in connection.execute("SELECT name FROM pragma_module_list")}
        self._modules = modules - SHARED_MODULES
        self._functions = {name for (name,) in connection.execute("SELECT name FROM pragma_function_list")}
        connection.set_authorizer(self._allows)
        for name in self._functions.intersection(DATE_FUNCTIONS):
            connection.create_function(name, -1, self._date_function(name), deterministic=True)

    def forget(self) -> None:
        """The schema is another one: every statement is looked at anew."""
        self._schema += 1
        self._seen.clear()

    @contextmanager
    def operation(self, sql: str) -> Iterator[str]:
        """A statement in it is an operation's, in these words."""
        if len(self._seen) >= SEEN_MAX:
            self.forget()
        written, self.changes_schema = self._seen.get(sql, (frozenset(), False))
        self.reason, self.written, self._asks = None, set(written), "operation"
        self._drops = _first_word(sql) == "drop"
        try:
            yield f"--{self._schema:012d}\n{sql}"
        finally:
            self._asks = "replica"
            self._seen[sql] = frozenset(self.written), self.changes_schema

    @contextmanager
    def query(self, sql: str) -> Iterator[str]:
        """A statement in it is a query's, of whoever uses the replica, in these words."""
        self._asks = "query"
        try:
            yield f"--query\n{sql}"
        finally:
            self._asks = "replica"

    def _allows(self, action: int, first: str | None, second: str | None, base: str | None, source: str | None) -> int:
        match self._asks:
            case "replica":
                return sqlite3.SQLITE_OK
            case "query":
                return only_reads(action, first, second, base, source)
            case "operation":
                reason = self._why_not(action, (first or "").lower(), (second or "").lower(), base)
        if reason is None:
            if first and action in _PUTS:
                self.written.add(first)
            self.changes_schema |= action not in _READS and action not in _WRITES
            return sqlite3.SQLITE_OK
        self.reason = reason
        return sqlite3.SQLITE_DENY

    def _why_not(self, action: int, first: str, second: str, base: str | None) -> str | None:
        if action in _FORBIDDEN_ACTIONS:
            return _FORBIDDEN_ACTIONS[action]
        if action == sqlite3.SQLITE_PRAGMA:
            return f"PRAGMA {first} is about the replica, not about its data"
        if base == "temp" and action not in _READS and first != "sqlite_temp_master":
            return "temporary tables: they are not replicated"
        if action == sqlite3.SQLITE_FUNCTION:
            return self._why_not_call(second)
        if action == sqlite3.SQLITE_READ:
            return self._why_not_read(first, second)
        if action in _WRITES and first.startswith(OWN_TABLES):
            return f"tables that begin with {OWN_TABLES} are the replica's own"
        return None

    def _why_not_call(self, function: str) -> str | None:
        if function in FORBIDDEN_FUNCTIONS:
            return f"{function}() differs between replicas: compute the value first and bind it"
        if function in LIBRARY_FUNCTIONS:
            return f"{function}() may differ in its last digit between machines: compute the value first and bind it"
        if function not in self._functions and not function.startswith(_OF_ALTER):
            return f"{function}() is none of SQLite's own functions"
        return None

    def _why_not_read(self, table: str, column: str) -> str | None:
        if table.startswith(OWN_TABLES):
            return f"tables that begin with {OWN_TABLES} are the replica's own"
        if table in self._modules or table.startswith("pragma_"):
            return f"{table} tells of this file, or of this build of SQLite: ask in a query"
        if column == "rootpage" and not self._drops:
            return "where a table stands in the file differs between replicas"
        return None

    def _date_function(self, name: str) -> Callable[..., str | float | None]:
        calculator = sqlite3.connect(":memory:", check_same_thread=False)

        def function(*arguments: str | bytes | float | None) -> str | float | None:
            texts = [_as_sqlite_reads(argument) for argument in arguments]
            times = texts[name == "strftime" :][: 1 + (name == "timediff")]
            is_of_now = not times or not FORBIDDEN_MOMENTS.isdisjoint(texts) or not MOMENTS_ALONE.isdisjoint(times)
            if is_of_now and self._asks != "query":
                self.reason = (
                    f"{name}() of now, or of a local time zone, differs between replicas: bind the time instead"
                )
                raise ValueError(self.reason)
            marks = ", ".join("?" * len(arguments))
            value: str | float | None = calculator.execute(f"SELECT {name}({marks})", arguments).fetchone()[0]
            return value

        return function


def _as_sqlite_reads(argument: str | bytes | float | None) -> str | None:
    """A blob is a text, and a text ends at its first zero byte."""
    if isinstance(argument, bytes):
        argument = argument.decode("utf-8", "replace")
    return argument.partition("\0")[0].strip().lower() if isinstance(argument, str) else None


def only_reads(action: int, first: str | None, second: str | None, base: str | None, source: str | None) -> int:
    """An authorizer for queries: they change neither data nor what the connection is like."""
    if action == sqlite3.SQLITE_FUNCTION:
        fits = (second or "").lower() != "load_extension"
    elif action == sqlite3.SQLITE_PRAGMA:
        fits = (first or "").lower() in READABLE_PRAGMAS
    elif action == sqlite3.SQLITE_UPDATE:  # so it asks when json_each or its like are first used; nobody else may
        fits = first == "sqlite_master"
    else:
        fits = action in _READS
    return sqlite3.SQLITE_OK if fits else sqlite3.SQLITE_DENY
