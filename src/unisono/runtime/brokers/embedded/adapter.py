"""The adapter of the embedded broker (`unisono.runtime.brokers.embedded.server`).

Items leave once per loop turn, grouped by channel. While the broker lives, a reconnect takes no item twice and loses no
open one; what others published while we were away is lost to us and reported by `Lost`.
"""

import asyncio
import hmac
import secrets
import ssl
from collections.abc import Sequence
from typing import cast

import msgspec

from unisono.errors import MisuseError, PeerError, TransportError, TurnedAwayError, said
from unisono.model.address import host_port
from unisono.model.numbers import Request
from unisono.runtime.brokers.contract import (
    AdapterLimits,
    Down,
    Item,
    Listener,
    Lost,
    Parcel,
    Traits,
    Up,
    check_channel,
    unpack,
)
from unisono.runtime.brokers.embedded import server as wire
from unisono.runtime.brokers.embedded.fan_out import pack
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.unconfirmed import UnconfirmedItems
from unisono.runtime.links.connecting import connected
from unisono.runtime.links.frames import UNREADABLE, FrameReader
from unisono.runtime.links.greeting import NOT_PROVEN
from unisono.runtime.links.security import NONCE_BYTES

PUT_BYTES_MAX = 1024 * 1024
"""More payload than this leaves in several frames. A frame is taken whole or not at all."""
BEAT_S = 5.0
"""An idle connection is pinged this often; two unanswered pings end it."""

_decoder: msgspec.msgpack.Decoder[list[wire.FromBroker]] = msgspec.msgpack.Decoder(list[wire.FromBroker])
_items_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, str, Request, dict[str, str] | None]])


