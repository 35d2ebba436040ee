"""A replica's database in PostgreSQL, where whatever is committed is a prefix of the agreed order.

One connection writes. Operations whose order is not known yet stand in its open transaction, each after a savepoint;
other connections see the state of the last commit. How far the order was followed is in the schema `_unisono` of the
same database, in the same transaction as the data. While nothing is tentative no transaction is open. A lock of the
server says that the database has a replica already; it ends with the connection, however that ends.
"""

import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import psycopg

from unisono.errors import InvariantError, MisuseError, TransportError
from unisono.postgres.connection import PostgresConnection, PostgresResult, PostgresValue, StatementError
from unisono.replicas.operation import OperationName, SqlAnswer, SqlOperation, SqlParams, SqlResult, SqlStatement
from unisono.replicas.postgres.determinism import SCHEMA, USERS_FIRST_OID, DeterminismCheck, is_ddl
from unisono.replicas.postgres.settings import connect
from unisono.replicas.postgres.state import hash_of, identity_of
from unisono.replicas.postgres.texts import first_words, words_of
from unisono.replicas.store import DoneNumbers

FORMAT = "2"
OPERATION = "operation"
"""The mark of an operation that nobody undoes when it is done."""
LOCK = 0x756E69736F6E6F  # the letters of the name
LOCK_WAIT_S = 3.0
"""A server notices only after a while that the process which had the lock is dead."""
STEPS_PER_MS = 10_000
"""PostgreSQL counts time, not steps: so many are a millisecond."""
_TABLES = f"""
CREATE SCHEMA {SCHEMA};
CREATE TABLE {SCHEMA}.identity(name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE {SCHEMA}.progress(one int PRIMARY KEY CHECK (one = 1), position text, count bigint NOT NULL);
CREATE TABLE {SCHEMA}.client(client text PRIMARY KEY, floor bigint NOT NULL, beyond text NOT NULL);
INSERT INTO {SCHEMA}.progress VALUES (1, NULL, 0)
"""
_CATALOGS = ("class", "proc", "type", "operator", "cast", "collation", "conversion", "opclass", "ts_config", "language")
_OTHERS = " UNION ALL ".join(
    f"SELECT count(*) FROM pg_{each} WHERE oid >= {USERS_FIRST_OID}" for each in (*_CATALOGS, "event_trigger")
)
_OF_THE_STATEMENT = ("0A", "20", "21", "22", "23", "27", "2B", "2F", "38", "39", "3D", "3F", "42", "44", "54", "P0")
QUERIES = ("select", "values", "with", "table", "explain", "show", "(")
_OF_THE_MACHINE = frozenset(("42501", "54001"))  # what a role may do, and how deep a stack is, differs between servers
_OF_WHAT_IS_THERE = frozenset(("55000", "55006"))
"""A view that cannot be changed; a table that is altered while a function reads it."""
_STOPS_A_TRIAL = ("08", "40", "53", "55", "57", "58", "F0", "XX")
"""The server is in trouble. Whatever else it says when an operation is first tried, that operation is not published."""
_OWN_WORDS = frozenset(("P0001",))


