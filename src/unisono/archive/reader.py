"""The reader's side: sealed rows by sequence, or the rows of one topic by number. Readers need no lock."""

# pyarrow.compute makes its functions when it is imported, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyarrow import fs

from unisono.archive.manifest import (
    GROUPS,
    LOCK,
    MANIFEST,
    ArchiveMark,
    Manifest,
    Segment,
    load_manifest,
    parse_manifest,
)
from unisono.archive.schema import ARCHIVE_KEY, ArchivedEvent, brought_up, check_schema, to_events
from unisono.errors import DataLossError, FormatError, MisuseError


class Prefix(Struct, frozen=True):
    """A consistent cut: every row up to `seq`, and per topic the last number in it."""

    seq: int
    numbers: dict[str, int]


def _unwritten(root: str, names: list[str]) -> Manifest:
    """What the manifest of an archive is before anything was sealed; raises if this is something else."""
    if any(name.startswith("tail-") for name in names):
        return Manifest()
    if any(name.startswith("seg-") for name in names):
        advice = f"put it back, or name the rows in it again: unisono doctor --archive {root} --repair"
        raise FormatError(f"{root}/{MANIFEST}", f"missing, and there are segments: {advice}")
    strange = sorted(n for n in names if n not in (LOCK, GROUPS) and not n.startswith(".") and not n.endswith(".new"))
    if strange:
        more = ", …" if len(strange) > 3 else ""
        raise MisuseError(f"{root} is not an archive: no {MANIFEST}, but {', '.join(strange[:3])}{more}")
    return Manifest()


class Archive:
    """A view of an archive directory. Cheap to make; every call sees what is sealed at that moment."""

    def __init__(self, location: Path | str) -> None:
        """`location` is a directory, or a URL of any file system that Arrow reads (file, s3, gs, hdfs)."""
        text = str(location)
        if "://" in text:
            try:
                self._files, self._root = fs.FileSystem.from_uri(text)
            except (pa.ArrowInvalid, OSError) as error:
                raise MisuseError(f"{text}: {str(error).splitlines()[0]}") from None
        else:
            self._files, self._root = fs.LocalFileSystem(), str(Path(text).absolute())
        if self._files.get_file_info(self._root).type != fs.FileType.Directory:
            raise MisuseError(f"{text} is not an archive: no such directory")
        self._checked: dict[str, int] = {}  # segments found whole, and the checksum they had to have

    def manifest(self) -> Manifest:
        """Which segments are sealed now."""
        path = f"{self._root}/{MANIFEST}"
        while True:
            try:
                with self._files.open_input_file(path) as file:
                    return parse_manifest(file.read(), path)
            except FileNotFoundError:
                names = self._names()
            if MANIFEST not in names:  # else it has just come
                return _unwritten(self._root, names)

    def _names(self) -> list[str]:
        return [info.base_name for info in self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True))]

    def bounds(self) -> tuple[int, int]:
        """The first row that is still there and the last that is sealed; (n + 1, n) when there is none."""
        manifest = self.manifest()
        return manifest.first, manifest.last

    def mark(self, seq: int) -> ArchiveMark:
        """What names a row that is sealed, or the place before the first one, for ever."""
        return self.manifest().mark(seq)

    def loss(self, mark: ArchiveMark) -> str | None:
        """Why this is no longer the archive that the mark was taken of, in words; None if it is."""
        return self.manifest().loss(mark)

    def weights(self, after: int, upto: int) -> list[tuple[int, int]]:
        """The last row and the bytes of each sealed piece that holds some of these rows: where to cut a long read."""
        return [(s.last, s.bytes) for s in self.manifest().segments if s.last > after and s.first <= upto]

    def dropped(self) -> Prefix:
        """What retention has removed."""
        manifest = self.manifest()
        return Prefix(manifest.dropped_upto, manifest.dropped_numbers)

    def prefix(self) -> Prefix:
        """What a replay that reads everything sealed now will have seen."""
        manifest = self.manifest()
        numbers = dict(manifest.dropped_numbers)
        for segment in manifest.segments:
            numbers.update({topic: last for topic, (_, last) in segment.numbers.items()})
        return Prefix(manifest.last, numbers)

    def read(self, after: int, upto: int, topics: tuple[str, ...] | None = None) -> Iterator[pa.RecordBatch]:
        """Rows `after` < seq <= `upto` in order, as Arrow batches that share the mapped files' memory.

        Raises DataLossError when retention has removed the beginning, MisuseError when the end is not sealed.
        """
        while after < upto:
            manifest = self.manifest()
            if after + 1 < manifest.first:
                raise DataLossError(f"rows {after + 1} to {manifest.first - 1} were removed by retention")
            if upto > manifest.last:
                raise MisuseError(f"row {upto} is not sealed yet: the last one is {manifest.last}")
            for segment in manifest.segments:
                if segment.last <= after or after >= upto:
                    continue
                try:
                    part = self._part(segment, after, min(upto, segment.last), topics, manifest.archive)
                except FileNotFoundError:
                    break  # compacted or dropped since the manifest was read: the new one knows
                if part is not None:
                    yield part
                after = min(upto, segment.last)

    def _part(
        self, segment: Segment, after: int, upto: int, topics: tuple[str, ...] | None, archive: str
    ) -> pa.RecordBatch | None:
        if topics is not None and not any(topic in segment.numbers for topic in topics):
            return None
        start = max(after + 1, segment.first) - segment.first
        part = self._open(segment, archive).slice(start, upto - segment.first - start + 1)
        if topics is not None:
            part = only(part, topics)
        return part if part.num_rows else None

    def skip(self, topics: tuple[str, ...], above: dict[str, int]) -> int:
        """A row up to which nothing of these topics lies above these numbers."""
        manifest = self.manifest()
        after = manifest.dropped_upto
        for segment in manifest.segments:
            if any(segment.numbers.get(topic, (0, 0))[1] > above.get(topic, 0) for topic in topics):
                break
            after = segment.last
        return after

    def locate(self, topic: str, number: int) -> int:
        """The row of one number, or of the last one before it if that never was an event; 0 if there is none."""
        for segment in reversed(self.manifest().segments):
            if topic in segment.numbers and segment.numbers[topic][0] <= number:
                for batch in self.read(segment.first - 1, segment.last, (topic,)):
                    upto = batch.filter(pc.less_equal(batch.column("number"), number))
                    return int(upto.column("seq")[-1].as_py())
        return 0

    def fetch(self, topic: str, first: int, last: int) -> list[ArchivedEvent]:
        """The sealed events `first` to `last` of one topic, in order; numbers that never were an event are absent."""
        events: list[ArchivedEvent] = []
        for batch in self._holding(topic, first, last):
            number = batch.column("number")
            wanted = pc.and_(pc.greater_equal(number, first), pc.less_equal(number, last))
            events += to_events(batch.filter(pc.and_(wanted, pc.equal(batch.column("topic"), topic))))
        return events

    def _holding(self, topic: str, first: int, last: int) -> list[pa.RecordBatch]:
        """The segments that hold any of these numbers; taken again when compaction removed one under our hands."""
        while True:
            manifest = self.manifest()
            dropped = manifest.dropped_numbers.get(topic, 0)
            if first <= dropped:
                raise DataLossError(f"numbers {first} to {min(last, dropped)} of {topic} were removed by retention")
            ranges = ((segment, segment.numbers.get(topic, (0, -1))) for segment in manifest.segments)
            holding = [segment for segment, (low, high) in ranges if low <= last and first <= high]
            try:
                return [self._open(segment, manifest.archive) for segment in holding]
            except FileNotFoundError:
                continue

    def _open(self, segment: Segment, archive: str) -> pa.RecordBatch:
        """The rows of a segment: mapped, not copied, where the file system can, and whole by their checksum.

        Raises FileNotFoundError for one that retention has removed, FormatError for one that should be there.
        """
        path = f"{self._root}/{segment.file}"
        try:
            data = self._content(path)
        except FileNotFoundError:
            if segment in self.manifest().segments:
                raise self._unreadable(segment, "there is no such file") from None
            raise
        # A segment does not change, so one look per reader is enough.
        damage = _damage(segment, data) if self._checked.get(segment.file) != segment.crc32 else None
        batch: pa.RecordBatch | None = None
        try:
            file = pa.ipc.open_file(data)
            version = _check_metadata(path, file.schema, archive)
            batch = brought_up(file.get_batch(0), version) if damage is None else None
        except pa.ArrowInvalid as error:
            damage = damage or str(error).splitlines()[0]
        if batch is None or damage is not None:
            raise self._unreadable(segment, damage)
        if batch.num_rows != segment.last - segment.first + 1:
            raise FormatError(path, f"has {batch.num_rows} rows, the manifest says {segment.first}..{segment.last}")
        self._checked[segment.file] = segment.crc32
        return batch

    def _content(self, path: str) -> pa.Buffer:
        if isinstance(self._files, fs.LocalFileSystem):
            with pa.memory_map(path) as mapped:
                return mapped.read_buffer()
        with self._files.open_input_file(path) as remote:
            return remote.read_buffer()

    def _unreadable(self, segment: Segment, why: str | None) -> FormatError:
        return FormatError(
            f"{self._root}/{segment.file}",
            f"rows {segment.first} to {segment.last}: {why}; restore the file, or make its rows a gap that "
            f"readers are told of: unisono doctor --archive {self._root} --repair",
        )


