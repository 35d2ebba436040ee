"""The embedded broker: topic fan-out over TCP inside a node. No storage, no wildcards, no federation.

List frames as on node links (`unisono.runtime.links.frames`). A publisher groups its items by channel, and the broker
forwards a group without looking into it: its cost is per group and subscriber, not per item. A session's items carry
numbers: after a reconnect the broker says how far it had taken them, so nothing is taken twice while the broker lives.

Tokens are proven, not shown, as on node links (`unisono.runtime.links.greeting`).

A subscriber that does not read is first waited for (its publishers are not read from), at most `patience_us`; then its
items are dropped, counted, and it is told. A connection holds at most `queue_bytes_max` and one frame per publisher.
"""

import asyncio
import hmac
import secrets
import ssl
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from unisono.errors import PeerError, TransportError, said
from unisono.model.address import host_port
from unisono.model.settings import Right
from unisono.runtime.brokers.contract import is_adopted, original
from unisono.runtime.brokers.embedded.fan_out import FanOut, pack
from unisono.runtime.links.frames import UNREADABLE, FrameReader, code_of
from unisono.runtime.links.holding import LITTLE_BYTES, Holding
from unisono.runtime.links.refusals import Refusals
from unisono.runtime.links.security import NONCE_BYTES, prove

FRAME_BYTES_MAX = 12 * 1024 * 1024
PAYLOAD_BYTES_MAX = 8 * 1024 * 1024
WIRE_VERSION = 2

Channel = tuple[str, bool]
Count = Annotated[int, Meta(ge=0, le=2**53)]
LAST_WORDS_S = 1.0
MESSAGES_MAX = 65_536
"""Messages of one frame."""
TURN_MESSAGES_MAX = 256
"""Groups of one connection that are handled before others have their turn; everything else counts as four."""
GROUP_BYTES = 256
"""A group that is longer counts as several."""
TURN_S = 0.001
"""How long their turn is: who has sent more than that at once goes on later."""


class Greet(Struct, frozen=True, tag="greet", array_like=True):
    """The first message of a client: its session (an unguessable name), and a nonce if it knows a token."""

    session: str
    nonce: bytes = b""
    version: int = WIRE_VERSION

    def proof(self, token: str, challenge: bytes) -> bytes:
        return prove(token, b"unisono broker dial", challenge, self.nonce, self.session.encode())

    def answer(self, token: str, challenge: bytes) -> bytes:
        return prove(token, b"unisono broker answer", challenge, self.nonce, self.session.encode())


class BrokerChallenge(Struct, frozen=True, tag="challenge", array_like=True):
    """The broker's answer to a greeting with a nonce."""

    nonce: bytes


class ProveToken(Struct, frozen=True, tag="prove", array_like=True):
    """The client's answer to a challenge."""

    proof: bytes


class Welcome(Struct, frozen=True, tag="welcome", array_like=True):
    """The broker's answer: up to which number it has taken items of this session, and whether control is allowed.

    `proof` shows that the broker knows the token, too. `channels` are the most that a connection may have; 0: nothing
    is said of that.
    """

    taken: int
    control: bool
    proof: bytes = b""
    channels: int = 0


class NotWelcome(Struct, frozen=True, tag="sorry", array_like=True):
    """The broker will not talk to this client; the connection closes. `code` is one of `model.limits.REASONS`."""

    reason: str
    code: str = "protocol"


class ItemGroup(Struct, frozen=True, tag="group", array_like=True):
    """`count` items of one channel and moment, encoded as a list of `(payload, publisher, request, headers)`."""

    topic: str
    control: bool
    count: Count
    items: msgspec.Raw
    born_us: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class PutItems(Struct, frozen=True, tag="put", array_like=True):
    """The groups before this one in the frame complete the session's items up to this number."""

    upto: Count


class ItemsTaken(Struct, frozen=True, tag="taken", array_like=True):
    """The broker has handed the session's items up to this number to every subscriber's connection."""

    upto: int


class OpenChannel(Struct, frozen=True, tag="open", array_like=True):
    """Subscribe; `ask` comes back in the answer."""

    topic: str
    control: bool
    ask: Count


class ChannelOpened(Struct, frozen=True, tag="opened", array_like=True):
    """The subscription is in force."""

    topic: str
    control: bool
    ask: int


class ShutChannel(Struct, frozen=True, tag="shut", array_like=True):
    """Unsubscribe."""

    topic: str
    control: bool


class ItemsDropped(Struct, frozen=True, tag="dropped", array_like=True):
    """The subscriber was too slow for this many items of a channel."""

    topic: str
    control: bool
    count: int


class Ping(Struct, frozen=True, tag="ping", array_like=True):
    """Is anybody there?"""


class Pong(Struct, frozen=True, tag="pong", array_like=True):
    """Yes."""


