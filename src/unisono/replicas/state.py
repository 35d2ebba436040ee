"""What a replica's file holds, for whoever may read it, while it is open or not; and the hash of it."""

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from unisono.errors import FormatError, MisuseError
from unisono.replicas.determinism import OWN_TABLES

HASHED_AT_ONCE = 1000


class SqliteState:
    """A file, opened to be read. Nothing is written."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise MisuseError(f"{path} is {'no file' if path.exists() else 'not there'}")
        self.place = str(path)
        self._connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)
        self._connection.text_factory = as_text
        try:
            self._connection.execute(f"SELECT count FROM {OWN_TABLES}progress")
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise FormatError(str(path), f"no replica's file: {error}") from None

    def identity(self) -> dict[str, str]:
        return dict(self._connection.execute(f"SELECT name, value FROM {OWN_TABLES}identity"))

    def count(self) -> int:
        (operations,) = self._connection.execute(f"SELECT count FROM {OWN_TABLES}progress").fetchone()
        return int(operations)

    def hash(self) -> str:
        return hash_of(self._connection)

    def problems(self) -> list[str]:
        return [text for (text,) in self._connection.execute("PRAGMA integrity_check") if text != "ok"]

    def tables(self) -> list[str]:
        return tables_of(self._connection)

    def rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        return rows_of(self._connection, table)

    def close(self) -> None:
        self._connection.close()


def hash_of(connection: sqlite3.Connection) -> str:
    """The hash of all that operations can have written, and nothing else."""
    digest, texts = hashlib.sha256(), connection.text_factory
    connection.text_factory = as_text
    connection.execute("BEGIN")
    try:
        for table, sql in connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE '\\_unisono\\_%' ESCAPE '\\' ORDER BY type, name"
        ).fetchall():
            digest.update(msgspec.msgpack.encode((table, sql)))
        for table in tables_of(connection):
            digest.update(msgspec.msgpack.encode(table))
            rows = rows_of(connection, table)
            while batch := rows.fetchmany(HASHED_AT_ONCE):
                for row in batch:
                    digest.update(msgspec.msgpack.encode(row))
    finally:
        connection.execute("COMMIT")
        connection.text_factory = texts
    return digest.hexdigest()


def tables_of(connection: sqlite3.Connection) -> list[str]:
    """The tables that operations can have written, and what AUTOINCREMENT remembers."""
    wanted = """SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_unisono\\_%' ESCAPE '\\'
                AND (name NOT LIKE 'sqlite\\_%' ESCAPE '\\' OR name = 'sqlite_sequence') ORDER BY name"""
    return [name for (name,) in connection.execute(wanted)]


def rows_of(connection: sqlite3.Connection, table: str) -> sqlite3.Cursor:
    """All rows of a table, key first, in the order of the key. Without what is computed when it is read: that is no
    state, and may fail for a row."""
    found = connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
    columns = [name for _, name, *_, hidden in found if hidden != VIRTUAL]
    number = next((name for name in ROWIDS if name not in {name.lower() for name in columns}), None)
    everything = ", ".join(map(quoted, columns))
    if number is not None:
        try:
            return connection.execute(f"SELECT {number}, {everything} FROM {quoted(table)} ORDER BY {number}")
        except sqlite3.OperationalError:
            pass  # WITHOUT ROWID: it has a primary key
    key = [name for _, name, _, _, _, part, _ in sorted(found, key=lambda column: int(column[5])) if part]
    order = ", ".join(map(quoted, key or columns))
    return connection.execute(f"SELECT {everything} FROM {quoted(table)} ORDER BY {order}")


ROWIDS = ("rowid", "_rowid_", "oid")
"""What a row's number may be called, where no column has the name."""
VIRTUAL = 2
"""What SQLite says of generated columns that are not stored."""


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def as_text(data: bytes) -> Any:
    """A text, or what an operation has cast to one although it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ["no text", data]
