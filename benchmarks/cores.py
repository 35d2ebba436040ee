"""More than one core: what one region's nodes carry, when two of them share what one had alone.

Four groups of four topics, each published and heard by people of its own, two subscribers per group; a NATS server, and
one node or two in one region, each a process of its own. Of two, one is the other's parent: `by group` half of the
groups are at home at each, by a plan; `by name` topics are born by their names, so that every group lies at both, and
nothing moves; `by default` they are born so, too, and measured `SETTLED_S` later.

`busiest_us` is the CPU per message, all messages counted, of the node that works most: where cores are free, a region
carries 1 / busiest_us, and `carries` is how often that of one node. `nodes_us`: all nodes together. Turns of 8 events,
64 of them at a time; all cases take turns, and the median round is told. `born_at_…`: of 400 topics that nobody has
planned.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ordering.spent import cpu_s

import unisono
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.homes import home_of
from unisono.model.ids import Address
from unisono.model.settings import BrokerSpec, NodeSpec, Sequencing, TopicSpec
from unisono.runtime.driver.loop import run as run_loop
from unisono.runtime.tools.nats_server import NatsServer
from unisono.runtime.tools.ports import free_ports

GROUPS, TOPICS, TURN, TURNS_AT_ONCE = 4, 4, 8, 64
MESSAGES, ROUNDS, BORN = 40_960, 3, 400
SETTLED_S = 25.0
PAYLOAD = bytes(100)


class Region(NamedTuple):
    """A running region: who orders, and those who publish and hear one group each."""

    case: str
    deployment: Deployment
    pids: list[int]
    publishers: list[list[unisono.Publisher]]
    sessions: list[unisono.Session]
    streams: list[Any]


def names(group: int) -> list[str]:
    return [f"g{group}.{number}" for number in range(TOPICS)]


@asynccontextmanager
async def region(count: int, births: str, url: str, base: Path) -> AsyncIterator[Region]:
    ports, called = free_ports(count), f"cores-{count}-{births}"
    nodes = tuple(
        NodeSpec(f"n{i}", "here", f"127.0.0.1:{port}", "n0" if i else None, data=f"data-{called}", observe="off")
        for i, port in enumerate(ports)
    )
    planned = tuple(TopicSpec(name, f"n{group % count}") for group in range(GROUPS) for name in names(group))
    topics = planned if births == "group" else ()
    sequencing = Sequencing(placement="fixed" if births == "name" else "auto")
    deployment = Deployment(
        1, called, nodes=nodes, topics=topics, broker=BrokerSpec("nats", (url,)), sequencing=sequencing
    )
    file = base / f"{called}.toml"
    file.write_text(dump_deployment(deployment))
    async with AsyncExitStack() as stack:
        pids = []
        for node in nodes:
            command = [Path(sys.executable).with_name("unisono"), "node", file, node.name, "--journal", "off"]
            with (base / f"{called}-{node.name}.log").open("wb") as log:
                started = Popen(command, stderr=log)
            stack.callback(started.wait)
            stack.callback(started.terminate)
            pids.append(started.pid)

        async def session() -> Any:
            return await stack.enter_async_context(unisono.connect(deployment, timeout=60))

        sessions = [await session() for _ in range(GROUPS)]
        publishers = [[await sessions[group].publisher(name) for name in names(group)] for group in range(GROUPS)]
        streams = [
            await stack.enter_async_context((await session()).subscribe(*names(group)))
            for group in range(GROUPS)
            for _ in range(2)
        ]
        case = "1 node in a region" if count == 1 else f"2 nodes in a region, by {births}"
        yield Region(case, deployment, pids, publishers, sessions, streams)


async def carry(where: Region, messages: int) -> dict[str, float]:
    """Each group gets its share of the messages; what every node takes of a message."""

    async def publish(session: Any, own: list[unisono.Publisher]) -> None:
        for number in range(messages // GROUPS // TURN):
            for i in range(TURN):
                await own[(number + i) % TOPICS].send(PAYLOAD)
            await asyncio.sleep(0)
            if number % TURNS_AT_ONCE == 0:
                await session.drain()
        await session.drain()

    async def read(stream: Any) -> None:
        heard = 0
        async for batch in stream.batches():
            heard += len(batch)
            if heard >= messages // GROUPS // TURN * TURN:
                return

    before = [cpu_s(pid) for pid in where.pids]
    await asyncio.gather(*map(publish, where.sessions, where.publishers), *map(read, where.streams))
    spent = [(cpu_s(pid) - was) / messages * 1e6 for pid, was in zip(where.pids, before)]
    return {"busiest_us": max(spent), "nodes_us": sum(spent)}


async def measure(messages: int, rounds: int) -> list[dict[str, Any]]:
    Path("out").mkdir(exist_ok=True)
    with TemporaryDirectory(dir="out", prefix="bench-cores-") as name:
        async with AsyncExitStack() as stack:
            base = Path(name).absolute()
            server = NatsServer(base / "nats")
            await server.start()
            stack.push_async_callback(server.stop)
            kinds = ((1, "group"), (2, "group"), (2, "name"), (2, "default"))
            cases = [await stack.enter_async_context(region(*kind, server.url, base)) for kind in kinds]
            taken: list[list[dict[str, float]]] = [[] for _ in kinds]
            for where in cases:
                await carry(where, messages // 4)
            until = time.monotonic() + SETTLED_S
            while time.monotonic() < until:  # of which demand nodes tell the root
                await carry(cases[-1], messages // 40)
                await asyncio.sleep(0.2)
            for number in range(rounds):
                sys.stderr.write(f"round {number + 1} of {rounds}\n")
                for where, costs in zip(cases, taken):
                    costs.append(await carry(where, messages))
            born = [home_of(cases[1].deployment, f"born.{i}") for i in range(BORN)]
    rows: list[dict[str, Any]] = []
    for where, costs in zip(cases, taken):
        row: dict[str, Any] = {"case": where.case, "messages": messages}
        row |= {key: round(statistics.median(each[key] for each in costs), 2) for key in costs[0]}
        carried = [alone["busiest_us"] / shared["busiest_us"] for alone, shared in zip(taken[0], costs)]
        row["carries"] = round(statistics.median(carried), 2)
        rows.append(row | {"load": round(os.getloadavg()[0], 1)})
    rows[-1] |= {f"born_at_{node}": born.count(Address(node)) for node in ("n0", "n1")}
    return rows


def run(messages: int = MESSAGES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    return run_loop(measure(messages, rounds))
