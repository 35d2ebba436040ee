"""A subscription as people use it: an async context manager and an async iterator of notifications.

Notifications wait in a bounded buffer. At the bound a best-effort stream drops the oldest and says so by a gap; a
reliable one stops reading from the broker. Gaps and stalls come in line with the events, as notifications without data.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import repeat
from types import TracebackType
from typing import Any, Literal, Self

from unisono.errors import MisuseError, PlanError, TransportError, UnisonoError
from unisono.machine import (
    CutOff,
    Gap,
    Heard,
    Joined,
    Refused,
    Select,
    Selected,
    Stalled,
    Subscribe,
    Unsubscribe,
    one_by_one,
)
from unisono.model.event import Event, EventRow, Events
from unisono.model.ids import Address, Topic, event_id
from unisono.model.interest import covers, is_pattern
from unisono.model.journal import Record
from unisono.model.predicate import EVERY_EVENT, Filter, flatten
from unisono.model.promise import Promise
from unisono.runtime.content import content_of, note_of, parse_where
from unisono.runtime.groups import Membership
from unisono.runtime.host import Host
from unisono.runtime.latest import Latest
from unisono.runtime.notification import Notification, Said
from unisono.runtime.owner import StreamOwner
from unisono.runtime.payload import Decode
from unisono.runtime.position import Turn, decode_position, encode_position
from unisono.runtime.replay import ArchiveClient, Replay

OnStall = Literal["wait", "tag"]
"""What a topic does whose home, or the way there, is away: hold everything back, or tell it marked as out of order."""


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
        """Per topic in force the number behind which it began."""
        self.archive: ArchiveClient | None = None
        """With it a reliable stream has its holes filled."""
        self.starts_in_past = False
        """Behind the start position, or at the beginning, as far as the archive reaches."""
        self.tags_stalled = False
        self.on_joined: Callable[[], None] | None = None
        self.membership: Membership | None = None
        self._replay: Replay | None = None
        self._session, self._start = session, start
        self._decode, self._name = decode, name
        self._latest = Latest() if latest_only else None
        self._waiting: deque[Notification] = deque()
        self._dropped: dict[str, Notification] = {}
        self._reader: asyncio.Future[None] | None = None
        self._joined: dict[Topic, asyncio.Future[None]] = {}
        self._selected: asyncio.Future[None] | None = None
        self._selecting = asyncio.Lock()
        self._numbers: dict[str, int] = {}
        self._turn = Turn({})
        self._count = 0
        self._closed: UnisonoError | None = None
        self._is_over = False
        self._pausing = False
        self._following: dict[asyncio.Task[None], None] = {}
        self._journals, self._is_plain = session.journals, not latest_only
        self._waiting_max = promise.buffer_events_max

    async def __aenter__(self) -> Self:
        await self._session.enter_stream(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Notification]:
        return self

    async def __anext__(self) -> Notification:
        while True:
            if self._dropped:
                return self._dropped.pop(next(iter(self._dropped)))
            while self._waiting:
                notification = self._take()
                if notification is not None:
                    return notification
            if self._closed is not None:
                raise self._closed
            if self._is_over:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def _take(self) -> Notification | None:
        """The oldest that waits; None if a newer one of its key has come."""
        notification = self._waiting.popleft()
        if self._pausing:
            self._let_in()
        if self._latest is not None and notification.event is not None:
            return self._latest.take(notification)
        return notification

    async def batches(self, count_max: int = 1000) -> AsyncIterator[list[Notification]]:
        """What waits, in lists: the cheap way to read much."""
        async for first in self:
            batch = [first]
            if self._latest is None:
                take = self._waiting.popleft
                batch += [take() for _ in range(min(len(self._waiting), count_max - 1))]
            while self._waiting and len(batch) < count_max:
                notification = self._take()
                if notification is not None:
                    batch.append(notification)
            if self._pausing:
                self._let_in()
            yield batch

    def _let_in(self) -> None:
        """Reads from the broker again when there is room, or when nobody will read what waits."""
        if self._is_over or 2 * len(self._waiting) <= self.promise.buffer_events_max:
            self._pausing = False
            self._session.resume(self)

    async def commit(self, position: str) -> None:
        """Makes a position the resume point of this subscription; it is on disk if the subscription has a name."""
        decode_position(position)  # refuses what is none
        if self.membership is not None:
            await self.membership.commit(position)
        if self._name is not None:
            await self._session.keep_position(self._name, position)
        self._session.note(Record("commit", self._session.now(), subscriber=self.sid, note=position, who=self.sid))

    async def subscribe(self, *topics: str) -> None:
        """Adds topics to this subscription; returns when it is in force."""
        await self._add(topics)

    async def unsubscribe(self, *topics: str) -> None:
        """Leaves topics, at once."""
        known = [name for name in topics if name in self.topics]
        if self.host is not None and known:
            self.host.post(Unsubscribe(tuple(self.topics.pop(name) for name in known)))
            for name in [*known, *self._cells_in_force(known)]:
                self._numbers.pop(name, None)
                self.bases.pop(name, None)
                record = Record("unsubscribe", self._session.now(), who=self.sid, subscriber=self.sid, topic=name)
                self._session.note(record)

    async def update(self, *, where: str) -> None:
        """Selects by another filter; returns when it alone decides. Until then events of either may come.

        await stream.update(where="px > 200 and sym = 'IBM'")
        """
        chosen = parse_where(where)
        self._session.check_content(self)
        async with self._selecting:
            if self.host is None or self._closed is not None:
                raise self._closed or MisuseError("the subscription is not open")
            now, sid = self._session.now(), self.sid
            # Nothing is owed while the two filters change places.
            for name in [*self.topics, *self._cells_in_force(self.topics)]:
                self._session.note(Record("unsubscribe", now, who=sid, subscriber=sid, topic=name))
            self.where = chosen
            self._selected = asyncio.get_running_loop().create_future()
            self.host.post(Select(chosen))
            await self._selected

    async def close(self) -> None:
        """Unsubscribes; iteration ends behind what has been delivered."""
        if self._is_over:
            return
        for task in list(self._following):
            task.cancel()
        if self._replay is not None:
            self._replay.stop()
        if self.membership is not None:
            await self.membership.resign()
        await self._session.leave_stream(self)
        self._is_over = True
        if self._pausing:
            self._let_in()
        self._wake()

    def fail(self, error: UnisonoError) -> None:
        """Whoever reads gets the error, behind what has been delivered."""
        self._closed = error
        for future in (*self._joined.values(), *((self._selected,) if self._selected is not None else ())):
            if not future.done():
                future.set_exception(error)
        self._wake()

    # what the session calls

    async def join(self) -> None:
        """Subscribes to all interests; returns when every topic is in force."""
        kept = await self.membership.elected() if self.membership is not None else None
        if kept is not None:
            self._start, self.starts_in_past = decode_position(kept), True
        await self._join()
        if self.membership is not None and kept is None:
            await self.membership.commit(self.position())  # whoever takes over starts where we did

    async def _join(self) -> None:
        patterns = [text for text in self.interests if is_pattern(text)]
        names = [text for text in self.interests if not is_pattern(text)]
        if patterns:
            names += await self._session.expand(patterns)
        if self.archive is None or not self.starts_in_past:
            await self._add(dict.fromkeys(names))
            return
        # From the first event on everything is held: the past comes first.
        replay = self._replay = Replay(self, self.archive, self._start, self._waiting_max // 2)
        await self._add(dict.fromkeys(names))
        replay.needs.update(self.bases)
        self._numbers = {name: self._start.get(name, 0) for name in self.topics}
        self._turn = Turn(dict(self._numbers))
        replay.start()

    async def _add(self, names: Any) -> None:
        new = [name for name in names if name not in self.topics]
        if self._closed is not None:
            raise self._closed
        if not new or self.host is None:
            return
        opened = await self._session.open_topics(new)
        loop = asyncio.get_running_loop()
        futures = []
        for name, topic in opened.items():
            if name in self.topics:  # somebody else has added it meanwhile
                futures.append(self._joined[topic])
                continue
            self.topics[name] = topic
            self._session.introduce(self, topic)
            self._joined[topic] = loop.create_future()
            futures.append(self._joined[topic])
        self.host.post(Subscribe(tuple(opened.values())))
        await self._in_time(opened, futures)

    async def _in_time(self, opened: dict[str, Topic], futures: "list[asyncio.Future[None]]") -> None:
        """Returns when all are in force; who does not answer in time is named, and nothing of it stays behind."""
        patience_s = self._session.config.open_s
        await asyncio.wait(futures, timeout=patience_s, return_when=asyncio.FIRST_EXCEPTION)
        silent = [name for name, topic in opened.items() if not self._joined[topic].done()]
        for future in futures:
            if future.done():
                future.result()
        if silent:
            await self.unsubscribe(*opened)
            raise TransportError(self._session.silence(silent[0], patience_s))

    def follow(self, names: tuple[str, ...]) -> None:
        """Topics were born: those we have a pattern for are joined."""
        new = [
            name
            for name in names
            if name not in self.topics and any(is_pattern(text) and covers(text, name) for text in self.interests)
        ]
        if new and not self._is_over:
            task = asyncio.create_task(self._follow(new), name=f"follow {new[0]}")
            self._following[task] = None
            task.add_done_callback(lambda done: self._following.pop(done, None))

    async def _follow(self, names: list[str]) -> None:
        while not self._is_over:
            try:
                await self._add(names)
                return
            except TransportError as error:  # its home is away: it is told, and tried again; the others go on
                for name in names:
                    self.tell_stalled(
                        name, Stalled(self._session.topic_of(name) or Topic(0), self._session.now(), str(error))
                    )
            except UnisonoError as error:
                self.fail(error)
                return

    def deliver(self, item: Any) -> None:
        if self._replay is not None:
            parts = one_by_one(item)
            if len(parts) > 1:
                for part in parts:
                    self.deliver(part)
                return
            if self._hold(item):
                return
        if type(item) is Heard:
            if type(item.message) is EventRow or type(item.message) is tuple:
                self._deliver_row(item.message, item.number)
                return
            event: Event = item.message
            name, number, late, turn = event.topic, item.number, item.late, self._turn
            if not late:
                turn.steps.append((name, number))
            self._count += 1
            if self._journals:
                self._session.note(self._delivery(event, number, late))
            shown = self.cells.get(name, name) if self.cells else name
            said = Said(shown, number, (event,), late, turn, len(turn.steps), self._decode)
            self._push(Notification(number, event.payload, said))
            return
        session = self._session
        match item:
            case Joined(topic=topic, base=base):
                self._in_force(topic, base)
            case Gap(topic=topic):
                name = session.name_of(topic) or str(topic)
                if self.archive is not None and self.promise.reliability == "reliable":
                    self._fill(name, item)
                else:
                    self._tell_gap(name, item)
            case Stalled(topic=topic, reason=reason):
                name = session.name_of(topic) or str(topic)
                session.note(Record("stalled", session.now(), self.sid, self.sid, topic=name, note=reason))
                self._push(self._notice(self.cells.get(name, name), stalled=item))
                if item.ends:
                    self.fail(TransportError(f"{name}: {reason}, and this subscription ends. Subscribe again"))
            case CutOff(publishers=publishers, reason=reason):
                session.note(Record("cut", session.now(), self.sid, self.sid, clock=dict(publishers), note=reason))
                self._push(self._notice("", cut=item))
            case Selected():
                self._has_selected()
            case Refused(reason=reason):
                self.fail(PlanError(reason))
            case _:
                pass

    def _deliver_row(self, events: Events, number: int) -> None:
        """Events of one topic with consecutive numbers."""
        if isinstance(events, EventRow):
            name, payloads = events.topic, events.payloads
        else:
            name, payloads = events[0].topic, tuple(event.payload for event in events)
        turn = self._turn
        end = number + len(payloads)
        turn.steps.append((name, end - 1))
        step = len(turn.steps)
        if self._journals:
            for i, event in enumerate(events):
                self._count += 1
                self._session.note(self._delivery(event, number + i, late=False))
        shown = self.cells.get(name, name) if self.cells else name
        said = Said(shown, number, events, False, turn, step, self._decode)
        row = list(map(Notification, range(number, end), payloads, repeat(said)))
        if self._is_plain and len(self._waiting) + len(row) <= self._waiting_max:
            self._waiting.extend(row)
        else:
            for notification in row:
                self._push(notification)

    def _has_selected(self) -> None:
        now, sid = self._session.now(), self.sid
        for name in [*self.topics, *self._cells_in_force(self.topics)]:
            base, note = self._numbers.get(name, 0), note_of(self.where)
            self._session.note(Record("subscribe", now, sid, sid, topic=name, number=base, published_us=now, note=note))
        if self._selected is not None and not self._selected.done():
            self._selected.set_result(None)

    def _cells_in_force(self, topics: Iterable[str]) -> list[str]:
        known = dict.fromkeys(topics)
        return [cell for cell in self.bases if cell in self.cells and self.cells[cell] in known]

    # replay

    def _hold(self, item: Any) -> bool:
        """Whether a replay keeps this for the end; the first thing behind a replay ends it."""
        assert self._replay is not None
        if self._replay.is_over:
            self._replay = None
            return False
        if isinstance(item, Gap):
            self._replay.hold(self._session.name_of(item.topic) or str(item.topic), item)
            return True
        if isinstance(item, Heard) and not item.late:
            self._replay.hold(item.message.topic, item)
            return True
        return False

    def _fill(self, name: str, gap: Gap) -> None:
        """A hole: nothing later is delivered before the archive has been asked."""
        assert self.archive is not None
        position = {**self._turn.before, **dict(self._turn.steps)}
        self._replay = Replay(self, self.archive, position, self._waiting_max // 2)
        self._replay.hold(name, gap)
        self._replay.start()

    def pass_on(self, name: str, item: Heard | Gap) -> None:
        """A replay delivers; what a live subscription delivers goes the same way."""
        replay, self._replay = self._replay, None
        if isinstance(item, Gap):
            self._tell_gap(name, item)
        elif self.where.is_everything or self.where.matches(flatten(content_of(item.message))):
            self.deliver(item)
        else:
            self._turn.steps.append((name, item.number))
        self._replay = replay

    def skip_to(self, numbers: dict[str, int]) -> None:
        """Numbers up to these are done with, whether they were events or not."""
        self._numbers.update(self._turn.steps)
        self._numbers.update({name: number for name, number in numbers.items() if name in self.topics})
        self._turn = Turn(dict(self._numbers))

    def tell_stalled(self, name: str, stalled: Stalled) -> None:
        self._session.note(Record("stalled", self._session.now(), self.sid, self.sid, topic=name, note=stalled.reason))
        self._push(self._notice(name, stalled=stalled))
        self._wake()

    @property
    def waiting(self) -> int:
        """Notifications that nobody has read yet."""
        return len(self._waiting)

    async def room(self) -> None:
        """Returns when the reader has read at least half of what may wait."""
        await asyncio.sleep(0)
        while 2 * len(self._waiting) > self._waiting_max and not self._is_over:
            await asyncio.sleep(0.002)

    def _delivery(self, event: Event, number: int, late: bool) -> Record:
        now = self._session.now()
        return Record(
            "tag" if late else "deliver",
            now,
            who=self.sid,
            subscriber=self.sid,
            event=event.id,
            position=self._count,
            topic=event.topic,
            number=number or None,
            publisher=event.publisher,
            publisher_seq=event.sequence,
            delivered_us=now,
        )

    def end_turn(self) -> None:
        if self._turn.steps:
            self._numbers.update(self._turn.steps)
            self._turn = Turn(dict(self._numbers))
        if self._waiting:
            self._wake()

    def position(self) -> str:
        """Where the subscription stands behind everything delivered so far."""
        return encode_position(self._numbers)

    def _in_force(self, topic: Topic, base: int) -> None:
        session = self._session
        name = session.name_of(topic) or str(topic)
        note = note_of(self.where)
        session.note(Record("subscribe", session.now(), self.sid, self.sid, topic=name, number=base, note=note))
        self.bases[name] = base
        self._numbers[name] = base
        self._turn = Turn(dict(self._numbers))
        if self.starts_in_past:
            # The past of a topic that is added later can not be told in order any more: what we missed is a gap.
            last = None if self._replay is not None and not self._replay.is_started else 0
        else:
            last = self._start.pop(name, None)
        if last is not None and last < base:
            # Nobody keeps what was published between: a subscriber that comes back is told, not left to guess.
            self._tell_gap(name, Gap(topic, last + 1, base, "published while this subscription was away"))
        future = self._joined.get(topic)
        if future is not None and not future.done():
            future.set_result(None)
        if self.on_joined is not None:
            self.on_joined()

    def _tell_gap(self, name: str, gap: Gap) -> None:
        self._note_gap(name, gap)
        self._turn.steps.append((name, gap.last))
        self._push(self._notice(self.cells.get(name, name), gap))

    def _notice(
        self, shown: str, gap: Gap | None = None, stalled: Stalled | None = None, cut: CutOff | None = None
    ) -> Notification:
        number, step = gap.last if gap is not None else 0, len(self._turn.steps)
        said = Said(shown, number, (), False, self._turn, step, self._decode, gap, stalled, cut)
        return Notification(number, b"", said)

    def _push(self, notification: Notification) -> None:
        waiting = self._waiting
        if self._latest is not None:
            if notification.event is not None:
                self._latest.add(notification)
            if len(waiting) >= self.promise.buffer_events_max:
                waiting = self._waiting = deque(filter(self._latest.is_kept, waiting))
        if len(waiting) >= self.promise.buffer_events_max:
            if self.promise.reliability == "reliable":
                if not self._pausing:
                    self._pausing = True
                    self._session.pause(self)
            else:
                self._drop(waiting.popleft())
        waiting.append(notification)

    def _drop(self, oldest: Notification) -> None:
        """Events that nobody read in time become a gap each topic, or each publisher where topics have no numbers."""
        name, event, gap = oldest.topic, oldest.event, oldest.gap
        if self.cells:  # gaps are of cells
            name = event.topic if event is not None else (gap and self._session.name_of(gap.topic)) or name
        if gap is None and event is None:
            self._dropped[f"{type(oldest.cut or oldest.stalled).__name__} {name} {len(self._dropped)}"] = oldest
            return
        publisher = gap.publisher if gap is not None else ""
        first, last = (gap.first, gap.last) if gap is not None else (oldest.number, oldest.number)
        if event is not None and not last:
            publisher, first, last = event.publisher, event.sequence, event.sequence
        topic, reason = self._session.topic_of(name) or Topic(0), "the subscriber was too slow"
        if gap is None:
            self._note_gap(name, Gap(topic, first, last, reason, publisher))
        held = self._dropped.get(publisher or name)
        if held is not None and held.gap is not None:
            first = held.gap.first
        whole = Gap(topic, first, last, reason, publisher)
        said = Said(self.cells.get(name, name), last, (), False, self._turn, 0, self._decode, whole)
        self._dropped[publisher or name] = Notification(last, b"", said)

    def _note_gap(self, name: str, gap: Gap) -> None:
        now, sid = self._session.now(), self.sid
        if gap.publisher:
            for number in range(gap.first, gap.last + 1):
                event = event_id(gap.publisher, number)
                self._session.note(Record("gap", now, sid, sid, event, topic=name, note=gap.reason))
            return
        self._session.note(
            Record("gap", now, sid, sid, topic=name, number=gap.first, last_number=gap.last, note=gap.reason)
        )

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def check_interests(topics: tuple[str, ...]) -> None:
    if not topics:
        raise MisuseError("subscribe to at least one topic or pattern")
