"""The writer's side: append to the tail, seal the tail into a segment, compact small ones, drop old ones.

What `append` returned from is durable (that is what `stored` means when the archive acknowledges), but it is offered
to readers only when sealed. One directory has one writer: a lock file holds the others off. A writer that finds what
a crash left behind finishes or removes it; no hand is needed. What no crash leaves behind, rows that the manifest ought
to know and does not, is kept: then the manifest is older than the rows, and a person has to say what is right.
"""

import io
import re
import secrets
import zlib
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec
import pyarrow as pa
from msgspec import Struct

from unisono.archive.disk import Disk, RealDisk
from unisono.archive.manifest import LOCK, Manifest, Segment, Term, load_manifest, save_manifest
from unisono.archive.schema import ARCHIVE_KEY, SCHEMA, ArchivedEvent, brought_up, check_schema, to_batch
from unisono.errors import FormatError, MisuseError
from unisono.model.time import SECOND, Micros
from unisono.structures.locks import lock_file
from unisono.structures.records import frame, scan

_SEGMENT = re.compile(r"seg-(\d{20})-(\d{20})\.arrow")
_TAIL = re.compile(r"tail-(\d{20})\.log")
_rows = msgspec.msgpack.Decoder(list[ArchivedEvent])


class ArchiveConfig(Struct, frozen=True):
    """When the tail is sealed, and how long segments are kept."""

    seal_rows: int = 100_000
    """Rows that make a segment full. Readers map whole segments; writers hold the tail in memory."""
    seal_bytes: int = 64 << 20
    seal_age_us: Micros = Micros(5 * SECOND)
    """A tail older than this is sealed by the next `tick`: the delay with which readers see events."""
    compact_below_rows: int = 10_000
    """Neighbouring segments smaller than this are merged until one is larger."""
    keep_bytes: int | None = None
    keep_age_us: Micros | None = None
    unknown_s: float = 30.0
    """How long an append to a stream may stay unanswered; files answer at once."""