class PostgresDatabase:
    """The database of one replica, opened by one process."""

    def __init__(self, url: str, identity: dict[str, str]) -> None:
        """An empty database gets the identity; one with another raises MisuseError and is not touched."""
        self._url = url
        self._writer = connect(url, "unisono replica")
        try:
            self.place = self._writer.place
            self._lock()
            self._done = DoneNumbers(self._load, self._save)
            self._checks = DeterminismCheck(self._writer)
            self._schema_changed = False
            kind = identity_of(self._writer)
            self.engine = f"PostgreSQL {kind['postgres']} with collation {kind['collation']}"
            self._identify({**identity, "format": FORMAT, **kind})
            position, count = self._writer.texts(f"SELECT position, count FROM {SCHEMA}.progress")[0]
            self.position: str | None = position or None
            self.count = int(count)
            self._reader = connect(url, "unisono replica reads", default_transaction_read_only="on")
        except StatementError as error:
            self._writer.close()
            if error.state == "42501":
                raise MisuseError(f"{self.place}: {error}: a replica's role has to own the database") from None
            raise self._stops(error) from None
        except BaseException:
            self._writer.close()
            raise

    def _lock(self) -> None:
        until = time.monotonic() + LOCK_WAIT_S
        while self._writer.run("SELECT pg_try_advisory_lock($1::bigint)", (LOCK,)).rows != [(True,)]:
            if time.monotonic() >= until:
                raise MisuseError(f"{self.place} has a replica already, in another process: one database, one replica")
            time.sleep(0.1)

    def _identify(self, mine: dict[str, str]) -> None:
        run = self._writer.run
        if run("SELECT to_regclass($1)::text", (f"{SCHEMA}.identity",)).rows == [(None,)]:
            if any(found for (found,) in run(_OTHERS).rows):
                raise MisuseError(
                    f"{self.place} holds tables, functions, types or extensions that no replica has made: all replicas "
                    "begin empty (TEMPLATE template0), or with a copy of another replica's database; load the data by "
                    "operations"
                )
            self._writer.later("BEGIN")
            for text in _TABLES.strip().split(";\n"):
                run(text)
            for name, value in sorted(mine.items()):
                run(f"INSERT INTO {SCHEMA}.identity VALUES ($1, $2)", (name, value))
            run("COMMIT")
            return
        found = {row[0]: row[1] for row in self._writer.texts(f"SELECT name, value FROM {SCHEMA}.identity")}
        for name, value in mine.items():
            if found.get(name) != value:
                raise MisuseError(
                    f"{self.place} belongs to a replica with {name} {found.get(name)!r}, and this one has {value!r}: "
                    "open it as what it is, or begin with a new database"
                )

    # transactions

    @property
    def in_transaction(self) -> bool:
        return self._writer.in_transaction

    def begin(self) -> None:
        if not self._writer.in_transaction:
            self._writer.later("BEGIN")

    def rest(self) -> None:
        """An open transaction would keep the server from cleaning up."""
        if self._writer.in_transaction:
            self._command("ROLLBACK")

    def mark(self, name: str) -> None:
        self.begin()
        self._writer.later(f"SAVEPOINT {name}")

    def undo(self, mark: str) -> None:
        """Everything since the mark is taken back, its locks too; the mark is gone as well."""
        self._writer.later(f"ROLLBACK TO {mark}")
        self._writer.later(f"RELEASE {mark}")
        self._writer.flush()
        if self._schema_changed:
            self._checks.forget()

    def commit(self, position: str, done: Iterable[OperationName], count: int) -> None:
        """All that was run is durable together with the place in the order that it brings us to."""
        self.begin()
        self._done.add(done)
        self._command(f"UPDATE {SCHEMA}.progress SET position = $1, count = $2", position, count)
        self._command("COMMIT")
        self._schema_changed = False
        self.position, self.count = position, count

    def _command(self, text: str, *params: PostgresValue) -> PostgresResult:
        """One of ours: what goes wrong with it is this machine's."""
        try:
            return self._writer.run(text, params)
        except StatementError as error:
            raise self._stops(error) from None

    # operations

    def has_done(self, operation: SqlOperation) -> bool:
        """An operation of this name has had its effect."""
        return self._done.has(operation.client, operation.number)

    def _load(self, client: str) -> tuple[int, str] | None:
        rows = self._command(f"SELECT floor::text, beyond FROM {SCHEMA}.client WHERE client = $1", client).rows
        return (int(str(rows[0][0])), str(rows[0][1])) if rows else None

    def _save(self, client: str, floor: int, beyond: str) -> None:
        self._command(
            f"INSERT INTO {SCHEMA}.client VALUES ($1, $2, $3) "
            "ON CONFLICT (client) DO UPDATE SET floor = excluded.floor, beyond = excluded.beyond",
            *(client, floor, beyond),
        )

    def run(self, operation: SqlOperation, steps_max: int = 0, mark: str | None = None) -> SqlAnswer:
        """Runs all statements, or has no effect. With `steps_max` it raises MisuseError for what no replica should be
        asked to do; without, the same is an answer with an error, as everywhere else. With `mark` it can be undone."""
        self.mark(mark or OPERATION)
        if steps_max:
            self._writer.later(f"SET LOCAL statement_timeout = {max(steps_max // STEPS_PER_MS, 1)}")
        results: list[SqlResult] = []
        for one in operation.statements:
            try:
                results.append(self._run(one))
            except (StatementError, MisuseError) as error:
                answer = self._failed(error, mark or OPERATION, is_first_try=steps_max > 0)
                if mark is not None:
                    self.mark(mark)
                return answer
        if steps_max:
            self._writer.later("SET LOCAL statement_timeout = 0")
        if mark is None:
            self._writer.later(f"RELEASE {OPERATION}")
        return SqlAnswer(tuple(results))

    def keeps_readers_out(self, operation: SqlOperation) -> bool:
        """A change of the schema locks its tables against everybody until it is committed or taken back."""
        return any(is_ddl(one.sql) for one in operation.statements)

    def _failed(self, error: StatementError | MisuseError, mark: str, is_first_try: bool) -> SqlAnswer:
        """The answer of an operation without effect; errors of this machine, and of a first try, are raised."""
        if isinstance(error, StatementError) and not _is_of_the_statement(error):
            if is_first_try and (error.state == "57014" or not error.state.startswith(_STOPS_A_TRIAL)):
                self.undo(mark)
                too_long = "the operation takes too long (steps_max): make it smaller"
                raise MisuseError(too_long if error.state == "57014" else str(error)) from None
            raise self._stops(error) from None
        if not self._writer.in_transaction:
            raise InvariantError(f"an operation has ended the transaction of {self.place}")
        self.undo(mark)
        if is_first_try and not (isinstance(error, StatementError) and error.state.startswith("23")):
            raise MisuseError(str(error)) from None
        return SqlAnswer(error=str(error) if isinstance(error, MisuseError) else _agreed(error))

    def _run(self, one: SqlStatement) -> SqlResult:
        if isinstance(one.params, dict):
            raise MisuseError("parameters of PostgreSQL have numbers: $1, $2, …, and a tuple of values")
        checked = self._checks.check(one.sql, one.params)
        result = self._writer.run(one.sql, one.params)
        if checked.is_ddl:
            self._schema_changed = True
            self._checks.check_tag(result.tag)
        rows = result.rows if checked.is_sorted else sorted(result.rows, key=msgspec.msgpack.encode)
        return SqlResult(tuple(rows), result.changed if result.tag.partition(" ")[0] not in ("SELECT", "CREATE") else 0)

    # reading

    def read(self, sql: str, params: SqlParams, tentative: bool = False) -> SqlResult:
        """The stable state, in any one thread, or with `tentative` what is tentative makes of it."""
        if isinstance(params, dict):
            raise MisuseError("parameters of PostgreSQL have numbers: $1, $2, …, and a tuple of values")
        if next(iter(first_words(sql)), "") not in QUERIES:
            raise MisuseError(f"a query begins with {', '.join(QUERIES)}: queries read; what changes data is executed")
        if any(word.startswith("pg_advisory_unlock") for word in words_of(sql)):
            raise MisuseError("the lock that says whose database this is stays where it is")
        if not tentative:
            self._reader.later("BEGIN READ ONLY")
            try:
                return _read(self._reader, sql, params)
            finally:
                self._reader.later("ROLLBACK")  # with whatever it has set
                self._reader.flush()
        is_idle = not self._writer.in_transaction
        self.mark("reading")
        self._writer.later("SET LOCAL transaction_read_only = on")
        try:
            return _read(self._writer, sql, params)
        finally:
            self.undo("reading")
            if is_idle:
                self.rest()

    def hash(self) -> str:
        """Of the stable state: the schema, and every table, row by row in the order of its key."""
        connection = connect(self._url, "unisono replica hash")
        try:
            return hash_of(connection)
        finally:
            connection.close()

    def copy_to(self, target: Path) -> None:
        """A dump of the stable state, with its place in the order: `pg_restore -d` makes another replica's database."""
        program = shutil.which("pg_dump")
        if program is None:
            raise MisuseError("a copy needs pg_dump on the path: install PostgreSQL's client programs")
        asked = [
            program,
            "--format=custom",
            "--no-owner",
            "--no-privileges",
            f"--file={target}",
            f"--dbname={self._url}",
        ]
        made = subprocess.run(asked, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise MisuseError(f"{target}: {' '.join(made.stderr.split())}")

    def close(self) -> None:
        """What is not stable yet is not kept: its publication is, and brings it back."""
        self._reader.close()
        self._writer.close()

    def _stops(self, error: StatementError) -> TransportError:
        if error.state in ("55P03", "40P01"):
            return TransportError(f"{self.place}: somebody else is writing to it ({error}); only the replica may")
        return TransportError(f"{self.place}: {error} ({error.state})")


def _read(connection: PostgresConnection, sql: str, params: tuple[PostgresValue, ...]) -> SqlResult:
    try:
        return SqlResult(tuple(connection.run(sql, params).rows))
    except StatementError as error:
        raise MisuseError(f"{error}: queries read; what changes data goes through execute") from None


def _is_of_the_statement(error: StatementError) -> bool:
    """Every replica has it alike; others are those of this machine, and stop the replica."""
    if error.is_raised or error.state in _OF_WHAT_IS_THERE:
        return True
    return error.state[:2] in _OF_THE_STATEMENT and error.state not in _OF_THE_MACHINE


def _agreed(error: StatementError) -> str:
    """The same text at every replica, whatever language its server speaks."""
    if error.state in _OWN_WORDS:
        return str(error)
    try:
        name = psycopg.errors.lookup(error.state).__name__
    except KeyError:
        name = "Error"
    return f"{name} ({error.state}){f': {error.constraint}' if error.constraint else ''}"
