"""What a live audit reads: journals that grow, files that arrive, archives. Where it stands is plain data, too.

A folder is followed with everything below it: JSON lines that grow, closed files of any form, and archives (a folder
with a manifest). Folders named `region=NAME` tell the region of all rows below. A journal that rotates is followed by
its inode. What was read is known again by its first bytes: a file that was cut, or that was replaced or went away
before it was read to its end, is a DataLossError, as is an archive that is no longer the one that was read.
"""

import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from unisono.audit.files import UNDECODABLE, check_header, decode_lines, no_journal, read_lines, scan_part, typed
from unisono.audit.live.state import moment_of
from unisono.audit.parts import MANIFEST, JournalPart, files_below, given_by, is_packed, open_part, walk
from unisono.errors import DataLossError, FormatError
from unisono.model.journal import Header, Record

HEAD_BYTES = 4096
"""Of a file, by which it is known again."""
ROWS = 5000
"""Rows of one look at one file."""
LINES_BYTES = 1 << 20
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


class JournalFeed:
    """One file or archive. `fetch` gives what comes after a place, None if that is nothing."""

    def __init__(self, place: ReadUpTo, region: str, fetch: Callable[[ReadUpTo], Chunk | None]) -> None:
        self.place, self.region = place, region
        self.header: Header | None = None
        self._fetch = fetch
        self._next: Chunk | None = None

    def has_more(self) -> bool:
        if self._next is None:
            self._next = self._fetch(self.place)
            self.place = replace(self.place, ended=self._next is None)
        return self._next is not None

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


class Followed:
    """Everything at or below a path, from the places on."""

    def __init__(self, root: Path, places: Mapping[str, ReadUpTo]) -> None:
        self._root, self._known = root, dict(places)
        self._feeds: dict[str, JournalFeed] = {}

    def places(self) -> dict[str, ReadUpTo]:
        """How far everything was read."""
        return {**self._known, **{key: feed.place for key, feed in self._feeds.items()}}

    def look(self) -> list[JournalFeed]:
        """All feeds there are now, those that were not seen before as well."""
        found = self._found()
        for key, place in self.places().items():
            if key not in found:
                self._feeds.pop(key, None)
                self._known.pop(key, None)
                if not place.ended:
                    raise DataLossError(f"{place.path} went away before it was read to its end")
        for key, part in found.items():
            path = str(part.path)
            if key not in self._feeds:
                self._feeds[key] = _open(part, self._known.pop(key, ReadUpTo(path)))
            feed = self._feeds[key]
            if feed.place.path != path:  # it was renamed
                self._feeds[key] = _open(part, replace(feed.place, path=path))
        return [self._feeds[key] for key in found]

    def regions(self) -> list[str]:
        """Those that folders are named after, whether they have told something or not."""
        below = walk(self._root) if self._root.is_dir() else ()
        return sorted(path.name.partition("=")[2] for path in below if path.match("region=*") and path.is_dir())

    def _found(self) -> dict[str, JournalPart]:
        root = self._root
        if not root.is_dir():
            parts = [*self._rotated(root), *([JournalPart(root, {})] if root.exists() else ())]
        elif (root / MANIFEST).exists():
            parts = [JournalPart(root, {})]
        else:
            archives = sorted(path.parent for path in walk(root) if path.name == MANIFEST)
            inside = [part for part in files_below(root) if not any(path in part.path.parents for path in archives)]
            parts = inside + [JournalPart(path, given_by(path.relative_to(root).parts)) for path in archives]
        return {_key(part.path): part for part in parts}

    def _rotated(self, root: Path) -> list[JournalPart]:
        """Older files of a journal that rotates, if we began to read them before they were renamed."""
        older = sorted(root.parent.glob(f"{root.stem}.*{root.suffix}"), reverse=True)
        places = self.places()
        return [JournalPart(path, {}) for path in older if path != root and _key(path) in places]


def _key(path: Path) -> str:
    """A journal is renamed when it rotates; an archive stays where it is, and knows who it is."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        return str(path)
    return f"{status.st_dev}:{status.st_ino}"


def _open(part: JournalPart, place: ReadUpTo) -> JournalFeed:
    region = part.given.get("region", "")
    if part.path.is_dir():
        return JournalFeed(place, region, _rows_of_archive(f"archive {region}" if region else "archive"))
    file, is_columnar = open_part(part.path)
    file.close()
    is_growing = not is_columnar and not is_packed(part.path)
    return JournalFeed(place, region, _lines_of(part) if is_growing else _rows_of(part))


def _lines_of(part: JournalPart) -> Callable[[ReadUpTo], Chunk | None]:
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


def _rows_of(part: JournalPart) -> Callable[[ReadUpTo], Chunk | None]:
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


def _rows_of_archive(subscriber: str) -> Callable[[ReadUpTo], Chunk | None]:
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
