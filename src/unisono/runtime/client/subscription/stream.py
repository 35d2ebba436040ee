"""A subscription as people use it: an async context manager and an async iterator of notifications.

Inside: `StreamTopics` (which topics are heard), `Delivering` (what the machine says becomes notifications) and
`DeliveryBuffer` (what nobody has read yet). Gaps and stalls come in line with the events, as notifications without
data.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from types import NoneType, TracebackType
from typing import Any, Literal, Protocol, Self

from unisono.errors import MisuseError, PlanError, UnisonoError
from unisono.machine import Gap, Joined, Refused, Select, Selected
from unisono.model.arguments import TOPIC, check_count, expect
from unisono.model.content import parse_where
from unisono.model.ids import Address, Topic
from unisono.model.interest import check_interest, is_pattern
from unisono.model.payload import Decode
from unisono.model.predicate import EVERY_EVENT, Filter
from unisono.model.promise import Promise
from unisono.protocols.causal.client import CausalClient
from unisono.runtime.client.measures import StreamCounters
from unisono.runtime.client.ordering import OrderingMachine
from unisono.runtime.client.subscription.delivering import Delivering
from unisono.runtime.client.subscription.delivery_buffer import DeliveryBuffer, DroppedEvents
from unisono.runtime.client.subscription.joining import StreamTopics
from unisono.runtime.client.subscription.journaling import SubscriptionJournal
from unisono.runtime.client.subscription.notification import Notification, SubscriptionProgress
from unisono.runtime.client.subscription.position import decode_position, encode_position
from unisono.runtime.client.subscription.replay import Past
from unisono.runtime.client.subscription.stream_session import StreamSession
from unisono.runtime.driver.host import Host

OnStall = Literal["wait", "tag", "leave"]
"""What a topic does whose home, or the way there, is away: hold everything back, tell it marked as out of order, or
leave the others alone and come again, with a gap."""


class StreamOwner(StreamSession, Protocol):
    """A session that has streams."""

    async def enter_stream(self, stream: "Stream") -> None: ...

    async def leave_stream(self, stream: "Stream") -> None: ...

    def introduce(self, stream: "Stream", topic: Topic) -> None: ...

    def check_content(self, stream: "Stream") -> None: ...

    def pause(self, stream: "Stream") -> None: ...

    def resume(self, stream: "Stream") -> None: ...


class Stream:
    """A subscription. Use `async with session.subscribe(...) as stream:` and iterate."""

    def __init__(
        self,
        session: StreamOwner,
        interests: tuple[str, ...],
        promise: Promise,
        start: dict[str, int],
        decode: Decode,
        name: str | None,
        latest_only: bool,
        where: Filter = EVERY_EVENT,
    ) -> None:
        self.promise = promise
        self.where = where
        """What is selected of the topics; `update` changes it."""
        self.sid: Address = Address("")
        self.host: Host | None = None
        self.topics: dict[str, Topic] = {}
        """Subscribed topics."""
        self.interests = interests
        """Topics and patterns asked for."""
        self.cells: dict[str, str] = {}
        """Of topics that are cut by a grid: cell -> topic. Numbers and positions are those of cells."""
        self.bases: dict[str, int] = {}
        """Per topic in force the number after which it began."""
        self.archive: Past | None = None
        """With it a reliable stream has its holes filled."""
        self.past: Past | None = None
        """Who tells what lies between the start position and the present, if anybody can."""
        self.starts_in_past = False
        """After the start position, or at the beginning, as far as the past reaches."""
        self.on_stall: OnStall = "wait"
        self.on_joined: Callable[[], None] | None = None
        self._session, self._start, self._name = session, start, name
        self._was_entered = False
        self._selected: asyncio.Future[None] | None = None
        self._selecting = asyncio.Lock()
        self._progress, self._journaling = SubscriptionProgress(), SubscriptionJournal(session, self)
        dropped = DroppedEvents(session, self.cells, decode, self._progress, self._journaling)
        self._waiting = DeliveryBuffer(
            promise, latest_only, dropped, lambda: session.pause(self), lambda: session.resume(self)
        )
        self._delivering = Delivering(self, session, self._waiting, self._progress, self._journaling, decode)
        self._joining = StreamTopics(self, session, self._waiting, self._delivering)
        # The outside of the stream's machine: no detour for what comes with every event.
        self.deliver, self.end_turn = self._delivering.deliver, self._delivering.end_turn

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise MisuseError("a subscription is entered once: make another with session.subscribe(…)")
        self._was_entered = True
        try:
            await self._session.enter_stream(self)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Notification]:
        if not self._was_entered:
            raise MisuseError("the subscription was not entered: use 'async with session.subscribe(…) as stream:'")
        return self

    async def __anext__(self) -> Notification:
        while (notification := self.take()) is None:
            await self._waiting.arrival()
        return notification

    def take(self) -> Notification | None:
        """The oldest that waits, None if nothing does; raises what the stream ended with."""
        waiting = self._waiting
        notification = waiting.take()
        if notification is None:
            aiter(self)
            if waiting.error is not None:
                raise waiting.error
            if waiting.is_over:
                raise StopAsyncIteration
        return notification

    def arrival(self) -> "asyncio.Future[None]":
        """Done when it is worth to `take` again, or after `wake`."""
        return self._waiting.arrival()

    def wake(self) -> None:
        self._waiting.wake()

    def stalled(self, reason: str) -> Notification:
        """A notice that everything waits, for whoever stands above."""
        return self._delivering.stalled(reason)

    async def batches(self, count_max: int = 1000) -> AsyncIterator[list[Notification]]:
        """What waits, in lists: the cheap way to read much."""
        check_count("batches: the argument", count_max)
        async for first in self:
            yield self._waiting.take_behind(first, count_max)

    @property
    def waiting(self) -> int:
        """Notifications that nobody has read yet."""
        return len(self._waiting.queue)

    @property
    def told(self) -> StreamCounters:
        """What it was told so far, counted."""
        return self._delivering.told

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def held(self) -> int:
        """Events that have arrived and wait for their order."""
        machine = self.host.machine if self.host is not None else None
        return machine.held if isinstance(machine, OrderingMachine | CausalClient) else 0

    def position(self) -> str:
        """Where the subscription stands after everything delivered so far."""
        return encode_position(self._progress.numbers)

    async def commit(self, position: str) -> None:
        """Makes a position the resume point of this subscription; it is on disk if the subscription has a name."""
        decode_position(position)  # refuses what is none
        if self._name is not None:
            await self._session.keep_position(self._name, position)
        self._journaling.committed(position)

    async def subscribe(self, *topics: str) -> None:
        """Adds topics to this subscription; returns when it is in force."""
        for topic in topics:
            expect("subscribe: a topic", topic, str, TOPIC)
            check_interest(topic)
            if is_pattern(topic):
                raise MisuseError(
                    f"{topic!r}: a running subscription takes names; give patterns to session.subscribe(…)"
                )
        await self._joining.add(topics)

    async def unsubscribe(self, *topics: str) -> None:
        """Leaves topics, at once."""
        for topic in topics:
            expect("unsubscribe: a topic", topic, str, TOPIC)
        left = self._in_force(self._joining.leave(topics))
        for name in left:
            self._progress.numbers.pop(name, None)
            self.bases.pop(name, None)
        self._journaling.unsubscribed(left)

    async def update(self, *, where: str) -> None:
        """Selects by another filter; returns when it alone decides. Until then events of either may come.

        await stream.update(where="px > 200 and sym = 'IBM'")
        """
        expect("where", where, (str, NoneType), 'the text of a filter, like "px > 100"')
        chosen = parse_where(where)
        self._session.check_content(self)
        async with self._selecting:
            if self.host is None or self._waiting.error is not None:
                raise self._waiting.error or MisuseError("the subscription is not open")
            self._journaling.unsubscribed(
                self._in_force(self.topics)
            )  # nothing is owed while the filters change places
            self.where = chosen
            self._selected = asyncio.get_running_loop().create_future()
            self.host.post(Select(chosen))
            await self._selected

    async def close(self) -> None:
        """Unsubscribes; iteration ends after what has been delivered."""
        if self._waiting.is_over:
            return
        self._joining.stop()
        if self._delivering.replay is not None:
            self._delivering.replay.stop()
        await self._session.leave_stream(self)
        self._waiting.end()

    def fail(self, error: UnisonoError) -> None:
        """Whoever reads gets the error, after what has been delivered."""
        self._joining.fail(error)
        if self._selected is not None and not self._selected.done():
            self._selected.set_exception(error)
        self._waiting.fail(error)

    def not_heard(self, name: str, error: UnisonoError) -> None:
        """The broker lets the session hear no more topics: who waits for this one is told, the others go on."""
        if self.cells.get(name, name) in self.topics and name not in self.bases:
            self.fail(error)

    def introduce(self, topic: Topic) -> None:
        """The topic is about to be joined: what its numbers belong to is known before any comes."""
        self._session.introduce(self, topic)

    # what the session calls

    async def join(self) -> None:
        """Subscribes to all interests; returns when every topic is in force."""
        patterns = [text for text in self.interests if is_pattern(text)]
        names = [text for text in self.interests if not is_pattern(text)]
        if patterns:
            names += await self._session.expand(patterns)
        if self.past is None or not self.starts_in_past:
            await self._joining.add(dict.fromkeys(names))
            return
        replay = self._delivering.begin_replay(self.past, self._start)
        await self._joining.add(dict.fromkeys(names))
        replay.needs.update(self.bases)
        self._progress.begin({name: self._start.get(name, 0) for name in self.topics})
        replay.start()

    def follow(self, names: tuple[str, ...]) -> None:
        """Topics were created: those we have a pattern for are joined."""
        self._joining.follow(names)

    def answered(self, item: Any) -> None:
        """The machine speaks of the subscription itself."""
        match item:
            case Joined(topic=topic, base=base):
                self._has_joined(topic, base)
            case Selected():
                numbers = self._progress.numbers
                self._journaling.selected([(name, numbers.get(name, 0)) for name in self._in_force(self.topics)])
                if self._selected is not None and not self._selected.done():
                    self._selected.set_result(None)
            case Refused(reason=reason):
                self.fail(PlanError(reason))
            case _:
                pass

    def _has_joined(self, topic: Topic, base: int) -> None:
        name = self._session.name_of(topic) or str(topic)
        self._journaling.subscribed(name, base)
        self.bases[name] = base
        self._progress.join(name, base)
        self._delivering.begins(name)
        if self.starts_in_past:
            # The past of a topic that is added later can not be told in order any more: what we missed is a gap.
            replay = self._delivering.replay
            last = None if replay is not None and not replay.is_started else 0
        else:
            last = self._start.pop(name, None)
        if last is not None and last < base:
            # Nobody keeps what was published between: a subscriber that comes back is told, not left to guess.
            missed = Gap(topic, last + 1, base, "published while this subscription was away")
            self._delivering.tell_gap(name, missed)
        self._joining.done(topic)
        if self.on_joined is not None:
            self.on_joined()

    def _in_force(self, topics: Iterable[str]) -> list[str]:
        """Topics, and of those that are cut by a grid the cells."""
        known = dict.fromkeys(topics)
        return [*known, *(cell for cell in self.bases if cell in self.cells and self.cells[cell] in known)]


def check_interests(topics: tuple[str, ...]) -> None:
    if not topics:
        raise MisuseError("subscribe to at least one topic or pattern")
