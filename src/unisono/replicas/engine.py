"""Connections to SQLite that mean the same by a statement, whoever has built the library.

What a build may bound is bound here, and what a build may choose is chosen. What is left (functions that it has or has
not, how it reads and writes numbers) is in the name of the engine, which is the same at all replicas of a set.
"""

import hashlib
import sqlite3
from pathlib import Path

import msgspec

from unisono.errors import FormatError, MisuseError
from unisono.replicas.determinism import FORBIDDEN_FUNCTIONS, LIBRARY_FUNCTIONS

LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000_000,  # of a text, a blob or a row: beyond it machines run out of memory
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 2000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 1000,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 500,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 250_000_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 100,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50_000,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 32_766,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1000,
}
"""What most builds allow at the most, or less."""
SETTINGS = {
    "foreign_keys": "ON",
    "recursive_triggers": "OFF",
    "legacy_alter_table": "OFF",
    "automatic_index": "ON",
    "trusted_schema": "ON",
    "reverse_unordered_selects": "OFF",
    "ignore_check_constraints": "OFF",
}
"""What an operation may depend on, the same at every replica."""
SQLITE_BEGINS = b"SQLite format 3\0"
MAY_WRITE = "a replica has to read and write it, and the files beside it"
_MEANING = (
    *("CASE_SENSITIVE_LIKE", "LIKE_DOESNT_MATCH_BLOBS", "ENABLE_ICU", "DQS=", "ENABLE_STAT", "SUBSTR_COMPATIBILITY"),
    *("ENABLE_UPDATE_DELETE_LIMIT", "ENABLE_UNKNOWN_SQL_FUNCTION", "ENABLE_HIDDEN_COLUMNS", "ALLOW_ROWID_IN_VIEW"),
)
"""Options of a build that change what a statement means."""
_DECIMALS = tuple(f"{first}.{first * 7919 % 100_003}{first}e{first * 37 % 600 - 300}" for first in range(1, 200))


def check_place(path: Path) -> None:
    """Before anything is made beside it."""
    if path.is_dir() or not path.parent.is_dir():
        raise MisuseError(
            f"{path} is {'a directory' if path.is_dir() else 'in no directory that is there'}: name a file"
        )
    try:
        with path.open("rb") as file:
            begin = file.read(len(SQLITE_BEGINS))
    except FileNotFoundError:
        return
    except OSError as error:
        raise MisuseError(f"{path}: {error.strerror}: {MAY_WRITE}") from None
    if begin and begin != SQLITE_BEGINS:
        raise FormatError(str(path), "file is not a database: is it an SQLite file?")


def check_storage(path: Path, connection: sqlite3.Connection) -> None:
    """How texts stand in the file, and whether readers can see what is committed while operations are tentative."""
    (encoding,) = connection.execute("PRAGMA encoding").fetchone()
    if encoding != "UTF-8":
        raise MisuseError(f"{path} keeps texts in {encoding}, and other replicas in UTF-8: begin with a new file")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise MisuseError(f"{path} has the journal {mode!r} and needs 'wal': is it on a disk of this machine?")


def connect(path: Path, compiled_max: int = 0) -> sqlite3.Connection:
    """Outside of transactions until somebody begins one. What it keeps compiled no authorizer is asked about again."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=1.0, cached_statements=compiled_max
    )
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise FormatError(str(path), f"{error}: is it an SQLite file?") from None
    return connection


def settle(connection: sqlite3.Connection) -> str:
    """Bounds and settings are those of all replicas from here on. The name of the engine."""
    limits: list[int] = []
    for kind, most in LIMITS.items():
        connection.setlimit(kind, most)
        limits.append(connection.getlimit(kind))
    for name, value in SETTINGS.items():
        connection.execute(f"PRAGMA {name} = {value}")
    apart = FORBIDDEN_FUNCTIONS | LIBRARY_FUNCTIONS
    asked = "SELECT DISTINCT name, narg FROM pragma_function_list WHERE builtin ORDER BY 1, 2"
    functions = [row for row in connection.execute(asked) if row[0] not in apart]
    options = [name for (name,) in connection.execute("PRAGMA compile_options") if name.startswith(_MEANING)]
    asked = "SELECT CAST(?1 AS REAL), CAST(CAST(?1 AS REAL) AS TEXT), printf('%.17g', CAST(?1 AS REAL))"
    numbers = [connection.execute(asked, (text,)).fetchone() for text in _DECIMALS]
    build = hashlib.sha256(msgspec.msgpack.encode((limits, functions, sorted(options), numbers))).hexdigest()[:8]
    return f"SQLite {sqlite3.sqlite_version} (build {build})"
