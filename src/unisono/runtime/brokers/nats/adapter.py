"""The adapter of NATS core: at most once, nothing kept.

A confirmation means that our server has handled the item and passed it on to subscribers and neighbours (the answer to
a ping sent after it): strength `ordered`. Items open during a reconnect are published again and may come twice. What
others published while we were away, or while the server thought us too slow and cut us off, is reported by `Lost`.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from unisono.errors import MisuseError, PlanError, TransportError
from unisono.runtime.brokers.contract import (
    AdapterLimits,
    Down,
    ItemRejected,
    Listener,
    Lost,
    Parcel,
    Traits,
    Up,
    check_channel,
    count_items,
    longest,
    unpack,
)
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.nats.client import NatsClient
from unisono.runtime.brokers.nats.codec import Msg, NatsOptions, NatsWire, Received
from unisono.runtime.brokers.nats.items import control_prefix, decode_all, encode
from unisono.runtime.brokers.nats.probes import SubscriptionProbes
from unisono.runtime.brokers.unconfirmed import UnconfirmedItems

HEADER_BYTES_MAX = 4096
"""Room left for headers in a server's largest message."""
PAUSE_S = 0.05
"""Between an answer to a ping and the next ping, unless somebody waits for a confirmation: each costs writes and
wake-ups on both sides."""
UNASKED_MAX = 1_000
"""So many items are asked for at once, pause or not; the outbox holds many times that."""

VIOLATION = re.compile(r'Permissions Violation for (Publish|Subscription) to "([^"]+)"')


