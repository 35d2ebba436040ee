"""Coded events over real UDP on loopback, a fifth of all datagrams dropped in bursts: all arrive, memory stays."""

import asyncio
import resource
import time
from random import Random
from typing import Any

from unisono.model.ids import Topic
from unisono.protocols.coded.channel import Channel
from unisono.protocols.coded.config import CodedConfig
from unisono.runtime.udp import UdpConfig, UdpNode
from unisono.structures import field

EVENTS, EVENT_BYTES, WARM_UP = 10_000, 6_000, 1_000
AHEAD_MAX = 20
TOPIC = Topic(1)
CODED = CodedConfig(
    quiet_us=5_000, ask_every_us=30_000, advert_every_us=200_000, deadline_us=30_000_000, keep_us=60_000_000,
    kept_max=200, finished_max=2_000,
)  # fmt: skip


def content_of(number: int) -> bytes:
    return number.to_bytes(4, "big") + Random(number).randbytes(EVENT_BYTES - 4)


def memory_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def deliver(publisher: UdpNode, subscriber: UdpNode, numbers: range) -> int:
    """Publishes them, never far ahead of what has arrived; returns how many arrived with every byte intact."""
    intact = 0

    async def listen() -> None:
        nonlocal intact
        missing = dict.fromkeys(numbers)
        while missing:
            _, content = await subscriber.heard.get()
            number = int.from_bytes(content[:4], "big")
            intact += number in missing and content == content_of(number)
            del missing[number]

    listener = asyncio.ensure_future(listen())
    for number in numbers:
        publisher.publish(TOPIC, content_of(number))
        await asyncio.sleep(0)
        while number - numbers.start - intact >= AHEAD_MAX and not listener.done():
            await asyncio.sleep(0.001)
    await asyncio.wait_for(listener, 120)
    return intact


async def measure() -> dict[str, Any]:
    field.warm_up().join()
    loss = Channel(0.2, 2)
    async with UdpNode(CODED, UdpConfig(loss=loss)) as a, UdpNode(CODED, UdpConfig(loss=loss, seed=1)) as b:
        b.introduce(a.address)
        await b.subscribe(TOPIC)
        await deliver(a, b, range(WARM_UP))
        before, started, cpu = memory_kb(), time.perf_counter(), time.process_time()
        intact = await deliver(a, b, range(WARM_UP, WARM_UP + EVENTS))
        spent, cpu = time.perf_counter() - started, time.process_time() - cpu
        return {
            "case": f"{EVENT_BYTES} byte events, one publisher, one subscriber, both in this process",
            "events": EVENTS,
            "intact": intact,
            "gaps": len(b.gaps),
            "datagrams_sent": a.counters["sent"] + b.counters["sent"],
            "datagrams_dropped": a.counters["dropped on purpose"] + b.counters["dropped on purpose"],
            "events_per_s": round(EVENTS / spent, 1),
            "cpu_us_per_event": round(cpu / EVENTS * 1e6, 1),
            "memory_growth_kb": memory_kb() - before,
        }


def run() -> list[dict[str, Any]]:
    return [asyncio.run(measure())]
