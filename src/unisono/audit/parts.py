"""Which files a journal lies in, in which order, and what their folders' names tell of every row.

A folder is one journal in parts, in the order of their paths; names that begin with `_` or `.` are none. A folder named
`column=value` tells that column of all rows below it that do not tell it themselves, as Hive and Spark write it.
"""

import gzip
import io
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import unquote

from unisono.errors import FormatError

UNREADABLE = (OSError, EOFError, zlib.error)
"""What a file raises that cannot be read to its end, packed or not."""
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
_GZIP = b"\x1f\x8b"
COLUMNAR = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")
"""How Parquet, Arrow files and Arrow streams begin."""


class Part(NamedTuple):
    """One file; `given` are the columns that its folders' names tell, as text."""

    path: Path
    given: Mapping[str, str]


def parts_of(path: Path) -> list[Part]:
    """The file itself, or all files below the folder; raises FormatError if there is none."""
    if not path.is_dir():
        return [Part(path, {})]
    found = []
    for file in path.rglob("*"):
        steps = file.relative_to(path).parts
        if file.is_file() and not any(step[0] in "._" for step in steps) and file.stat().st_size:
            found.append((steps, file))
    if not found:
        raise FormatError(str(path), "the folder holds no journal")
    return [Part(file, _given(steps[:-1])) for steps, file in sorted(found)]


def _given(folders: tuple[str, ...]) -> dict[str, str]:
    told = {}
    for folder in folders:
        column, equals, value = folder.partition("=")
        if equals and value != _NOTHING:
            told[column] = unquote(value)
    return told


def open_part(path: Path) -> tuple[IO[bytes], bool]:
    """The content, unpacked if it is packed with gzip, and whether it is columnar; told by the first bytes."""
    try:
        with path.open("rb") as raw:
            is_packed = raw.read(2) == _GZIP
        file: IO[bytes] = gzip.GzipFile(path) if is_packed else path.open("rb")  # type: ignore[assignment]
        magic = file.read(6)
        file.seek(0)
        if magic.startswith(COLUMNAR):
            # Columnar files are read from their end, which a packed one cannot be.
            return (io.BytesIO(file.read()) if is_packed else file), True
        return file, False
    except UNREADABLE as problem:
        raise FormatError(str(path), getattr(problem, "strerror", None) or str(problem) or "cannot be read") from None
