"""What a live audit reads of one file or archive, from a place on: lines that grow, closed files, archives.

What was read is known again by its first bytes: a file that was cut, or that was replaced before it was read to its
end, is a DataLossError, as is an archive that is no longer the one that was read. A closed file (packed, Parquet,
Arrow) is waited for while somebody writes it.
"""

import gzip
import os
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from unisono.audit.files import UNDECODABLE, check_header, decode_lines, no_journal, read_lines, scan_part, typed
from unisono.audit.live.state import moment_of
from unisono.audit.parts import UNREADABLE, JournalPart, is_packed, open_part
from unisono.errors import DataLossError, FormatError
from unisono.model.journal import Header, Record

HEAD_BYTES = 4096
"""Of a file, by which it is known again."""
ROWS = 5000
"""Rows of one look at one file."""
LINES_BYTES = 1 << 20
PATIENCE_S = 10.0
"""A file that cannot be read and has not changed for so long is broken."""
BEFORE_ALL = -(2**62)


class ReadUpTo(Struct, frozen=True):
    """How far one file or archive was read."""

    path: str
    read: int = 0
    """Bytes of a file that grows, rows of any other."""
    lines: int = 0
    head: int = 0
    """Bytes that `crc` is of."""
    crc: int = 0
    ended: bool = False
    """Whether all that was there had been read, when it was looked at last."""
    archive: str = ""
    term: str = ""


class Chunk(NamedTuple):
    """The next rows of a file or archive, and how far it was read with them."""

    records: list[Record]
    place: ReadUpTo
    header: Header | None = None


Fetch = Callable[[ReadUpTo], Chunk | None]
"""What comes after a place, None if that is nothing."""


class JournalFeed:
    """What is read of one file or archive. `known` says how far the rows of a file were read under another name."""

    def __init__(self, part: JournalPart, place: ReadUpTo, known: Callable[[JournalPart], ReadUpTo | None]) -> None:
        self.place, self.region = place, part.given.get("region", "")
        self.header: Header | None = None
        self.problem: FormatError | None = None
        """Why a file cannot be read yet, to whose end somebody may still be writing."""
        self._part, self._known = part, known
        self._fetch: Fetch | None = None
        self._next: Chunk | None = None
        self._size, self._since = -1, 0.0

    def has_more(self) -> bool:
        if self._next is not None:
            return True
        try:
            if self._fetch is None:
                if not self.place.read:
                    self.place = self._known(self._part) or self.place
                self._fetch = _fetching(self._part)
            self._next = self._fetch(self.place)
        except FormatError as problem:
            if not self._is_being_written():
                raise
            self._fetch, self.problem = None, problem
            return False
        except FileNotFoundError:  # renamed, or removed, since it was looked for: whoever looks again knows
            return False
        self.problem = None
        self.place = replace(self.place, ended=self._next is None)
        return self._next is not None

    def _is_being_written(self) -> bool:
        """A file that is read from its end cannot be read before it has one; lines can."""
        path = self._part.path
        if path.is_dir() or _is_growing(path):
            return False
        size, now = path.stat().st_size, time.monotonic()
        if size != self._size:
            self._size, self._since = size, now
        return now - self._since < PATIENCE_S

    def begins(self) -> int:
        """The first moment among the next rows; before all others if they tell none, or if there is no next row."""
        moments = (moment_of(record) for record in (self._next.records if self._next is not None else ()))
        return next((moment for moment in moments if moment), BEFORE_ALL)

    def read(self) -> list[Record]:
        """The next rows, if it has more."""
        assert self._next is not None
        chunk, self._next = self._next, None
        self.header, self.place = self.header or chunk.header, chunk.place
        return chunk.records


def _fetching(part: JournalPart) -> Fetch:
    if part.path.is_dir():
        region = part.given.get("region", "")
        return _rows_of_archive(f"archive {region}" if region else "archive")
    return _lines_of(part) if _is_growing(part.path) else _rows_of(part)


def _is_growing(path: Path) -> bool:
    """Whether these are lines, of which there may always be more."""
    if is_packed(path):
        return False
    file, is_columnar = open_part(path)
    file.close()
    return not is_columnar


def is_that(path: Path, place: ReadUpTo) -> bool:
    """Whether a file begins as the one that was read up to a place."""
    with path.open("rb") as file:
        head = file.read(place.head)
    return len(head) == place.head and zlib.crc32(head) == place.crc


def packs(path: Path, place: ReadUpTo) -> bool:
    """Whether this packed file holds the lines that were read up to a place, no more and no less."""
    if not place.lines or not place.ended:
        return False
    try:
        with gzip.open(path) as file:
            if zlib.crc32(file.read(place.head)) != place.crc:
                return False
            size = place.head
            while some := file.read(LINES_BYTES):
                size += len(some)
    except UNREADABLE:
        return False
    return size == place.read


