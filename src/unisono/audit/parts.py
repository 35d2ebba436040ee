"""Which files a journal lies in, in which order, and what their folders' names tell of every row.

A folder is one journal in parts, in the order of their paths; names that begin with `_` or `.` are none. A folder named
`column=value` tells that column of all rows below it that do not tell it themselves, as Hive and Spark write it.
"""

import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import unquote

from unisono.errors import FormatError

UNREADABLE = (OSError, EOFError, zlib.error)
"""What a file raises that cannot be read to its end, packed or not."""
MANIFEST = "manifest.json"
"""A folder that has it is an archive."""
ONCE = "no file: what comes through a pipe can be read once only, so write it into a file first"
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
_URL = re.compile(r"[a-z][a-z0-9+]*:/")
"""As a path has it: of two slashes one is left."""
_GZIP = b"\x1f\x8b"
_SAMPLE_BYTES = 1 << 16
COLUMNAR = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")
"""How Parquet, Arrow files and Arrow streams begin."""


class JournalPart(NamedTuple):
    """One file; `given` are the columns that its folders' names tell, as text."""

    path: Path
    given: Mapping[str, str]


def parts_of(path: Path) -> list[JournalPart]:
    """The file itself, or all files below the folder; raises FormatError if there is none."""
    if not path.is_dir():
        if _URL.match(str(path)) and not path.exists():
            raise FormatError(str(path), "no path: give a file or folder that this machine has, or has mounted")
        if str(path) == "-" or (path.exists() and not path.is_file()):
            raise FormatError(str(path), ONCE)
        return [JournalPart(path, {})]
    found = files_below(path)
    for link in walk(path):
        if link.is_symlink() and not link.exists():
            raise FormatError(str(link), "a link to nothing: what should be there would not be judged")
    if not found:
        raise FormatError(str(path), "the folder holds no journal")
    for part in found:
        if part.path.name == MANIFEST:
            where, advice = part.path.parent, "unisono audit … --follow --until-idle 1s"
            raise FormatError(str(where), f"an archive, which {advice} judges, and Spark (docs/reference/spark.md)")
    return found


def files_below(path: Path) -> list[JournalPart]:
    """All files below a folder that may be journals, in the order of their paths."""
    found = [(file.relative_to(path).parts, file) for file in walk(path) if _has_bytes(file)]
    return [JournalPart(file, given_by(steps[:-1])) for steps, file in sorted(found)]


def _has_bytes(path: Path) -> bool:
    """Of a file that is there; it may have gone since it was listed."""
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def walk(top: Path) -> Iterator[Path]:
    """Folders and files below a folder. Links lead on where they lead out of it, and nothing is met twice."""
    here = os.path.realpath(top)
    met = {here}
    for at, folders, files in os.walk(top, onerror=_unreadable, followlinks=True):
        real = os.path.realpath(at)
        for names in (folders, files):
            names[:] = [name for name in sorted(names) if not _is_left_out(name, at, real, Path(here), met)]
            yield from (Path(at, name) for name in names)


def _is_left_out(name: str, at: str, real_at: str, top: Path, met: set[str]) -> bool:
    """Hidden; or met under another name, as a link does that leads to what is there anyway, or above it."""
    if name[0] in "._":
        return True
    path = os.path.join(at, name)
    is_link = os.path.islink(path)
    real = os.path.realpath(path) if is_link else os.path.join(real_at, name)
    if real in met:
        return True
    if is_link and os.path.exists(path):
        target = Path(real)
        within = target.relative_to(top).parts if target.is_relative_to(top) else None
        if top.is_relative_to(target) or (within is not None and not any(step[0] in "._" for step in within)):
            return True
    met.add(real)
    return False


def _unreadable(problem: OSError) -> None:
    raise FormatError(str(problem.filename), problem.strerror or str(problem))


def given_by(folders: tuple[str, ...]) -> dict[str, str]:
    """The columns that names of folders tell."""
    told = {}
    for folder in folders:
        column, equals, value = folder.partition("=")
        if equals and value != _NOTHING:
            told[column] = unquote(value)
    return told


def is_packed(path: Path) -> bool:
    """With gzip, by its first bytes."""
    with path.open("rb") as raw:
        return raw.read(2) == _GZIP


def unpacked_bytes(path: Path) -> int:
    """About how large the content is; of a packed file as the first of it is packed."""
    size = path.stat().st_size
    if not is_packed(path):
        return size
    with path.open("rb") as raw:
        packed = raw.read(_SAMPLE_BYTES)
    try:
        content = zlib.decompressobj(wbits=31).decompress(packed)
    except zlib.error:
        return size  # its reader will say so
    return size * len(content) // len(packed)


def open_part(path: Path, to_read: bool = True) -> tuple[IO[bytes], bool]:
    """The content, unpacked if it is packed with gzip, and whether it is columnar; told by the first bytes. If it is
    not `to_read`, only its beginning is needed.
    """
    try:
        packed = is_packed(path)
        file: IO[bytes] = gzip.GzipFile(path) if packed else path.open("rb")  # type: ignore[assignment]
        magic = file.read(6)
        file.seek(0)
        if magic.startswith(COLUMNAR):
            # Columnar files are read from their end, which a packed one cannot be.
            return (io.BytesIO(file.read()) if packed and to_read else file), True
        return file, False
    except UNREADABLE as problem:
        raise FormatError(str(path), getattr(problem, "strerror", None) or str(problem) or "cannot be read") from None