def _check_metadata(path: str, schema: pa.Schema, archive: str) -> int:
    """The version of the segment."""
    version = check_schema(path, schema)
    other = (schema.metadata or {}).get(ARCHIVE_KEY, b"").decode()
    if archive and other and archive != other:
        raise FormatError(path, f"belongs to archive {other}, and this is archive {archive}")
    return version


def only(batch: pa.RecordBatch, topics: tuple[str, ...]) -> pa.RecordBatch:
    """The rows of these topics."""
    return batch.filter(pc.is_in(batch.column("topic"), value_set=pa.array(topics, pa.string())))


def latest_numbers(batch: pa.RecordBatch) -> dict[str, int]:
    """Per topic the last number among these rows."""
    return dict(zip(batch.column("topic").to_pylist(), batch.column("number").to_pylist(), strict=True))


def check_segment(directory: Path, segment: Segment) -> str | None:
    """What is wrong with a segment, in words; None when it is whole."""
    try:
        data = (directory / segment.file).read_bytes()
    except OSError as error:
        return error.strerror or str(error)
    return _damage(segment, data)


def _damage(segment: Segment, data: bytes | pa.Buffer) -> str | None:
    if len(data) != segment.bytes:
        return f"has {len(data)} bytes instead of {segment.bytes}"
    return "its checksum is wrong" if zlib.crc32(data) != segment.crc32 else None


def check(directory: Path) -> list[str]:
    """Everything that is wrong with an archive, a line each; nothing is changed."""
    manifest: Manifest = load_manifest(directory)
    problems = []
    for segment in manifest.segments:
        problem = check_segment(directory, segment)
        if problem:
            problems.append(f"{segment.file}: {problem}")
    return problems
