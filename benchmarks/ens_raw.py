"""Raw publish/subscribe through every adapter: what ordering is measured against.

2 topics, 2 publishers, 2 subscribers of both topics, 100 B payloads; clients in this process, real nats-servers beside
it. CPU seconds are those of this process and of the servers. nats-py carries the same load (same header, batches
published without waiting, callbacks) as the peer of our own NATS client.
"""

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nats as nats_py
from ordering.spent import cpu_s

from unisono.runtime.brokers.contract import Ens, EnsNotice, Item, Parcel, count_items
from unisono.runtime.brokers.embedded.adapter import EmbeddedEns
from unisono.runtime.brokers.embedded.server import EmbeddedBroker, EmbeddedBrokerConfig
from unisono.runtime.brokers.memory.adapter import Hub, MemoryEns
from unisono.runtime.brokers.nats.adapter import NatsEns
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.brokers.nats.jetstream import JetStreamEns
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig

TOPICS = ("trades", "quotes")
PUBLISHERS = 2
SUBSCRIBERS = 2
PAYLOAD = bytes(100)
BATCH = 64
WAIT_S = 300.0


class Counter:
    """A listener that only counts."""

    def __init__(self, expected: int) -> None:
        self.left = expected
        self.done = asyncio.Event()

    def on_items(self, items: Sequence[Parcel]) -> None:
        self.count(count_items(items))

    def count(self, heard: int) -> None:
        self.left -= heard
        if self.left <= 0:
            self.done.set()

    def on_confirmed(self, count: int) -> None: ...

    def on_notice(self, notice: EnsNotice) -> None:
        raise RuntimeError(f"the load must not be too much for anybody: {notice}")

    def on_failed(self, error: Exception) -> None:
        raise error


class Measured:
    """Wall and CPU time of what happens inside."""

    def __init__(self, server: NatsServer | None) -> None:
        self._server = server
        self.seconds = self.client_cpu_s = self.server_cpu_s = 0.0

    def _read(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), cpu_s(self._server.pid) if self._server else 0.0

    def __enter__(self) -> "Measured":
        gc.collect()
        self._start = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.client_cpu_s, self.server_cpu_s = (b - a for a, b in zip(self._start, self._read()))


async def drive(connect: Callable[[Counter], Awaitable[Ens]], server: NatsServer | None, each: int) -> Measured:
    """Publishers as fast as confirmations allow, until every subscriber has heard everything."""
    counters = [Counter(PUBLISHERS * each) for _ in range(SUBSCRIBERS)]
    subscribers = [await connect(counter) for counter in counters]
    publishers = [await connect(Counter(0)) for _ in range(PUBLISHERS)]
    for subscriber in subscribers:
        for topic in TOPICS:
            await subscriber.subscribe(topic)

    async def publish(ens: Ens, name: str) -> None:
        for start in range(0, each, BATCH):
            await ens.room()
            ens.publish([Item(TOPICS[n % 2], PAYLOAD, name, n + 1) for n in range(start, min(start + BATCH, each))])
            await asyncio.sleep(0)

    with Measured(server) as measured:
        await asyncio.gather(*(publish(ens, f"p{n}") for n, ens in enumerate(publishers)))
        async with asyncio.timeout(WAIT_S):
            for counter in counters:
                await counter.done.wait()
            for ens in publishers:
                await ens.flush()
    for ens in [*publishers, *subscribers]:
        await ens.close()
    return measured


async def drive_nats_py(server: NatsServer, each: int) -> Measured:
    """The same load through nats-py."""
    counters = [Counter(PUBLISHERS * each) for _ in range(SUBSCRIBERS)]
    clients = [await nats_py.connect(server.url) for _ in range(PUBLISHERS + SUBSCRIBERS)]
    for counter, client in zip(counters, clients):

        async def heard(message: Any, counter: Counter = counter) -> None:
            counter.count(1)

        for topic in TOPICS:
            await client.subscribe(topic, cb=heard, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await client.flush()

    async def publish(client: Any, name: str) -> None:
        for n in range(each):
            await client.publish(TOPICS[n % 2], PAYLOAD, headers={"Unisono-Id": f"{name} {n + 1}"})
            if n % BATCH == 0:
                await asyncio.sleep(0)

    with Measured(server) as measured:
        await asyncio.gather(*(publish(client, f"p{n}") for n, client in enumerate(clients[SUBSCRIBERS:])))
        async with asyncio.timeout(WAIT_S):
            for counter in counters:
                await counter.done.wait()
    for client in clients:
        await client.close()
    return measured


async def measure(kind: str, each: int) -> Measured:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        sync = "2m" if kind == "jetstream-2m" else "always"
        config = NatsServerConfig(jetstream=kind.startswith("jetstream"), jetstream_sync=sync)
        server = NatsServer(directory, config)

        async def opened(ens: Ens) -> Ens:
            await ens.open()
            return ens

        match kind:
            case "memory":
                hub = Hub()
                return await drive(lambda counter: opened(MemoryEns(hub, counter)), None, each)
            case "embedded":
                broker = EmbeddedBroker(EmbeddedBrokerConfig(patience_us=int(WAIT_S * 1e6)))
                port = await broker.start()
                stack.push_async_callback(broker.stop)
                return await drive(lambda counter: opened(EmbeddedEns("127.0.0.1", port, counter)), None, each)
        stack.callback(server.kill)
        await server.start()
        options = NatsOptions((server.url,))
        match kind:
            case "nats":
                return await drive(lambda counter: opened(NatsEns(options, counter)), server, each)
            case "jetstream" | "jetstream-2m":
                return await drive(lambda counter: opened(JetStreamEns(options, counter)), server, each)
            case "nats-py":
                return await drive_nats_py(server, each)
        raise ValueError(kind)


KINDS = {
    "memory": 50_000,
    "embedded": 50_000,
    "nats": 50_000,
    "nats-py": 20_000,
    "jetstream": 5_000,
    "jetstream-2m": 15_000,
}
"""Items per publisher. `jetstream` syncs before it acknowledges, `jetstream-2m` every two minutes."""


def run(scale: float = 1.0, kinds: tuple[str, ...] = tuple(KINDS), rounds: int = 3) -> list[dict[str, Any]]:
    """One row per adapter and event loop, the median round by CPU."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:
        pass
    else:
        loops["uvloop"] = uvloop.new_event_loop
    rows = []
    for kind in kinds:
        each = max(int(KINDS[kind] * scale), BATCH)
        for name, factory in loops.items():
            taken = []
            for _ in range(rounds):
                with asyncio.Runner(loop_factory=factory) as runner:
                    taken.append(runner.run(measure(kind, each)))
            taken.sort(key=lambda one: one.client_cpu_s + one.server_cpu_s)
            middle = taken[len(taken) // 2]
            messages, cpu = PUBLISHERS * each, middle.client_cpu_s + middle.server_cpu_s
            rows.append(
                {
                    "case": f"{kind}, {name}",
                    "messages": messages,
                    "deliveries": messages * SUBSCRIBERS,
                    "messages_per_s": round(messages / middle.seconds),
                    "messages_per_cpu_s": round(messages / cpu),
                    "client_us_per_message": round(middle.client_cpu_s / messages * 1e6, 2),
                    "server_us_per_message": round(middle.server_cpu_s / messages * 1e6, 2),
                }
            )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    for row in run(asked.scale, tuple(asked.kinds), asked.rounds):
        sys.stdout.write(json.dumps(row) + "\n")
