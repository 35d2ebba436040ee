"""The clients of `order.py`: two who publish, two who subscribe, however the broker is reached."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import nats as nats_py

import unisono
from ordering.world import DELAY_US, TOPICS, Place
from unisono.runtime.brokers.contract import Ens, EnsNotice, Item, Parcel
from unisono.runtime.brokers.deployed import open_patiently
from unisono.runtime.brokers.embedded.adapter import EmbeddedEns
from unisono.runtime.brokers.nats.adapter import NatsEns
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.brokers.nats.jetstream import JetStreamEns

RAW_TOPICS = ("trader", "quoter")
NATS_PY_TOPICS = ("tradex", "quotex")
"""Of the same length, and others: whoever is measured must not be heard by the rest."""
REDIS_STREAM = "events"
WAIT_S = 60.0


class Ear:
    """One subscriber: everything it was told, in order, as payloads."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.late_us: list[tuple[int, int]] = []
        self.slow = False
        self.expected = 0
        self.problem = ""
        self.done = asyncio.Event()

    def tell(self, payloads: list[bytes]) -> None:
        self.heard += payloads
        if self.slow:
            now = time.monotonic_ns()
            self.late_us += [(payload[0], (now - int(payload[20:40])) // 1000) for payload in payloads]
        if len(self.heard) >= self.expected:
            self.done.set()

    def on_items(self, items: Sequence[Parcel]) -> None:
        self.tell([item.payload for item in items if isinstance(item, Item)])  # who publishes raw names nobody

    def on_confirmed(self, count: int) -> None: ...

    def on_notice(self, notice: EnsNotice) -> None:
        raise RuntimeError(f"the load must not be too much for anybody: {notice}")

    def on_failed(self, error: Exception) -> None:
        raise error


Publish = Callable[[list[tuple[int, bytes]]], Awaitable[None]]
"""Publishes a batch: on which of the two topics, and what."""


class Clients(msgspec.Struct):
    """`publishers` publish a batch on a topic; `finish` returns when everything published has its outcome."""

    publishers: list[Publish]
    ears: list[Ear]
    finish: Callable[[], Awaitable[None]]
    commits: Callable[[], Awaitable[int]]
    pids: list[int]
    """Whose CPU counts beside ours: the broker's processes, then the nodes."""
    brokers: int
    """How many of them are the broker's."""
    clocks: Callable[[], Awaitable[int]] | None = None
    """By clock: how many beats and ticks nodes have sent each other."""


async def no_commits() -> int:
    """Of a broker without nodes."""
    return 0


def spots(sites: int) -> tuple[list[int], list[int]]:
    """Where publishers and subscribers are."""
    return [0, 1 % sites], [1 % sites, 2 % sites]


@asynccontextmanager
async def raw_clients(place: Place, make: Callable[[str, Ear], Ens], one_stream: bool) -> AsyncIterator[Clients]:
    """Straight to the broker; with `one_stream` both topics are one."""
    where, listening = spots(place.sites)
    ears = [Ear() for _ in listening]
    subscribers = [make(place.servers[site], ear) for site, ear in zip(listening, ears)]
    publishers = [make(place.servers[site], Ear()) for site in where]
    for ens in [*subscribers, *publishers]:
        await open_patiently(ens, WAIT_S)
    for ens in subscribers:
        for topic in RAW_TOPICS[: 1 if one_stream else None]:
            await ens.subscribe(topic)

    def publisher(ens: Ens) -> Publish:
        async def publish(batch: list[tuple[int, bytes]]) -> None:
            await ens.room()
            ens.publish([Item(RAW_TOPICS[0 if one_stream else which], payload) for which, payload in batch])

        return publish

    async def finish() -> None:
        for ens in publishers:
            await ens.flush()

    try:
        yield Clients(
            [publisher(ens) for ens in publishers], ears, finish, no_commits, place.broker_pids, len(place.broker_pids)
        )
    finally:
        for ens in [*publishers, *subscribers]:
            await ens.close()


@asynccontextmanager
async def nats_py_clients(place: Place) -> AsyncIterator[Clients]:
    """Straight to the NATS servers, with the client that most programs use."""
    where, listening = spots(place.sites)
    ears = [Ear() for _ in listening]
    subscribers = [await nats_py.connect(place.servers[site]) for site in listening]
    publishers = [await nats_py.connect(place.servers[site], pending_size=1 << 30) for site in where]
    for client, ear in zip(subscribers, ears):

        async def heard(message: Any, ear: Ear = ear) -> None:
            ear.tell([message.data])

        for topic in NATS_PY_TOPICS:
            await client.subscribe(topic, cb=heard, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await client.flush()
    await asyncio.sleep(10 * DELAY_US / 1e6)  # until the other servers know

    def publisher(client: Any) -> Publish:
        async def publish(batch: list[tuple[int, bytes]]) -> None:
            for which, payload in batch:
                await client.publish(NATS_PY_TOPICS[which], payload)

        return publish

    async def finish() -> None:
        for client in publishers:
            await client.flush()

    try:
        pids = place.broker_pids
        yield Clients([publisher(client) for client in publishers], ears, finish, no_commits, pids, len(pids))
    finally:
        for client in [*publishers, *subscribers]:
            await client.close()


@asynccontextmanager
async def redis_clients(place: Place) -> AsyncIterator[Clients]:
    """One Redis stream for both topics, with redis-py. A batch is a pipeline: it is acknowledged before the next."""
    from redis.asyncio import Redis

    def connect(site: int) -> Any:
        host, _, port = place.servers[site].rpartition(":")
        return Redis(host=host, port=int(port))

    where, listening = spots(place.sites)
    ears = [Ear() for _ in listening]
    subscribers, publishers = [connect(site) for site in listening], [connect(site) for site in where]

    async def read(client: Any, ear: Ear) -> None:
        last = b"0"
        while True:
            for _, entries in await client.xread({REDIS_STREAM: last}, count=1000, block=0):
                last = entries[-1][0]
                ear.tell([fields[b"p"] for _, fields in entries])

    def publisher(client: Any) -> Publish:
        async def publish(batch: list[tuple[int, bytes]]) -> None:
            pipeline = client.pipeline(transaction=False)
            for _, payload in batch:
                pipeline.xadd(REDIS_STREAM, {b"p": payload})
            await pipeline.execute()

        return publish

    async def finish() -> None: ...

    readers = [asyncio.create_task(read(client, ear)) for client, ear in zip(subscribers, ears)]
    try:
        pids = place.broker_pids
        yield Clients([publisher(client) for client in publishers], ears, finish, no_commits, pids, len(pids))
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
        for client in [*publishers, *subscribers]:
            await client.aclose()


@asynccontextmanager
async def ordered_clients(place: Place) -> AsyncIterator[Clients]:
    """Through unisono, total order."""
    where, listening = spots(place.sites)
    async with AsyncExitStack() as stack:

        async def connect(site: int) -> unisono.Session:
            return await stack.enter_async_context(
                unisono.connect(place.deployments[site], region=f"s{site}", timeout=60)
            )

        ears = [Ear() for _ in listening]
        for site, ear in zip(listening, ears):
            session = await connect(site)
            stream = await stack.enter_async_context(session.subscribe(*TOPICS, deadline="30s", buffer=10_000_000))
            listener = asyncio.create_task(listen(stream, ear))
            stack.callback(listener.cancel)
        sessions = [await connect(site) for site in where]
        lanes = [[await session.publisher(topic) for topic in TOPICS] for session in sessions]

        def publisher(lane: list[unisono.Publisher]) -> Publish:
            async def publish(batch: list[tuple[int, bytes]]) -> None:
                for topic, publisher in enumerate(lane):
                    await publisher.send_all([payload for which, payload in batch if which == topic])

            return publish

        async def finish() -> None:
            for session in sessions:
                await session.drain()

        async def commits() -> int:
            reports = [await sessions[0].status(f"s{site}") for site in range(place.sites)]
            return sum(report.counters["sequencer"]["commits"] for report in reports)

        async def clocks() -> int:
            reports = [await sessions[0].status(f"s{site}") for site in range(place.sites)]
            seen = [report.stamper for report in reports if report.stamper is not None]
            return sum(each.beats * (place.sites - 1) + each.ticks for each in seen)

        by_clock = place.deployments[0].sequencing.by == "clock"
        yield Clients(
            [publisher(lane) for lane in lanes],
            ears,
            finish,
            commits,
            [*place.broker_pids, *place.node_pids],
            len(place.broker_pids),
            clocks if by_clock else None,
        )


async def listen(stream: unisono.Stream, ear: Ear) -> None:
    async for batch in stream.batches(1000):
        payloads = [event.payload for event in batch]
        if b"" in payloads:
            ear.problem = next(str(event.gap or event.stalled) for event in batch if event.payload == b"")
            ear.done.set()
        ear.tell(payloads)


def nats(server: str, ear: Ear) -> Ens:
    return NatsEns(NatsOptions((server,)), ear)


def jetstream(server: str, ear: Ear) -> Ens:
    return JetStreamEns(NatsOptions((server if "://" in server else f"nats://{server}",)), ear)


def embedded(server: str, ear: Ear) -> Ens:
    host, _, port = server.rpartition(":")
    return EmbeddedEns(host, int(port), ear)
