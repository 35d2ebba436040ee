"""A hierarchy of brokers as an event notification service: what sequencers, and whoever subscribes to their order, use.

A channel is a topic of the hierarchy, an item an event on it. Whoever says it is part of the event's name below our own
(`e7/ens/c3/p`), so that brokers can hold us to it. An item is confirmed when the root of our region has it. A lost link
loses nothing: what was missed is asked of its publisher, and what nobody can bring any more is told as `Lost`.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from unisono.errors import MisuseError, TransportError
from unisono.machine import (
    Accepted,
    Advertise,
    CutOff,
    Heard,
    Joined,
    Publish,
    Refused,
    Subscribe,
    Unknown,
    Unsubscribe,
)
from unisono.model.deployment import Deployment
from unisono.model.event import Event, Scalar
from unisono.model.ids import Address, Topic
from unisono.model.predicate import Filter
from unisono.model.time import Micros
from unisono.protocols.regions.client import RegionClient
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.deployed import regions_config
from unisono.runtime.brokers.contract import (
    CONTROL,
    AdapterLimits,
    Down,
    Item,
    ItemRejected,
    Listener,
    Lost,
    Parcel,
    Traits,
    Up,
    check_channel,
    unpack,
)
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.sequencer_codec import ATTRIBUTES, NO_ATTRIBUTES, publisher_on
from unisono.runtime.brokers.unconfirmed import UnconfirmedItems
from unisono.runtime.client.regions.door import RegionsDoor, RegionsPort
from unisono.runtime.links import control
from unisono.runtime.links.frames import UNREADABLE, Codec, nodes_only
from unisono.runtime.links.greeting import hello_of
from unisono.runtime.links.links import Links
from unisono.runtime.links.security import Tokens, client_context

logger = logging.getLogger(__name__)

ENS = "/ens/"
"""In a publisher's name, between the connection that speaks and the publisher it speaks for."""
HEADER = "unisono-header "
"""Attributes that begin like this are headers of the item; no publisher's attribute may."""
HELD_MAX = 2_000
"""Items kept while paused; beyond, nothing is read from the broker."""
_attributes: msgspec.json.Decoder[dict[str, Scalar]] = msgspec.json.Decoder(dict[str, Scalar])


