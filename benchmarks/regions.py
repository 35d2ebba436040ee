"""Events from one region to ten subscribers in another, 20 ms away: over hierarchies, entourages, an overlay, NATS.

Every broker is a process of its own, and the way to those of the other region passes a proxy. The work is the same for
all: one publisher, one topic, 100 B payloads and one attribute that all filters select; NATS has no filters, and its
row has none. `hierarchy` and `entourages`: a broker in eu, a root and two brokers below it in us, `entourages` with
direct connections to those two; `overlay`: the same four brokers on its tree; `nats`: a cluster of two servers.
`latency` at 100 events/s, from before `publish` to the notification; then the throughput of 20 000 events handed over
as fast as they are taken, and how many notifications came of one CPU second of all brokers together (theirs alone: the
clients are the benchmark's own process). `message sizes`: `entourages` at full rate with longer payloads.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from msgspec import structs
from ordering.spent import cpu_s

import unisono
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.settings import EntourageSpec, Kind, MembershipSpec, NodeSpec, Region
from unisono.model.time import Micros
from unisono.runtime.brokers.contract import EnsNotice, Item, Parcel, unpack
from unisono.runtime.brokers.nats.adapter import NatsEns
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.client.regions import RegionsSession
from unisono.runtime.driver.loop import run as run_loop
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.nats_server import NatsCluster, NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

SUBSCRIBERS = 10
AWAY_US = Micros(20_000)
PER_S, STEADY, BURST = 100, 300, 20_000
SIZES = (100, 1_000, 10_000)
NODE = (sys.executable, "-c", "from unisono.cli.main import main; main()", "node")
TREE = (("z-eu", "eu", None), ("us-1", "us", None), ("us-2", "us", "us-1"), ("us-3", "us", "us-1"))


class System(NamedTuple):
    """What is measured: how one publishes, what has arrived, and whose CPU counts."""

    publish: Callable[[int, bytes], Awaitable[None]]
    drain: Callable[[], Awaitable[None]]
    arrived: list[tuple[int, float]]
    pids: list[int]


def targets(session: unisono.Session) -> tuple[str, ...]:
    """Whom it publishes to directly."""
    return session.entourage().targets if isinstance(session, RegionsSession) else ()


async def ours(kind: Kind, connections: int, stack: AsyncExitStack) -> System:
    directory = Path(stack.enter_context(TemporaryDirectory()))
    bucket = NatsServer(directory / "nats", NatsServerConfig(jetstream=True, jetstream_sync="2m"))
    await bucket.start()
    stack.callback(bucket.kill)
    nodes: list[NodeSpec] = []
    seen: list[NodeSpec] = []  # by the publisher, who is in eu
    for (name, region, parent), port in zip(TREE, free_ports(len(TREE)), strict=True):
        above = parent if kind == "regions" or parent is not None else (None if name == "z-eu" else "z-eu")
        proxy = DelayProxy(AWAY_US)  # roots of us dial that of eu, and the publisher dials those it finds in us
        reached = await proxy.start(("127.0.0.1", port))
        stack.push_async_callback(proxy.stop)
        near = NodeSpec(name, region, f"127.0.0.1:{port}", above, (kind,), observe="off")
        far = structs.replace(near, advertise=f"127.0.0.1:{reached}")
        nodes.append(far if region == "eu" else near)
        seen.append(near if region == "eu" else far)
    deployment = Deployment(
        1,
        "measured",
        kind=kind,
        regions=(Region("eu"), Region("us")),
        nodes=tuple(nodes),
        entourage=EntourageSpec(psi=0.3, connections_max=connections, discovery_s=1.0 if connections else 0.0),
        membership=MembershipSpec((bucket.url,), 1),
    )
    file = directory / "deployment.toml"
    file.write_text(dump_deployment(deployment))
    started = [Popen([*NODE, str(file), node.name], stdout=DEVNULL, stderr=DEVNULL) for node in nodes]
    for process in started:
        stack.callback(process.wait)
        stack.callback(process.kill)
    arrived: list[tuple[int, float]] = []
    greeted: dict[int, None] = {}
    for number in range(SUBSCRIBERS):
        at = nodes[2 + number % 2].listen
        session = await stack.enter_async_context(unisono.connect(f"unisono://{at}", region="us", timeout=60))
        stream = await stack.enter_async_context(session.subscribe("trades", order="fifo", where="n >= 0"))

        async def read(stream: unisono.Stream = stream, number: int = number) -> None:
            async for event in stream:
                if event.event is not None:
                    greeted[number] = None
                    arrived.append((int(event.attributes["n"]), time.perf_counter()))

        task = asyncio.create_task(read())
        stack.callback(task.cancel)
    session = await stack.enter_async_context(
        unisono.connect(structs.replace(deployment, nodes=tuple(seen)), region="eu", timeout=60)
    )
    publisher = await session.publisher("trades", advertise="n >= 0")

    async def publish(n: int, payload: bytes) -> None:
        await publisher.send(payload, {"n": n})

    # Brokers that were started before those above them dial again after a while: what is said until then has no way.
    until = time.monotonic() + 60
    while len(greeted) < SUBSCRIBERS or (connections and len(targets(session)) < 2):
        if time.monotonic() > until:
            raise TimeoutError(f"{len(greeted)} of {SUBSCRIBERS} subscribers hear; directly: {targets(session)}")
        await publish(0, b"")  # counted by nobody; what it says it will publish has no measure, so samples count
        await asyncio.sleep(0.05)
    return System(publish, publisher.drain, arrived, [process.pid for process in started])


class Ear:
    """Hears a NATS server."""

    def __init__(self, arrived: list[tuple[int, float]]) -> None:
        self._arrived = arrived

    def on_items(self, items: list[Parcel]) -> None:
        now = time.perf_counter()
        self._arrived += [(item.request, now) for item in unpack(items)]

    def on_confirmed(self, count: int) -> None: ...

    def on_notice(self, notice: EnsNotice) -> None: ...

    def on_failed(self, error: Exception) -> None:
        raise error


async def raw_nats(stack: AsyncExitStack) -> System:
    cluster = NatsCluster(Path(stack.enter_context(TemporaryDirectory())), 2, AWAY_US)
    await cluster.start()
    stack.push_async_callback(cluster.stop)
    arrived: list[tuple[int, float]] = []
    for _ in range(SUBSCRIBERS):
        ens = NatsEns(NatsOptions((cluster.servers[1].url,)), Ear(arrived))
        await ens.open()
        stack.push_async_callback(ens.close)
        await ens.subscribe("trades")
    sender = NatsEns(NatsOptions((cluster.servers[0].url,)), Ear([]))
    await sender.open()
    stack.push_async_callback(sender.close)

    async def publish(n: int, payload: bytes) -> None:
        await sender.room()
        sender.publish([Item("trades", payload, "p", n)])

    return System(publish, sender.flush, arrived, [server.pid for server in cluster.servers])


async def all_arrived(system: System, first: int, last: int) -> None:
    until, owed = time.monotonic() + 120, (last - first + 1) * SUBSCRIBERS
    while (count := sum(first <= n <= last for n, _ in system.arrived)) < owed:
        if time.monotonic() > until:
            raise TimeoutError(f"{count} of {owed} notifications came")
        await asyncio.sleep(0.02)


async def burst(system: System, first: int, size: int, events: int) -> dict[str, float]:
    before, begun, count = sum(map(cpu_s, system.pids)), time.perf_counter(), events * 100 // max(100, size // 4)
    for n in range(first, first + count):
        await system.publish(n, bytes(size))
    await system.drain()
    await all_arrived(system, first, first + count - 1)
    told, spent = count * SUBSCRIBERS, sum(map(cpu_s, system.pids)) - before
    return {
        "notifications_per_cpu_s": round(told / max(spent, 0.01)),
        "notifications_per_s": round(told / (time.perf_counter() - begun)),
    }


async def measure(
    make: Callable[[AsyncExitStack], Awaitable[System]], sizes: tuple[int, ...], steady: int, events: int
) -> list[dict[str, Any]]:
    async with AsyncExitStack() as stack:
        system = await make(stack)
        left: dict[int, float] = {}
        for n in range(1, steady + 1):
            left[n] = time.perf_counter()
            await system.publish(n, bytes(100))
            await asyncio.sleep(1 / PER_S)
        await all_arrived(system, 1, steady)
        took = sorted((at - left[n]) * 1000 for n, at in system.arrived if n in left)
        latency = {"p50_ms": round(statistics.median(took), 1), "p99_ms": round(took[len(took) * 99 // 100], 1)}
        rows, first = [], steady + 1
        for size in sizes:
            found = await burst(system, first, size, events)
            first += events
            rows.append({"bytes": size, **(latency if size == 100 else {}), **found})
        return rows


def run(steady: int = STEADY, events: int = BURST, cases: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    ways: dict[str, Callable[[AsyncExitStack], Awaitable[System]]] = {
        "hierarchy": lambda stack: ours("regions", 0, stack),
        "entourages": lambda stack: ours("regions", 64, stack),
        "overlay": lambda stack: ours("overlay", 0, stack),
        "nats": raw_nats,
    }
    rows: list[dict[str, Any]] = []
    for name, make in ways.items():
        if cases and name not in cases:
            continue
        sizes = SIZES if name in ("hierarchy", "entourages") else SIZES[:1]
        for row in run_loop(measure(make, sizes, steady, events)):
            case = name if row["bytes"] == 100 else f"{name}, {row['bytes']} B"
            rows.append({"case": case, **row, "load": round(os.getloadavg()[0], 1)})
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steady", type=int, default=STEADY)
    parser.add_argument("--events", type=int, default=BURST)
    parser.add_argument("--cases", nargs="*", default=[])
    asked = parser.parse_args()
    for row in run(asked.steady, asked.events, tuple(asked.cases)):
        sys.stdout.write(json.dumps(row) + "\n")
