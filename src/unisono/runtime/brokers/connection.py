"""The broker beneath the machines of a process: one connection to an event notification service, shared by its hosts.

Machines speak of topic numbers and message objects, a broker of names and bytes; `BrokerConnection` translates, and
keeps what the broker has no room for yet. Everything a machine broadcasts in one turn is published in one call.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from unisono.errors import MisuseError, PeerError, TransportError, UnisonoError
from unisono.machine import Heard, Joined, Missed, Paused
from unisono.model.event import Event, EventRow, Events, Payload, Payloads
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.runtime.brokers.contract import (
    Ens,
    EnsNotice,
    FullError,
    Item,
    ItemRejected,
    ItemRow,
    Lost,
    Parcel,
    count_items,
    unpack,
)
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.sequencer_codec import NO_ATTRIBUTES, from_item, publisher_on, to_item, to_parcels
from unisono.runtime.links.links import LetterReceiver

logger = logging.getLogger(__name__)

WAITING_MAX = 50_000
"""Items waiting for room at the broker before the process stops taking on work."""
JOIN_AGAIN_S = 0.5
REPEAT_S = 0.5
"""After this, control messages that the broker has rejected are published again."""


class TopicNumbering(Protocol):
    """Names of topics."""

    def name_of(self, topic: Topic) -> str | None: ...

    def topic_of(self, name: str) -> Topic | None: ...


class BrokerCounters(Struct):
    """What has passed between us and the broker."""

    published: int = 0
    confirmed: int = 0
    heard: int = 0
    unreadable: int = 0
    foreign: int = 0
    nameless: int = 0
    rejected: int = 0
    losses: int = 0


class BrokerConnection:
    """A process's connection to the broker, as the hosts see it; the broker sees a `Listener`."""

    def __init__(
        self,
        names: TopicNumbering,
        confirmed: Callable[[int], None],
        noticed: Callable[[EnsNotice], None],
        foreign: Callable[[Item], None],
        failed: Callable[[Exception], None],
        space: str = "",
    ) -> None:
        """`confirmed` is told how many more items the broker has taken; `foreign` gets events nobody of ours wrote.

        Whatever breaks here, above us or in the adapter, is told to `failed`. `space` stands before the names of our
        publishers at the broker, where others may use the same names and topics (`publishers_space`).
        """
        self._space = space
        self.on_failed, self.guard = failed, Guard(failed)
        self.counters = BrokerCounters()
        self._names, self._confirmed, self._noticed, self._foreign = names, confirmed, noticed, foreign
        self.adopted: dict[str, str] = {}
        """Topics of which events of strangers are published again, and where; set before anything is joined."""
        self.adopts = False
        """What is broadcast here is such events."""
        self.on_refused: Callable[[Topic, UnisonoError], None] | None = None
        """Who is told of a topic that the broker does not let us hear; without anybody that is told to `failed`."""
        self._members: dict[Topic, list[LetterReceiver]] = {}
        self._items: list[Parcel] = []
        self._waiting: deque[Parcel] = deque()
        self._waiting_count = 0
        self._roomer: asyncio.Task[None] | None = None
        self._joins: dict[Topic, asyncio.Task[None]] = {}
        self._given = 0  # items given to the broker
        self._taken = 0  # of them those that it has confirmed or rejected
        self._kept_back: deque[int] = deque()  # `given` when an item was not even given: it counts after those
        self._repeated: deque[int] = deque()  # which of the given are repetitions: they count as nothing
        self._rejected: list[Item] = []  # control messages, to be published again
        self._repeater: asyncio.TimerHandle | None = None
        self._ens: Ens | None = None
        self._pausers: dict[object, None] = {}

    def stand_on(self, ens: Ens) -> None:
        self._ens = ens

    @property
    def stands(self) -> bool:
        return self._ens is not None

    @property
    def ens(self) -> Ens:
        assert self._ens is not None
        return self._ens

    @property
    def is_full(self) -> bool:
        return self._waiting_count >= WAITING_MAX

    async def close(self) -> None:
        tasks = [*self._joins.values(), *([self._roomer] if self._roomer else [])]
        for task in tasks:
            task.cancel()
        if self._repeater is not None:
            self._repeater.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._ens is not None:
            await self._ens.close()

    # from the hosts

    def broadcast(self, topic: Topic, message: Any, control: bool) -> None:
        """Taken now, published by `end_turn`."""
        name = self._names.name_of(topic)
        if name is None:
            self.counters.nameless += 1
            # There is nobody to hear it, and the count of confirmations must stay right.
            self.guard.soon(self._confirmed, 1)
            return
        if self.adopts:
            name = self.adopted[name]
        if type(message) is Payloads:
            self._items += to_parcels(name, message, self._space)
        else:
            self._items.append(to_item(name, message, control, self._space))

    @property
    def has_items(self) -> bool:
        """Whether something was broadcast and not published yet."""
        return bool(self._items)

    def end_turn(self) -> None:
        if not self._items:
            return
        items, self._items = self._items, []
        self.counters.published += count_items(items)
        if not self._waiting:
            try:
                self._give(items)
                return
            except FullError:
                pass
            except TransportError as error:  # closed under us; what was not confirmed stays open with its owner
                logger.debug("not published: %s", error)
                return
        self._waiting.extend(items)
        self._waiting_count += count_items(items)
        if self._roomer is None:
            self._roomer = self.guard.spawn(self._wait_for_room(), "room at the broker")

    def join(self, topic: Topic, sink: LetterReceiver) -> None:
        """The sink hears the topic, and `Joined` when everything published from then on will be heard."""
        members = self._members.setdefault(topic, [])
        if sink not in members:
            members.append(sink)
            if self._pausers:
                sink.post(Paused(True))
        if len(members) > 1 and topic not in self._joins:
            sink.post(Joined(topic))
        elif topic not in self._joins:
            self._joins[topic] = self.guard.spawn(self._join(topic), f"join {topic}")

    def leave(self, topic: Topic, sink: LetterReceiver) -> None:
        members = self._members.get(topic, [])
        if sink in members:
            members.remove(sink)
        if not members and self._members.pop(topic, None) is not None:
            joining = self._joins.pop(topic, None)
            if joining is not None:
                joining.cancel()
            name = self._names.name_of(topic)
            if name is not None:
                self.ens.unsubscribe(name)
                self.ens.unsubscribe(name, control=True)
                if name in self.adopted:
                    self.ens.unsubscribe(self.adopted[name])

    async def _join(self, topic: Topic) -> None:
        name = self._names.name_of(topic)
        if name is None:
            return
        while True:
            try:
                await self.ens.subscribe(name, control=True)
                await self.ens.subscribe(name)
                if name in self.adopted:
                    await self.ens.subscribe(self.adopted[name])
                break
            except TransportError as error:
                logger.info("%s is not joined yet: %s", name, error)
                await asyncio.sleep(JOIN_AGAIN_S)
            except MisuseError as error:
                if self.on_refused is None:
                    raise
                self._joins.pop(topic, None)
                self.on_refused(topic, error)
                return
        self._joins.pop(topic, None)
        for sink in self._members.get(topic, []):
            sink.post(Joined(topic))

    async def _wait_for_room(self) -> None:
        try:
            while self._waiting:
                await self.ens.room()
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), 1000))]
                try:
                    self._give(batch)
                    self._waiting_count -= count_items(batch)
                except FullError:
                    self._waiting.extendleft(reversed(batch))
        except TransportError as error:
            logger.debug("not published: %s", error)
        finally:
            self._roomer = None

    def _give(self, items: list[Parcel]) -> None:
        """All of them or, with FullError, none; what is too long for this broker does not hold up the others."""
        try:
            self.ens.publish(items)
            self._given += count_items(items)
        except MisuseError:
            self._give_apart(unpack(items))

    def _give_apart(self, items: list[Item]) -> None:
        """Their owner has looked before; the broker has changed since, or another one has taken its place."""
        largest = self.ens.traits.payload_bytes_max
        fitting = [item for item in items if len(item.payload) <= largest]
        self.ens.publish(fitting)
        for item in items:
            if len(item.payload) <= largest:
                self._given += 1
            else:
                self._kept_back.append(self._given)
                self.on_notice(
                    ItemRejected(item, f"a payload of {len(item.payload)} bytes; this broker takes up to {largest}")
                )
        self.on_confirmed(0)

    def _repeat(self) -> None:
        self._repeater = None
        items, self._rejected = self._rejected, []
        try:
            self.ens.publish(items)
        except FullError:
            self._repeat_later(items)
        except TransportError as error:
            logger.debug("not published: %s", error)
        else:
            self._repeated.extend(range(self._given + 1, self._given + len(items) + 1))
            self._given += len(items)

    def _repeat_later(self, items: list[Item]) -> None:
        self._rejected += items
        if self._repeater is None:
            self._repeater = self.guard.later(REPEAT_S, self._repeat)

    # from the broker

    def on_items(self, items: Sequence[Parcel]) -> None:
        if self.adopted:
            items = [replace(one, topic=self._original(one.topic)) for one in items]
        self.guard.call(self._hear, items)

    def _hear(self, items: Sequence[Parcel]) -> None:
        filled: LetterReceiver | None = None
        row: list[bytes] = []  # of one publisher and moment on one topic, consecutive: handed over as one
        publisher = name = ""
        end = born = 0  # the request after the row, and its moment
        topic: Topic | None = None
        for item in items:
            if (
                row
                and item.request == end
                and item.born_us == born
                and item.publisher == publisher
                and item.topic == name
            ):
                if type(item) is ItemRow:
                    row += item.payloads
                    end += len(item.payloads)
                    continue
                assert type(item) is Item
                if not item.headers and not item.control:
                    row.append(item.payload)
                    end += 1
                    continue
            if row and topic is not None:
                filled = self._hand_over_row(topic, name, publisher, end, row, born) or filled
                row = []
            if item.topic != name:
                name = item.topic
                topic = self._names.topic_of(name)
            if topic is None:
                continue
            born = item.born_us
            if type(item) is ItemRow:
                publisher, row, end = item.publisher, [*item.payloads], item.request + len(item.payloads)
                continue
            assert type(item) is Item
            if item.publisher and not item.headers and not item.control:
                publisher, row, end = item.publisher, [item.payload], item.request + 1
            else:
                filled = self._hand_over_one(topic, item) or filled
        if row and topic is not None:
            filled = self._hand_over_row(topic, name, publisher, end, row, born) or filled
        if filled is not None and filled.is_full and filled not in self._pausers:
            full = filled
            self.pause(full)
            full.when_roomy(lambda: self.resume(full))

    def pause(self, who: object) -> None:
        """Nothing is read from the broker while anybody has no room."""
        if not self._pausers:
            self._tell_paused(True)
        self._pausers[who] = None
        self.ens.pause()

    def resume(self, who: object) -> None:
        was_paused = bool(self._pausers)
        self._pausers.pop(who, None)
        if not self._pausers:
            self.ens.resume()
            if was_paused:
                self._tell_paused(False)

    def _hand_over_row(
        self, topic: Topic, name: str, publisher: str, end: int, row: list[bytes], born_us: int
    ) -> LetterReceiver | None:
        """`end` is the request after the row."""
        if not publisher.startswith(self._space):
            for payload in row:
                self._hand_over_foreign(Item(name, payload))
            return None
        self.counters.heard += len(row)
        publisher = publisher[len(self._space) :]
        first, who, born = end - len(row), publisher_on(publisher, name), Micros(born_us)
        events: Events = EventRow(who, first, name, tuple(row), born)
        if len(row) == 1:
            events = (Event(who, first, name, row[0], NO_ATTRIBUTES, born),)
        return self._hand_over(topic, Payloads(Address(publisher), first, events), False)

    def _hand_over_one(self, topic: Topic, item: Item) -> LetterReceiver | None:
        if not item.control and (not item.publisher or not item.publisher.startswith(self._space)):
            self._hand_over_foreign(item)
            return None
        self.counters.heard += 1
        try:
            message = from_item(self._named_here(item))
        except PeerError as error:
            self.counters.unreadable += 1
            logger.debug("%s", error)
            return None
        if type(message) is Payload:
            message = Payloads(message.publisher, message.request, (message.event,))
        return self._hand_over(topic, message, item.control)

    def _hand_over_foreign(self, item: Item) -> None:
        """Published without unisono, or for another deployment, which has other numbers."""
        self.counters.heard += 1
        self.counters.foreign += 1
        self._foreign(item)

    def _named_here(self, item: Item) -> Item:
        """The same with the publisher's name as we know it."""
        return replace(item, publisher=item.publisher.removeprefix(self._space)) if self._space else item

    def _hand_over(self, topic: Topic, message: Any, control: bool) -> LetterReceiver | None:
        sinks = self._members.get(topic)
        if not sinks:
            return None
        heard = Heard(topic, message, control)
        for sink in sinks:
            sink.post(heard)
        return sinks[-1]

    def on_confirmed(self, count: int) -> None:
        self.guard.call(self._count, count)

    def _count(self, count: int) -> None:
        self._taken += count
        while self._repeated and self._repeated[0] <= self._taken:
            self._repeated.popleft()
            count -= 1
        while self._kept_back and self._kept_back[0] <= self._taken:
            self._kept_back.popleft()
            count += 1
        if count:
            self.counters.confirmed += count
            self._confirmed(count)

    def on_notice(self, notice: EnsNotice) -> None:
        self.guard.call(self._note, notice)

    def _note(self, notice: EnsNotice) -> None:
        if isinstance(notice, ItemRejected):
            self.counters.rejected += 1
            item = notice.item
            notice = ItemRejected(replace(self._named_here(item), topic=self._original(item.topic)), notice.reason)
            if notice.item.control:
                # Subscribers wait for it, and who misses it asks: it counts as done, and is said again.
                logger.warning("the broker rejects control messages of %s: %s", notice.item.topic, notice.reason)
                self._repeat_later([notice.item])
                return
        elif isinstance(notice, Lost):
            self.counters.losses += 1
            self._tell_missed(None if notice.topic is None else self._original(notice.topic))
        self._noticed(notice)

    def _original(self, channel: str) -> str:
        """The topic whose adopted events come on this channel, or the topic that it is."""
        return next((name for name, adopted in self.adopted.items() if adopted == channel), channel)

    def _tell_paused(self, is_paused: bool) -> None:
        """To everybody who listens: what does not come meanwhile is not lost."""
        for sink in {id(sink): sink for sinks in self._members.values() for sink in sinks}.values():
            sink.post(Paused(is_paused))

    def _tell_missed(self, name: str | None) -> None:
        """To who listens there, or without a name to everybody."""
        for topic, sinks in self._members.items():
            if name is None or self._names.name_of(topic) == name:
                for sink in sinks:
                    sink.post(Missed(topic))
