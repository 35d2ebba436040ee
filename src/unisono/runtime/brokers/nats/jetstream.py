"""The adapter of NATS JetStream: every topic is kept in a stream, nothing is lost over a reconnect.

A confirmation is the stream's acknowledgement: strength `stored` (what that means is a matter of replicas and of the
server's sync interval: docs/reference/brokers.md). An item sent again after a reconnect bears the same message id, so
the stream keeps it once. A subscription is an ordered consumer: when its line breaks or a number is missing it is made
anew after the last item handed over. A paused subscriber holds the server back by flow control and loses nothing.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from unisono.errors import DataLossError, TransportError
from unisono.runtime.brokers.contract import (
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
    is_adopted,
    unpack,
)
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.nats.adapter import HEADER_BYTES_MAX, VIOLATION
from unisono.runtime.brokers.nats.client import NatsClient
from unisono.runtime.brokers.nats.codec import Msg, NatsOptions
from unisono.runtime.brokers.nats.items import decode, header_block
from unisono.runtime.brokers.nats.jetstream_api import (
    HEARTBEAT_S,
    ApiError,
    JetStreamApi,
    StreamConfig,
    pause_before_retry,
)
from unisono.runtime.brokers.unconfirmed import UnconfirmedItems

ACK_S = 3.0
"""Open items are published again when no acknowledgement came for this long; then after twice as long, and so on."""
ACK_S_MAX = 30.0
WINDOW = 1_000
"""Items under way to their acknowledgement. A server that can not keep up drops what exceeds its queue (10 000 items of
a stream), so what is sent again must be little. Price: at most this many items per round trip."""


class _Ack(Struct, frozen=True):
    """What a stream answers to an item; one of the two is set."""

    seq: int = 0
    error: dict[str, object] | None = None


_ack_decoder = msgspec.json.Decoder(_Ack)


class _Consumer:
    """One channel's ordered consumer."""

    __slots__ = ("channel", "heard_at", "last", "made", "next", "ready", "served", "sid", "stream")

    def __init__(self, channel: tuple[str, bool], after: int | None) -> None:
        self.channel = channel
        self.last = after  # stream sequence of the last item handed over, or after which to begin; None: now
        self.next = 1  # consumer sequence of the next message
        self.sid = b""
        self.stream = ""
        self.heard_at = 0.0
        self.ready = False
        self.served = False  # was ready once: from then on it is made anew until it succeeds
        self.made: asyncio.Task[None]