class RegionsEns:
    """One connection to the brokers of a hierarchy."""

    traits = Traits("regions", strength="ordered", payload_bytes_max=RegionsConfig().limits.payload_bytes_max)

    def __init__(
        self,
        deployment: Deployment,
        base: Path,
        listener: Listener,
        token: str,
        region: str | None = None,
        near: str | None = None,
        is_node: bool = False,
        limits: AdapterLimits = AdapterLimits(),
    ) -> None:
        """A node's own broker comes up after its sequencer: what is asked for before waits for it."""
        self._listener, self._is_node, self._limits = listener, is_node, limits
        self.address = Address(f"e{secrets.token_hex(5)}")
        links = Links(
            hello_of("client", self.address, deployment),
            Codec(control.Letters),
            nodes_only,
            control.claims,
            lambda hello: self.door.up(hello),
            lambda hello, error: self.door.down(hello, error),
            client_tls=client_context(deployment.security, base),
            tokens=Tokens(own=token),
        )
        self.door = RegionsDoor(deployment, links, region, near)
        self.door.on_link = self._linked
        config = structs.replace(
            regions_config(deployment),
            log_max=max(RegionsConfig().log_max, 2 * limits.open_items_max),
            log_bytes_max=2 * limits.open_bytes_max,
        )
        self._names: dict[Topic, str] = {}
        self._numbers: dict[str, Topic] = {}
        self.machine = RegionClient(Address(f"{self.address}/ens"), self._names.__getitem__, config)
        self._port = RegionsPort(self.door, self.machine.me, self.machine, self)
        self._guard = Guard(listener.on_failed)
        self._outbox = UnconfirmedItems[Item](limits, self.traits.payload_bytes_max)
        self._given = 0  # items given to the machine; the next has this as its request
        self._settled: dict[int, str | None] = {}  # requests with an outcome, and why it was refused
        self._channels: dict[str, asyncio.Future[bool]] = {}  # by the topic that carries them
        self._asked: dict[Topic, None] = {}
        self._heard: deque[Event] = deque()
        self._paused = self._is_started = self._was_down = False
        self._roomy: list[Callable[[], None]] = []

    @property
    def open_count(self) -> int:
        return len(self._outbox)

    async def open(self) -> None:
        self.door.open()
        if not self._is_started:
            self._is_started = True
            self.door.links.attach(self.address, self)
            await self._port.start(sink=self)
        if not self._is_node:
            await self.door.search.connected(1.0 + len(self.door.search.brokers))

    def publish(self, items: Sequence[Parcel]) -> None:
        singles = unpack(items)
        events = tuple([self._event(item) for item in singles])
        self._outbox.put(singles)
        first = self._given + 1
        self._given += len(singles)
        if events:
            self._port.host.post(Publish(Topic(0), events, first))

    def _event(self, item: Item) -> Event:
        attributes = NO_ATTRIBUTES
        if item.headers is not None:
            headers = dict(item.headers)
            attributes = _read(headers)
            attributes |= {HEADER + name: text for name, text in headers.items()}
        name = f"{self.address}{ENS}{item.publisher}"
        return Event(name, item.request, _carrier(item.topic, item.control), item.payload, attributes, _born(item))

    async def room(self) -> None:
        await self._outbox.room()

    async def flush(self) -> None:
        await self._outbox.flush()

    async def subscribe(self, topic: str, *, control: bool = False, after: int | None = None) -> None:
        if after is not None:
            raise MisuseError("regions keep nothing to replay")
        carrier = _carrier(check_channel(topic), control)
        joined = self._channels.get(carrier)
        if joined is None:
            joined = self._channels[carrier] = asyncio.get_running_loop().create_future()
            if not self._asked:
                self._guard.soon(self._ask)
            self._asked[self._number(carrier)] = None
        if not await asyncio.shield(joined):
            raise TransportError(f"{topic} was unsubscribed, or the connection closed, before the broker answered")

    def _ask(self) -> None:
        """What was asked for in one turn of the loop is one question: each carries all that is wanted."""
        asked, self._asked = self._asked, {}
        if asked:
            self._port.host.post(Subscribe(tuple(asked)))

    def unsubscribe(self, topic: str, *, control: bool = False) -> None:
        carrier = _carrier(topic, control)
        joined = self._channels.pop(carrier, None)
        if joined is not None:
            _settle(joined, False)
            if self._asked.pop(self._number(carrier), self) is self:
                self._port.host.post(Unsubscribe((self._number(carrier),)))
            self._heard = deque(event for event in self._heard if event.topic != carrier)
            self._let_in()

    def _number(self, carrier: str) -> Topic:
        number = self._numbers.get(carrier)
        if number is None:
            number = self._numbers[carrier] = Topic(len(self._numbers) + 1)
            self._names[number] = carrier
        return number

    def advertise(self, topic: str, publisher: str, where: Filter) -> None:
        """What a publisher says it will publish there."""
        self._port.host.post(Advertise(self._number(topic), publisher, where))

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._guard.soon(self._hand_over)

    async def close(self) -> None:
        if self._is_started and self.door.search.attached_to is not None:
            flushed = asyncio.ensure_future(self._outbox.flush())
            await asyncio.wait((flushed,), timeout=self._limits.reconnect_us_max / 1e6)
            flushed.cancel()
        self._outbox.close("this connection is closed")
        for joined in self._channels.values():
            _settle(joined, False)
        self._is_node = True  # nobody waits any more
        await self.door.close()
        await self.door.links.close()

    def _linked(self, why: str | None) -> None:
        if why is not None:
            self._was_down = True
            self._listener.on_notice(Down(why))
        elif self._was_down:
            self._was_down = False
            self._listener.on_notice(Up(0))

    # a sink: what is said to the machine, which is read more slowly while we are paused

    def post(self, message: Any) -> None:
        match message:
            case control.OverLimit(reason=reason, code=code):
                self._listener.on_failed(MisuseError(f"{reason} ({code})"))
            case control.YourRights():
                pass  # the session above is told as well
            case _:
                self._port.host.post(message)

    @property
    def is_full(self) -> bool:
        return len(self._heard) >= HELD_MAX or self._port.host.is_full

    def when_roomy(self, callback: Callable[[], None]) -> None:
        if len(self._heard) >= HELD_MAX:
            self._roomy.append(callback)
        else:
            self._port.host.when_roomy(callback)

    def _let_in(self) -> None:
        if self._roomy and len(self._heard) < HELD_MAX:
            callbacks, self._roomy = self._roomy, []
            for callback in callbacks:
                callback()

    # what the machine delivers

    def deliver(self, item: Any) -> None:
        match item:
            case Heard(message=Event() as event):
                self._heard.append(event)
            case Accepted(request=request):
                self._settled[request] = None
            case Refused(request=0, reason=reason):
                logger.warning("the broker refuses: %s", reason)
            case Refused(request=request, reason=reason) | Unknown(request=request, reason=reason):
                self._settled[request] = reason
            case Joined(topic=topic):
                joined = self._channels.get(self._names[topic])
                if joined is not None:
                    _settle(joined, True)
            case CutOff(reason=reason):
                self._hand_over()
                self._listener.on_notice(Lost(reason))
            case _:
                pass

    def end_turn(self) -> None:
        if self._settled:
            self._confirm()
        if self._heard and not self._paused:
            self._hand_over()

    def _confirm(self) -> None:
        """In the order of publication; whoever was refused is told first."""
        done, first = 0, self._given - len(self._outbox) + 1
        while first + done in self._settled:
            reason = self._settled.pop(first + done)
            if reason is not None:
                item = next(islice(self._outbox.items, done, None))
                self._listener.on_notice(ItemRejected(item, reason))
            done += 1
        if done:
            self._outbox.confirm(done)
            self._listener.on_confirmed(done)

    def _hand_over(self) -> None:
        if self._paused or not self._heard:
            return
        heard, self._heard = self._heard, deque()
        items = [_item(event) for event in heard if event.topic in self._channels]
        if items:
            self._listener.on_items(items)
        self._let_in()

    def refused(self, reason: str) -> None:
        logger.debug("%s refused: %s", self.address, reason)

    def failed(self, error: Exception) -> None:
        self._listener.on_failed(error)