FromClient = Greet | ProveToken | ItemGroup | PutItems | OpenChannel | ShutChannel | Ping
FromBroker = BrokerChallenge | Welcome | NotWelcome | ItemGroup | ItemsTaken | ChannelOpened | ItemsDropped | Pong

encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[FromClient]] = msgspec.msgpack.Decoder(
    Annotated[list[FromClient], Meta(max_length=MESSAGES_MAX)]
)


class EmbeddedBrokerConfig(Struct, frozen=True):
    """Bounds and doors of one embedded broker."""

    queue_bytes_max: int = 4 * 1024 * 1024
    """Bytes waiting for one subscriber before it counts as slow."""
    patience_us: int = 1_000_000
    """How long publishers wait for a slow subscriber before its items are dropped. 0: at once. A subscriber can delay
    the publishers of its topics by this much, each time it has caught up and falls behind again."""
    client_token: str = ""
    """Who knows it may publish and subscribe; empty: everybody may."""
    node_token: str = ""
    """Who knows it may also publish control; empty: whoever is let in may."""
    rights: tuple[tuple[str, Right], ...] = ()
    """Tokens whose holders may only publish on and subscribe to some topics."""
    channels_max: int = 100_000
    """Channels one connection may open."""
    sessions_max: int = 10_000
    """How many sessions' numbers are remembered, the most recent ones."""
    connections_max: int = 10_000
    connections_unknown_max: int = 256
    """Connections that have not greeted; for a further one the oldest of them is closed."""
    hello_s: float = 5.0
    hello_bytes_max: int = 4_096
    """The longest frame before the greeting."""


