"""The manifest: which segments count. It is replaced as a whole, last of all, so that a segment exists or does not.

It also says *which* archive this is. An archive has an id for life, and every life of a writer is a term with an id of
its own. An `ArchiveMark` (archive, row, term of the row) therefore names a row for ever: of an archive that was
replaced, shortened or rolled back and written on, no mark of the old one fits (`Manifest.loss`).
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from unisono.archive.disk import Disk
from unisono.errors import FormatError

MANIFEST_VERSION = 1
MANIFEST = "manifest.json"
LOCK = "lock"
"""Held by the one writer."""
GROUPS = "groups"
"""What nodes keep of the groups that read it."""


class Segment(Struct, frozen=True):
    """A sealed, immutable file of rows `first` to `last`."""

    file: str
    first: int
    last: int
    bytes: int
    crc32: int
    sealed_us: int
    numbers: dict[str, tuple[int, int]]
    """Per topic the first and last number in it: where to look for one."""


class Term(Struct, frozen=True):
    """Rows from `first` on, up to the next term, were appended in one life of a writer."""

    first: int
    id: str


class ArchiveMark(Struct, frozen=True):
    """A row that a reader has seen. One without an archive fits any, one without a term any row of its archive."""

    seq: int
    archive: str = ""
    term: str = ""


class Manifest(Struct, frozen=True):
    """All segments, oldest first, without holes between them."""

    version: int = MANIFEST_VERSION
    archive: str = ""
    """The archive's id; empty in one that was last written before archives had ids."""
    terms: tuple[Term, ...] = ()
    segments: tuple[Segment, ...] = ()
    dropped_upto: int = 0
    """Rows up to here were removed by retention."""
    dropped_numbers: dict[str, int] = {}
    """Per topic the last number that retention removed."""

    @property
    def first(self) -> int:
        return self.dropped_upto + 1

    @property
    def last(self) -> int:
        return self.segments[-1].last if self.segments else self.dropped_upto

    def mark(self, seq: int) -> ArchiveMark:
        """What names this row, or the place before the first one."""
        terms = [term.id for term in self.terms if term.first <= seq]
        return ArchiveMark(seq, self.archive, terms[-1] if terms else "")

    def loss(self, mark: ArchiveMark) -> str | None:
        """Why this is not the archive that the mark was taken of, in words; None if it is."""
        return loss(mark, self.mark(min(mark.seq, self.last)), self.last)


def loss(mark: ArchiveMark, now: ArchiveMark, last: int) -> str | None:
    """Compares a mark with what names its row `now`, or the `last` one where the archive ends before it."""
    if not mark.archive:
        return None
    if now.archive and mark.archive != now.archive:
        return (
            f"row {mark.seq} was read from archive {mark.archive}, and this is archive {now.archive}: it was replaced"
        )
    if mark.seq > last:
        return f"row {mark.seq} was read, and archive {now.archive} ends at row {last}: it was shortened or rolled back"
    if mark.term and now.term and mark.term != now.term:
        return (
            f"row {mark.seq} of archive {now.archive} was read as appended in term {mark.term}, and is now of term "
            f"{now.term}: the archive was rolled back and written on"
        )
    return None


def load_manifest(directory: Path) -> Manifest:
    """The manifest of an archive directory; an empty one if there is none yet."""
    path = directory / MANIFEST
    try:
        return parse_manifest(path.read_bytes(), str(path))
    except FileNotFoundError:
        return Manifest()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Decodes and checks a manifest; `where` names it in errors."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise FormatError(where, str(error)) from None
    if manifest.version != MANIFEST_VERSION:
        raise FormatError(where, f"version {manifest.version} is unknown, this is version {MANIFEST_VERSION}")
    expected = manifest.first
    for segment in manifest.segments:
        if segment.first != expected or segment.last < segment.first:
            raise FormatError(where, f"segment {segment.file} does not start at row {expected}")
        expected = segment.last + 1
    return manifest


def save_manifest(directory: Path, manifest: Manifest, disk: Disk) -> None:
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    disk.write(directory / (MANIFEST + ".new"), data)
    disk.rename(directory / (MANIFEST + ".new"), directory / MANIFEST)
