"""Repair of an archive: what a crash left is finished, what is damaged becomes a gap that everybody is told of.

A damaged segment can not be taken out: rows have no holes. It is set aside as `damaged-FILE` and replaced by as many
rows that say, per topic, which numbers are missing; readers tell them like any other gap. Whole segments that continue
the rows of a manifest that is missing or older than they are named in it again. Nothing else is touched.
"""

import zlib
from pathlib import Path

import pyarrow as pa
from msgspec import structs

from unisono.archive.disk import RealDisk
from unisono.archive.headers import GAP
from unisono.archive.manifest import Segment, load_manifest, save_manifest
from unisono.archive.reader import check_segment
from unisono.archive.schema import ARCHIVE_KEY, ArchivedEvent, to_batch
from unisono.archive.writer import ArchiveWriter, locked, number_ranges, rows_in
from unisono.errors import FormatError
from unisono.model.time import Micros


def repair(directory: Path, now: Micros) -> list[str]:
    """What was done, a line each; raises MisuseError while somebody writes to the archive."""
    with locked(directory):
        done = _adopt(directory, now)
    with ArchiveWriter(directory) as writer:  # removes leftovers, cuts a torn tail
        for segment in writer.manifest.segments:
            problem = check_segment(directory, segment)
            if problem is None:
                continue
            damaged = directory / segment.file
            if damaged.exists():
                damaged.replace(directory / f"damaged-{segment.file}")
            writer.replace(segment, to_batch(_missing(segment, now)), now)
            done.append(f"{segment.file}: {problem}; rows {segment.first} to {segment.last} are a gap now")
    return done


def _adopt(directory: Path, now: Micros) -> list[str]:
    """Names the segments again that continue what the manifest knows; without any manifest, all that there are."""
    manifest, done = load_manifest(directory), []
    listed = {segment.file for segment in manifest.segments}
    found = sorted((rows, path) for path in directory.glob("seg-*.arrow") if (rows := rows_in(path)) is not None)
    if found and manifest.last == 0:
        manifest = structs.replace(manifest, dropped_upto=found[0][0][0] - 1)
    for (first, last), path in found:
        if path.name in listed or first != manifest.last + 1:
            continue
        data = path.read_bytes()
        batch, archive = _rows_of(path, data)
        if manifest.archive and archive and archive != manifest.archive:
            raise FormatError(str(path), f"belongs to archive {archive}, not to {manifest.archive}; set it aside")
        numbers = number_ranges(batch)
        if manifest.dropped_upto and not listed:
            unknown = {topic: first - 1 for topic, (first, _) in numbers.items()}
            manifest = structs.replace(manifest, dropped_numbers={**unknown, **manifest.dropped_numbers})
        segments = (*manifest.segments, Segment(path.name, first, last, len(data), zlib.crc32(data), now, numbers))
        manifest = structs.replace(manifest, archive=manifest.archive or archive, segments=segments)
        done.append(f"{path.name}: rows {first} to {last} are in the manifest again")
    if done:
        save_manifest(directory, manifest, RealDisk())
    return done


def _rows_of(path: Path, data: bytes) -> tuple[pa.RecordBatch, str]:
    """The rows of a segment that no manifest knows, and the archive it says it belongs to."""
    try:
        with pa.ipc.open_file(data) as file:
            return file.get_batch(0), (file.schema.metadata or {}).get(ARCHIVE_KEY, b"").decode()
    except pa.ArrowInvalid as error:
        raise FormatError(str(path), f"can not be read: {str(error).splitlines()[0]}; set it aside") from None


def _missing(segment: Segment, now: Micros) -> list[ArchivedEvent]:
    """As many rows as the segment had: a gap per topic, and the last one again where rows are left over."""
    reason = b"this part of the archive was damaged"
    gaps = [(topic, first, last) for topic, (first, last) in segment.numbers.items()]
    rows = []
    for seq in range(segment.first, segment.last + 1):
        topic, first, last = gaps[min(seq - segment.first, len(gaps) - 1)]
        rows.append(ArchivedEvent(seq, topic, last, "", 0, None, now, None, {GAP: str(first)}, reason))
    return rows


def describe(directory: Path) -> str:
    """The archive in one line."""
    manifest = load_manifest(directory)
    size = sum(segment.bytes for segment in manifest.segments)
    removed = f", rows up to {manifest.dropped_upto} removed by retention" if manifest.dropped_upto else ""
    return f"rows {manifest.first} to {manifest.last} in {len(manifest.segments)} segments, {size} bytes{removed}"