def read_to_the_end(part: JournalPart) -> ReadUpTo:
    """The place after all rows of a packed file."""
    with part.path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    _, records = scan_part(part, alone=False)
    rows = sum(1 for _ in records)
    return ReadUpTo(str(part.path), read=rows, head=len(head), crc=zlib.crc32(head), ended=True)


def _lines_of(part: JournalPart) -> Fetch:
    """JSON lines that grow; the last one counts when it has ended."""
    given = typed(part)

    def fetch(place: ReadUpTo) -> Chunk | None:
        with part.path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            place = _recognised(place, head, os.fstat(file.fileno()).st_size)
            file.seek(place.read)
            lines = read_lines(file, place.path, place.lines, LINES_BYTES)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        if not lines:
            return None
        header = _header(lines[0], place.path) if place.lines == 0 else None
        skip = int(header is not None)
        records = list(decode_lines(lines[skip:], place.path, place.lines + skip, given))
        read, count = place.read + sum(map(len, lines)), place.lines + len(lines)
        known = {"head": len(head), "crc": zlib.crc32(head)}
        return Chunk(records, replace(place, ended=False, read=read, lines=count, **known), header)

    return fetch


def _recognised(place: ReadUpTo, head: bytes, size: int) -> ReadUpTo:
    """A file of another beginning is a new one under an old name, and no loss if the old one was read."""
    if 0 < size < place.read and (size < place.head or zlib.crc32(head[: place.head]) == place.crc):
        raise DataLossError(f"{place.path} was cut: {place.read} bytes of it were read, and it has {size}")
    if zlib.crc32(head[: place.head]) == place.crc:
        return place
    if not place.ended:
        raise DataLossError(f"{place.path} was replaced before it was read to its end")
    return ReadUpTo(place.path)


def _header(line: bytes, path: str) -> Header | None:
    try:
        fields = msgspec.json.decode(line)
    except UNDECODABLE as problem:
        raise FormatError(f"{path}, line 1", no_journal(line, problem)) from None
    return check_header(fields, f"{path}, line 1") if isinstance(fields, dict) and "journal" in fields else None


def _rows_of(part: JournalPart) -> Fetch:
    """Parquet, Arrow, or anything packed: it is read again from its beginning where it has grown, as by `gzip >>`."""
    rows: Iterator[Record] = iter(())
    size = -1

    def fetch(place: ReadUpTo) -> Chunk | None:
        nonlocal rows, size
        with part.path.open("rb") as file:
            head, size_now = file.read(HEAD_BYTES), os.fstat(file.fileno()).st_size
        if place.read and zlib.crc32(head[: place.head]) != place.crc:
            raise DataLossError(f"{place.path} was replaced: it does not begin as the file that was read before")
        header = None
        records = list(islice(rows, ROWS))
        if not records and size_now != size:
            header, found = scan_part(part, alone=False)
            rows, size = islice(found, place.read, None), size_now
            records = list(islice(rows, ROWS))
        if not records:
            return None
        read = place.read + len(records)
        return Chunk(records, replace(place, ended=False, read=read, head=len(head), crc=zlib.crc32(head)), header)

    return fetch


def _rows_of_archive(subscriber: str) -> Fetch:
    """An archive as one more subscriber; its notices of gaps are gap records."""
    from unisono.archive.manifest import ArchiveMark  # pyarrow is an extra
    from unisono.archive.reader import Archive
    from unisono.archive.schema import to_events

    def fetch(place: ReadUpTo) -> Chunk | None:
        archive = Archive(place.path)
        lost = archive.loss(ArchiveMark(place.read, place.archive, place.term)) if place.archive else None
        if lost is not None:
            raise DataLossError(f"{place.path}: {lost}")
        first, last = archive.bounds()
        after = place.read if place.archive else first - 1
        if after >= last:
            return None
        upto = min(last, after + ROWS)
        records = [record_of(event, subscriber) for batch in archive.read(after, upto) for event in to_events(batch)]
        mark = archive.mark(upto)
        return Chunk(records, replace(place, ended=False, read=mark.seq, archive=mark.archive, term=mark.term))

    return fetch


def record_of(event: Any, subscriber: str) -> Record:
    """An `ArchivedEvent` as the archive's notification of it."""
    from unisono.archive.headers import GAP

    if GAP in event.headers:
        return Record(
            "gap",
            event.delivered_us,
            subscriber=subscriber,
            topic=event.topic,
            number=int(event.headers[GAP]),
            last_number=event.number,
        )
    return Record(
        subscriber=subscriber,
        event=f"{event.publisher}:{event.publisher_seq}",
        position=event.seq,
        topic=event.topic,
        number=event.number,
        publisher=event.publisher,
        publisher_seq=event.publisher_seq,
        published_us=event.published_us,
        delivered_us=event.delivered_us,
        deadline_us=event.deadline_us,
    )
