"""JGroups with its SEQUENCER beside unisono: throughput and latency over the rate and the number of topics.

The thesis (section 4.3, and its future work) takes JGroups as the group communication of its replicas, and asks how its
total order would do instead of its own. Here are four members on loopback, in one process each way: four channels of
JGroups 5.3.13 (TCP, SEQUENCER; Maven builds `benchmarks/java` once), and four sessions of unisono on one node with the
embedded broker, all of which subscribe to all topics with `order="total"`. Events of 100 bytes at Poisson times from
members at random; rate 0 is as fast as it goes. Latency is from the call to every member's delivery; `one_order` says
that all members have delivered the same sequence. SEQUENCER knows no topics: one order of the whole group. Without
Java and Maven there are rows of unisono only.
"""

import asyncio
import hashlib
import json
import os
import random
import shutil
import subprocess
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import unisono
from unisono.model.deployment import Deployment, NodeSpec, Sequencing
from unisono.runtime.client.session import Session
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports

JAVA = Path(__file__).parent / "java"
MEMBERS, EVENTS, BYTES = 4, 1000, 100
RATES = (25, 100, 400, 0)
TOPICS = (1, 5, 10, 30)
SECONDS_MAX = 20.0
"""At low rates so many events as fit into this time."""


def events_at(rate: int) -> int:
    return min(EVENTS, round(rate * SECONDS_MAX)) if rate else EVENTS


def row(case: str, rate: int, topics: int, found: dict[str, Any]) -> dict[str, Any]:
    events, seconds, spent = found["events"], found["seconds"], found["cpu_s"]
    return {
        "case": f"{case}, rate {rate or 'max'}, {topics} topics",
        "events": events,
        "events_per_s": round(events / seconds),
        "events_per_cpu_s": round(events / spent),
        "median_ms": round(found["median_us"] / 1000, 2),
        "p99_ms": round(found["p99_us"] / 1000, 2),
        "one_order": int(found["one_order"]),
        "load": round(os.getloadavg()[0], 1),
    }


def built() -> str | None:
    """The class path, if JGroups can be had."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        return None
    jar = JAVA / "target" / "bench-jgroups-1.jar"
    if not jar.exists() and subprocess.run(["mvn", "-q", "-B", "package"], cwd=JAVA, check=False).returncode:
        return None
    return f"{jar}:{JAVA / 'target' / 'lib'}/*"


def jgroups(path: str, rate: int) -> dict[str, Any]:
    first = free_ports(1)[0]
    given = [str(value) for value in (first, MEMBERS, events_at(rate), rate, BYTES)]
    made = subprocess.run(
        ["java", "-cp", path, "SequencerBench", *given], capture_output=True, text=True, check=True, timeout=300
    )
    found: dict[str, Any] = json.loads(made.stdout.strip().splitlines()[-1])
    return row("JGroups SEQUENCER", rate, 1, found)


async def hear(stream: Stream, count: int, latencies: list[int]) -> str:
    """The digest of the sequence that a member delivers."""
    order = hashlib.sha256()
    for _ in range(count):
        payload = (await anext(stream)).payload
        latencies.append(time.perf_counter_ns() - int.from_bytes(payload[:8], "big"))
        order.update(payload[8:12])
    return order.hexdigest()


async def publish(sessions: list[Session], names: list[str], rate: int, events: int) -> None:
    dice = random.Random(1)
    at, under_way = time.perf_counter(), []
    for number in range(events):
        if rate:
            at += dice.expovariate(rate)
            await asyncio.sleep(max(at - time.perf_counter(), 0))
        payload = (time.perf_counter_ns().to_bytes(8, "big") + number.to_bytes(4, "big")).ljust(BYTES, b"x")
        under_way.append(asyncio.create_task(dice.choice(sessions).publish(dice.choice(names), payload)))
        if not rate and number % 50 == 49:
            await asyncio.sleep(0)
    await asyncio.gather(*under_way)


async def ordered(rate: int, topics: int, base: Path) -> dict[str, Any]:
    events, names = events_at(rate), [f"t{number:02d}" for number in range(topics)]
    spec = NodeSpec("hub", listen=f"127.0.0.1:{free_ports(1)[0]}", roles=("sequencer", "broker"))
    deployment = Deployment(1, "bench", nodes=(spec,), sequencing=Sequencing(order="global"))
    node = Node(deployment, "hub", base)
    await node.start()
    latencies: list[int] = []
    try:
        async with AsyncExitStack() as opened:
            sessions = [await opened.enter_async_context(unisono.connect(deployment)) for _ in range(MEMBERS)]
            streams = [
                await opened.enter_async_context(session.subscribe(*names, order="total")) for session in sessions
            ]
            spent, begun = time.process_time(), time.perf_counter()
            *orders, _ = await asyncio.gather(
                *(hear(stream, events, latencies) for stream in streams), publish(sessions, names, rate, events)
            )
            seconds, spent = time.perf_counter() - begun, time.process_time() - spent
    finally:
        await node.stop()
    latencies.sort()
    found = {
        "events": events,
        "seconds": seconds,
        "cpu_s": spent,
        "median_us": latencies[len(latencies) // 2] / 1000,
        "p99_us": latencies[len(latencies) * 99 // 100] / 1000,
        "one_order": len(set(orders)) == 1,
    }
    return row("unisono", rate, topics, found)


def run() -> list[dict[str, Any]]:
    path = built()
    rows = [jgroups(path, rate) for rate in RATES] if path is not None else []
    with TemporaryDirectory(prefix="bench-jgroups-") as name:
        cases = [(rate, 5) for rate in RATES] + [(0, topics) for topics in TOPICS if topics != 5]
        for number, (rate, topics) in enumerate(cases):
            base = Path(name) / str(number)
            base.mkdir()
            rows.append(asyncio.run(asyncio.wait_for(ordered(rate, topics, base), 120)))
    return rows