class NatsEns:
    """One connection to a NATS server or cluster."""

    def __init__(self, options: NatsOptions, listener: Listener, limits: AdapterLimits = AdapterLimits()) -> None:
        self.traits = Traits("nats", strength="ordered", once=False)
        self._listener, self._guard = listener, Guard(listener.on_failed)
        self._control = control_prefix(options.deployment)
        self._client = NatsClient(options, self, limits.reconnect_us_max, self._received)
        self._prover = SubscriptionProbes(self._client)
        self._outbox = UnconfirmedItems[Parcel](limits, self.traits.payload_bytes_max)
        self._unsent: list[Parcel] = []  # the youngest part of the outbox
        self._unasked = 0  # items after the last ping
        self._asked: asyncio.Future[None] | None = None  # the ping under way; there is one at a time
        self._next_ping_s = 0.0  # when the next may follow
        self._pause: asyncio.TimerHandle | None = None  # somebody waits for that
        self._sids: dict[tuple[str, bool], bytes] = {}
        self._channels: dict[bytes, tuple[str, bool]] = {}  # by sid
        self._denied: dict[str, str] = {}  # subjects we may not subscribe to
        self._refusals: dict[tuple[str, bool], int] = {}  # of the open items of a channel the oldest so many are denied
        self._connected = asyncio.Event()
        self._restoring: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def open_count(self) -> int:
        return len(self._outbox)

    async def open(self) -> None:
        await self._client.open()
        if len(self._client.given) > 1:
            try:
                await self._prover.meet()
            except PlanError:
                await self._client.close()
                raise
        self._learn_limit()
        self._connected.set()

    def _learn_limit(self) -> None:
        largest = self._client.info.max_payload - HEADER_BYTES_MAX
        self.traits = replace(self.traits, payload_bytes_max=largest)
        self._outbox.payload_bytes_max = largest

    def publish(self, items: Sequence[Parcel]) -> None:
        self._outbox.put(items)
        self._unsent += items
        self._flush()

    async def room(self) -> None:
        if not self._outbox.is_half_empty:
            self._end_pause()
        await self._outbox.room()

    async def flush(self) -> None:
        self._end_pause()
        await self._outbox.flush()

    async def subscribe(self, topic: str, *, control: bool = False, after: int | None = None) -> None:
        if after is not None:
            raise MisuseError("NATS core keeps nothing to replay: use JetStream")
        channel = (check_channel(topic), control)
        subject = self._control + topic if control else topic
        if channel not in self._sids:
            sid = self._client.subscribe(subject.encode())
            self._sids[channel] = sid
            self._channels[sid] = channel
        sid = self._sids[channel]
        while True:
            if self._closed or self._sids.get(channel) != sid:
                raise TransportError(f"{topic} was unsubscribed, or the connection closed, before it was in force")
            try:
                await self._prover.prove()
            except TransportError:
                await self._connected.wait()
                continue
            if subject in self._denied:
                self.unsubscribe(topic, control=control)
                raise TransportError(self._denied.pop(subject))
            return

    def unsubscribe(self, topic: str, *, control: bool = False) -> None:
        sid = self._sids.pop((topic, control), None)
        if sid is not None:
            del self._channels[sid]
            self._client.unsubscribe(sid)

    def pause(self) -> None:
        self._client.pause(True)

    def resume(self) -> None:
        self._client.pause(False)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._connected.is_set():
            self._client.pause(False)
            self._flush()
            with suppress(TransportError):
                while self._outbox:
                    await self._client.ping()
                    await asyncio.sleep(0)  # what it confirms is a callback of this loop turn
        if self._restoring is not None:
            self._restoring.cancel()
        if self._pause is not None:
            self._pause.cancel()
        self._prover.close()
        await self._client.close()
        self._connected.set()
        self._outbox.close("this connection is closed")

    def _flush(self) -> None:
        wire = self._client.wire
        if wire is not None and self._unsent:
            items, self._unsent = self._unsent, []
            wire.send(encode(items, self._control))
            self._unasked += count_items(items)
            self._ask(wire)
            wire.flush()

    def _ask(self, wire: NatsWire) -> None:
        """The answer to a ping is for everything sent before it, so those of a busy time share one."""
        if self._asked is not None or not self._unasked:
            return
        if self._unasked < UNASKED_MAX and not self._outbox.is_awaited:
            if self._pause is not None:
                return
            loop = asyncio.get_running_loop()
            if loop.time() < self._next_ping_s:
                self._pause = self._guard.later(self._next_ping_s - loop.time(), self._end_pause)
                return
        count, self._unasked = self._unasked, 0
        self._asked = wire.ping()
        self._asked.add_done_callback(lambda pong: self._guard.call(self._confirm, count, pong))

    def _confirm(self, count: int, pong: asyncio.Future[None]) -> None:
        if pong is not self._asked:
            return  # of a connection that is gone: what it carried has been sent again
        self._asked = None
        if pong.exception() is None:
            self._next_ping_s = asyncio.get_running_loop().time() + PAUSE_S
            if self._refusals:
                self._forget_refusals(count)
            self._outbox.confirm(count)
            self._listener.on_confirmed(count)
            if self._unasked and self._client.wire is not None:
                self._ask(self._client.wire)

    def _end_pause(self) -> None:
        self._next_ping_s = 0.0
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._client.wire is not None:
            self._ask(self._client.wire)

    # the client calls these

    def _received(self, received: list[Received]) -> None:
        items = decode_all(self._channels, received)
        if items:
            self._listener.on_items(items)

    def on_messages(self, messages: list[Msg]) -> None:
        self._received(list[Received](messages))

    def on_failed(self, error: Exception) -> None:
        self._listener.on_failed(error)

    def on_error(self, text: str) -> None:
        found = VIOLATION.match(text)
        if found is None:
            return
        what, subject = found.groups()
        if what == "Subscription":
            self._denied[subject] = text
        else:
            self._deny(subject.removeprefix(self._control), subject.startswith(self._control), text)

    def _deny(self, topic: str, control: bool, reason: str) -> None:
        """The server complains of each item on its own, in their order, before it answers the ping after them."""
        channel = (topic, control)
        sent = [item for item in unpack(self._outbox.items) if (item.topic, item.control) == channel]
        place = self._refusals.get(channel, 0)
        if place < len(sent):
            self._refusals[channel] = place + 1
            self._listener.on_notice(ItemRejected(sent[place], reason))

    def _forget_refusals(self, count: int) -> None:
        """Of the oldest `count` items, which are open no longer; what was denied after them still is."""
        for item in unpack(self._outbox.items)[:count]:
            channel = (item.topic, item.control)
            if channel in self._refusals:
                self._refusals[channel] -= 1
        self._refusals = {channel: left for channel, left in self._refusals.items() if left > 0}

    def on_down(self, reason: str) -> None:
        self._connected.clear()
        if self._restoring is not None:
            self._restoring.cancel()
        self._listener.on_notice(Down(reason))

    def on_back(self) -> None:
        self._asked = None
        resent = len(self._outbox)
        self._send_again()
        self._connected.set()
        self._restoring = self._guard.spawn(self._restore(resent), "nats-restore")

    def _send_again(self) -> None:
        """All open items, but for those that were denied, and those that this server would hang up for."""
        self._learn_limit()
        largest, denied = self.traits.payload_bytes_max, dict(self._refusals)
        self._unsent = []
        for parcel in self._outbox.items:
            if not denied and longest(parcel) <= largest:
                self._unsent.append(parcel)
                continue
            for item in unpack([parcel]):
                channel = (item.topic, item.control)
                if denied.get(channel, 0):
                    denied[channel] -= 1
                elif len(item.payload) > largest:
                    reason = f"a payload of {len(item.payload)} bytes; the server now takes up to {largest}"
                    self._listener.on_notice(ItemRejected(item, reason))
                else:
                    self._unsent.append(item)
        self._unasked = len(self._outbox) - count_items(self._unsent)
        self._flush()
        if self._unasked and self._client.wire is not None:
            self._ask(self._client.wire)

    async def _restore(self, resent: int) -> None:
        try:
            await self._prover.prove()
        except TransportError:
            return  # down again: `on_back` will start another
        self._listener.on_notice(Up(resent))
        if self._channels:
            self._listener.on_notice(Lost("reconnected; what was published meanwhile did not reach us"))