class EmbeddedEns:
    """One session with an embedded broker."""

    traits = Traits("embedded", strength="ordered", payload_bytes_max=wire.PAYLOAD_BYTES_MAX)

    def __init__(
        self,
        host: str,
        port: int,
        listener: Listener,
        *,
        token: str = "",
        limits: AdapterLimits = AdapterLimits(),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address, self._tls = (host, port), tls
        self._listener, self.guard = listener, Guard(listener.on_failed)
        self._token = token
        self._limits = limits
        self._session = secrets.token_hex(16)
        self._outbox = UnconfirmedItems[Item](limits, self.traits.payload_bytes_max)
        self._confirmed = 0  # items ever confirmed; the oldest open one has the next number
        self._unsent: list[Item] = []  # the youngest part of the outbox
        self._flush_asked = False
        self._channels: dict[wire.Channel, _Subscription] = {}
        self._channels_max = 0  # as the broker says; it ends the connection of whoever asks for more
        self._asks = 0
        self._reopening: dict[wire.Channel, None] = {}  # after a reconnect, until all are in force again
        self._resent = -1  # items published once more, while a reconnect is under way
        self._line: _Line | None = None
        self._paused = False
        self._may_control = True
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def open_count(self) -> int:
        return len(self._outbox)

    async def open(self) -> None:
        await self._dial()
        self._keeper = self.guard.spawn(self._keep(), "embedded-ens")

    def publish(self, items: Sequence[Parcel]) -> None:
        singles = unpack(items)
        if not self._may_control and any(item.control for item in singles):
            raise MisuseError("only nodes publish control: this session's token is not a node's")
        self._outbox.put(singles)
        self._unsent += singles
        if not self._flush_asked:
            self._flush_asked = True
            self.guard.soon(self._flush)

    async def room(self) -> None:
        await self._outbox.room()

    async def flush(self) -> None:
        await self._outbox.flush()

    async def subscribe(self, topic: str, *, control: bool = False, after: int | None = None) -> None:
        if after is not None:
            raise MisuseError("the embedded broker keeps nothing to replay")
        channel = (check_channel(topic), control)
        if channel not in self._channels:
            if 0 < self._channels_max <= len(self._channels):
                most = self._channels_max // 2
                raise MisuseError(f"{most} topics are the most that a session hears over this broker (topics)")
            self._asks += 1
            self._channels[channel] = _Subscription(self._asks, asyncio.get_running_loop().create_future())
            if self._line is not None:
                self._line.send(wire.OpenChannel(topic, control, self._asks))
        if not await asyncio.shield(self._channels[channel].opened):
            raise TransportError(f"{topic} was unsubscribed, or the connection closed, before the broker answered")

    def unsubscribe(self, topic: str, *, control: bool = False) -> None:
        subscription = self._channels.pop((topic, control), None)
        self._reopening.pop((topic, control), None)
        if subscription is not None:
            subscription.settle(False)
            if self._line is not None:
                self._line.send(wire.ShutChannel(topic, control))

    def pause(self) -> None:
        self._paused = True
        if self._line is not None:
            self._line.pause(True)

    def resume(self) -> None:
        self._paused = False
        if self._line is not None:
            self._line.pause(False)

    async def close(self) -> None:
        if self._line is not None and not self._closed:
            self.resume()
            flushed, gone = asyncio.ensure_future(self._outbox.flush()), asyncio.ensure_future(self._line.gone.wait())
            await asyncio.wait((flushed, gone), return_when=asyncio.FIRST_COMPLETED)
            flushed.cancel()
            gone.cancel()
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
        if self._line is not None:
            self._line.hang_up()
        self._outbox.close("this connection is closed")
        for subscription in self._channels.values():
            subscription.settle(False)

    async def _keep(self) -> None:
        """Dials again whenever the line breaks."""
        while self._line is not None:
            await self._line.gone.wait()
            reason = self._line.reason
            self._line = None
            self._listener.on_notice(Down(reason))
            pause_us = 20_000
            while self._line is None:
                try:
                    await self._dial()
                except TransportError:
                    await asyncio.sleep(pause_us / 1e6)
                    pause_us = min(2 * pause_us, self._limits.reconnect_us_max)

    async def _dial(self) -> None:
        host, port = self._address
        where = host_port(host, port)
        greet = wire.Greet(self._session, secrets.token_bytes(NONCE_BYTES) if self._token else b"")
        try:
            line = await connected(_Line(self, greet, self._token), host, port, self._tls)
        except ssl.SSLError as error:
            raise TurnedAwayError(f"no TLS with the embedded broker at {where}: {said(error)}") from None
        except OSError as error:
            raise TransportError(f"no embedded broker at {where}: {said(error)}") from None
        try:
            async with asyncio.timeout(BEAT_S):
                welcome = await line.welcomed
        except TimeoutError:
            line.hang_up()
            raise TransportError(f"the embedded broker at {where} does not answer") from None
        except asyncio.CancelledError:
            line.hang_up()
            raise
        again = self._keeper is not None
        self._may_control, self._channels_max = welcome.control, welcome.channels
        self._line = line
        if self._paused:
            line.pause(True)
        if self._confirmed < welcome.taken <= self._confirmed + len(self._outbox):
            self.on_taken(welcome.taken)
        self._unsent = list(self._outbox.items)
        if again:
            self._resent = len(self._unsent)
            self._reopening = dict.fromkeys(self._channels)
        for (topic, control), subscription in self._channels.items():
            line.send(wire.OpenChannel(topic, control, subscription.ask))
        self._flush()
        self._check_restored()

    def _flush(self) -> None:
        self._flush_asked = False
        line = self._line
        if line is None or not self._unsent:
            return
        if line.congested:
            return  # resume_writing flushes; the outbox is the bound
        unsent, self._unsent = self._unsent, []
        number = self._confirmed + len(self._outbox) - len(unsent)
        for items in _cut(unsent):
            number += len(items)
            line.send_frame([*_group(items), wire.encoder.encode(wire.PutItems(number))])

    def on_taken(self, upto: int) -> None:
        count = upto - self._confirmed
        if not 0 < count <= len(self._outbox):
            raise PeerError(f"the broker took items up to {upto} of a session that has sent fewer")
        self._confirmed = upto
        self._outbox.confirm(count)
        self._listener.on_confirmed(count)

    def on_messages(self, messages: list[wire.FromBroker]) -> None:
        items: list[Item] = []
        for message in messages:
            match message:
                case wire.ItemGroup(topic=topic, control=control):
                    if (topic, control) in self._channels:
                        items += self._unpack(message)
                case wire.ItemsTaken(upto=upto):
                    self.on_taken(upto)
                case wire.ChannelOpened(topic=topic, control=control, ask=ask):
                    subscription = self._channels.get((topic, control))
                    if subscription is not None and subscription.ask == ask:
                        subscription.settle(True)
                    if self._reopening.pop((topic, control), 0) is None:
                        self._check_restored()
                case wire.ItemsDropped(topic=topic, control=control, count=count):
                    if (topic, control) in self._channels:
                        self._listener.on_notice(Lost("the subscriber was too slow", topic, control, count))
                case wire.NotWelcome(reason=reason, code=code):
                    raise PeerError(f"the broker refused us: {reason}", code)
                case _:
                    pass
        if items:
            self._listener.on_items(items)

    def _unpack(self, group: wire.ItemGroup) -> list[Item]:
        topic, control = group.topic, group.control
        try:
            rows = _items_decoder.decode(group.items)
        except UNREADABLE:
            # The broker does not look into groups: what a bad publisher packed must not cost us the connection.
            self._listener.on_notice(Lost("a publisher sent what cannot be read", topic, control, group.count))
            return []
        born = group.born_us
        return [Item(topic, row[0], row[1], row[2], control, row[3], born) for row in rows]

    def _check_restored(self) -> None:
        if self._resent >= 0 and not self._reopening:
            resent, self._resent = self._resent, -1
            self._listener.on_notice(Up(resent))
            if self._channels:
                self._listener.on_notice(Lost("reconnected; what was published meanwhile did not reach us"))


def _cut(items: list[Item]) -> list[list[Item]]:
    """Runs of at most PUT_BYTES_MAX of payload, or a single longer item."""
    if sum([len(item.payload) for item in items]) <= PUT_BYTES_MAX:
        return [items]
    parts, size = [items[:1]], len(items[0].payload)
    for item in items[1:]:
        size += len(item.payload)
        if size > PUT_BYTES_MAX:
            parts.append([])
            size = len(item.payload)
        parts[-1].append(item)
    return parts


def _group(items: list[Item]) -> list[bytes]:
    """One encoded group per channel and moment of publication."""
    groups: dict[tuple[str, bool, int], list[tuple[bytes, str, int, dict[str, str] | None]]] = {}
    for item in items:
        row = (item.payload, item.publisher, item.request, item.headers)
        key = (item.topic, item.control, item.born_us)
        if key in groups:
            groups[key].append(row)
        else:
            groups[key] = [row]
    encode = wire.encoder.encode
    return [
        encode(wire.ItemGroup(topic, control, len(rows), msgspec.Raw(encode(rows)), born))
        for (topic, control, born), rows in groups.items()
    ]


class _Subscription:
    """A channel asked for. `ask` tells the answer to this request from that to an earlier one, since withdrawn."""

    __slots__ = ("ask", "opened")

    def __init__(self, ask: int, opened: asyncio.Future[bool]) -> None:
        self.ask = ask
        self.opened = opened

    def settle(self, opened: bool) -> None:
        if not self.opened.done():
            self.opened.set_result(opened)


class _Line(asyncio.Protocol):
    """One TCP connection of a session. We greet at once; the broker may refuse us before it reads that."""

    def __init__(self, ens: EmbeddedEns, greet: wire.Greet, token: str) -> None:
        self._ens = ens
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(2 * wire.FRAME_BYTES_MAX)
        self._out: list[bytes] = []
        self._transport: asyncio.Transport
        self._greet, self._token, self._challenge = greet, token, b""
        self._unanswered = 0
        self._beat: asyncio.TimerHandle | None = None
        self._reading_paused = False
        self.congested = False
        self.reason = "the connection ended"
        self.gone = asyncio.Event()
        self.welcomed: asyncio.Future[wire.Welcome] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=1024 * 1024)
        self._beat = self._loop.call_later(BEAT_S, self._ping)
        self.send(self._greet)

    def data_received(self, data: bytes) -> None:
        self._unanswered = 0
        try:
            for body in self._reader.feed(data):
                messages = _decoder.decode(body)
                if not self.welcomed.done():
                    self._be_welcomed(messages)
                else:
                    self._ens.on_messages(messages)
        except (PeerError, *UNREADABLE) as error:
            self.reason = str(error)
            if not self.welcomed.done():
                is_token = isinstance(error, PeerError) and error.code == "token"
                self.welcomed.set_exception((TurnedAwayError if is_token else TransportError)(self.reason))
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._beat is not None:
            self._beat.cancel()
        if exc is not None:
            self.reason = f"connection lost: {exc}"
        self._out.clear()
        if not self.welcomed.done():
            self.welcomed.set_exception(TransportError(self.reason))
            self.welcomed.exception()  # perhaps nobody waits for it
        self.gone.set()

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        self._ens.guard.call(self._ens._flush)

    def send(self, message: wire.FromClient) -> None:
        """Leaves with everything else of this loop turn."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(wire.encoder.encode(message))

    def send_frame(self, messages: list[bytes]) -> None:
        """Leaves now, after what was sent before."""
        self._flush()
        if not self._transport.is_closing():
            self._transport.write(pack(messages))

    def pause(self, paused: bool) -> None:
        if paused != self._reading_paused and not self._transport.is_closing():
            self._reading_paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def hang_up(self) -> None:
        self._flush()
        self._transport.close()

    def _be_welcomed(self, messages: list[wire.FromBroker]) -> None:
        greet, token = self._greet, self._token
        match messages:
            case [wire.BrokerChallenge(nonce=nonce)] if token and not self._challenge:
                self._challenge = nonce
                self.send(wire.ProveToken(greet.proof(token, nonce)))
            case [wire.Welcome() as welcome]:
                proven = bool(self._challenge) and hmac.compare_digest(
                    welcome.proof, greet.answer(token, self._challenge)
                )
                if token and not proven:
                    raise PeerError(f"the broker {NOT_PROVEN}", "token")
                self.welcomed.set_result(welcome)
            case [wire.NotWelcome(reason=reason, code=code), *_]:
                raise PeerError(f"the broker refused us: {reason}", code)
            case _:
                raise PeerError("the broker did not welcome us first")

    def _flush(self) -> None:
        if self._out and not self._transport.is_closing():
            out, self._out = self._out, []
            self._transport.write(pack(out))

    def _ping(self) -> None:
        if not self._reading_paused:
            self._unanswered += 1
        if self._unanswered > 2:
            self.reason = "the broker does not answer"
            self._transport.abort()
            return
        self.send(wire.Ping())
        self._beat = self._loop.call_later(BEAT_S, self._ping)