class ArchiveWriter:
    """The one process that appends to an archive directory."""

    def __init__(self, directory: Path, config: ArchiveConfig = ArchiveConfig(), disk: Disk | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._config = config
        self._disk: Disk = disk or RealDisk()
        self._lock = locked(directory)
        self._tail: list[ArchivedEvent] = []
        self._tail_bytes = 0
        self._tail_since_us: int | None = None
        try:
            self.manifest: Manifest = load_manifest(directory)
            self._recover()
        except BaseException:
            self._lock.close()
            raise
        self._begin_term()

    def __enter__(self) -> "ArchiveWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def last(self) -> int:
        """The last durable row, sealed or not."""
        return self._tail[-1].seq if self._tail else self.manifest.last

    @property
    def offered(self) -> int:
        """The last row that readers see."""
        return self.manifest.last

    def numbers(self) -> dict[str, int]:
        """Per topic the last durable number: where a restarted archive goes on."""
        found = dict(self.manifest.dropped_numbers)
        for segment in self.manifest.segments:
            found.update({topic: last for topic, (_, last) in segment.numbers.items()})
        found.update({event.topic: event.number for event in self._tail})
        return found

    def append(self, events: list[ArchivedEvent], now: Micros) -> None:
        """Durable on return. Rows must continue the sequence: the first has `seq == last + 1`."""
        if not events:
            return
        for expected, event in enumerate(events, self.last + 1):
            if event.seq != expected:
                raise MisuseError(f"row {event.seq} does not continue the archive, whose next row is {expected}")
        record = frame(msgspec.msgpack.encode(events))
        self._disk.append(self._tail_path(), record)
        self._tail += events
        self._tail_bytes += len(record)
        if self._tail_since_us is None:
            self._tail_since_us = now
        if len(self._tail) >= self._config.seal_rows or self._tail_bytes >= self._config.seal_bytes:
            self.seal(now)

    def tick(self, now: Micros) -> None:
        """What time alone brings: seal by age, compact, drop. Call it now and then."""
        if self._tail_since_us is not None and now - self._tail_since_us >= self._config.seal_age_us:
            self.seal(now)
        self.compact(now)
        self.retain(now)

    def seal(self, now: Micros) -> None:
        """Offers the tail to readers. Segment first, manifest last, then the tail goes."""
        if not self._tail:
            return
        old_tail = self._tail_path()
        segment = self._write_segment(to_batch(self._tail), now)
        self._save(msgspec.structs.replace(self.manifest, segments=(*self.manifest.segments, segment)))
        self._tail, self._tail_bytes, self._tail_since_us = [], 0, None
        self._disk.remove(old_tail)

    def _rows_of(self, segment: Segment) -> pa.RecordBatch:
        file = pa.ipc.open_file(self.directory / segment.file)
        batch = brought_up(file.get_batch(0), check_schema(segment.file, file.schema))
        return batch.replace_schema_metadata(SCHEMA.metadata)

    def compact(self, now: Micros) -> None:
        """Merges the first run of neighbours that are all small."""
        limit, run = self._config.compact_below_rows, list[Segment]()
        for segment in self.manifest.segments:
            if segment.last - segment.first + 1 < limit and sum(s.last - s.first + 1 for s in run) < limit:
                run.append(segment)
            elif len(run) > 1:
                break
            else:
                run = []
        if len(run) < 2 or sum(s.last - s.first + 1 for s in run) < limit:
            return
        tables = pa.Table.from_batches([self._rows_of(segment) for segment in run])
        merged = self._write_segment(tables.combine_chunks().to_batches()[0], now)
        at = self.manifest.segments.index(run[0])
        segments = (*self.manifest.segments[:at], merged, *self.manifest.segments[at + len(run) :])
        self._save(msgspec.structs.replace(self.manifest, segments=segments))
        for segment in run:
            self._disk.remove(self.directory / segment.file)

    def replace(self, segment: Segment, batch: pa.RecordBatch, now: Micros) -> None:
        """Puts other rows, as many, in the place of a segment; for repairs."""
        new = self._write_segment(batch, now)
        segments = tuple(new if old is segment else old for old in self.manifest.segments)
        self._save(msgspec.structs.replace(self.manifest, segments=segments))

    def retain(self, now: Micros) -> None:
        """Drops the oldest segments that are over the size or the age to keep; never the newest one."""
        segments, dropped = list(self.manifest.segments), list[Segment]()
        size = sum(segment.bytes for segment in segments)
        while len(segments) > 1:
            oldest = segments[0]
            is_large = self._config.keep_bytes is not None and size > self._config.keep_bytes
            is_old = self._config.keep_age_us is not None and now - oldest.sealed_us > self._config.keep_age_us
            if not (is_large or is_old):
                break
            size -= oldest.bytes
            dropped.append(segments.pop(0))
        if not dropped:
            return
        numbers = dict(self.manifest.dropped_numbers)
        for segment in dropped:
            numbers.update({topic: last for topic, (_, last) in segment.numbers.items()})
        self._save(
            msgspec.structs.replace(
                self.manifest, segments=tuple(segments), dropped_upto=dropped[-1].last, dropped_numbers=numbers
            )
        )
        for segment in dropped:
            self._disk.remove(self.directory / segment.file)

    def close(self) -> None:
        """Lets go of the directory. The tail stays durable and is taken up by the next writer."""
        self._lock.close()

    def _tail_path(self) -> Path:
        # The name says which row it starts at: a tail that was sealed before the crash is recognised by it.
        return self.directory / f"tail-{self.manifest.last + 1:020d}.log"

    def _save(self, manifest: Manifest) -> None:
        save_manifest(self.directory, manifest, self._disk)
        self.manifest = manifest

    def _write_segment(self, batch: pa.RecordBatch, now: Micros) -> Segment:
        sink = io.BytesIO()
        metadata = {**(SCHEMA.metadata or {}), ARCHIVE_KEY: self.manifest.archive.encode()}
        with pa.ipc.new_file(sink, SCHEMA.with_metadata(metadata)) as file:
            file.write_batch(batch)
        data = sink.getvalue()
        first, last = (batch.column("seq")[at].as_py() for at in (0, -1))
        name = f"seg-{first:020d}-{last:020d}.arrow"
        self._disk.write(self.directory / (name + ".new"), data)
        self._disk.rename(self.directory / (name + ".new"), self.directory / name)
        return Segment(name, first, last, len(data), zlib.crc32(data), now, number_ranges(batch))

    def _begin_term(self) -> None:
        """Names the archive, if nobody has, and the rows that this writer will append. Saved with the first of them."""
        manifest, first = self.manifest, self.last + 1
        kept = [term for term in manifest.terms if term.first < first]
        kept = [a for a, b in zip(kept, [*kept[1:], Term(first, "")]) if b.first > manifest.dropped_upto + 1]
        self.manifest = msgspec.structs.replace(
            manifest,
            archive=manifest.archive or secrets.token_hex(8),
            terms=(*kept, Term(first, secrets.token_hex(4))),
        )

    def _recover(self) -> None:
        """Takes up the tail and removes what a crash left behind: unnamed files, unlisted segments, sealed tails."""
        listed = {segment.file for segment in self.manifest.segments}
        tail = self._tail_path()
        for path in sorted(self.directory.iterdir()):
            if path.name in listed or path == tail:
                continue
            rows = rows_in(path)
            if rows is not None and not self._is_leftover(rows, tail):
                raise FormatError(
                    str(path),
                    f"holds rows from {rows[0]} on, and the manifest ends at row {self.manifest.last}: it is missing, "
                    "or older than the rows; put the newest manifest back, or name the rows in it again: "
                    f"unisono doctor --archive {self.directory} --repair",
                )
            if rows is not None or path.name.endswith(".new"):
                self._disk.remove(path)
        if tail.exists():
            data = tail.read_bytes()
            bodies, end = scan(data)
            if end < len(data):
                self._disk.truncate(tail, end)
            for body in bodies:
                self._tail += _rows.decode(body)
            self._tail_bytes = end
            self._tail_since_us = 0 if self._tail else None

    def _is_leftover(self, rows: tuple[int, int], tail: Path) -> bool:
        """Rows that are listed elsewhere, or a segment that was about to be: the tail it was made of is still there."""
        return rows[1] <= self.manifest.last or (rows[0] == self.manifest.last + 1 and tail.exists())


def locked(directory: Path) -> IO[str]:
    """The lock of an archive's one writer, until it is closed; raises MisuseError while somebody has it."""
    lock = (directory / LOCK).open("w")
    if not lock_file(lock.fileno()):
        lock.close()
        raise MisuseError(f"{directory} has a writer already")
    return lock


def number_ranges(batch: pa.RecordBatch) -> dict[str, tuple[int, int]]:
    """Per topic the first and the last number in the rows."""
    ranges: dict[str, tuple[int, int]] = {}
    for topic, number in zip(*(batch.column(name).to_pylist() for name in ("topic", "number")), strict=True):
        ranges[topic] = (ranges.get(topic, (number, number))[0], number)
    return ranges


def rows_in(path: Path) -> tuple[int, int] | None:
    """The first and the last row of a segment, by its name; of a tail the first, twice; None for other files."""
    if segment := _SEGMENT.fullmatch(path.name):
        return int(segment[1]), int(segment[2])
    tail = _TAIL.fullmatch(path.name)
    return (int(tail[1]), int(tail[1])) if tail else None
