"""A broker without a broker: everybody sends coded datagrams to whoever reads a channel, and all repair by gossip.

    UdpEns(UdpOptions(seeds=("127.0.0.1:7474",)), listener)

Beneath is `UdpNode`: datagrams, coding, repair. What this adds is the contract of an ENS. Items that leave together on
one channel travel as numbered events, *batches*; readers hold batches back until they are next, and tell how far they
are; the publisher keeps a bounded number under way and nags who does not answer, so also the last batch before a
silence arrives. A confirmation means that every reader that has been heard lately holds the item. Nothing is stored:
who is not there does not get it later, and what a reader missed while it was not heard is reported by `Lost`.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain, groupby, repeat
from operator import attrgetter
from secrets import token_hex
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from unisono.errors import MisuseError, TransportError
from unisono.machine import Gap, Heard
from unisono.model.ids import Address, Topic
from unisono.model.numbers import Count, Number, Request
from unisono.model.time import MILLISECOND, SECOND, Micros
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import Advert, Adverts, EventKey, Members, Seen
from unisono.runtime.brokers.contract import AdapterLimits, Item, Listener, Lost, Parcel, Traits, check_channel, unpack
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.udp.node import UdpConfig, UdpNode
from unisono.runtime.brokers.udp.peers import AskProgress, Bye, Entered, Messages, Peers, ReceivedUpTo
from unisono.runtime.brokers.unconfirmed import UnconfirmedItems
from unisono.runtime.links.frames import UNREADABLE

Channel = tuple[str, bool]

PAYLOAD_BYTES_MAX = 1024 * 1024
BATCH_BYTES = 16 * 1024
TURN_ITEMS_MAX, TURN_BYTES = 1024, 64 * 1024
TICK_S = 0.05
TICKS_PER_BEAT = 5
PROGRESS_S = 0.002
NAMED_MAX = 32
"""Numbers that a nag makes us ask for at once."""

CODED = CodedConfig(
    redundancy=1,
    quiet_us=Micros(3 * MILLISECOND),
    ask_every_us=Micros(15 * MILLISECOND),
    advert_every_us=Micros(SECOND),
    fan_in=1,
    deadline_us=Micros(20 * SECOND),
    keep_us=Micros(25 * SECOND),
    event_bytes_max=2 * PAYLOAD_BYTES_MAX,
    behind_max=256,
)
"""One machine room; batches are repaired for longer than a silent reader is kept."""


class UdpOptions(Struct, frozen=True):
    """How to take part."""

    seeds: tuple[str, ...]
    """Addresses of others, one of which must be there; our own may be among them."""
    bind: str = "127.0.0.1:0"
    coded: CodedConfig = CODED
    udp: UdpConfig = UdpConfig()
    window_batches: int = 128
    window_bytes: int = 192 * 1024
    """Under way to readers; more waits in the outbox. A receive buffer should hold this from each publisher that is
    busy at the same time. Price: throughput is at most this per round trip."""
    suspect_s: float = 1.0
    """A reader that was not heard for so long is not waited for."""
    patience_s: float = 10.0
    """A peer that was not heard for so long is dropped."""
    inbox_items_max: int = 20_000
    inbox_bytes_max: int = 64 * 1024 * 1024
    """Items waiting for our listener; beyond it they are dropped, and it is told."""
    alone_s: float = 1.0
    """A seed that finds no other seed in this time begins alone."""


class ItemBatch(Struct, frozen=True, array_like=True):
    """What travels: items of one channel, and the place of the batch in its publisher's numbers of that channel."""

    publisher: int
    number: Number
    topic: str
    control: bool
    items: list[tuple[bytes, str, Request, dict[str, str] | None]]
    moments: list[tuple[Count, Annotated[int, Meta(ge=0, le=2**63 - 1)]]] = []
    """When they were published: of so many items in a row, this moment."""

    def unpack(self) -> list[Item]:
        topic, control = self.topic, self.control
        told = chain.from_iterable(repeat(born, count) for count, born in self.moments)
        times = chain(told, repeat(0))
        return [Item(topic, p, who, n, control, h, born) for (p, who, n, h), born in zip(self.items, times)]


