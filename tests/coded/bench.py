"""One coded node on a bench: gives it inputs, keeps its effects apart, and holds it to J3, J4 and J7 all the time."""

from random import Random
from typing import Any

from unisono.machine import (
    Broadcast,
    CancelTimer,
    Deliver,
    Effect,
    Fired,
    Gap,
    Heard,
    Joined,
    Persist,
    Publish,
    Restarted,
    Send,
    SetTimer,
    Subscribe,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import AskPackets, EventKey, PacketPiece
from unisono.protocols.coded.node import CodedNode
from unisono.protocols.coded.wire import BadPacket, Packet, pack, publisher_id, shape, unpack

TOPIC = Topic(7)
PUBLISHER = Address("pub")
CONTENT = bytes(range(256)) * 40  # 10 240 bytes: 8 rows
N = shape(len(CONTENT) + 3)[0]
PEERS = tuple(Address(f"peer{i}") for i in range(5))
ASKING = CodedConfig(seeds=PEERS)


class Bench:
    """The world of one node."""

    def __init__(
        self, config: CodedConfig = CodedConfig(), me: str = "me", topics: tuple[Topic, ...] = (TOPIC,)
    ) -> None:
        self.me, self.config = Address(me), config
        self.node = self.fresh()
        self.now = Micros(1_000_000)
        self.timers: dict[str, int] = {}
        self.log: list[tuple[Micros, Any]] = []
        self.heard: list[Any] = []
        self.gaps: list[Gap] = []
        self.sent: list[Send] = []
        self.broadcasts: list[Broadcast] = []
        if topics:
            self.give(Subscribe(topics))
            for topic in topics:
                self.give(Joined(topic))
        self.sent.clear()
        self.broadcasts.clear()

    def fresh(self) -> CodedNode:
        return CodedNode(self.me, self.config, Random(self.me))

    def give(self, message: Any) -> list[Effect]:
        effects = self.node.handle(message, self.now)
        assert sum(isinstance(effect, Persist) for effect in effects) <= 1
        for effect in effects:
            match effect:
                case SetTimer(key=key, at=at):
                    self.timers[key] = at
                case CancelTimer(key=key):
                    self.timers.pop(key, None)
                case Deliver(item=Heard(message=content)):
                    self.heard.append(content)
                case Deliver(item=Gap() as gap):
                    self.gaps.append(gap)
                case Send():
                    self.sent.append(effect)
                case Broadcast():
                    self.broadcasts.append(effect)
                case Persist():
                    self.log.append((self.now, message))
                case _:
                    pass
        live = {f"{e.topic}/{e.publisher}/{e.sequence}" for e in self.node._arrivals.live}
        waiting = {key.partition(" ")[2] for key in self.timers if " " in key}
        assert waiting <= live, "a timer outlived its event"  # J7
        return effects

    def wait(self, us: int) -> None:
        """Lets time pass and timers fire."""
        until = self.now + us
        while self.timers and min(self.timers.values()) <= until:
            key = min(self.timers, key=lambda k: self.timers[k])
            self.now = Micros(max(self.now, self.timers.pop(key)))
            self.give(Fired(key))
        self.now = Micros(until)

    def restart(self) -> None:
        """The machine comes back from its log alone."""
        self.node, self.timers = self.fresh(), {}
        for then, message in self.log:
            self.node.handle(message, then)
        self.give(Restarted())

    def asks(self) -> list[tuple[Address, AskPackets]]:
        return [(send.to, send.message) for send in self.sent if isinstance(send.message, AskPackets)]


def publication(
    content: bytes,
    config: CodedConfig = CodedConfig(),
    count: int = 1,
    me: Address = PUBLISHER,
    topic: Topic = TOPIC,
) -> list[list[bytes]]:
    """The packets of `count` events with this content, as their publisher sends them."""
    node = CodedNode(me, config, Random("publisher"))
    events = []
    for _ in range(count):
        effects = node.handle(Publish(topic, content), Micros(0))
        events.append(
            [e.message.data for e in effects if isinstance(e, Broadcast) and isinstance(e.message, PacketPiece)]
        )
    return events


def direct(data: bytes, topic: Topic = TOPIC) -> Heard:
    """A packet as the broker brings it."""
    return Heard(topic, PacketPiece(data))


def opened(data: bytes) -> Packet:
    packet = unpack(data)
    assert not isinstance(packet, BadPacket)
    return packet


def forged(data: bytes, **changes: Any) -> bytes:
    """The packet with some fields changed and a valid checksum."""
    packet = opened(data)
    fields = {name: getattr(packet, name) for name in packet.__struct_fields__}
    return pack(Packet(**{**fields, **changes}))


def key_of(sequence: int, me: Address = PUBLISHER, topic: Topic = TOPIC) -> EventKey:
    return EventKey(topic, publisher_id(me), sequence)


def lacking(count: int, config: CodedConfig = ASKING) -> Bench:
    """A node that misses `count` rows of an event."""
    bench = Bench(config)
    for data in publication(CONTENT, config)[0][: N - count]:
        bench.give(direct(data))
    return bench


def holder(config: CodedConfig = CodedConfig()) -> Bench:
    bench = Bench(config)
    for data in publication(CONTENT, config)[0]:
        bench.give(direct(data))
    bench.sent.clear()
    return bench


def answer(bench: Bench, ask: AskPackets) -> list[bytes]:
    return [e.message.data for e in bench.give(ask) if isinstance(e, Send) and isinstance(e.message, PacketPiece)]
