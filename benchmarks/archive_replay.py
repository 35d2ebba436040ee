"""Replay from sealed segments on one core: ten million events as Arrow batches, and one million as Python rows.

Every batch is looked at: the sequence must go on without a hole, numbers and payload bytes are summed. Anonymous memory
is that of the process after the last batch compared with that after the first; mapped files do not count.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from unisono.archive.reader import Archive
from unisono.archive.schema import SCHEMA, ArchivedEvent, to_batch, to_events
from unisono.archive.writer import ArchiveWriter
from unisono.model.time import Micros

SEGMENT = 100_000
EVENTS = 10_000_000
ROWS = 1_000_000
TOPICS = 10


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fill(directory, EVENTS)
        return [as_batches(directory), as_rows(directory)]


def fill(directory: Path, events: int) -> None:
    """Segments as the writer makes them, each from the first by moving sequence and numbers on."""
    rows = [
        ArchivedEvent(i + 1, f"t{i % TOPICS}", i // TOPICS + 1, f"c{i % 3}/p.t", i, i, i + 5, None, {}, b"x" * 64)
        for i in range(SEGMENT)
    ]
    first = to_batch(rows)
    with ArchiveWriter(directory) as writer:
        for at in range(0, events, SEGMENT):
            columns = list(first.columns)
            for name, step in (("seq", at), ("number", at // TOPICS)):
                index = SCHEMA.get_field_index(name)
                columns[index] = pa.array(np.asarray(first.column(name)) + step)
            batch = pa.record_batch(columns, schema=SCHEMA)
            segment = writer._write_segment(batch, Micros(0))
            writer._save(structs.replace(writer.manifest, segments=(*writer.manifest.segments, segment)))


def batches(directory: Path, events: int) -> Iterator[pa.RecordBatch]:
    yield from Archive(directory).read(0, events)


def as_batches(directory: Path) -> dict[str, Any]:
    seen = bytes_seen = numbers = memory = 0
    started, cpu = time.perf_counter(), time.process_time()
    for batch in batches(directory, EVENTS):
        seqs = np.asarray(batch.column("seq"))
        assert seqs[0] == seen + 1
        assert (np.diff(seqs) == 1).all()
        seen += batch.num_rows
        numbers += pc.sum(batch.column("number")).as_py()
        bytes_seen += pc.sum(pc.binary_length(batch.column("payload"))).as_py()
        memory = memory or anonymous_bytes()
    spent, wall = time.process_time() - cpu, time.perf_counter() - started
    return {
        "case": f"{EVENTS:_} events, arrow batches",
        "events_per_cpu_s": round(seen / spent),
        "events_per_s": round(seen / wall),
        "payload_bytes": bytes_seen,
        "memory_grown_bytes": anonymous_bytes() - memory,
    }


def as_rows(directory: Path) -> dict[str, Any]:
    cpu, seen, memory = time.process_time(), 0, 0
    for batch in batches(directory, ROWS):
        for start in range(0, batch.num_rows, 1000):
            seen += len(to_events(batch.slice(start, 1000)))
        memory = memory or anonymous_bytes()
    spent = time.process_time() - cpu
    return {
        "case": f"{ROWS:_} events, python rows",
        "events_per_cpu_s": round(seen / spent),
        "memory_grown_bytes": anonymous_bytes() - memory,
    }


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
