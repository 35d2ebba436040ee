"""Coded events over real UDP on loopback, a fifth of all datagrams dropped in bursts: all arrive, memory stays."""

import asyncio
import resource
import time
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from unisono.model.ids import Topic
from unisono.protocols.coded.channel import Channel
from unisono.protocols.coded.config import CodedConfig
from unisono.runtime.brokers.udp.node import UdpConfig, UdpNode
from unisono.structures import field

CASES = ((6_000, 1, 10_000), (6_000, 4, 2_500), (23_000, 1, 2_500), (23_000, 4, 1_000))
"""Bytes of an event, subscribers, events."""
WARM_UP = 200
AHEAD_MAX = 20
TOPIC = Topic(1)
CODED = CodedConfig(
    quiet_us=5_000, ask_every_us=30_000, advert_every_us=200_000, deadline_us=30_000_000, keep_us=60_000_000,
    kept_max=200, finished_max=2_000,
)  # fmt: skip


def content_of(number: int, size: int) -> bytes:
    return number.to_bytes(4, "big") + Random(number).randbytes(size - 4)


def memory_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def deliver(publisher: UdpNode, subscribers: list[UdpNode], numbers: range, size: int) -> int:
    """Publishes them, never far ahead of the slowest; returns how many arrived with every byte intact, over all."""
    intact = [0] * len(subscribers)

    async def listen(place: int) -> None:
        missing = dict.fromkeys(numbers)
        while missing:
            _, content = await subscribers[place].heard.get()
            number = int.from_bytes(content[:4], "big")
            intact[place] += number in missing and content == content_of(number, size)
            del missing[number]

    listeners = [asyncio.ensure_future(listen(place)) for place in range(len(subscribers))]
    for number in numbers:
        publisher.publish(TOPIC, content_of(number, size))
        await asyncio.sleep(0)
        while number - numbers.start - min(intact) >= AHEAD_MAX and not all(each.done() for each in listeners):
            await asyncio.sleep(0.001)
    await asyncio.wait_for(asyncio.gather(*listeners), 120)
    return sum(intact)


async def measure(size: int, count: int, events: int) -> dict[str, Any]:
    field.warm_up().join()
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(UdpNode(CODED, UdpConfig(loss=Channel(0.2, 2), seed=seed)))
            for seed in range(count + 1)
        ]
        publisher, *subscribers = nodes
        for subscriber in subscribers:
            subscriber.introduce(*(node.address for node in nodes))
        await asyncio.gather(*(subscriber.subscribe(TOPIC) for subscriber in subscribers))
        await deliver(publisher, subscribers, range(WARM_UP), size)
        before, started, cpu = memory_kb(), time.perf_counter(), time.process_time()
        intact = await deliver(publisher, subscribers, range(WARM_UP, WARM_UP + events), size)
        spent, cpu = time.perf_counter() - started, time.process_time() - cpu
        return {
            "case": f"{size} byte events, one publisher, {count} subscriber{'s' * (count > 1)}, all in this process",
            "events": events,
            "deliveries": events * count,
            "intact": intact,
            "gaps": sum(len(node.gaps) for node in nodes),
            "datagrams_sent": sum(node.counters["sent"] for node in nodes),
            "datagrams_dropped": sum(node.counters["dropped on purpose"] for node in nodes),
            "events_per_s": round(events / spent, 1),
            "cpu_us_per_event": round(cpu / events * 1e6, 1),
            "cpu_us_per_delivery": round(cpu / events / count * 1e6, 1),
            "memory_growth_kb": memory_kb() - before,
        }


def run() -> list[dict[str, Any]]:
    return [asyncio.run(measure(*case)) for case in CASES]
