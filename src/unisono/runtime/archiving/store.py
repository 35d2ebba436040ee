"""Where an archivist keeps its rows: a directory of segments, or a stream of JetStream. And answers out of either."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from msgspec import Struct

from unisono.archive.reader import Archive, Prefix
from unisono.archive.schema import ArchivedEvent, to_events
from unisono.archive.writer import ArchiveConfig, ArchiveWriter
from unisono.model.deployment import Deployment
from unisono.model.time import Micros
from unisono.runtime.archiving.streamed import StreamArchive, StreamArchiveWriter
from unisono.runtime.brokers.deployed import node_options
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.links.archive_messages import ArchiveRow, Fetch, Fetched, Locate, Located

LOOK_ROWS = 50_000
"""Rows looked at for one answer."""
ANSWER_BYTES = 1 << 20
"""Payload bytes after which an answer ends; a frame may hold eight times this."""
ANSWER_ROWS = 5_000


class ArchiveAppender(Protocol):
    """The one who appends."""

    @property
    def last(self) -> int:
        """The last durable row."""
        ...

    @property
    def offered(self) -> int:
        """The last row that readers see."""
        ...

    def numbers(self) -> dict[str, int]:
        """Per topic the last durable number."""
        ...

    def append(self, events: list[ArchivedEvent], now: Micros) -> None: ...

    def seal(self, now: Micros) -> None:
        """Offers everything."""
        ...

    def tick(self, now: Micros) -> None: ...

    def close(self) -> None: ...


class ArchiveView(Protocol):
    """A view of what is offered."""

    def bounds(self) -> tuple[int, int]: ...

    def dropped(self) -> Prefix: ...

    def read(self, after: int, upto: int, topics: tuple[str, ...] | None = None) -> Iterator[pa.RecordBatch]: ...

    def skip(self, topics: tuple[str, ...], above: dict[str, int]) -> int: ...

    def locate(self, topic: str, number: int) -> int: ...


class ArchiveStore(Protocol):
    """A place for rows."""

    where: str

    def open(self) -> ArchiveAppender:
        """Raises TransportError when it can not be reached now."""
        ...

    def view(self) -> ArchiveView: ...

    def close(self) -> None: ...


class DirectoryStore:
    """Segments in files."""

    def __init__(self, directory: Path, config: ArchiveConfig) -> None:
        self.where = str(directory)
        self._directory, self._config = directory, config

    def open(self) -> ArchiveWriter:
        return ArchiveWriter(self._directory, self._config)

    def view(self) -> Archive:
        return Archive(self._directory)

    def close(self) -> None:
        """Views hold nothing."""


class StreamStore:
    """Messages of a stream."""

    def __init__(self, name: str, options: NatsOptions, replicas: int, config: ArchiveConfig) -> None:
        self.where = f"stream {name}"
        self._name, self._options, self._replicas, self._config = name, options, replicas, config
        self._view: StreamArchive | None = None

    def open(self) -> StreamArchiveWriter:
        return StreamArchiveWriter(self._name, self._options, self._replicas, self._config)

    def view(self) -> StreamArchive:
        """One connection for all who read; from one thread."""
        self._view = self._view or StreamArchive(self._name, self._options)
        return self._view

    def close(self) -> None:
        if self._view is not None:
            self._view.close()


def store_of(deployment: Deployment, directory: Path, token: str) -> ArchiveStore:
    """As the deployment says."""
    keep = deployment.archive
    config = ArchiveConfig(
        seal_age_us=Micros(round(keep.seal_s * 1e6)),
        keep_bytes=keep.keep_bytes,
        keep_age_us=Micros(round(keep.keep_s * 1e6)) if keep.keep_s is not None else None,
    )
    if keep.stream is None:
        return DirectoryStore(directory, config)
    servers = keep.servers or deployment.broker.servers
    options = node_options(deployment, servers, token)
    return StreamStore(keep.stream, options, keep.replicas, config)


class ArchiveCut(Struct, frozen=True):
    """Rows up to `seq` are offered, and they cover these numbers."""

    seq: int
    numbers: dict[str, int]


def answer(archive: ArchiveView, cut: ArchiveCut, message: Fetch | Locate) -> Fetched | Located:
    """What a client asked for, as far as the cut reaches."""
    return _fetch(archive, cut, message) if isinstance(message, Fetch) else _locate(archive, cut, message)


def _locate(archive: ArchiveView, cut: ArchiveCut, message: Locate) -> Located:
    return Located(message.request, archive.locate(message.topic, message.number), cut.numbers.get(message.topic, 0))


def _fetch(archive: ArchiveView, cut: ArchiveCut, message: Fetch) -> Fetched:
    topics, above, dropped = message.topics, message.above, archive.dropped()
    after = max(message.after, dropped.seq)
    if message.after < 0:
        after = max(after, archive.skip(topics, above))
    after = min(after, cut.seq)
    rows: list[ArchiveRow] = []
    size, upto = 0, min(cut.seq, after + LOOK_ROWS)
    for event in _events(archive, after, upto, topics):
        if event.number <= above.get(event.topic, 0):
            continue
        rows.append(_wire(event))
        size += len(event.payload) + 100
        if size >= ANSWER_BYTES or len(rows) >= ANSWER_ROWS:
            upto = event.seq
            break
    return Fetched(
        message.request,
        tuple(rows),
        max(after, upto),
        cut.seq,
        {topic: cut.numbers.get(topic, 0) for topic in topics},
        {topic: dropped.numbers[topic] for topic in topics if topic in dropped.numbers},
    )


def _events(archive: ArchiveView, after: int, upto: int, topics: tuple[str, ...]) -> Iterator[ArchivedEvent]:
    for batch in archive.read(after, upto, topics):
        for start in range(0, batch.num_rows, 1000):
            part: pa.RecordBatch = batch.slice(start, 1000)
            yield from to_events(part)


def _wire(event: ArchivedEvent) -> ArchiveRow:
    return ArchiveRow(
        event.seq,
        event.topic,
        event.number,
        event.publisher,
        event.publisher_seq,
        event.headers,
        event.payload,
        event.published_us or 0,
    )
