"""An archive in a JetStream stream: written by one archivist at a time, read by anybody, with the interface of files.

What was acknowledged is durable on most replicas and offered at once. The writer's claim fences every other one off
(`brokers.nats.fenced`), and what it appends continues what is there, so each row is in the stream once, whoever was
killed when. Retention is the writer's: it says what goes, then removes it. Layout: `unisono.archive.messages`.
"""

# pyarrow.compute makes its functions when it is imported, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

import logging
import secrets
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from unisono.archive.manifest import ArchiveMark, loss
from unisono.archive.messages import (
    Assembly,
    Head,
    Index,
    decode_index,
    decode_rows,
    in_messages,
    index_messages,
    index_subject,
    parse_head,
    rows_subject,
)
from unisono.archive.reader import Prefix, latest_numbers, only
from unisono.archive.schema import ArchivedEvent
from unisono.archive.writer import ArchiveConfig
from unisono.errors import DataLossError, FormatError, MisuseError, TransportError
from unisono.model.time import Micros
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.brokers.nats.fenced import FencedError, FencedStream, Stored

logger = logging.getLogger(__name__)


class _Found:
    """An index, and where in the stream it begins."""

    def __init__(self, sequence: int, head: Head, index: Index, at_us: int) -> None:
        self.sequence, self.row, self.index, self.at_us = sequence, head.first - 1, index, at_us


