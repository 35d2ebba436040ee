"""Archive first, then live, without a seam: how a stream starts in the past, and how a hole is filled.

The archive is a subscriber of total order, so any prefix of it is a consistent cut that every subscriber agrees with.
A replay delivers archived rows in the archive's order until its sealed prefix covers everything the live subscription
does not bring, and then all at once goes over to what came in live meanwhile and lies after that prefix. It never
switches topic by topic: the bases of a subscription are no cut (an archived event of one topic may belong after a
live event of another).

What comes in live meanwhile is held. At the bound the oldest held is let go: the archive has it, or will, so only the
prefix to wait for grows. An archive may be ahead of the live subscription: what it has told is not told again.
"""

import asyncio
import logging
from collections import deque
from typing import Protocol

from msgspec.structs import replace

from unisono.errors import DataLossError, TransportError, UnisonoError
from unisono.machine import Gap, Heard, Stalled
from unisono.model.ids import Topic
from unisono.model.promise import Promise
from unisono.model.time import Micros
from unisono.runtime.links.archive_messages import GAP, ArchiveRow, Fetched, Located, to_event

logger = logging.getLogger(__name__)

POLL_S = 0.05
"""Pause between questions when everything sealed has been read and more is needed."""


class Past(Protocol):
    """Who can tell what was published: an archive, or a broker that keeps it."""

    async def fetch(self, after: int, topics: tuple[str, ...], above: dict[str, int], seal: bool) -> Fetched: ...

    async def locate(self, topic: str, number: int) -> Located: ...


class ReplayedStream(Protocol):
    """The stream that a replay delivers to."""

    promise: Promise
    topics: dict[str, Topic]

    def fail(self, error: UnisonoError) -> None: ...


class ReplayDelivery(Protocol):
    """The way from a replay to the reader of its stream."""

    def pass_on(self, name: str, item: Heard | Gap) -> None: ...

    def skip_to(self, numbers: dict[str, int]) -> None: ...

    def has_told(self, numbers: dict[str, int]) -> None: ...

    def tell_stalled(self, name: str, stalled: Stalled) -> None: ...

    def end_turn(self) -> None: ...

    async def room(self) -> None: ...


class Replay:
    """One passage of a stream through the archive. The stream gives it what comes in live until `is_over`."""

    def __init__(
        self, stream: ReplayedStream, delivering: ReplayDelivery, archive: Past, above: dict[str, int], held_max: int
    ) -> None:
        """`above`: per topic the last number already delivered. The stream has room for `held_max` twice."""
        self.needs: dict[str, int] = {}
        """Per topic the number up to which the live subscription brings nothing."""
        self.is_over = False
        self._stream, self._delivering, self._archive, self._held_max = stream, delivering, archive, held_max
        self._piece = max(1, held_max // 2)
        self._at = dict(above)
        # Topics that a start position says nothing of begin at its cut: what they said before would come too late.
        self._behind = 0
        self._skipped: dict[str, int] = {}
        self._held: deque[tuple[str, Heard | Gap]] = deque()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins; `needs` is known."""
        self._task = asyncio.create_task(self._run(), name="replay")

    @property
    def is_started(self) -> bool:
        return self._task is not None

    def stop(self) -> None:
        self.is_over = True
        if self._task is not None:
            self._task.cancel()

    def hold(self, name: str, item: Heard | Gap) -> None:
        """Keeps what came in live for the end."""
        self._held.append((name, item))
        if isinstance(item, Gap) and self._stream.promise.reliability == "reliable":
            self.needs[name] = max(self.needs.get(name, 0), item.last)
        if len(self._held) > self._held_max:
            topic, oldest = self._held.popleft()
            self.needs[topic] = max(self.needs.get(topic, 0), _last(oldest))

    async def _run(self) -> None:
        try:
            await self._read()
        except DataLossError as error:
            self.is_over = True
            self._stream.fail(error)
        except Exception as error:  # the task boundary: a stream that waits for us must hear of it
            self.is_over = True
            logger.exception("a replay broke")
            self._stream.fail(TransportError(f"the replay broke: {error!r}"))

    async def _read(self) -> None:
        after, stalled, seal, is_placed = -1, False, False, False
        while True:
            topics = tuple(self._stream.topics)
            try:
                if not is_placed:
                    self._behind = await self._cut(topics)
                    is_placed = True
                answer = await self._archive.fetch(after, topics, self._at, seal)
            except TransportError as error:
                if not stalled:
                    self._tell_stalled(topics, str(error))
                stalled = True
                await asyncio.sleep(POLL_S)
                continue
            stalled = False
            self._tell_lost(answer.dropped)
            for start in range(0, len(answer.rows), self._piece):
                for row in answer.rows[start : start + self._piece]:
                    self._deliver(row)
                self._delivering.end_turn()
                await self._delivering.room()
            after = answer.upto
            if after < answer.sealed:
                seal = False
            elif all(answer.covers.get(topic, 0) >= number for topic, number in self.needs.items()):
                self._go_live(answer.covers)
                return
            else:
                seal = True
                await asyncio.sleep(POLL_S)

    async def _cut(self, topics: tuple[str, ...]) -> int:
        """The archive's row after which the start position stands, if there are topics it does not know."""
        if not self._at or all(topic in self._at for topic in topics):
            return 0
        row = 0
        for topic, number in self._at.items():
            while (found := await self._archive.locate(topic, number)).covers < number:
                await asyncio.sleep(POLL_S)
            row = max(row, found.seq)
        return row

    def _deliver(self, row: ArchiveRow) -> None:
        number = self._at.get(row.topic, 0)
        topic = self._stream.topics.get(row.topic)
        if row.number <= number or topic is None:
            return
        self._at[row.topic] = row.number
        if row.seq <= self._behind:
            self._skipped[row.topic] = row.number
            return
        if self._skipped:
            self._delivering.skip_to(self._skipped)
            self._skipped = {}
        if GAP in row.headers:
            first = max(int(row.headers[GAP]), number + 1)
            self._delivering.pass_on(row.topic, Gap(topic, first, row.number, row.payload.decode()))
        else:
            self._delivering.pass_on(row.topic, Heard(topic, to_event(row), number=row.number))

    def _tell_lost(self, dropped: dict[str, int]) -> None:
        for name, last in dropped.items():
            number, topic = self._at.get(name, 0), self._stream.topics.get(name)
            if last <= number or topic is None:
                continue
            reason = f"numbers {number + 1} to {last} of {name} were removed by retention"
            if self._stream.promise.reliability == "reliable":
                raise DataLossError(reason)
            self._at[name] = last
            self._delivering.pass_on(name, Gap(topic, number + 1, last, reason))

    def _tell_stalled(self, topics: tuple[str, ...], reason: str) -> None:
        for name in topics[:1]:
            self._delivering.tell_stalled(name, Stalled(self._stream.topics.get(name, Topic(0)), Micros(0), reason))

    def _go_live(self, covers: dict[str, int]) -> None:
        """The seam: one step, nothing comes in between."""
        self.is_over = True
        self._delivering.skip_to({name: max(number, self._at.get(name, 0)) for name, number in covers.items()})
        for name, item in self._held:
            done = covers.get(name, 0)
            if _last(item) <= done:
                continue
            if isinstance(item, Gap) and item.first <= done:
                item = replace(item, first=done + 1)
            self._delivering.pass_on(name, item)
        self._delivering.has_told(covers)
        self._held.clear()
        self._delivering.end_turn()


def _last(item: Heard | Gap) -> int:
    return item.last if isinstance(item, Gap) else item.number
