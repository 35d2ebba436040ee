"""Repair of an archive: what a crash left is finished, what is damaged becomes a gap that everybody is told of.

A damaged segment can not be taken out: rows have no holes. It is set aside as `damaged-FILE` and replaced by as many
rows that say, per topic, which numbers are missing; readers tell them like any other gap. Nothing else is touched.
"""

from pathlib import Path

from unisono.archive.headers import GAP
from unisono.archive.manifest import Segment, load_manifest
from unisono.archive.reader import check_segment
from unisono.archive.schema import ArchivedEvent, to_batch
from unisono.archive.writer import ArchiveWriter
from unisono.model.time import Micros


def repair(directory: Path, now: Micros) -> list[str]:
    """What was done, a line each; raises MisuseError while somebody writes to the archive."""
    done = []
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


def _missing(segment: Segment, now: Micros) -> list[ArchivedEvent]:
    """As many rows as the segment had: a gap per topic, and the last one again where rows are left over."""
    reason = b"this part of the archive was damaged"
    gaps = [(topic, first, last) for topic, (first, last) in segment.numbers.items()]
    rows = []
    for seq in range(segment.first, segment.last + 1):
        topic, first, last = gaps[min(seq - segment.first, len(gaps) - 1)]
        rows.append(ArchivedEvent(seq, topic, last, "", 0, now, now, None, {GAP: str(first)}, reason))
    return rows


def describe(directory: Path) -> str:
    """The archive in one line."""
    manifest = load_manifest(directory)
    size = sum(segment.bytes for segment in manifest.segments)
    removed = f", rows up to {manifest.dropped_upto} removed by retention" if manifest.dropped_upto else ""
    return f"rows {manifest.first} to {manifest.last} in {len(manifest.segments)} segments, {size} bytes{removed}"
