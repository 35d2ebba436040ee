"""One connection to PostgreSQL, one statement at a time, everything as text.

Parameters have the types that the server finds for them in the statement ($1, $2, …), so a statement means the same
whatever Python value is bound. What the server says no to is a `StatementError` with its SQLSTATE; a connection that is
lost is a TransportError. Addresses in messages have no password.
"""

from collections.abc import Callable, Sequence

import psycopg
from psycopg import pq

from unisono.errors import MisuseError, TransportError
from unisono.postgres.address import place_of

PostgresValue = None | bool | int | float | str | bytes
OLDEST_VERSION = 140_000
"""From 14 on the server shows how it understands a statement (bodies of functions in SQL)."""

_BOOL, _BYTES, _INTEGERS, _FLOATS = 16, 17, frozenset((20, 21, 23)), frozenset((700, 701))
_FINE = frozenset((pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.EMPTY_QUERY))
_COPIES = frozenset((pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH))


class StatementError(Exception):
    """The server refused a statement; `state` is its SQLSTATE, `constraint` what was broken, if anything was.
    `is_raised`: a function said so itself, with RAISE, whatever state it has chosen."""

    def __init__(self, state: str, message: str, constraint: str = "", is_raised: bool = False) -> None:
        super().__init__(message)
        self.state = state
        self.constraint = constraint
        self.is_raised = is_raised


class PostgresResult:
    """What a statement gave."""

    def __init__(self, result: pq.abc.PGresult) -> None:
        self.tag = (result.command_status or b"").decode()
        self.changed = result.command_tuples or 0
        oids = [result.ftype(column) for column in range(result.nfields)]
        self.rows: list[tuple[PostgresValue, ...]] = [
            tuple(_value(oid, result.get_value(row, column)) for column, oid in enumerate(oids))
            for row in range(result.ntuples)
        ]


class PostgresConnection:
    """A session of the server, outside of transactions until somebody begins one."""

    def __init__(self, url: str, name: str, **settings: str) -> None:
        """`name` is shown in pg_stat_activity; raises TransportError when nobody answers."""
        self.place = place_of(url)
        try:
            self._connection = psycopg.connect(url, autocommit=True, application_name=name, connect_timeout=10)
        except psycopg.Error as error:
            raise TransportError(f"{self.place}: {_one_line(str(error))}") from None
        self._server = self._connection.pgconn
        self._queue: list[str] = []
        try:
            if self._server.server_version < OLDEST_VERSION:
                raise MisuseError(
                    f"{self.place} runs PostgreSQL {self._server.server_version // 10_000}: 14 or newer is needed"
                )
            for setting, value in settings.items():
                self.run("SELECT set_config($1, $2, false)", (setting, value))
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> int:
        """The major version of the server."""
        return self._server.server_version // 10_000

    @property
    def in_transaction(self) -> bool:
        return bool(self._queue) or self._server.transaction_status != pq.TransactionStatus.IDLE

    def later(self, command: str) -> None:
        """A command that cannot fail, sent with the next statement: it costs no way to the server of its own."""
        self._queue.append(command)

    def flush(self) -> None:
        """What was to be sent later is done when this returns."""
        if self._queue:
            commands, self._queue = "; ".join(self._queue), []
            self._send(lambda: self._server.exec_(commands.encode()))

    def run(self, sql: str, params: Sequence[PostgresValue] = ()) -> PostgresResult:
        """One statement. StatementError: the server says no."""
        self.flush()
        try:
            bound = [_bound(value) for value in params]
            text = sql.encode()
        except UnicodeEncodeError as error:
            raise StatementError("22021", f"a text that no database can hold: {error}") from None
        if b"\0" in text:
            raise StatementError("22021", "a statement with a zero byte")
        return PostgresResult(self._send(lambda: self._server.exec_params(text, bound)))

    def texts(self, sql: str, params: Sequence[PostgresValue] = ()) -> list[tuple[str, ...]]:
        """The rows of a statement as texts; nothing is an empty one."""
        return [tuple("" if value is None else _text(value) for value in row) for row in self.run(sql, params).rows]

    def _send(self, command: Callable[[], pq.abc.PGresult]) -> pq.abc.PGresult:
        try:
            result = command()
        except psycopg.Error as error:
            raise TransportError(f"{self.place}: {_one_line(str(error))}") from None
        if result.status in _FINE:
            return result
        if result.status in _COPIES:
            self.close()
            raise TransportError(f"{self.place}: COPY was begun on a connection that has no use for it")
        message = _one_line(result.get_error_message())
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        if self._server.status != pq.ConnStatus.OK or not state:
            raise TransportError(f"{self.place}: {message}")
        primary = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or message.encode()).decode(errors="replace")
        constraint = (result.error_field(pq.DiagnosticField.CONSTRAINT_NAME) or b"").decode(errors="replace")
        is_raised = result.error_field(pq.DiagnosticField.SOURCE_FUNCTION) == b"exec_stmt_raise"
        raise StatementError(state, primary, constraint, is_raised)

    def close(self) -> None:
        self._connection.close()


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def _bound(value: PostgresValue) -> bytes | None:
    match value:
        case None:
            return None
        case bool():
            return b"t" if value else b"f"
        case bytes():
            return b"\\x" + value.hex().encode()
        case int() | float():
            return repr(value).encode()
        case str():
            if "\0" in value:
                raise StatementError("22021", "a text with a zero byte")
            return value.encode()


def _value(oid: int, text: bytes | None) -> PostgresValue:
    if text is None:
        return None
    if oid == _BOOL:
        return text == b"t"
    if oid in _INTEGERS:
        return int(text)
    if oid in _FLOATS:
        return float(text)
    if oid == _BYTES:
        return bytes.fromhex(text[2:].decode())
    return text.decode()


def _text(value: PostgresValue) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())
