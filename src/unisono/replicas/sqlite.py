"""A replica's file: SQLite, where whatever is on disk is a prefix of the agreed order.

One connection writes. It holds the write lock as long as the replica is open, so nobody else writes beside it.
Operations whose order is not known yet stand in its open transaction, each after a savepoint of its own; other
connections, the reader here among them, see the state of the last commit. How far the order was followed is in the same
file, in the same transaction as the data.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from unisono.errors import InvariantError, MisuseError, TransportError
from unisono.replicas.determinism import OWN_TABLES, Authorizer, check_text, names_parameters, only_reads
from unisono.replicas.engine import MAY_WRITE, check_place, check_storage, connect, settle
from unisono.replicas.operation import OperationName, SqlAnswer, SqlOperation, SqlParams, SqlResult, SqlStatement
from unisono.replicas.rowids import HighestRowids
from unisono.replicas.state import hash_of
from unisono.replicas.store import DoneNumbers
from unisono.runtime.driver.data_directory import take_lock

FORMAT = 3
COMPILED_MAX = 2048
"""Statements that the writing connection keeps compiled: those of operations, and the marks of what is tentative."""
OPERATION = "operation"
"""The mark of an operation that nobody undoes when it is done."""
_OF_THE_STATEMENT = frozenset(
    (
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_RANGE,
    )
)
"""Errors that every replica has alike; others are those of this machine, and stop the replica."""

_TABLES = f"""
CREATE TABLE {OWN_TABLES}identity(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE {OWN_TABLES}progress(one INTEGER PRIMARY KEY CHECK (one = 1), position TEXT, count INTEGER NOT NULL);
CREATE TABLE {OWN_TABLES}client(client TEXT PRIMARY KEY, floor INTEGER NOT NULL, beyond TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO {OWN_TABLES}progress VALUES (1, NULL, 0);
"""


class SqliteDatabase:
    """The file of one replica, opened by one process."""

    def __init__(self, path: Path, identity: dict[str, str]) -> None:
        """A new file gets the identity; one with another raises MisuseError and is not touched."""
        self.path, self.place = path, str(path)
        check_place(path)
        self._done = DoneNumbers(self._load, self._save)
        try:
            self._lock = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise MisuseError(f"{path}-lock: {error.strerror}: {MAY_WRITE}") from None
        try:
            take_lock(self._lock, self.place)
            self._writer = connect(path, COMPILED_MAX)
        except BaseException:
            os.close(self._lock)
            raise
        try:
            self.engine = settle(self._writer)
            self._authorizer = Authorizer(self._writer)
            self._rowids = HighestRowids(self._writer)
            self._schema_changed = False
            check_storage(path, self._writer)
            self._writer.execute("PRAGMA synchronous = FULL")
            self.begin()
            self._identify({**identity, "format": str(FORMAT), "engine": self.engine})
            self._writer.execute(f"UPDATE {OWN_TABLES}progress SET count = count")  # it can be written
            self._commit()
            self._own = self._own_schema()
            self.position, self.count = self._writer.execute(
                f"SELECT position, count FROM {OWN_TABLES}progress"
            ).fetchone()
            self._reader = connect(path)
            self._reader.execute("PRAGMA query_only = ON")
        except sqlite3.Error as error:
            self._writer.close()
            os.close(self._lock)
            raise _stops(path, error) from None
        except BaseException:
            self._writer.close()
            os.close(self._lock)
            raise

    def _identify(self, mine: dict[str, str]) -> None:
        if not self._has_own_tables():
            tables = self._writer.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if tables:
                raise MisuseError(
                    f"{self.path} holds tables that no replica has made: all replicas begin empty, or with a copy of "
                    "another replica's file; load the data by operations"
                )
            for text in _TABLES.strip().split(";\n"):
                self._writer.execute(text)
            rows = sorted(mine.items())
            self._writer.executemany(f"INSERT INTO {OWN_TABLES}identity VALUES (?, ?)", rows)
            return
        found: dict[str, str] = dict(self._writer.execute(f"SELECT name, value FROM {OWN_TABLES}identity"))
        for name, value in mine.items():
            if found.get(name) != value:
                raise MisuseError(
                    f"{self.path} belongs to a replica with {name} {found.get(name)!r}, and this one has {value!r}: "
                    "open it as what it is, or begin with a new file"
                )

    def _has_own_tables(self) -> bool:
        wanted = "SELECT count(*) FROM sqlite_master WHERE name = ?"
        return bool(self._writer.execute(wanted, (f"{OWN_TABLES}identity",)).fetchone()[0])

    # transactions

    @property
    def in_transaction(self) -> bool:
        return self._writer.in_transaction

    def begin(self) -> None:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise _stops(self.path, error) from None
        self._forget()

    def rest(self) -> None:
        """The write lock stays ours."""

    def _commit(self) -> None:
        """What was written is durable, and the write lock is ours again."""
        try:
            self._writer.execute("COMMIT")
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise _stops(self.path, error) from None

    def mark(self, name: str) -> None:
        self._writer.execute(f"SAVEPOINT {name}")

    def undo(self, mark: str) -> None:
        """Everything since the mark is taken back; the mark is gone as well."""
        self._writer.execute(f"ROLLBACK TO {mark}")
        self._writer.execute(f"RELEASE {mark}")
        if self._schema_changed:
            self._forget()

    def _forget(self) -> None:
        """The schema is another one."""
        self._rowids.forget()
        self._authorizer.forget()

    def commit(self, position: str, done: Iterable[OperationName], count: int) -> None:
        """All that was run is on disk together with the place in the order that it brings us to."""
        self._done.add(done)
        changed = f"UPDATE {OWN_TABLES}progress SET position = ?, count = ?"
        try:
            self._writer.execute(changed, (position, count))
        except sqlite3.Error as error:
            raise _stops(self.path, error) from None
        self._commit()
        self._schema_changed = False
        self.position, self.count = position, count

    # operations

    def has_done(self, operation: SqlOperation) -> bool:
        """An operation of this name has had its effect."""
        return self._done.has(operation.client, operation.number)

    def _load(self, client: str) -> tuple[int, str] | None:
        wanted = f"SELECT floor, beyond FROM {OWN_TABLES}client WHERE client = ?"
        row: tuple[int, str] | None = self._writer.execute(wanted, (client,)).fetchone()
        return row

    def _save(self, client: str, floor: int, beyond: str) -> None:
        self._writer.execute(f"INSERT OR REPLACE INTO {OWN_TABLES}client VALUES (?, ?, ?)", (client, floor, beyond))

    def run(self, operation: SqlOperation, steps_max: int = 0, mark: str | None = None) -> SqlAnswer:
        """Runs all statements, or has no effect. With `steps_max` it raises MisuseError for what no replica should be
        asked to do; without, the same is an answer with an error, as everywhere else. With `mark` it can be undone."""
        self.mark(mark or OPERATION)
        results: list[SqlResult] = []
        with self._bounded(steps_max) if steps_max else nullcontext():
            for one in operation.statements:
                try:
                    results.append(self._run(one))
                except (sqlite3.Error, sqlite3.Warning, MisuseError, ValueError, OverflowError) as error:
                    answer = self._failed(error, mark or OPERATION, is_first_try=steps_max > 0)
                    if mark is not None:
                        self.mark(mark)
                    return answer
        if mark is None:
            self._writer.execute(f"RELEASE {OPERATION}")
        return SqlAnswer(tuple(results))

    def keeps_readers_out(self, operation: SqlOperation) -> bool:
        """Readers see the state of the last commit, whatever is done after it."""
        return False

    def _failed(self, error: Exception, mark: str, is_first_try: bool) -> SqlAnswer:
        """The answer of an operation without effect; errors of this machine, and of a first try, are raised."""
        if (
            isinstance(error, sqlite3.Error)
            and _code(error) not in _OF_THE_STATEMENT
            and self._authorizer.reason is None  # what was refused while a schema is read again has other codes
        ):
            if is_first_try and _code(error) == sqlite3.SQLITE_INTERRUPT:
                raise MisuseError("the operation takes too many steps (steps_max): make it smaller") from None
            raise _stops(self.path, error) from None
        if not self._writer.in_transaction:
            raise InvariantError(f"an operation has ended the transaction of {self.path}")
        self.undo(mark)
        reason = str(error) if isinstance(error, MisuseError) else self._authorizer.reason or str(error)
        if is_first_try and not isinstance(error, sqlite3.IntegrityError):
            raise MisuseError(reason) from None
        return SqlAnswer(error=reason)

    @contextmanager
    def _bounded(self, steps_max: int) -> Iterator[None]:
        left = [steps_max // 1000]

        def spend() -> int:
            left[0] -= 1
            return left[0] < 0

        self._writer.set_progress_handler(spend, 1000)
        try:
            yield
        finally:
            self._writer.set_progress_handler(None, 0)

    def _run(self, one: SqlStatement) -> SqlResult:
        check_text(one.sql)
        if one.params and not isinstance(one.params, dict) and names_parameters(one.sql):
            raise MisuseError("parameters with names (:name) take a dict; a tuple is for those without (?)")
        with self._authorizer.operation(one.sql) as text:
            cursor = self._writer.execute(text, one.params)
            rows = tuple(cursor.fetchall())
            changes_schema, written = self._authorizer.changes_schema, self._authorizer.written
        self._rowids.check(written)
        if changes_schema:
            self._schema_changed = True
            self._forget()
            self._check_defaults()
            if self._own_schema() != self._own:
                raise MisuseError(f"tables that begin with {OWN_TABLES} are the replica's own")
        return SqlResult(rows, max(cursor.rowcount, 0))

    def _check_defaults(self) -> None:
        """A default that gives another value at another time, or on another replica, is refused with its table."""
        defaults = """SELECT t.name, c.name, c.dflt_value FROM sqlite_master t, pragma_table_info(t.name) c
                      WHERE t.type = 'table' AND c.dflt_value IS NOT NULL ORDER BY 1, 2"""
        for table, column, text in self._writer.execute(defaults).fetchall():
            try:
                with self._authorizer.operation(f"SELECT ({text})") as asked:
                    self._writer.execute(asked).fetchall()
            except sqlite3.Error as error:
                reason = self._authorizer.reason or str(error)
                raise MisuseError(f"the default of {table}.{column} is not the same everywhere: {reason}") from None

    def _own_schema(self) -> list[tuple[str, ...]]:
        """The replica's own tables, and all that is called like them or hangs on them."""
        wanted = """SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master
                    WHERE substr(lower(name), 1, ?1) = ?2 OR substr(lower(tbl_name), 1, ?1) = ?2 ORDER BY 1, 2, 3, 4"""
        return self._writer.execute(wanted, (len(OWN_TABLES), OWN_TABLES)).fetchall()

    # reading

    def read(self, sql: str, params: SqlParams, tentative: bool = False) -> SqlResult:
        """The stable state, in any one thread, or with `tentative` what our own operations make of it."""
        if not tentative:
            self._reader.set_authorizer(only_reads)
            try:
                return _read(self._reader, sql, params)
            finally:
                self._reader.set_authorizer(None)
        with self._authorizer.query(sql) as text:
            return _read(self._writer, text, params)

    def hash(self) -> str:
        """Of the stable state: every table, row by row in the order of its key."""
        with closing(connect(self.path)) as connection:
            return hash_of(connection)

    def copy_to(self, target: Path) -> None:
        """A copy of the stable state, with its place in the order: another replica may begin with it. It is one page
        by page: VACUUM would give other numbers to what stands in sqlite_master, which operations may read."""
        if target.exists():
            raise MisuseError(f"{target} is there already")
        try:
            with closing(connect(self.path)) as source, closing(sqlite3.connect(target)) as copy:
                source.backup(copy)
        except sqlite3.Error as error:
            target.unlink(missing_ok=True)
            raise MisuseError(f"{target}: {error}") from None

    def close(self) -> None:
        """What is not stable yet is not kept: its publication is, and brings it back."""
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")
        self._reader.close()
        self._writer.close()
        os.close(self._lock)


def _read(connection: sqlite3.Connection, sql: str, params: SqlParams) -> SqlResult:
    try:
        return SqlResult(tuple(connection.execute(sql, params).fetchall()))
    except sqlite3.Error as error:
        raise MisuseError(f"{error}: queries read; what changes data goes through execute") from None


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _stops(path: Path, error: sqlite3.Error) -> TransportError:
    if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return TransportError(f"{path}: somebody else is writing to it; a replica's file has one writer, the replica")
    if _code(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return TransportError(f"{path}: {error}: {MAY_WRITE}")
    return TransportError(f"{path}: {error}")