class StreamArchive:
    """A view of an archive in a stream; has the interface of `archive.reader.Archive`. One thread at a time."""

    def __init__(self, name: str, options: NatsOptions, unknown_s: float = 30.0) -> None:
        """Raises TransportError when no server lets us in."""
        self.name = name
        self._line = FencedStream(name, options, unknown_s=unknown_s)
        self._where: tuple[int, int] | None = None  # a row, and the sequence of the message that begins with it
        try:
            self._line.wait(self._line.open())
        except TransportError:
            self._line.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._line.close()

    def bounds(self) -> tuple[int, int]:
        """The first row that is still there and the last one; (n + 1, n) when there is none."""
        return self._line.wait(self._bounds())

    def mark(self, seq: int) -> ArchiveMark:
        """What names a row, or the place before the first one, for ever: its term is the process that appended it."""
        return self._line.wait(self._mark(seq))

    def loss(self, mark: ArchiveMark) -> str | None:
        """Why this is no longer the archive that the mark was taken of, in words; None if it is."""
        last = self.bounds()[1]
        return loss(mark, self.mark(min(mark.seq, last)), last)

    def weights(self, after: int, upto: int) -> list[tuple[int, int]]:
        """One piece: where a row is in the stream has to be looked up."""
        state = self._line.wait(self._line.state())
        return [(upto, state.bytes)] if upto > after else []

    def dropped(self) -> Prefix:
        """What retention has removed."""
        found = self._line.wait(self._last_index())
        return Prefix(found.index.dropped_upto, found.index.dropped_numbers) if found is not None else Prefix(0, {})

    def prefix(self) -> Prefix:
        """What a replay that reads everything that is there now will have seen."""
        found = self._line.wait(self._last_index())
        numbers, seq = (dict(found.index.numbers), found.row) if found is not None else ({}, 0)
        for batch in self.read(seq, self.bounds()[1]):
            numbers.update(latest_numbers(batch))
            seq = batch.column("seq")[-1].as_py()
        return Prefix(seq, numbers)

    def read(self, after: int, upto: int, topics: tuple[str, ...] | None = None) -> Iterator[pa.RecordBatch]:
        """Rows `after` < seq <= `upto` in order, as Arrow batches of some megabytes.

        Raises DataLossError when retention has removed the beginning, MisuseError when the end is not there.
        """
        while after < upto:
            first, last = self.bounds()
            if after + 1 < first:
                raise DataLossError(f"rows {after + 1} to {first - 1} were removed by retention")
            if upto > last:
                raise MisuseError(f"row {upto} is not there yet: the last one is {last}")
            for batch in self._rows_from(after + 1):
                start = after + 1 - batch.column("seq")[0].as_py()
                if start < 0:
                    break  # removed under our hands: the bounds know
                part = batch.slice(start, upto - after)
                after += part.num_rows
                if topics is not None:
                    part = only(part, topics)
                if part.num_rows:
                    yield part
                if after >= upto:
                    return

    def skip(self, topics: tuple[str, ...], above: dict[str, int]) -> int:
        """A row up to which nothing of these topics lies above these numbers."""

        def is_passed(index: Index) -> bool:
            return all(index.numbers.get(topic, 0) <= above.get(topic, 0) for topic in topics)

        found = self._line.wait(self._last_index_where(is_passed))
        return found.row if found is not None else 0

    def locate(self, topic: str, number: int) -> int:
        """The row of one number, or of the last one before it if that never was an event; 0 if there is none."""

        def is_before(index: Index) -> bool:
            return index.numbers.get(topic, 0) < number

        found = self._line.wait(self._last_index_where(is_before))
        first, last = self.bounds()
        after, row = max(found.row if found is not None else 0, first - 1), 0
        for batch in self.read(after, last, (topic,)):
            upto = batch.filter(pc.less_equal(batch.column("number"), number))
            if upto.num_rows:
                row = int(upto.column("seq")[-1].as_py())
            if upto.num_rows < batch.num_rows:
                break
        if row == 0 and found is not None and topic in found.index.numbers and found.row >= first:
            return self.locate(topic, found.index.numbers[topic])
        return row

    def check(self) -> list[str]:
        """Everything that is wrong with the archive, a line each; nothing is changed."""
        first, last = self.bounds()
        try:
            for _ in self.read(first - 1, last):
                pass
        except MisuseError as error:
            return [str(error)]
        return []

    def describe(self) -> str:
        """The archive in one line."""
        first, last = self.bounds()
        state = self._line.wait(self._line.state())
        count = state.last_seq - state.first_seq + 1
        removed = f", rows up to {first - 1} removed by retention" if first > 1 else ""
        return f"rows {first} to {last} in {count} messages, {state.bytes} bytes{removed}"

    # on the line's loop

    async def _bounds(self) -> tuple[int, int]:
        line = self._line
        state = await line.state()
        if state.last_seq < max(1, state.first_seq):
            return 1, 0
        newest, oldest = await line.get(state.last_seq), await line.get(state.first_seq)
        if newest is None or oldest is None:  # retention was quicker
            return await self._bounds()
        index = await self._last_index()
        begins = self._head(oldest).first if self._head(oldest).part == 1 else self._head(oldest).last + 1
        return max(index.index.dropped_upto + 1 if index is not None else 1, begins), self._head(newest).last

    def _head(self, message: Stored) -> Head:
        return parse_head(f"stream {self.name}, message {message.sequence}", message.headers())

    def _body(self, message: Stored, head: Head) -> bytes:
        head.check(f"stream {self.name}, message {message.sequence}", message.data)
        return message.data

    async def _mark(self, seq: int) -> ArchiveMark:
        index = await self._last_index()
        archive = index.index.archive if index is not None else ""
        first, last = await self._bounds()
        if not first <= seq <= last:
            return ArchiveMark(seq, archive)
        message = await self._line.get((await self._find(seq))[0])
        return ArchiveMark(seq, archive, self._head(message).owner if message is not None else "")

    async def _last_index(self) -> "_Found | None":
        message = await self._line.get_last(index_subject(self.name))
        while message is not None:
            found = await self._index_ending(message)
            if found is not None:
                return found
            message = await self._index_before(message.sequence)
        return None

    async def _index_before(self, sequence: int) -> Stored | None:
        """Only after an index that somebody did not finish: one step at a time is good enough."""
        while sequence > 1:
            sequence -= 1
            message = await self._line.get(sequence)
            if message is None or message.subject == index_subject(self.name):
                return message
        return None

    async def _index_ending(self, message: Stored) -> "_Found | None":
        """The index whose last part this message is; None if it is not the last."""
        head = self._head(message)
        if head.part != head.parts:
            return None
        first, pieces = message.sequence - head.parts + 1, [self._body(message, head)]
        for sequence in range(message.sequence - 1, first - 1, -1):
            part = await self._line.get(sequence)
            if part is None:
                return None
            pieces.insert(0, self._body(part, self._head(part)))
        index = decode_index(f"stream {self.name}, message {message.sequence}", b"".join(pieces))
        return _Found(first, head, index, message.at_ns // 1000)

    async def _next_index(self, sequence: int) -> "_Found | None":
        """The first whole index that begins at or after a sequence."""
        while True:
            message = await self._line.get_next(index_subject(self.name), sequence)
            if message is None:
                return None
            head = self._head(message)
            if head.part == 1 and head.parts > 1:
                ending = await self._line.get(message.sequence + head.parts - 1)
                if ending is not None and ending.subject == message.subject:
                    message = ending
            found = await self._index_ending(message)
            if found is not None and found.sequence >= sequence:
                return found
            sequence = message.sequence + 1

    async def _last_index_where(self, holds: Callable[[Index], bool]) -> "_Found | None":
        """By bisection: `holds` is true of every index up to some point, and of none after it."""
        state = await self._line.state()
        low, high = state.first_seq, state.last_seq + 1
        best: _Found | None = None
        while low < high:
            middle = (low + high) // 2
            found = await self._next_index(middle)
            if found is None or not holds(found.index):
                high = middle
            else:
                best, low = found, found.sequence + 1
        return best

    async def _find(self, row: int) -> tuple[int, int]:
        """The sequence of the message with a row, and the last sequence there is."""
        state = await self._line.state()
        if self._where is not None and self._where[0] == row and self._where[1] >= state.first_seq:
            return self._where[1], state.last_seq
        low, high = state.first_seq, state.last_seq
        best = low
        while low <= high:
            middle = (low + high) // 2
            message = await self._line.get(middle)
            if message is None:
                low = middle + 1  # removed meanwhile
                continue
            head = self._head(message)
            if head.first <= row:
                best, low = middle - head.part + 1, middle + 1
            else:
                high = middle - 1
        return max(best, state.first_seq), state.last_seq

    def _rows_from(self, row: int) -> Iterator[pa.RecordBatch]:
        """Everything from the message with this row on: one batch per answer of the servers."""
        at, end = self._line.wait(self._find(row))
        assembly, expected = Assembly(), 0
        while at <= end:
            messages = self._line.wait(self._line.pull(at, end))
            batches: list[pa.RecordBatch] = []
            for message in messages:
                at = message.sequence + 1
                if message.subject != rows_subject(self.name):
                    continue
                head, where = self._head(message), f"stream {self.name}, message {message.sequence}"
                body = assembly.add(head, self._body(message, head))
                if body is not None:
                    if head.first != (expected or head.first):
                        if expected < self.bounds()[0]:
                            return  # retention has overtaken us
                        raise FormatError(where, f"row {head.first} stands where row {expected} should")
                    batches.append(decode_rows(where, head, body))
                    expected = head.last + 1
                    self._where = (expected, at)
            if not messages:
                return
            if len(batches) > 1:
                batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
            yield from batches


class StreamArchiveWriter:
    """The one process that appends to an archive in a stream; has the interface of `archive.writer.ArchiveWriter`."""

    def __init__(
        self, name: str, options: NatsOptions, replicas: int = 3, config: ArchiveConfig = ArchiveConfig()
    ) -> None:
        """Claims the stream: whoever appended to it before can not any more."""
        self._archive = StreamArchive(name, options, config.unknown_s)
        self._line, self._name, self._config = self._archive._line, name, config
        self._owner = secrets.token_hex(8)
        self._rows_since = self._bytes_since = 0
        self._since_us: int | None = None
        self._is_broken = False
        try:
            self._line.wait(self._line.make([rows_subject(name), index_subject(name)], replicas))
            self._claim()
        except BaseException:
            self._line.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _claim(self) -> None:
        while True:
            self._line.last = self._line.wait(self._line.state()).last_seq
            prefix, dropped = self._archive.prefix(), self._archive.dropped()
            archive = self._archive.mark(0).archive or secrets.token_hex(8)
            self.last, self._index = prefix.seq, Index(archive, prefix.numbers, dropped.seq, dropped.numbers)
            try:
                self._append_index()
                return
            except FencedError:
                self._is_broken = False  # somebody appended meanwhile: read again

    @property
    def offered(self) -> int:
        """The last row that readers see: every one that is there."""
        return self.last

    def numbers(self) -> dict[str, int]:
        """Per topic the last number: where a restarted archive goes on."""
        return dict(self._index.numbers)

    def append(self, events: list[ArchivedEvent], now: Micros) -> None:
        """Durable and offered on return. Rows must continue the sequence: the first has `seq == last + 1`.

        Raises FencedError when another writer has claimed the stream; after any error this one takes nothing more.
        """
        if not events:
            return
        for expected, event in enumerate(events, self.last + 1):
            if event.seq != expected:
                raise MisuseError(f"row {event.seq} does not continue the archive, whose next row is {expected}")
        messages = in_messages(events, self._owner)
        self._append(rows_subject(self._name), messages)
        self.last = events[-1].seq
        self._index.numbers.update({event.topic: event.number for event in events})
        self._rows_since += len(events)
        self._bytes_since += sum(len(body) for _, body in messages)
        if self._since_us is None:
            self._since_us = now
        if self._rows_since >= self._config.seal_rows or self._bytes_since >= self._config.seal_bytes:
            self._append_index()

    def seal(self, now: Micros) -> None:
        """Everything is offered already."""

    def tick(self, now: Micros) -> None:
        """What time alone brings: an index, retention. Call it now and then."""
        if self._since_us is not None and now - self._since_us >= self._config.seal_age_us:
            self._append_index()
        self.retain(now)

    def retain(self, now: Micros) -> None:
        """Removes the rows before the oldest index that are over the size or the age to keep; never the newest."""
        config = self._config
        if config.keep_bytes is None and config.keep_age_us is None:
            return
        state = self._line.wait(self._line.state())
        bound = self._line.wait(self._archive._next_index(state.first_seq + 1))
        newest = self._line.wait(self._archive._last_index())
        if bound is None or newest is None or bound.row >= newest.row:
            return
        is_large = config.keep_bytes is not None and state.bytes > config.keep_bytes
        is_old = config.keep_age_us is not None and now - bound.at_us > config.keep_age_us
        is_said = bound.row <= self._index.dropped_upto
        if not (is_large or is_old or is_said):
            return
        if not is_said:  # readers hear of it before it happens
            numbers = bound.index.numbers
            self._index = structs.replace(self._index, dropped_upto=bound.row, dropped_numbers=numbers)
            self._append_index()
        self._line.wait(self._line.purge(bound.sequence))

    def close(self) -> None:
        """Lets go of the stream; the next writer need not read much."""
        try:
            if self._rows_since and not self._is_broken:
                self._append_index()
        except TransportError as error:
            logger.info("%s", error)
        self._line.close()

    def _append_index(self) -> None:
        self._append(index_subject(self._name), index_messages(self._index, self.last + 1, self._owner))
        self._rows_since = self._bytes_since = 0
        self._since_us = None

    def _append(self, subject: str, messages: list[tuple[Head, bytes]]) -> None:
        async def all_of_them() -> None:
            for head, body in messages:
                await self._line.append(subject, body, head.block())

        try:
            self._line.wait(all_of_them())
        except TransportError:
            self._is_broken = True
            raise


def is_stream(location: str) -> bool:
    """Whether an archive's location is a stream: `nats://host:port/NAME`."""
    return location.startswith(("nats://", "tls://"))


def open_stream(location: str) -> StreamArchive:
    """The archive at `nats://user:password@host:port/NAME`; hosts may be several, with commas between them."""
    parts = urlsplit(location)
    name = parts.path.strip("/")
    if not name or not parts.netloc or "." in name or "/" in name:
        raise MisuseError(f"{location} is no archive in a stream: write nats://host:port/NAME")
    credentials, at, hosts = parts.netloc.rpartition("@")
    return StreamArchive(
        name, NatsOptions(tuple(f"{parts.scheme}://{credentials}{at}{host}" for host in hosts.split(",")))
    )