class EmbeddedBroker:
    """Listens, and fans out."""

    def __init__(
        self,
        config: EmbeddedBrokerConfig = EmbeddedBrokerConfig(),
        refusals: Refusals | None = None,
        holding: Holding | None = None,
    ) -> None:
        self.config, self.refusals = config, refusals or Refusals()
        self.holding = holding or Holding(1 << 30)
        self.connections: dict[_Peer, None] = {}
        self.unknown: dict[_Peer, None] = {}  # of these, who has not greeted, in the order of arrival
        self.channels: dict[Channel, dict[_Peer, None]] = {}
        self.peers: dict[str, _Peer] = {}
        self.taken: OrderedDict[str, int] = OrderedDict()
        self.dropped_count = 0
        self.fan_out = FanOut()
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Returns the port it listens on."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Peer(self), host, port, ssl=tls)
        except OSError as error:
            raise TransportError(
                f"the embedded broker cannot listen on {host_port(host, port)}: {said(error)}"
            ) from None
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Drops all connections; clients see a broker that is away."""
        if self._server is not None:
            self._server.close()
            for peer in list(self.peers.values()):
                peer.abort()
            await self._server.wait_closed()
            self._server = None

    def token_of(self, greet: Greet, challenge: bytes, proof: bytes) -> str | None:
        """The token that a proof was made with."""
        limited = [token for token, _ in self.config.rights]
        for token in (self.config.node_token, self.config.client_token, *limited):
            if token and hmac.compare_digest(proof, greet.proof(token, challenge)):
                return token
        return None

    def role(self, token: str | None) -> str | None:
        """What somebody who has proven this token may be; None: nothing."""
        config = self.config
        if config.node_token and token == config.node_token:
            return "node"
        if any(token == known for known, _ in config.rights):
            return "client"
        if (config.client_token or config.rights) and token != config.client_token:
            return None
        return "client" if config.node_token else "node"


class _Peer(asyncio.Protocol):
    """One connection."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._reader = FrameReader(broker.config.hello_bytes_max, "hello-size")
        self._session: str | None = None
        self._greeted: tuple[Greet, bytes] | None = None  # who has to prove something, and our nonce
        self._timer: asyncio.TimerHandle | None = None
        self._may_control = False
        self._right: Right | None = None  # None: every topic
        self._channels: dict[Channel, None] = {}
        self._out: list[bytes] = []
        self._out_bytes = self._held_before = 0
        self._flush_asked = False
        self._unheard: Iterator[FromClient | None] | None = None  # has arrived, and not had its turn
        self._reading_paused = False
        self._waits_for: dict[_Peer, None] = {}  # slow subscribers we, as a publisher, wait for
        self._congested = False
        self._gapping = False
        self._dropped: dict[Channel, int] = {}
        self._publishers: dict[_Peer, None] = {}  # who waits for us
        self._patience: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        broker, config = self._broker, self._broker.config
        self._transport.set_write_buffer_limits(high=config.queue_bytes_max)
        if len(broker.connections) >= config.connections_max:
            self.refuse(PeerError(f"{config.connections_max} connections are the most here", "connections"))
            return
        if len(broker.unknown) >= config.connections_unknown_max:
            oldest = next(iter(broker.unknown))
            oldest.refuse(PeerError("too many connections have not introduced themselves", "hello-late"))
        broker.connections[self] = broker.unknown[self] = None
        self._timer = asyncio.get_running_loop().call_later(config.hello_s, self._introduction_is_due)

    def data_received(self, data: bytes) -> None:
        messages = self._messages(data)
        self._unheard = messages if self._unheard is None else chain(self._unheard, messages)
        self._hear_some()
        self._note_held()

    @property
    def held_bytes(self) -> int:
        """Of a frame that is not whole, and of what is not read."""
        return self._reader.held_bytes + self._out_bytes + self._transport.get_write_buffer_size()

    @property
    def is_of_a_client(self) -> bool:
        return self._broker.config.node_token == "" or not self._may_control

    def _note_held(self) -> None:
        held = self.held_bytes
        if (held >= LITTLE_BYTES or self._held_before) and not self._transport.is_closing():
            self._held_before = held
            self._broker.holding.note(self, held)

    def _messages(self, data: bytes) -> Iterator[FromClient | None]:
        """None for every frame, which may be empty."""
        for body in self._reader.feed(data):
            yield None
            yield from _decoder.decode(body)

    def _hear_some(self) -> None:
        """What others can wait for; the rest has its turn when they had theirs, and slow subscribers have caught up."""
        if self._unheard is None or self._waits_for or self._transport.is_closing():
            return
        heard = 0
        try:
            for message in self._unheard:
                if message is not None:
                    self._handle(message)
                heard += 1 + len(message.items) // GROUP_BYTES if type(message) is ItemGroup else 4
                if self._waits_for or heard >= TURN_MESSAGES_MAX or self._transport.is_closing():
                    self._pause_reading()
                    if not self._waits_for:
                        asyncio.get_running_loop().call_later(TURN_S, self._hear_some)
                    return
        except PeerError as error:
            self.refuse(error)
        except UNREADABLE as error:
            self.refuse(PeerError(str(error), code_of(str(error))))
        self._unheard = None
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def refuse(self, error: PeerError) -> None:
        """Closes, and tells the other side why; it need not read that."""
        self._broker.refusals.count(error.code, str(error))
        self._broker.unknown.pop(self, None)
        self._broker.holding.forget(self)
        self._unheard = None
        self._reader.clear()
        if not self._transport.is_closing():
            self._transport.write(pack([encoder.encode(NotWelcome(str(error), error.code))]))
            self._transport.close()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(LAST_WORDS_S, self._transport.abort)

    def _introduction_is_due(self) -> None:
        self.refuse(PeerError(f"no greeting within {self._broker.config.hello_s} s", "hello-late"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._broker.connections.pop(self, None)
        self._broker.unknown.pop(self, None)
        self._broker.holding.forget(self)
        for channel in list(self._channels):
            self._leave(channel)
        self._release_publishers()
        for slow in self._waits_for:
            slow._publishers.pop(self, None)
        if self._session is not None and self._broker.peers.get(self._session) is self:
            del self._broker.peers[self._session]
            if not self._broker.taken.get(self._session):
                self._broker.taken.pop(self._session, None)  # it has published nothing that could come twice

    def pause_writing(self) -> None:
        self._congested = True
        patience_us = self._broker.config.patience_us
        if patience_us:
            self._patience = asyncio.get_running_loop().call_later(patience_us / 1e6, self._lose_patience)
        else:
            self._gapping = True

    def resume_writing(self) -> None:
        self._congested = self._gapping = False
        self._note_held()
        self._release_publishers()
        dropped, self._dropped = self._dropped, {}
        for (topic, control), count in dropped.items():
            self.post(encoder.encode(ItemsDropped(topic, control, count)))

    def abort(self) -> None:
        self._transport.abort()

    def post(self, message: bytes) -> None:
        """An answer leaves at the end of this turn of the loop, and what waits for a pass before it."""
        if not self._flush_asked:
            self._flush_asked = True
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(message)
        self._out_bytes += len(message)
        if self._out_bytes > self._broker.config.queue_bytes_max:
            self._flush()

    def take_out(self) -> list[bytes]:
        out, self._out, self._out_bytes = self._out, [], 0
        return out if not self._transport.is_closing() else []

    def write(self, frame: bytes) -> None:
        self._transport.write(frame)
        if self._congested:
            self._note_held()

    def _flush(self) -> None:
        self._flush_asked = False
        out = self.take_out()
        if out:
            self.write(pack(out))

    def _handle(self, message: FromClient) -> None:
        if self._session is None and not isinstance(message, Greet | ProveToken):
            raise PeerError("greet first", "hello-first")
        match message:
            case ItemGroup():
                self._fan_out(message)
            case PutItems(upto=upto):
                assert self._session is not None
                self._broker.taken[self._session] = upto
                self.post(encoder.encode(ItemsTaken(upto)))
            case OpenChannel(topic=topic, control=control, ask=ask):
                if self._right is not None and not self._right.may_subscribe(original(topic)):
                    raise PeerError(f"this token may not subscribe to {topic}", "right")
                if len(self._channels) >= self._broker.config.channels_max and (topic, control) not in self._channels:
                    raise PeerError(f"more than {self._broker.config.channels_max} channels", "topics")
                self._channels[topic, control] = None
                self._broker.channels.setdefault((topic, control), {})[self] = None
                self.post(encoder.encode(ChannelOpened(topic, control, ask)))
            case ShutChannel(topic=topic, control=control):
                self._leave((topic, control))
            case Ping():
                self.post(encoder.encode(Pong()))
            case Greet():
                self._greet(message)
            case ProveToken(proof=proof):
                if self._greeted is None:
                    raise PeerError("nothing is to be proven", "hello-first")
                greet, challenge = self._greeted
                self._greeted = None
                self._welcome(greet, challenge, self._broker.token_of(greet, challenge, proof))

    def _greet(self, greet: Greet) -> None:
        if greet.version != WIRE_VERSION:
            raise PeerError(f"version {greet.version} of the broker's wire; it is {WIRE_VERSION} here", "version")
        if self._session is not None or self._greeted is not None:
            raise PeerError("greeted already", "hello-first")
        config = self._broker.config
        if greet.nonce and (config.node_token or config.client_token or config.rights):
            self._greeted = greet, secrets.token_bytes(NONCE_BYTES)
            self.post(encoder.encode(BrokerChallenge(self._greeted[1])))
        else:
            self._welcome(greet, b"", None)

    def _welcome(self, greet: Greet, challenge: bytes, token: str | None) -> None:
        broker = self._broker
        role = broker.role(token)
        if role is None:
            raise PeerError("the token is not known here", "token")
        if self._timer is not None:
            self._timer.cancel()
        self._reader.bytes_max, self._reader.code = FRAME_BYTES_MAX, "frame-size"
        broker.unknown.pop(self, None)
        former = broker.peers.get(greet.session)
        if former is not None:
            former.abort()  # what it has not read yet will be sent again on this connection
        self._session, self._may_control = greet.session, role == "node"
        self._right = next((right for known, right in broker.config.rights if known == token), None)
        broker.peers[greet.session] = self
        broker.taken[greet.session] = broker.taken.pop(greet.session, 0)
        while len(broker.taken) > broker.config.sessions_max:
            broker.taken.popitem(last=False)
        proof = greet.answer(token, challenge) if token is not None else b""
        most = broker.config.channels_max
        self.post(encoder.encode(Welcome(broker.taken[greet.session], self._may_control, proof, most)))

    def _fan_out(self, group: ItemGroup) -> None:
        if (group.control or is_adopted(group.topic)) and not self._may_control:
            raise PeerError("only nodes publish control", "control")
        if self._right is not None and not self._right.may_publish(group.topic):
            raise PeerError(f"this token may not publish on {group.topic}", "right")
        members = self._broker.channels.get((group.topic, group.control))
        if members:
            encoded = encoder.encode(group)
            size, bytes_max, fan_out = len(encoded), self._broker.config.queue_bytes_max, self._broker.fan_out
            waiting = fan_out.waiting
            for member in members:  # what is done here is done for each reader of each message
                if member._congested:
                    if member._gapping:
                        member._drop(group)
                        continue
                    self._wait_for(member)
                if not member._out:
                    waiting[member] = None
                member._out.append(encoded)
                member._out_bytes += size
                if member._out_bytes > bytes_max:
                    member._flush()
                    if member._congested and not member._gapping:
                        self._wait_for(member)
            if waiting:
                fan_out.plan(len(members), group.control, size)

    def _drop(self, group: ItemGroup) -> None:
        channel = (group.topic, group.control)
        self._dropped[channel] = self._dropped.get(channel, 0) + group.count
        self._broker.dropped_count += group.count

    def _lose_patience(self) -> None:
        self._gapping = True
        self._release_publishers()

    def _release_publishers(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        for publisher in self._publishers:
            publisher._go_on(self)
        self._publishers.clear()

    def _wait_for(self, slow: "_Peer") -> None:
        self._waits_for[slow] = slow._publishers[self] = None

    def _go_on(self, slow: "_Peer") -> None:
        self._waits_for.pop(slow, None)
        if not self._waits_for:
            asyncio.get_running_loop().call_soon(self._hear_some)

    def _leave(self, channel: Channel) -> None:
        self._channels.pop(channel, None)
        self._dropped.pop(channel, None)
        members: dict[Any, None] = self._broker.channels.get(channel, {})
        members.pop(self, None)
        if not members:
            self._broker.channels.pop(channel, None)
