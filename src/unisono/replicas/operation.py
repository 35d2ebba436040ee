"""What replicas say to each other, and what they answer. Payloads of events begin with `MAGIC` and a version.

An operation is one transaction of several statements, named for ever by the client that made it and a number. Whatever
is published again has the same name, and is applied once.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from unisono.errors import FormatError, MisuseError

MAGIC = b"unisono-replica\x00"
VERSION = 1

SqlValue = None | int | float | str | bytes
SqlParams = tuple[Any, ...] | dict[str, Any]
"""Of `SqlValue`s; whatever else a wire brings is refused by SQLite, at every replica alike."""


class SqlStatement(Struct, frozen=True, array_like=True):
    """One statement and what is bound to it."""

    sql: str
    params: SqlParams = ()


OperationName = tuple[str, int]
"""The client that made an operation, and its number there."""


class SqlOperation(Struct, frozen=True, tag="sql"):
    """One transaction: all of its statements have an effect, or none has."""

    client: str
    number: Annotated[int, Meta(ge=1, lt=2**53)]
    statements: tuple[SqlStatement, ...]
    engine: str = ""
    """What the replica runs that made it: that of the first operation is that of the set."""

    @property
    def name(self) -> OperationName:
        return self.client, self.number


class StateCheck(Struct, frozen=True, tag="check"):
    """Every replica says the hash of its state as it is at this place of the order."""

    client: str
    number: int

    @property
    def place(self) -> str:
        return f"{self.client} {self.number}"


class StateHash(Struct, frozen=True, tag="hash"):
    """The hash of a replica's state at a place of the order. It has no effect on the state."""

    client: str
    replica: str
    count: int
    hash: str
    asked: str = ""
    """Whose question it answers, and which of theirs: the place is where that was asked; else it is after `count`."""

    @property
    def place(self) -> str:
        return self.asked or f"after {self.count}"


ReplicaMessage = SqlOperation | StateCheck | StateHash

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ReplicaMessage)


class SqlResult(Struct, frozen=True):
    """What one statement gave: its rows, and how many it changed. For generated ids say RETURNING."""

    rows: tuple[tuple[SqlValue, ...], ...] = ()
    changed: int = 0


class SqlAnswer(Struct, frozen=True):
    """What an operation gave, statement by statement; with an `error` it had no effect."""

    results: tuple[SqlResult, ...] = ()
    error: str | None = None

    @property
    def rows(self) -> tuple[tuple[SqlValue, ...], ...]:
        """The rows of the last statement."""
        return self.results[-1].rows if self.results else ()


def encode_replica_message(message: ReplicaMessage) -> bytes:
    return MAGIC + bytes([VERSION]) + _encoder.encode(message)


def decode_replica_message(payload: bytes) -> ReplicaMessage | None:
    """None for what no replica has published; raises FormatError for what this version cannot read."""
    if not payload.startswith(MAGIC):
        return None
    at = len(MAGIC)
    version = payload[at] if len(payload) > at else 0
    if version != VERSION:
        raise FormatError(
            "an operation",
            f"version {version} is unknown, this is version {VERSION}: all replicas run the same unisono",
        )
    try:
        message: ReplicaMessage = _decoder.decode(payload[at + 1 :])
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError("an operation", str(error)) from None
    return message


def statements(given: Any) -> tuple[SqlStatement, ...]:
    """Checks what a caller wants to be one operation; raises MisuseError."""
    like = (
        'statements: a list of (sql, params), like [("UPDATE t SET n = ? WHERE id = ?", (5, 1)), ("DELETE FROM u", ())]'
    )
    if not isinstance(given, (list, tuple)):
        raise MisuseError(like)
    for one in given:
        if not isinstance(one, (list, tuple)) or len(one) != 2:
            raise MisuseError(f"{like}; not {one!r:.60}")
    return tuple(statement(sql, params) for sql, params in given)


def statement(sql: str, params: Any = ()) -> SqlStatement:
    """Checks what a caller binds; raises MisuseError."""
    if not isinstance(sql, str):
        raise MisuseError(f"a statement is text, not {type(sql).__name__}")
    if not sql.strip():
        raise MisuseError("a statement without a word")
    _value(sql)
    if isinstance(params, dict):
        return SqlStatement(sql, {str(_value(str(name))): _value(value) for name, value in params.items()})
    if not isinstance(params, (tuple, list)):
        raise MisuseError(
            'params: a tuple, or a dict of names, like execute("UPDATE t SET n = ? WHERE id = ?", (5, 1))'
        )
    return SqlStatement(sql, tuple(_value(value) for value in params))


def _plain(value: SqlValue) -> SqlValue:
    """The value without what a subclass makes of it (an enum, a number of numpy): others get it from the wire."""
    match value:
        case None:
            return None
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case str():
            return str.__str__(value)
        case _:
            return b"".join((value,))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _value(value: Any) -> SqlValue:
    if value is None or isinstance(value, (int, float, str, bytes)):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise MisuseError(f"{value} is no integer of 64 bits")
        if isinstance(value, str) and not _is_unicode(value):
            raise MisuseError(f"{value!r} has half a character, and no encoding: bind bytes")
        return _plain(value)
    raise MisuseError(f"a {type(value).__name__} cannot be bound: text, bytes, numbers, booleans and None can")