class BatchStream:
    """Batches of one publisher on one channel, on their way into order."""

    __slots__ = ("done", "held", "lost")

    def __init__(self) -> None:
        self.done: int | None = None  # None until the publisher has said where it begins
        self.held: dict[int, ItemBatch] = {}
        self.lost: dict[int, None] = {}  # numbers that will not come


class Underway(Struct, frozen=True):
    """Items that left together, and the batches they are in."""

    batches: list[tuple[Topic, int]]
    items: int
    size: int


def channel_number(name: str, control: bool) -> Topic:
    """The 32-bit number of a channel in packets. Two channels may share one: batches name theirs in full."""
    text = f"{'control' if control else 'events'} {name}"
    return Topic(int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big"))


class UdpEns:
    """One participant."""

    traits = Traits("udp", strength="ordered", payload_bytes_max=PAYLOAD_BYTES_MAX)

    def __init__(self, options: UdpOptions, listener: Listener, limits: AdapterLimits = AdapterLimits()) -> None:
        self._options, self._listener = options, listener
        self._guard = Guard(listener.on_failed)
        self._outbox = UnconfirmedItems[Item](limits, self.traits.payload_bytes_max)
        self._waiting: deque[Item] = deque()  # of the outbox, those not yet sent
        self._underway: deque[Underway] = deque()
        self._batches = self._bytes = 0  # under way
        self._awake_s = 0.0  # time in which we were able to listen: nobody is silent while we are busy or stopped
        self._numbers: dict[Topic, int] = {}
        self._channels: dict[Channel, None] = {}
        self._joined: dict[Topic, int] = {}  # how many of our channels have this number
        self._streams: dict[tuple[int, Topic], BatchStream] = {}
        self._progress: dict[tuple[Address, int], dict[Topic, None]] = {}  # to be told
        self._sources: dict[int, Address] = {}  # publisher -> where it is
        self._inbox: deque[Item] = deque()
        self._inbox_bytes = 0
        self._notices: deque[Lost] = deque()
        self._dropped: dict[Channel, int] = {}
        self._paused = self._pumping = self._handing_over = self._telling = False
        self._ticker: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._decoder = msgspec.msgpack.Decoder(ItemBatch)

    @property
    def open_count(self) -> int:
        return len(self._outbox)

    @property
    def address(self) -> Address:
        return self._node.address

    @property
    def counters(self) -> dict[str, int]:
        """Of the socket and of the coded machine, by name; and how many others take part."""
        return {"peers": len(self._peers.all), **self._node.counters, **self._node.machine.counters}

    # -- life

    async def open(self) -> None:
        options = self._options
        host, _, port = options.bind.rpartition(":")
        self._loop = asyncio.get_running_loop()
        config = replace(options.udp, host=host, port=int(port), life=f"/{token_hex(8)}")
        self._node = UdpNode(options.coded, config, self._deliver, self._control, Messages)
        await self._node.__aenter__()
        seeds = [Address(seed) for seed in options.seeds]
        self._peers = Peers(self._node, seeds, lambda: self._awake_s, self._base_of, self._entered, self._gone)
        try:
            await self._meet(self.address in seeds)
        except BaseException:
            await self._node.__aexit__()
            raise
        self._ticker = self._guard.spawn(self._tick(), "udp peers")

    async def _meet(self, is_seed: bool) -> None:
        """Returns when everybody who is there knows us, and we know what they read."""
        begin = self._loop.time()
        while True:
            waited = self._loop.time() - begin
            if self._peers.has_seed or (is_seed and waited >= self._options.alone_s):
                if not self._peers.strangers or waited >= self._options.alone_s:
                    return
            elif waited >= 2 * self._options.alone_s:
                raise TransportError(f"none of {', '.join(self._options.seeds)} answers")
            for address in self._peers.strangers:
                self._peers.beat(address, asks=True)
            self._peers.ask_again()
            await asyncio.sleep(TICK_S)

    async def close(self) -> None:
        if self._ticker is None:  # it was never open
            self._outbox.close("this connection is closed")
            return
        await self._outbox.flush()
        self._outbox.close("this connection is closed")
        self._ticker.cancel()
        await asyncio.gather(self._ticker, return_exceptions=True)
        for address in self._peers.all:
            self._node.tell(address, Bye(self._node.publisher))
        await self._node.__aexit__()

    async def _tick(self) -> None:
        ticks, before = 0, self._loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            ticks, now = ticks + 1, self._loop.time()
            self._awake_s += min(now - before, 2 * TICK_S)
            before = now
            if ticks % TICKS_PER_BEAT == 0:
                self._peers.tidy(self._options.patience_s)
                for address in self._peers.all:
                    self._peers.beat(address)
            for address in self._peers.strangers:
                self._peers.beat(address, asks=True)
            self._peers.ask_again()
            self._nag()
            self._confirm()
            self._news.set()

    # -- publishing

    def publish(self, items: Sequence[Parcel]) -> None:
        singles = unpack(items)
        self._outbox.put(singles)
        self._waiting.extend(singles)
        self._pump_soon()

    async def room(self) -> None:
        await self._outbox.room()

    async def flush(self) -> None:
        await self._outbox.flush()

    def _pump_soon(self) -> None:
        if not self._pumping and self._waiting:
            self._pumping = True
            self._guard.soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        options = self._options
        while self._waiting and self._batches < options.window_batches and self._bytes < options.window_bytes:
            self._send_some()
        self._confirm()

    def _send_some(self) -> None:
        """The next items, one batch per channel."""
        channels: dict[Channel, list[Item]] = {}
        count = size = 0
        while self._waiting and count < TURN_ITEMS_MAX and size < TURN_BYTES:
            item = self._waiting.popleft()
            channels.setdefault((item.topic, item.control), []).append(item)
            count, size = count + 1, size + len(item.payload)
        sent = []
        for items in channels.values():
            batch: list[Item] = []
            room = BATCH_BYTES
            for item in items:
                if batch and len(item.payload) > room:
                    sent.append(self._send(batch))
                    batch, room = [], BATCH_BYTES
                batch.append(item)
                room -= len(item.payload)
            sent.append(self._send(batch))
        self._underway.append(Underway(sent, count, size))
        self._batches += len(sent)
        self._bytes += size

    def _send(self, items: list[Item]) -> tuple[Topic, int]:
        name, control = items[0].topic, items[0].control
        topic = channel_number(name, control)
        number = self._numbers[topic] = self._numbers.get(topic, 0) + 1
        rows = [(item.payload, item.publisher, item.request, item.headers) for item in items]
        moments = [(len(list(some)), born) for born, some in groupby(items, attrgetter("born_us"))]
        content = msgspec.msgpack.encode(ItemBatch(self._node.publisher, number, name, control, rows, moments))
        self._node.publish(topic, content)
        if (name, control) in self._channels:
            self._take(items)
        return topic, number

    def _base_of(self, topic: Topic) -> int:
        return self._numbers.get(topic, 0)

    def _confirm(self) -> None:
        """What every reader has that was heard lately is confirmed, in the order of publication."""
        heard_since = self._awake_s - self._options.suspect_s
        least: dict[Topic, int] = {}
        for peer in self._peers.all.values():
            if peer.heard_at >= heard_since:
                for topic, reader in peer.reads.items():
                    least[topic] = min(reader.upto, least.get(topic, reader.upto))
        count = 0
        while self._underway:
            head = self._underway[0]
            if any(topic in least and least[topic] < number for topic, number in head.batches):
                break
            self._underway.popleft()
            self._batches -= len(head.batches)
            self._bytes -= head.size
            count += head.items
        if count:
            self._outbox.confirm(count)
            self._listener.on_confirmed(count)
            self._pump_soon()

    def _nag(self) -> None:
        for address, peer in self._peers.all.items():
            for topic, reader in peer.reads.items():
                if reader.upto < self._numbers.get(topic, 0):
                    self._node.tell(address, AskProgress(topic, self._node.publisher, self._numbers[topic]))

    # -- reading

    async def subscribe(self, topic: str, *, control: bool = False, after: int | None = None) -> None:
        if after is not None:
            raise MisuseError("datagrams are kept nowhere to be replayed")
        channel = (check_channel(topic), control)
        number = channel_number(*channel)
        if channel not in self._channels:
            self._channels[channel] = None
            self._joined[number] = self._joined.get(number, 0) + 1
            if self._joined[number] == 1:
                await self._node.subscribe(number)
                self._peers.want(number)
        while channel in self._channels and not self._peers.is_entered(number):
            self._news.clear()
            await self._news.wait()

    def unsubscribe(self, topic: str, *, control: bool = False) -> None:
        channel = (topic, control)
        if self._channels.pop(channel, 0) == 0:
            return
        number = channel_number(*channel)
        self._joined[number] -= 1
        if not self._joined[number]:
            del self._joined[number]
            self._node.unsubscribe(number)
            self._peers.drop(number)
            for key in [key for key in self._streams if key[1] == number]:
                del self._streams[key]
        self._dropped.pop(channel, None)
        self._inbox = deque(item for item in self._inbox if (item.topic, item.control) != channel)
        self._inbox_bytes = sum(len(item.payload) for item in self._inbox)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._wake()

    def _deliver(self, item: Heard | Gap) -> None:
        """From the coded machine: batches whole and once, in any order."""
        if isinstance(item, Gap):
            if item.publisher:
                self._skip(int(item.publisher, 16), item)
            return
        try:
            batch = self._decoder.decode(item.message)
        except UNREADABLE:
            return
        if batch.publisher == self._node.publisher or item.topic not in self._joined:
            return  # our own were handed over when they left
        stream = self._streams.setdefault((batch.publisher, item.topic), BatchStream())
        if stream.done is None or batch.number > stream.done:
            stream.held[batch.number] = batch
            self._release(batch.publisher, item.topic, stream)

    def _skip(self, publisher: int, gap: Gap) -> None:
        stream = self._streams.get((publisher, gap.topic))
        if stream is not None and stream.done is not None:
            for number in range(max(gap.first, stream.done + 1), gap.last + 1):
                stream.lost[number] = None
            self._release(publisher, gap.topic, stream)

    def _release(self, publisher: int, topic: Topic, stream: BatchStream) -> None:
        """Hands over what is next, and notes the progress."""
        if stream.done is None:
            return
        while True:
            number = stream.done + 1
            if number in stream.lost:
                del stream.lost[number]
                self._tell_lost("a batch could not be repaired in time", topic)
            elif (batch := stream.held.pop(number, None)) is not None:
                if (batch.topic, batch.control) in self._channels:
                    self._take(batch.unpack())
            else:
                break
            stream.done = number
        source = self._sources.get(publisher)
        if source is not None:
            self._tell_progress(source, publisher, topic)

    def _entered(self, source: Address, message: Entered) -> None:
        """A publisher says from where on we get its numbers of a channel."""
        topic, publisher = message.topic, message.publisher
        self._news.set()
        if topic not in self._joined:
            return
        self._sources[publisher] = source
        self._node.give(Members(source, topic, (Seen(source, 0),)))
        stream = self._streams.setdefault((publisher, topic), BatchStream())
        if stream.done is None:
            stream.done = message.base
        elif message.base > stream.done:
            # It had dropped us, and did not send what lies between.
            self._tell_lost("a publisher had lost sight of us", topic)
            stream.done = message.base
        stream.held = {number: batch for number, batch in stream.held.items() if number > stream.done}
        self._release(publisher, topic, stream)

    def _gone(self, publisher: int, why: str) -> None:
        """A publisher is no more: what it had not finished saying stays unsaid."""
        source = self._sources.pop(publisher, None)
        for key in [key for key in self._streams if key[0] == publisher]:
            stream = self._streams.pop(key)
            for number in sorted(stream.held):
                batch = stream.held[number]
                if (batch.topic, batch.control) in self._channels:
                    self._tell_lost(f"a publisher {why}", key[1])
                    self._take(batch.unpack())
            if why != "said goodbye":
                self._tell_lost(f"a publisher {why}", key[1])
        if source is not None:
            self._progress.pop((source, publisher), None)
        self._news.set()

    def _control(self, message: Any, source: Address) -> None:
        match message:
            case ReceivedUpTo(publisher=publisher, upto=upto):
                peer = self._peers.all.get(source)
                if peer is not None and publisher == self._node.publisher:
                    peer.heard_at = self._awake_s
                    for topic, number in upto:
                        if topic in peer.reads:
                            peer.reads[topic].upto = max(number, peer.reads[topic].upto)
                    self._confirm()
            case AskProgress(topic=topic, publisher=publisher, upto=upto):
                stream = self._streams.get((publisher, topic))
                if stream is None or stream.done is None:
                    return
                self._tell_progress(source, publisher, topic)
                missing = [n for n in range(stream.done + 1, upto + 1) if n not in stream.held][:NAMED_MAX]
                if missing:
                    entries = tuple(Advert(EventKey(topic, publisher, number), 0) for number in missing)
                    self._node.give(Adverts(source, topic, entries))
            case _:
                self._peers.receive(message, source)
                self._news.set()

    def _tell_progress(self, source: Address, publisher: int, topic: Topic) -> None:
        self._progress.setdefault((source, publisher), {})[topic] = None
        if not self._telling:
            self._telling = True
            self._loop.call_later(PROGRESS_S, self._send_progress)

    def _send_progress(self) -> None:
        self._telling = False
        progress, self._progress = self._progress, {}
        for (source, publisher), topics in progress.items():
            streams = [(topic, self._streams.get((publisher, topic))) for topic in topics]
            done = [(topic, stream.done) for topic, stream in streams if stream is not None and stream.done is not None]
            for start in range(0, len(done), 64):
                self._node.tell(source, ReceivedUpTo(publisher, tuple(done[start : start + 64])))

    # -- to the listener

    def _tell_lost(self, reason: str, topic: Topic) -> None:
        for name, control in self._channels:
            if channel_number(name, control) == topic:
                notice = Lost(reason, name, control)
                if notice not in self._notices:
                    self._notices.append(notice)
        self._wake()

    def _take(self, items: list[Item]) -> None:
        for item in items:
            if len(self._inbox) >= self._options.inbox_items_max or self._inbox_bytes >= self._options.inbox_bytes_max:
                channel = (item.topic, item.control)
                self._dropped[channel] = self._dropped.get(channel, 0) + 1
            else:
                self._inbox.append(item)
                self._inbox_bytes += len(item.payload)
        self._wake()

    def _wake(self) -> None:
        if not self._handing_over and not self._paused and (self._inbox or self._dropped or self._notices):
            self._handing_over = True
            self._guard.soon(self._hand_over)

    def _hand_over(self) -> None:
        self._handing_over = False
        if self._paused:
            return
        items = [self._inbox.popleft() for _ in range(min(len(self._inbox), TURN_ITEMS_MAX))]
        self._inbox_bytes -= sum(len(item.payload) for item in items)
        if items:
            self._listener.on_items(items)
        dropped, self._dropped = self._dropped, {}
        notices, self._notices = self._notices, deque()
        for (topic, control), count in dropped.items():
            notices.append(Lost("the subscriber was too slow", topic, control, count))
        for notice in notices:
            self._listener.on_notice(notice)
        self._wake()
