"""The manifest: which segments count. It is replaced as a whole, last of all, so that a segment exists or does not."""

from pathlib import Path

import msgspec
from msgspec import Struct

from unisono.archive.disk import Disk
from unisono.errors import FormatError

MANIFEST_VERSION = 1
MANIFEST = "manifest.json"


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


class Manifest(Struct, frozen=True):
    """All segments, oldest first, without holes between them."""

    version: int = MANIFEST_VERSION
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
