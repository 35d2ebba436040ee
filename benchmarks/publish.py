"""What it costs to publish one event: every way of ours, and of others, in CPU time of all processes together.

One publisher, one topic, 100 B payloads, one NATS server and one sequencer node, each a process of its own; nobody
subscribes. `one at a time` waits for the outcome of each event before it publishes the next; `64 at once` waits for 64
outcomes together; `handed over` waits for none until the end. Ours on NATS core is accepted when its number is on disk
(fdatasync), on JetStream when the stream has the payload, too; the peers say what their acknowledgement means. All ways
take turns within a round, and the median round is told; `to_jetstream` is the ratio to nats-py's awaited publication on
JetStream (synced every two minutes) within the rounds.
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
from importlib.util import find_spec
from typing import Any, NamedTuple

import nats as nats_py
from ordering.spent import cpu_s
from ordering.world import TOPICS, Broker, Place, world

import unisono
from unisono.runtime.driver.loop import run as run_loop

PAYLOAD = bytes(100)
TOPIC = TOPICS[0]
STREAM_SUBJECT = "peers"
EVENTS, ROUNDS = 512, 5
AT_ONCE = 64
BASE = "nats-py on jetstream, one at a time"

Way = Callable[[int], Awaitable[None]]


class Published(NamedTuple):
    """A way to publish so many events, and whose CPU it takes beside ours."""

    way: Way
    pids: list[int]
    acknowledged: str


def one_at_a_time(publish: Callable[[], Awaitable[Any]]) -> Way:
    async def way(count: int) -> None:
        for _ in range(count):
            await publish()

    return way


def many_at_once(publish: Callable[[], Awaitable[Any]]) -> Way:
    async def way(count: int) -> None:
        for _ in range(0, count, AT_ONCE):
            await asyncio.gather(*(publish() for _ in range(AT_ONCE)))

    return way


async def ours(place: Place, name: str, says: str, stack: AsyncExitStack) -> dict[str, Published]:
    deployment, pids = place.deployments[0], [*place.broker_pids, *place.node_pids]
    session = await stack.enter_async_context(unisono.connect(deployment, timeout=60))

    async def publish() -> None:
        outcome = await session.publish(TOPIC, PAYLOAD)
        if not isinstance(outcome, unisono.Accepted):
            raise RuntimeError(f"nothing may be refused: {outcome}")

    publisher = await session.publisher(TOPIC)

    async def hand_over(count: int) -> None:
        await publisher.send_all([PAYLOAD] * count)
        await publisher.drain()

    opening = unisono.connect_sync(deployment, timeout=60)
    plain = await asyncio.to_thread(opening.__enter__)
    stack.push_async_callback(asyncio.to_thread, opening.__exit__, None, None, None)

    def publish_all_plainly(count: int) -> None:
        for _ in range(count):
            plain.publish(TOPIC, PAYLOAD)

    ways: dict[str, Way] = {
        "one at a time": one_at_a_time(publish),
        "64 at once": many_at_once(publish),
        "handed over": hand_over,
        "connect_sync, one at a time": lambda count: asyncio.to_thread(publish_all_plainly, count),
    }
    return {f"unisono on {name}, {title}": Published(way, pids, says) for title, way in ways.items()}


async def peers(core: Place, kept: Place, synced: Place, stack: AsyncExitStack) -> dict[str, Published]:
    client = await nats_py.connect(core.servers[0])
    stack.push_async_callback(client.close)

    async def publish_core() -> None:
        await client.publish(STREAM_SUBJECT, PAYLOAD)
        await client.flush()

    found = {
        "nats-py on core, one at a time": Published(
            one_at_a_time(publish_core), core.broker_pids, "flush: the server has it, and keeps nothing"
        )
    }
    for place, name, says in ((kept, "", "in the stream, synced every 2 min"), (synced, ", synced", "on disk")):
        other = await nats_py.connect(place.servers[0])
        stack.push_async_callback(other.close)
        stream = other.jetstream()
        await stream.add_stream(name="peers", subjects=[STREAM_SUBJECT])

        async def publish(stream: Any = stream) -> None:
            await stream.publish(STREAM_SUBJECT, PAYLOAD)

        found[f"nats-py on jetstream{name}, one at a time"] = Published(one_at_a_time(publish), place.broker_pids, says)
        found[f"nats-py on jetstream{name}, 64 at once"] = Published(many_at_once(publish), place.broker_pids, says)
    if find_spec("faststream") is None:
        sys.stderr.write("no FastStream among the peers: it is not installed (extra peers)\n")
        return found
    from faststream.nats import NatsBroker

    broker = NatsBroker(kept.servers[0])
    await broker.connect()
    stack.push_async_callback(broker.stop)

    async def publish_fast() -> None:
        await broker.publish(PAYLOAD, STREAM_SUBJECT, stream="peers")

    says = "in the stream, synced every 2 min"
    found["faststream on jetstream, one at a time"] = Published(one_at_a_time(publish_fast), kept.broker_pids, says)
    return found


async def timed(published: Published, count: int) -> dict[str, float]:
    servers = [cpu_s(pid) for pid in published.pids]
    wall, cpu = time.perf_counter(), time.process_time()
    await published.way(count)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    spent = sum(cpu_s(pid) - before for pid, before in zip(published.pids, servers))
    return {
        "cpu_us": (cpu + spent) / count * 1e6,
        "client_us": cpu / count * 1e6,
        "others_us": spent / count * 1e6,
        "events_per_s": count / wall,
    }


async def measure(events: int, rounds: int) -> list[dict[str, Any]]:
    async with AsyncExitStack() as stack:

        async def place(broker: Broker) -> Place:
            return await stack.enter_async_context(world(broker, 1))

        core, kept, synced = await place("nats"), await place("jetstream-2m"), await place("jetstream")
        ordered = await place("jetstream-ordered")
        ways = await ours(core, "nats core", "its number is on disk", stack)
        ways |= await ours(ordered, "jetstream", "its number is on disk, the payload in the stream", stack)
        ways |= await peers(core, kept, synced, stack)
        for published in ways.values():
            await published.way(2 * AT_ONCE)  # topics are born, connections warm up
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for number in range(rounds):
            sys.stderr.write(f"round {number + 1} of {rounds}\n")
            for name, published in ways.items():
                taken[name].append(await timed(published, events))
    rows = []
    for name, published in ways.items():
        costs = [one["cpu_us"] for one in taken[name]]
        middle = taken[name][costs.index(sorted(costs)[rounds // 2])]
        row: dict[str, Any] = {"case": name, "acknowledged": published.acknowledged, "events": events}
        row |= {key: round(value, 1) for key, value in middle.items()}
        pairs = zip(costs, [one["cpu_us"] for one in taken[BASE]])
        row["to_jetstream"] = round(statistics.median(mine / theirs for mine, theirs in pairs), 2)
        rows.append(row | {"load": round(os.getloadavg()[0], 1)})
    return rows


def run(events: int = EVENTS, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    return run_loop(measure(events, rounds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    for row in run(asked.events, asked.rounds):
        sys.stdout.write(json.dumps(row) + "\n")
