"""Coded multicast over real UDP datagrams: one socket per node, a star from each publisher to the members it knows.

    async with UdpNode(CodedConfig(), UdpConfig()) as node:      # node.address is "127.0.0.1:40123"
        node.introduce(other.address)
        await node.subscribe(Topic(1))
        node.publish(Topic(1), b"…")
        topic, content = await node.heard.get()

An address is `host:port`, so the sender of a datagram is known by where it came from. Coded packets travel as they are;
everything else (questions, adverts, joining a topic) is control and carries a cookie that its sender got from the
receiver at its own endpoint. Control without a valid cookie changes nothing and is answered by a challenge, smaller
than what caused it: until an endpoint has shown that it is there, it gets at most three times the bytes that came from
it. A lost datagram is nobody's error: what joins is repeated here, what is coded is repaired by the machine.

What leaves is paced (`UdpConfig.pace`): a burst that no buffer can hold would be lost, repaired, and lost again.
`UdpConfig.loss` drops datagrams before they leave, by a Gilbert-Elliott chain per destination: for tests.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from random import Random
from secrets import token_bytes
from typing import Any, Self

import msgspec
from msgspec import Struct

from unisono.errors import MisuseError, TransportError
from unisono.machine import (
    Broadcast,
    CancelTimer,
    Deliver,
    Fired,
    Gap,
    Heard,
    Join,
    Joined,
    Leave,
    Publish,
    Send,
    SetTimer,
    Subscribe,
    Unsubscribe,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.coded.channel import Channel, Losses
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import Adverts, AskPackets, MemberHello, Members, Nothing, PacketPiece, Seen
from unisono.protocols.coded.node import CodedNode
from unisono.protocols.coded.wire import MAGIC, publisher_id
from unisono.runtime.links.frames import UNREADABLE
from unisono.structures import field

Endpoint = tuple[str, int]

DATA, CONTROL, CHALLENGE = MAGIC.to_bytes(2, "big"), b"uG", b"uK"
COOKIE_BYTES = 8
NO_COOKIE = bytes(COOKIE_BYTES)
UNVALIDATED_FACTOR = 3
RECENT_MAX = 8  # control messages kept per endpoint, to be repeated when it asks for a cookie
RECENT_S = 1.0
ENDPOINTS_MAX = 4096
READ_MAX = 64  # datagrams per turn of the loop
PACE_S = 0.001
LEAVING_MAX = 8192  # datagrams waiting for their turn to leave
PUBLISHER_AT = slice(8, 16)  # where a coded packet names its publisher


class JoinTopic(Struct, frozen=True, tag="Joining"):
    """Send me what you publish on this topic."""

    topic: Topic


class TopicJoined(Struct, frozen=True, tag="JoinedAt"):
    """From now on I do; `publisher` is how I am called in packets."""

    topic: Topic
    publisher: int


class LeaveTopic(Struct, frozen=True, tag="Leaving"):
    """No longer."""

    topic: Topic


Control = AskPackets | Nothing | Adverts | MemberHello | Members | JoinTopic | TopicJoined | LeaveTopic


class UdpConfig(Struct, frozen=True):
    """One socket."""

    host: str = "127.0.0.1"
    port: int = 0
    loss: Channel | None = None
    """Drops what leaves, per destination."""
    seed: int = 0
    life: str = ""
    """Different in each life of a process at a fixed port, whose numbers begin anew."""
    pace: int = 32
    """Datagrams that leave per millisecond; a burst of twice as many leaves at once. 0: no pace."""
    buffer_bytes: int = 4_000_000
    """Receive and send buffer asked of the kernel; an event burst that does not fit is lost and repaired."""
    cookie_life_s: float = 60.0
    """A cookie is good for one to two lives."""
    join_again_s: float = 0.1
    """Joining is repeated to peers that have not answered."""
    join_tries: int = 30


class UdpNode:
    """A coded node on a socket."""

    def __init__(
        self,
        coded: CodedConfig = CodedConfig(),
        config: UdpConfig = UdpConfig(),
        deliver: Callable[[Heard | Gap], None] | None = None,
        control: Callable[[Any, Address], None] | None = None,
        messages: Any = Control,
    ) -> None:
        """`deliver` takes what is heard, instead of `heard` and `gaps`; `control` takes those of `messages` that are
        not this node's own, with the address that sent them."""
        self._coded, self._config = coded, config
        self._deliver, self._other_control = deliver or self._keep, control
        self._decoder = msgspec.msgpack.Decoder(messages)
        self.heard: asyncio.Queue[tuple[Topic, bytes]] = asyncio.Queue()
        self.gaps: list[Gap] = []
        self.counters: dict[str, int] = {}
        self._secret = token_bytes(32)
        self._cookies: dict[Endpoint, bytes] = {}  # theirs, for us
        self._recent: dict[Endpoint, list[tuple[float, bytes]]] = {}  # control sent lately, and when
        self._credit: dict[Endpoint, int] = {}  # bytes an unvalidated endpoint may still get
        self._peers: dict[Address, None] = {}
        self._members: dict[Topic, dict[Address, None]] = {}
        self._joining: dict[Topic, dict[Address, None]] = {}
        self._losses: dict[Endpoint, Losses] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._publishers: dict[Endpoint, bytes] = {}  # how packets of an endpoint name their publisher
        self._leaving: deque[tuple[bytes, Endpoint]] = deque()
        self._tokens, self._filled_at = 0.0, 0.0
        self._draining: asyncio.TimerHandle | None = None
        self._joined: dict[Topic, asyncio.Event] = {}

    async def __aenter__(self) -> Self:
        field.warm_up()
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, self._config.buffer_bytes)
        try:
            self._socket.bind((self._config.host, self._config.port))
        except OSError as error:
            self._socket.close()
            raise TransportError(f"{self._config.host}:{self._config.port}: {error.strerror}") from None
        host, port = self._socket.getsockname()
        self.address = Address(f"{host}:{port}")
        self.publisher = publisher_id(Address(f"{self.address}{self._config.life}"))
        dice = Random(f"{self._config.seed}/{self.address}")
        self.machine = CodedNode(self.address, self._coded, dice, life=self._config.life)
        self._loop.add_reader(self._socket.fileno(), self._readable)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.remove_reader(self._socket.fileno())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for timer in [*self._timers.values(), *([self._draining] if self._draining is not None else [])]:
            timer.cancel()
        while self._leaving:
            self._put(*self._leaving.popleft())
        self._socket.close()

    # -- the application's side

    def introduce(self, *peers: Address) -> None:
        """Nodes of the group: asked to send us what they publish, and gossip partners from then on."""
        for peer in peers:
            endpoint_of(peer)
            if peer != self.address:
                self._peers[peer] = None

    async def subscribe(self, topic: Topic) -> None:
        """Returns when every peer that answers knows of it."""
        self._joined[topic] = asyncio.Event()
        self._give(Subscribe((topic,)))
        await self._joined[topic].wait()

    def unsubscribe(self, topic: Topic) -> None:
        self._give(Unsubscribe((topic,)))

    def publish(self, topic: Topic, content: bytes) -> None:
        self._give(Publish(topic, content))

    # -- for whoever keeps the members himself

    def admit(self, topic: Topic, member: Address) -> None:
        """What is published on the topic from now on is sent to this node too."""
        self._members.setdefault(topic, {})[member] = None

    def dismiss(self, topic: Topic, member: Address) -> None:
        members = self._members.get(topic, {})
        members.pop(member, None)
        if not members:
            self._members.pop(topic, None)

    def recognise(self, peer: Address, publisher: int) -> None:
        """Packets from this peer that name this publisher are the publisher's own."""
        endpoint = endpoint_of(peer)
        self._publishers.pop(endpoint, None)
        bounded(self._publishers, endpoint, publisher.to_bytes(8, "big"))

    def tell(self, peer: Address, message: Any) -> None:
        self._control(message, endpoint_of(peer))

    def give(self, message: Adverts | Members) -> None:
        """Lets the machine know what the caller has learnt in another way."""
        self._give(message)

    def _keep(self, item: Heard | Gap) -> None:
        if isinstance(item, Gap):
            self.gaps.append(item)
        else:
            self.heard.put_nowait((item.topic, item.message))

    # -- the machine

    def _give(self, message: Any) -> None:
        for effect in self.machine.handle(message, self._now()):
            match effect:
                case Send(to=to, message=inner):
                    self._send(to, inner)
                case Broadcast(topic=topic, message=PacketPiece(data=data)):
                    for member in self._members.get(topic, ()):
                        self._transmit(data, endpoint_of(member))
                case Broadcast(topic=topic, message=inner):
                    for member in self._members.get(topic, ()):
                        self._control(inner, endpoint_of(member))
                case Deliver(item=(Heard() | Gap()) as item):
                    self._deliver(item)
                case SetTimer(key=key, at=at):
                    self._cancel(key)
                    self._timers[key] = self._loop.call_at(at / 1_000_000, self._fire, key)
                case CancelTimer(key=key):
                    self._cancel(key)
                case Join(topic=topic):
                    task = self._loop.create_task(self._join(topic))
                    self._tasks[task] = None
                    task.add_done_callback(lambda task: self._tasks.pop(task, None))
                case Leave(topic=topic):
                    for peer in self._peers:
                        self._control(LeaveTopic(topic), endpoint_of(peer))
                case _:  # nothing is kept on disk; outcomes and refusals concern nobody here
                    pass

    def _send(self, to: Address, message: Any) -> None:
        try:
            endpoint = endpoint_of(to)
        except MisuseError:  # a member somebody told us about
            self._count("not an address")
            return
        if isinstance(message, PacketPiece):
            self._transmit(message.data, endpoint)
        else:
            self._control(message, endpoint)

    def _now(self) -> Micros:
        return Micros(round(self._loop.time() * 1_000_000))

    def _fire(self, key: str) -> None:
        timer = self._timers.get(key)
        self._readable()  # what a timer asks for may be here already, in a process that was slow to read
        if timer is not None and self._timers.get(key) is timer:
            del self._timers[key]
            self._give(Fired(key))

    def _cancel(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def _join(self, topic: Topic) -> None:
        """Asks every peer until it has answered; one that never does is taken for absent."""
        waiting = self._joining[topic] = dict(self._peers)
        for _ in range(self._config.join_tries):
            if not waiting:
                break
            for peer in waiting:
                self._control(JoinTopic(topic), endpoint_of(peer))
            await asyncio.sleep(self._config.join_again_s)
        self._give(Joined(topic))
        for peer in self._peers:
            if peer not in waiting:
                self._give(Members(peer, topic, (Seen(peer, 1),)))
        self._joined[topic].set()

    # -- datagrams out

    def _transmit(self, data: bytes, to: Endpoint) -> None:
        loss = self._config.loss
        if loss is not None:
            if to not in self._losses:
                self._losses[to] = Losses(loss, Random(f"{self._config.seed}/{self.address}/{to}"))
            if self._losses[to].next_is_lost():
                self._count("dropped on purpose")
                return
        if not self._config.pace:
            self._put(data, to)
        elif self._leaving or not self._may_leave():
            if len(self._leaving) >= LEAVING_MAX:
                self._leaving.popleft()
                self._count("dropped for want of room")
            self._leaving.append((data, to))
            if self._draining is None:
                self._draining = self._loop.call_later(PACE_S, self._drain)
        else:
            self._put(data, to)

    def _may_leave(self) -> bool:
        now, pace = self._loop.time(), self._config.pace
        self._tokens = min(2.0 * pace, self._tokens + (now - self._filled_at) / PACE_S * pace)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _drain(self) -> None:
        self._draining = None
        while self._leaving and self._may_leave():
            self._put(*self._leaving.popleft())
        if self._leaving:
            self._draining = self._loop.call_later(PACE_S, self._drain)

    def _put(self, data: bytes, to: Endpoint) -> None:
        try:
            self._socket.sendto(data, to)
            self._count("sent")
        except (BlockingIOError, ConnectionRefusedError):
            self._count("dropped by the kernel")
        except OSError:
            self._count("not sendable")

    def _control(self, message: Any, to: Endpoint) -> None:
        body = msgspec.msgpack.encode(message)
        recent = bounded(self._recent, to, [])
        recent.append((self._loop.time(), body))
        del recent[:-RECENT_MAX]
        self._transmit(CONTROL + self._cookies.get(to, NO_COOKIE) + body, to)

    # -- datagrams in

    def _readable(self) -> None:
        for _ in range(READ_MAX):
            try:
                data, sender = self._socket.recvfrom(65_536)
            except BlockingIOError:
                return
            except ConnectionRefusedError:  # an earlier datagram met a closed port
                continue
            self._count("received")
            self._receive(data, sender)

    def _receive(self, data: bytes, sender: Endpoint) -> None:
        kind = data[:2]
        if kind == DATA:
            source = Address(f"{sender[0]}:{sender[1]}")
            if data[PUBLISHER_AT] == self._publisher_at(sender, source):
                self._give(Heard(Topic(int.from_bytes(data[4:8], "big")), PacketPiece(data)))
            else:
                self._give(PacketPiece(data, source))
        elif kind == CONTROL and len(data) > 2 + COOKIE_BYTES:
            self._receive_control(data, sender)
        elif kind == CHALLENGE and len(data) == 2 + COOKIE_BYTES and sender in self._recent:
            self._cookies.pop(sender, None)
            bounded(self._cookies, sender, data[2:])
            for then, body in self._recent.pop(sender):
                if self._loop.time() - then <= RECENT_S:
                    self._transmit(CONTROL + data[2:] + body, sender)
        else:
            self._count("noise")

    def _publisher_at(self, sender: Endpoint, source: Address) -> bytes:
        known = self._publishers.get(sender)
        return known if known is not None else publisher_id(source).to_bytes(8, "big")

    def _receive_control(self, data: bytes, sender: Endpoint) -> None:
        if data[2 : 2 + COOKIE_BYTES] not in (self._cookie(sender), self._cookie(sender, 1)):
            self._count("without a cookie")
            self._challenge(sender, len(data))
            return
        source = Address(f"{sender[0]}:{sender[1]}")
        try:
            message = self._decoder.decode(data[2 + COOKIE_BYTES :])
        except UNREADABLE:
            self._count("noise")
            return
        match message:
            case JoinTopic(topic=topic):
                self.admit(topic, source)
                self._control(TopicJoined(topic, self.publisher), sender)
            case TopicJoined(topic=topic, publisher=publisher):
                self.recognise(source, publisher)
                self._joining.get(topic, {}).pop(source, None)
            case LeaveTopic(topic=topic):
                self.dismiss(topic, source)
            case MemberHello(topic=topic) | Adverts(topic=topic) if message.source == source:
                self._give(Heard(topic, message, control=True))
            case AskPackets() | Nothing() | Members() if message.source == source:
                self._give(message)
            case MemberHello() | Adverts() | AskPackets() | Nothing() | Members():
                self._count("not its own name")
            case _ if self._other_control is not None:
                self._other_control(message, source)
            case _:
                self._count("noise")

    def _cookie(self, endpoint: Endpoint, age: int = 0) -> bytes:
        """What an endpoint must show us; nothing is stored for it."""
        life = int(self._loop.time() / self._config.cookie_life_s) - age
        text = f"{endpoint[0]}:{endpoint[1]} {life}"
        return blake2b(text.encode(), digest_size=COOKIE_BYTES, key=self._secret).digest()

    def _challenge(self, to: Endpoint, received: int) -> None:
        answer = CHALLENGE + self._cookie(to)
        credit = bounded(self._credit, to, 0) + UNVALIDATED_FACTOR * received
        if len(answer) <= credit:
            self._transmit(answer, to)
            credit -= len(answer)
        # Credit does not pile up: many small datagrams do not buy a large one later.
        self._credit[to] = min(credit, UNVALIDATED_FACTOR * received)

    def _count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1


def bounded(table: dict[Endpoint, Any], endpoint: Endpoint, default: Any) -> Any:
    """The entry of an endpoint, made if it is missing; the oldest of too many goes."""
    if endpoint not in table:
        if len(table) >= ENDPOINTS_MAX:
            del table[next(iter(table))]
        table[endpoint] = default
    return table[endpoint]


@lru_cache(maxsize=ENDPOINTS_MAX)
def endpoint_of(address: Address) -> Endpoint:
    """Numbers only: a name would have to be looked up, and the loop would wait for it."""
    host, _, port = address.rpartition(":")
    try:
        socket.inet_pton(socket.AF_INET, host)
    except (OSError, ValueError):
        host = ""
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise MisuseError(f"{address!r} is not an IPv4 address and a port, like 127.0.0.1:4000")
    return host, int(port)