class JetStreamEns:
    """One connection to a NATS server or cluster with JetStream."""

    def __init__(
        self,
        options: NatsOptions,
        listener: Listener,
        limits: AdapterLimits = AdapterLimits(),
        streams: StreamConfig = StreamConfig(),
    ) -> None:
        self.traits = Traits("jetstream", strength="stored", retains=True)
        self._listener, self._guard = listener, Guard(listener.on_failed)
        self._client = NatsClient(options, self, limits.reconnect_us_max)
        self._api = JetStreamApi(self._client, streams)
        self._outbox = UnconfirmedItems[Item](limits, self.traits.payload_bytes_max)
        self._confirmed = 0  # items ever confirmed: the oldest open one has the next number
        self._sent = 0  # number of the last item given to the connection
        self._acked: dict[int, None] = {}  # numbers acknowledged before an older one
        self._rejected: dict[int, None] = {}  # those of them that the stream refused: they are never sent again
        self._ack_at = 0.0
        self._patience_s = ACK_S
        self._flush_asked = False
        self._placed: dict[str, None] = {}  # topics whose stream is known to be there
        self._refused: dict[str, str] = {}  # topics for which there can be none, until the open items were told
        self._placing: asyncio.Task[None] | None = None
        self._retrying = False  # nothing leaves until the oldest open item does
        self._ack_prefix = f"{self._client.session}.ack."
        self._ack_sid = b""
        self._consumers: dict[tuple[str, bool], _Consumer] = {}
        self._by_sid: dict[bytes, _Consumer] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._deliver_count = 0
        self._connected = asyncio.Event()
        self._closed = False

    @property
    def open_count(self) -> int:
        return len(self._outbox)

    async def open(self) -> None:
        await self._client.open()
        if not self._client.info.jetstream:
            await self._client.close()
            raise TransportError("this NATS server runs without JetStream")
        self._learn_limit()
        self._ack_sid = self._client.subscribe(f"_INBOX.{self._ack_prefix}*".encode())
        self._connected.set()
        self._check_progress()

    def _learn_limit(self) -> None:
        largest = self._client.info.max_payload - HEADER_BYTES_MAX
        self.traits = msgspec.structs.replace(self.traits, payload_bytes_max=largest)
        self._outbox.payload_bytes_max = largest

    # publishing

    def publish(self, items: Sequence[Parcel]) -> None:
        self._outbox.put(unpack(items))
        self._ask_flush()

    async def room(self) -> None:
        await self._outbox.room()

    async def flush(self) -> None:
        await self._outbox.flush()

    def _ask_flush(self) -> None:
        if not self._flush_asked:
            self._flush_asked = True
            self._guard.soon(self._flush)

    def _flush(self) -> None:
        """Sends open items in order, up to the first whose stream has yet to be found or made."""
        self._flush_asked = False
        first = self._sent - self._confirmed
        if first >= len(self._outbox) or self._placing is not None or self._retrying or not self._connected.is_set():
            return
        if first == 0:
            self._ack_at = asyncio.get_running_loop().time()
        parts: list[bytes] = []
        number = self._sent
        for item in islice(self._outbox.items, first, WINDOW):
            if item.topic not in self._placed and item.topic not in self._refused:
                self._placing = self._spawn(self._place(item.topic))
                break
            number += 1
            if number in self._rejected:
                continue
            if (refusal := self._refusal(item)) is not None:
                self._reject(number, item, refusal)
                continue
            if item.publisher:
                name = f"{item.publisher}:{item.request}:{item.topic}"
            else:
                name = f"{self._client.session}:{number}"
            head = header_block(item, f"Nats-Msg-Id: {name}\r\n")
            subject = self._api.subject_of(item.topic, item.control)
            size = len(head)
            line = f"HPUB {subject} _INBOX.{self._ack_prefix}{number} {size} {size + len(item.payload)}\r\n"
            parts += (line.encode(), head, item.payload, b"\r\n")
        self._sent = number
        if self._acked:
            self._confirm_acked()
        if self._placing is None:
            self._refused.clear()  # whoever publishes there next asks again
        if parts:
            self._client.send(b"".join(parts))

    def _refusal(self, item: Item) -> str | None:
        """Why this item is not even sent, if it is not."""
        largest = self.traits.payload_bytes_max
        if len(item.payload) > largest:  # of a server we had to move to: the message would cost us the connection
            return f"a payload of {len(item.payload)} bytes; the server now takes up to {largest}"
        return self._refused.get(item.topic)

    def _reject(self, number: int, item: Item, reason: str) -> None:
        self._acked[number] = self._rejected[number] = None
        self._listener.on_notice(ItemRejected(item, reason))

    async def _place(self, topic: str) -> None:
        attempt = 0
        while topic not in self._placed and not self._closed:
            await self._connected.wait()
            try:
                for control in (False,) if is_adopted(topic) else (False, True):
                    await self._api.find_stream(topic, control)
                self._placed[topic] = None
            except TransportError as error:
                if isinstance(error, ApiError) and not error.is_passing:
                    self._refused[topic] = str(error)
                    break
                await pause_before_retry(attempt)
                attempt += 1
        self._placing = None
        self._flush()

    def _send_again(self) -> None:
        """All open items once more, in order; the stream knows those it has by their message ids."""
        self._sent = self._confirmed
        self._acked = dict(self._rejected)
        self._flush()

    def _check_progress(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._sent > self._confirmed and now - self._ack_at > self._patience_s:
            self._ack_at = now
            self._patience_s = min(2 * self._patience_s, ACK_S_MAX)
            self._send_again()
        for consumer in list(self._consumers.values()):
            if consumer.ready and now - consumer.heard_at > 3 * HEARTBEAT_S and not self._client.paused:
                self._renew(consumer)
        self._watch = self._guard.later(1.0, self._check_progress)

    def _on_ack(self, subject: bytes, head: bytes, payload: bytes) -> None:
        number = int(subject[subject.rindex(b".") + 1 :])
        if not self._confirmed < number <= self._sent:
            return  # of an item sent twice
        self._ack_at = asyncio.get_running_loop().time()
        self._patience_s = ACK_S
        if head.startswith(b"NATS/1.0 503"):
            # Its stream is gone or has no leader now: find or make it again, then send again from the oldest.
            if not self._retrying:
                self._retrying = True
                self._placed.clear()
                self._api.forget_streams()
                self._spawn(self._retry_soon())
            return
        ack = _ack_decoder.decode(payload)
        if ack.error is None:
            self._acked[number] = None
        elif number not in self._acked:
            item = self._outbox.items[number - self._confirmed - 1]
            self._reject(number, item, str(ack.error.get("description", "refused")))

    async def _retry_soon(self) -> None:
        await pause_before_retry(0)
        self._retrying = False
        self._send_again()

    def _confirm_acked(self) -> None:
        count, under_way = 0, self._sent - self._confirmed
        while count < under_way and self._acked.pop(self._confirmed + count + 1, 0) is None:
            count += 1
            self._rejected.pop(self._confirmed + count, None)
        if count:
            self._confirmed += count
            self._outbox.confirm(count)
            self._listener.on_confirmed(count)
            if self._sent - self._confirmed < len(self._outbox):
                self._ask_flush()

    # subscribing

    async def subscribe(self, topic: str, *, control: bool = False, after: int | None = None) -> None:
        channel = (check_channel(topic), control)
        consumer = self._consumers.get(channel)
        if consumer is None:
            consumer = _Consumer(channel, after)
            if after is not None:
                await self._check_kept(topic, control, after)
            self._consumers[channel] = consumer
            consumer.made = self._spawn(self._make(consumer))
        while not consumer.ready and self._consumers.get(channel) is consumer and not self._closed:
            await asyncio.shield(consumer.made)
        if not consumer.ready:
            raise TransportError(f"{topic} was unsubscribed, or the connection closed, before it was in force")

    async def extent(self, topic: str, control: bool) -> tuple[int, int]:
        """The first position that a channel's stream keeps, and that of the channel's last item; 0: there is none."""
        stream = await self._api.find_stream(topic, control)
        last = await self._api.last_of(stream, self._api.subject_of(topic, control))
        return (await self._api.state(stream)).first_seq, last

    def unsubscribe(self, topic: str, *, control: bool = False) -> None:
        consumer = self._consumers.pop((topic, control), None)
        if consumer is not None:
            self._drop(consumer)

    async def _check_kept(self, topic: str, control: bool, after: int) -> None:
        state = await self._api.state(await self._api.find_stream(topic, control))
        if state.first_seq > after + 1 or state.last_seq < after:
            kept = f"{state.first_seq} to {state.last_seq}"
            raise DataLossError(f"{topic}: asked for what follows {after}, the stream keeps {kept}")

    def _drop(self, consumer: _Consumer) -> None:
        """The server forgets a consumer that nobody listens to."""
        if self._by_sid.pop(consumer.sid, None) is not None:
            self._client.unsubscribe(consumer.sid)

    def _renew(self, consumer: _Consumer) -> None:
        """Makes the consumer anew, after the last item handed over."""
        self._drop(consumer)
        consumer.ready = False
        consumer.made = self._spawn(self._make(consumer))

    async def _make(self, consumer: _Consumer) -> None:
        topic, control = consumer.channel
        attempt = 0
        while self._consumers.get(consumer.channel) is consumer and not self._closed:
            await self._connected.wait()
            self._drop(consumer)
            self._deliver_count += 1
            deliver_to = f"_INBOX.{self._client.session}.d{self._deliver_count}"
            consumer.next = 1
            consumer.sid = self._client.subscribe(deliver_to.encode())
            self._by_sid[consumer.sid] = consumer
            try:
                consumer.stream = await self._api.find_stream(topic, control)
                if consumer.last is not None:
                    await self._report_missing(consumer)
                created = await self._api.consume(
                    consumer.stream, self._api.subject_of(topic, control), deliver_to, consumer.last
                )
            except TransportError as error:
                if isinstance(error, ApiError) and not error.is_passing and not consumer.served:
                    self.unsubscribe(topic, control=control)
                    raise
                self._api.forget_streams()
                await pause_before_retry(attempt)
            else:
                if consumer.last is None:
                    consumer.last = created.last_seq
                consumer.heard_at = asyncio.get_running_loop().time()
                consumer.ready = consumer.served = True
                return
            attempt += 1

    async def _report_missing(self, consumer: _Consumer) -> None:
        """After a break: did retention, or the loss of the stream, take what we have not seen?"""
        assert consumer.last is not None
        state = await self._api.state(consumer.stream)
        topic, control = consumer.channel
        if state.last_seq < consumer.last:
            consumer.last = 0
            self._listener.on_notice(Lost("the stream was lost and begins anew", topic, control))
        elif state.first_seq > consumer.last + 1:
            consumer.last = state.first_seq - 1
            self._listener.on_notice(Lost("the stream has removed what we had not read", topic, control))

    def pause(self) -> None:
        self._client.pause(True)

    def resume(self) -> None:
        now = asyncio.get_running_loop().time()
        for consumer in self._consumers.values():
            consumer.heard_at = now
        self._client.pause(False)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._connected.is_set():
            self._client.pause(False)
            self._flush()
            with suppress(TransportError, TimeoutError):
                async with asyncio.timeout(ACK_S):
                    await self._outbox.flush()
        if self._watch is not None:
            self._watch.cancel()
        for task in self._tasks:
            task.cancel()
        await self._client.close()
        self._connected.set()
        self._outbox.close("this connection is closed")

    # the client calls these

    def on_messages(self, messages: list[Msg]) -> None:
        items: list[Item] = []
        acked = False
        for sid, subject, reply, head, payload in messages:
            if sid == self._ack_sid:
                self._on_ack(subject, head, payload)
                acked = True
                continue
            consumer = self._by_sid.get(sid)
            if consumer is None:
                continue
            if head.startswith(b"NATS/1.0 "):
                self._on_status(consumer, reply, head)
                continue
            words = reply.split(b".")
            at = 5 if len(words) == 9 else 7  # $JS.ACK.[domain.account.]stream.consumer.tries.sequence.number.…
            if int(words[at + 1]) != consumer.next:
                self._renew(consumer)
                continue
            consumer.next += 1
            consumer.last = int(words[at])
            items.append(decode(*consumer.channel, head, payload, consumer.last))
        if messages:
            now = asyncio.get_running_loop().time()
            for sid in dict.fromkeys([message[0] for message in messages]):
                if sid in self._by_sid:
                    self._by_sid[sid].heard_at = now
        if items:
            self._listener.on_items(items)
        if acked:
            self._confirm_acked()

    def _on_status(self, consumer: _Consumer, reply: bytes, head: bytes) -> None:
        """Heartbeats and flow control."""
        if reply:  # a flow control request: we have read everything before it
            self._client.send(b"PUB %b 0\r\n\r\n" % reply)
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b": ")
            if name == b"Nats-Consumer-Stalled":
                self._client.send(b"PUB %b 0\r\n\r\n" % value)
            elif name == b"Nats-Last-Consumer" and int(value) >= consumer.next:
                self._renew(consumer)
                return

    def on_failed(self, error: Exception) -> None:
        self._listener.on_failed(error)

    def on_error(self, text: str) -> None:
        found = VIOLATION.match(text)
        if found is None or found[1] != "Publish":
            return
        for number in range(self._confirmed + 1, self._sent + 1):  # denied in the order in which they were sent
            item = self._outbox.items[number - self._confirmed - 1]
            if number not in self._acked and self._api.subject_of(item.topic, item.control) == found[2]:
                self._reject(number, item, text)
                break
        self._confirm_acked()

    def on_down(self, reason: str) -> None:
        self._connected.clear()
        self._placed.clear()
        self._api.forget_streams()
        self._listener.on_notice(Down(reason))

    def on_back(self) -> None:
        self._connected.set()
        self._learn_limit()
        resent = len(self._outbox)
        self._send_again()
        for consumer in self._consumers.values():
            self._renew(consumer)
        self._spawn(self._restore(resent))

    async def _restore(self, resent: int) -> None:
        while not all(consumer.ready for consumer in self._consumers.values()):
            await asyncio.wait([consumer.made for consumer in self._consumers.values()])
            if not self._connected.is_set():
                return  # down again: `on_back` will start another
        self._listener.on_notice(Up(resent))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._guard.spawn(work, "jetstream")
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task
