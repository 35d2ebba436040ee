"""Causal order by a mesh and by sequencers, on the same work: CPU per event and what a subscriber waits.

Two brokers (sequencer nodes: two of a tree, and the embedded broker), two publishers and three subscribers of two
topics, all in this process; worlds in turn, medians of rounds. `events_per_cpu_s` and `frames_per_cpu_s` are deliveries
per CPU second of everybody together, gossip included; `wait_us` is from the call to the last subscriber, one event at a
time; `idle_cpu_share` is what a world without subscribers takes of a core. What a mesh cannot take in time it refuses:
`accepted` of `events` were, and `told` is how many of those a subscriber heard.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import unisono
from unisono.model.deployment import Deployment
from unisono.model.mesh import CausalSpec
from unisono.model.settings import BrokerSpec, Kind, NodeSpec, Sequencing
from unisono.runtime.client.causal import CausalSession
from unisono.runtime.driver.loop import run as run_loop
from unisono.runtime.node.node import Node, NodeConfig
from unisono.runtime.tools.ports import free_ports

TOPICS = ("trades", "quotes")
EVENTS, SINGLES, ROUNDS, IDLE_S, PATIENCE_S = 1_500, 60, 3, 3.0, 10.0
PAYLOAD = b"x" * 100
KINDS: tuple[Kind, ...] = ("causal", "sequencer")


@asynccontextmanager
async def world(kind: Kind, base: Path) -> AsyncGenerator[Deployment, None]:
    *ports, beneath = free_ports(3)
    nodes = tuple(
        NodeSpec(
            f"n{number}",
            listen=f"127.0.0.1:{port}",
            parent="n0" if kind == "sequencer" and number else None,
            roles=(("sequencer", "broker") if number == 0 else ("sequencer",)) if kind == "sequencer" else ("causal",),
            data="data" if kind == "sequencer" else None,
            observe="off",
        )
        for number, port in enumerate(ports)
    )
    deployment = Deployment(
        1,
        f"bench-{ports[0]}",
        kind=kind,
        nodes=nodes,
        sequencing=Sequencing(order="causal"),
        causal=CausalSpec(),
        broker=BrokerSpec("embedded", (f"127.0.0.1:{beneath}",)),
    )
    async with AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(Node(deployment, node.name, base, NodeConfig(witness_s=0)))
        yield deployment


async def read(stream: Any, count: int) -> None:
    """Until so many were heard, or were told to be lost."""
    seen = 0
    while seen < count:
        event = await anext(stream)
        seen += 1 if event.gap is None else event.gap.last - event.gap.first + 1


async def count(stream: Any, told: dict[int, int], place: int) -> None:
    async for event in stream:
        told[place] += event.event is not None


def frames_told(sessions: list[Any]) -> int:
    """By all members of the mesh; sequencers know no frames."""
    return sum(s.mesh_report().get("delivered", 0) for s in sessions if isinstance(s, CausalSession))


async def measure(kind: Kind, events: int, singles: int) -> dict[str, float]:
    found: dict[str, float] = {}
    Path("out").mkdir(exist_ok=True)
    with TemporaryDirectory(dir="out", prefix="bench-causal-") as name:
        async with world(kind, Path(name).absolute()) as deployment, AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(unisono.connect(deployment)) for _ in range(3)]
            spent, begun = time.process_time(), time.monotonic()
            await asyncio.sleep(IDLE_S)
            found["idle_cpu_share"] = (time.process_time() - spent) / (time.monotonic() - begun)
            streams = [
                await stack.enter_async_context(session.subscribe(*TOPICS, order="causal")) for session in sessions
            ]
            waits = []
            for number in range(singles):
                at = time.monotonic_ns()
                reading = [asyncio.create_task(read(stream, 1)) for stream in streams]
                await sessions[number % 2].publish(TOPICS[number % 2], PAYLOAD)
                await asyncio.gather(*reading)
                waits.append((time.monotonic_ns() - at) / 1000)
            found["wait_us"] = median(waits)
            publishers = [await session.publisher(topic) for session, topic in zip(sessions, TOPICS)]
            frames, spent = frames_told(sessions), time.process_time()
            told = dict.fromkeys(range(len(streams)), 0)
            reading = [asyncio.create_task(count(stream, told, place)) for place, stream in enumerate(streams)]
            for number in range(events):
                await publishers[number % 2].send(PAYLOAD)
            for publisher in publishers:
                await publisher.drain()
            accepted = sum(publisher.accepted for publisher in publishers)
            until = time.monotonic() + PATIENCE_S
            while min(told.values()) < accepted and time.monotonic() < until:
                await asyncio.sleep(0.005)
            for task in reading:
                task.cancel()
            found["accepted"], found["told"] = accepted, sum(told.values()) / len(streams)
            spent = time.process_time() - spent
            found["events_per_cpu_s"] = sum(told.values()) / spent
            if kind == "causal":
                found["frames_per_cpu_s"] = (frames_told(sessions) - frames) / spent
    return found


def run(events: int = EVENTS, singles: int = SINGLES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            found[kind].append(run_loop(measure(kind, events, singles)))
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        values = {name: round(median(each[name] for each in found[kind]), 4) for name in found[kind][0]}
        rows.append({"case": kind, **values, "events": events, "load": round(os.getloadavg()[0], 1)})
    mesh, sequencer = rows
    share = round(mesh["events_per_cpu_s"] / sequencer["events_per_cpu_s"], 3)
    added = round(mesh["wait_us"] - sequencer["wait_us"])
    rows.append({"case": "mesh beside sequencers", "events_per_cpu_s_ratio": share, "added_wait_us": added})
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--singles", type=int, default=SINGLES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    for row in run(asked.events, asked.singles, asked.rounds):
        sys.stdout.write(json.dumps(row) + "\n")
