"""The broker beneath the machines of a process: one connection to an event notification service, shared by its hosts.

Machines speak of topic numbers and message objects, a broker of names and bytes; `Ground` translates, and keeps what
the broker has no room for yet. Everything a machine broadcasts in one turn is published in one call.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from unisono.errors import PeerError, TransportError
from unisono.machine import Heard, Joined
from unisono.model.event import Event, EventRow
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.messages import Payload, Payloads
from unisono.runtime.dialect import from_item, publisher_on, to_item, to_parcels
from unisono.runtime.ens.adapter import Ens, EnsNotice, FullError, Item, Parcel, Row, count_items
from unisono.runtime.links import Sink

logger = logging.getLogger(__name__)

WAITING_MAX = 50_000
"""Items waiting for room at the broker before the process stops taking on work."""
JOIN_AGAIN_S = 0.5


class Names(Protocol):
    """Names of topics."""

    def name_of(self, topic: Topic) -> str | None: ...

    def topic_of(self, name: str) -> Topic | None: ...


class GroundCounters(Struct):
    """What has passed between us and the broker."""

    published: int = 0
    confirmed: int = 0
    heard: int = 0
    unreadable: int = 0
    foreign: int = 0
    nameless: int = 0


class Ground:
    """A process's connection to the broker, as the hosts see it; the broker sees a `Listener`."""

    def __init__(
        self,
        names: Names,
        confirmed: Callable[[int], None],
        noticed: Callable[[EnsNotice], None],
        foreign: Callable[[Item], None],
    ) -> None:
        """`confirmed` is told how many more items the broker has taken; `foreign` gets events nobody of ours wrote."""
        self.counters = GroundCounters()
        self._names, self._confirmed, self._noticed, self._foreign = names, confirmed, noticed, foreign
        self._members: dict[Topic, list[Sink]] = {}
        self._items: list[Parcel] = []
        self._waiting: deque[Parcel] = deque()
        self._waiting_count = 0
        self._roomer: asyncio.Task[None] | None = None
        self._joins: dict[Topic, asyncio.Task[None]] = {}
        self._ens: Ens | None = None
        self._pausers: dict[object, None] = {}

    def stand_on(self, ens: Ens) -> None:
        self._ens = ens

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
            asyncio.get_running_loop().call_soon(self._confirmed, 1)
            return
        if type(message) is Payloads:
            self._items += to_parcels(name, message)
        else:
            self._items.append(to_item(name, message, control))

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
                self.ens.publish(items)
                return
            except FullError:
                pass
            except TransportError as error:  # closed under us; what was not confirmed stays open with its owner
                logger.debug("not published: %s", error)
                return
        self._waiting.extend(items)
        self._waiting_count += count_items(items)
        if self._roomer is None:
            self._roomer = asyncio.create_task(self._wait_for_room(), name="room at the broker")

    def join(self, topic: Topic, sink: Sink) -> None:
        """The sink hears the topic, and `Joined` when everything published from then on will be heard."""
        members = self._members.setdefault(topic, [])
        if sink not in members:
            members.append(sink)
        if len(members) > 1 and topic not in self._joins:
            sink.post(Joined(topic))
        elif topic not in self._joins:
            self._joins[topic] = asyncio.create_task(self._join(topic), name=f"join {topic}")

    def leave(self, topic: Topic, sink: Sink) -> None:
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

    async def _join(self, topic: Topic) -> None:
        name = self._names.name_of(topic)
        if name is None:
            return
        while True:
            try:
                await self.ens.subscribe(name, control=True)
                await self.ens.subscribe(name)
                break
            except TransportError as error:
                logger.info("%s is not joined yet: %s", name, error)
                await asyncio.sleep(JOIN_AGAIN_S)
        self._joins.pop(topic, None)
        for sink in self._members.get(topic, []):
            sink.post(Joined(topic))

    async def _wait_for_room(self) -> None:
        try:
            while self._waiting:
                await self.ens.room()
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), 1000))]
                try:
                    self.ens.publish(batch)
                    self._waiting_count -= count_items(batch)
                except FullError:
                    self._waiting.extendleft(reversed(batch))
        except TransportError as error:
            logger.debug("not published: %s", error)
        finally:
            self._roomer = None

    # from the broker

    def on_items(self, items: Sequence[Parcel]) -> None:
        filled: Sink | None = None
        row: list[bytes] = []  # of one publisher on one topic, consecutive: handed over as one
        publisher = name = ""
        end = 0  # the request behind the row
        topic: Topic | None = None
        for item in items:
            if row and item.request == end and item.publisher == publisher and item.topic == name:
                if type(item) is Row:
                    row += item.payloads
                    end += len(item.payloads)
                    continue
                assert type(item) is Item
                if not item.headers and not item.control:
                    row.append(item.payload)
                    end += 1
                    continue
            if row and topic is not None:
                filled = self._hand_over_row(topic, name, publisher, end, row) or filled
                row = []
            if item.topic != name:
                name = item.topic
                topic = self._names.topic_of(name)
            if topic is None:
                continue
            if type(item) is Row:
                publisher, row, end = item.publisher, [*item.payloads], item.request + len(item.payloads)
                continue
            assert type(item) is Item
            if item.publisher and not item.headers and not item.control:
                publisher, row, end = item.publisher, [item.payload], item.request + 1
            else:
                filled = self._hand_over_one(topic, item) or filled
        if row and topic is not None:
            filled = self._hand_over_row(topic, name, publisher, end, row) or filled
        if filled is not None and filled.is_full and filled not in self._pausers:
            full = filled
            self.pause(full)
            full.when_roomy(lambda: self.resume(full))

    def pause(self, who: object) -> None:
        """Nothing is read from the broker while anybody has no room."""
        self._pausers[who] = None
        self.ens.pause()

    def resume(self, who: object) -> None:
        self._pausers.pop(who, None)
        if not self._pausers:
            self.ens.resume()

    def _hand_over_row(self, topic: Topic, name: str, publisher: str, end: int, row: list[bytes]) -> Sink | None:
        """`end` is the request behind the row."""
        self.counters.heard += len(row)
        first, who = end - len(row), publisher_on(publisher, name)
        events = EventRow(who, first, name, tuple(row)) if len(row) > 1 else (Event(who, first, name, row[0]),)
        return self._hand_over(topic, Payloads(Address(publisher), first, events), False)

    def _hand_over_one(self, topic: Topic, item: Item) -> Sink | None:
        self.counters.heard += 1
        if not item.publisher and not item.control:
            self.counters.foreign += 1
            self._foreign(item)
            return None
        try:
            message = from_item(item)
        except PeerError as error:
            self.counters.unreadable += 1
            logger.debug("%s", error)
            return None
        if type(message) is Payload:
            message = Payloads(message.publisher, message.request, (message.event,))
        return self._hand_over(topic, message, item.control)

    def _hand_over(self, topic: Topic, message: Any, control: bool) -> Sink | None:
        sinks = self._members.get(topic)
        if not sinks:
            return None
        heard = Heard(topic, message, control)
        for sink in sinks:
            sink.post(heard)
        return sinks[-1]

    def on_confirmed(self, count: int) -> None:
        self.counters.confirmed += count
        self._confirmed(count)

    def on_notice(self, notice: EnsNotice) -> None:
        self._noticed(notice)
