"""What a logical replication slot says with the plugin `pgoutput`, version 1: commits, and the rows they inserted.

The format is PostgreSQL's own (its manual, "Logical Replication Message Formats"). A publication says which
table is told of, so nothing else of the database is seen here.
"""

import struct
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from unisono.errors import PeerError

_BOOL, _JSON, _BYTES = 16, frozenset((114, 3802)), 17
_NUMBERS = frozenset((20, 21, 23, 26, 700, 701))


class TableColumn(Struct, frozen=True):
    """A column as the slot tells of it; `kind` is the number of its type."""

    name: str
    kind: int


class InsertedRow(Struct, frozen=True):
    """The texts of a row, as the server writes them."""

    columns: tuple[TableColumn, ...]
    values: tuple[str | None, ...]

    def value(self, name: str) -> str | None:
        for column, value in zip(self.columns, self.values):
            if column.name == name:
                return value
        return None

    def kind(self, name: str) -> int | None:
        """The type of a column; None: there is none of this name."""
        return next((column.kind for column in self.columns if column.name == name), None)


class CommittedRows(Struct, frozen=True):
    """A transaction, at the place in the log where it ends."""

    end: int
    rows: tuple[InsertedRow, ...]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def letter(self) -> str:
        return chr(self.number("B"))

    def name(self) -> str:
        end = self._data.index(b"\0", self._at)
        text, self._at = self._data[self._at : end].decode(), end + 1
        return text

    def bytes(self, length: int) -> bytes:
        piece = self._data[self._at : self._at + length]
        self._at += length
        return piece


def commits_of(messages: Iterable[bytes]) -> list[CommittedRows]:
    """The transactions of a peek, each whole; raises PeerError for what is not understood."""
    tables: dict[int, tuple[TableColumn, ...]] = {}
    commits: list[CommittedRows] = []
    rows: list[InsertedRow] = []
    for message in messages:
        reader = _Reader(message)
        try:
            match reader.letter():
                case "B":
                    rows = []
                case "C":
                    reader.number("B")
                    reader.number("Q")
                    commits.append(CommittedRows(reader.number("Q"), tuple(rows)))
                case "R":
                    table = reader.number("I")
                    tables[table] = _columns(reader)
                case "I":
                    rows.append(_row(tables[reader.number("I")], reader))
                case _:
                    continue  # types, origins, truncation: no rows
        except (struct.error, ValueError, KeyError) as error:
            raise PeerError(f"the slot says what nobody understands: {error!r} in {message[:40]!r}") from None
    return commits


def _columns(reader: _Reader) -> tuple[TableColumn, ...]:
    reader.name()
    reader.name()
    reader.number("B")
    columns: list[TableColumn] = []
    for _ in range(reader.number("H")):
        reader.number("B")
        name = reader.name()
        columns.append(TableColumn(name, reader.number("I")))
        reader.number("i")
    return tuple(columns)


def _row(columns: tuple[TableColumn, ...], reader: _Reader) -> InsertedRow:
    if reader.letter() != "N":
        raise ValueError("an inserted row begins with N")
    values: list[str | None] = []
    for _ in range(reader.number("H")):
        match reader.letter():
            case "n":
                values.append(None)
            case "t":
                values.append(reader.bytes(reader.number("I")).decode())
            case other:
                raise ValueError(f"a value of kind {other}")
    return InsertedRow(columns, tuple(values))


def payload_of(row: InsertedRow) -> bytes:
    """The column `payload`, if there is one: bytes as they are, JSON and texts as theirs; else the row as JSON."""
    kind = row.kind("payload")
    if kind is not None:
        return _raw(kind, row.value("payload"))
    return msgspec.json.encode({column.name: _plain(column, value) for column, value in zip(row.columns, row.values)})


def _raw(kind: int, value: str | None) -> bytes:
    if value is None:
        return b"null"
    return bytes.fromhex(value[2:]) if kind == _BYTES else value.encode()


def _plain(column: TableColumn, value: str | None) -> Any:
    if value is None:
        return None
    if column.kind == _BOOL:
        return value == "t"
    if column.kind in _JSON:
        return msgspec.Raw(value.encode())
    if column.kind in _NUMBERS and value not in ("NaN", "Infinity", "-Infinity"):
        return msgspec.Raw(value.encode())
    return value