def _carrier(topic: str, control: bool) -> str:
    return f"{CONTROL}{topic}" if control else topic


def _born(item: Item) -> Micros:
    return Micros(item.born_us)


def _settle(joined: asyncio.Future[bool], is_in_force: bool) -> None:
    if not joined.done():
        joined.set_result(is_in_force)


def _read(headers: dict[str, str]) -> dict[str, Scalar]:
    """The event's attributes, taken out of its headers: brokers route by them. What cannot be read stays a header."""
    text = headers.get(ATTRIBUTES)
    if text is None:
        return {}
    try:
        attributes = _attributes.decode(text)
    except UNREADABLE:
        return {}
    del headers[ATTRIBUTES]
    if any(name.startswith(HEADER) for name in attributes):
        raise MisuseError(f"attributes that begin with {HEADER!r} are not for publishers")
    return attributes


def _item(event: Event) -> Item:
    is_control = event.topic.startswith(CONTROL)
    topic = event.topic[len(CONTROL) :] if is_control else event.topic
    _, mark, publisher = event.publisher.partition(ENS)
    headers = None
    if event.attributes:
        plain = {name: v for name, v in event.attributes.items() if not name.startswith(HEADER)}
        headers = {name[len(HEADER) :]: str(v) for name, v in event.attributes.items() if name.startswith(HEADER)}
        if plain:
            headers[ATTRIBUTES] = msgspec.json.encode(plain).decode()
    request = event.sequence if mark else 0
    return Item(topic, event.payload, publisher, request, is_control, headers, event.born_at)


def as_published(event: Event) -> Event:
    """The event under the name that its publisher knows it by, without what was only for the way."""
    _, mark, publisher = event.publisher.partition(ENS)
    if not mark:
        return event
    attributes = {name: v for name, v in event.attributes.items() if not name.startswith(HEADER)}
    return structs.replace(event, publisher=publisher_on(publisher, event.topic), attributes=attributes)


def name_as_published(publisher: str) -> str:
    return publisher.partition(ENS)[2] or publisher
