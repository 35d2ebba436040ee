"""The world of `order.py`: brokers, sequencer nodes and the delays between sites, in a process of its own.

So the CPU of the delays is nobody's. Run as a program it starts everything, prints a `Place` and holds it until
standard input ends.
"""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec

from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.settings import BrokerSpec, NodeSpec, Region, Sequencing, TopicSpec
from unisono.model.time import Micros
from unisono.runtime.driver.loop import run as run_loop
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.nats_server import NatsCluster, NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

TOPICS = ("trades", "quotes")
DELAY_US = Micros(20_000)
REDIS_UP_S = 10.0

Broker = Literal[
    "nats", "nats-clock", "jetstream", "jetstream-2m", "jetstream-ordered", "embedded", "redis", "redis-1s"
]
"""`nats-clock`: nodes order by clocks. `jetstream-ordered`: with sequencer nodes, and synced every two minutes as
`jetstream-2m` is."""


class Place(msgspec.Struct):
    """A running world: where things are as each site sees them, and whose CPU counts."""

    sites: int
    servers: list[str]
    deployments: list[Deployment]
    broker_pids: list[int]
    node_pids: list[int]


async def hold_world(broker: Broker, sites: int, directory: Path) -> None:
    """Starts everything, prints a `Place`, and holds it until standard input ends."""
    async with AsyncExitStack() as stack:

        async def seen_from(here: int, there: int, target: tuple[str, int]) -> str:
            if here == there:
                return f"{target[0]}:{target[1]}"
            proxy = DelayProxy(DELAY_US)
            stack.push_async_callback(proxy.stop)
            return f"127.0.0.1:{await proxy.start(target)}"

        servers, broker_pids = await start_brokers(broker, sites, directory, stack)
        if len(servers) < sites:  # one server for all: far for the others
            target = ("127.0.0.1", int(servers[0].rpartition(":")[2]))
            servers = [await seen_from(site, 0, target) for site in range(sites)]
        place = Place(sites, servers, [], broker_pids, [])
        kinds = {"nats": "nats", "nats-clock": "nats", "embedded": "embedded", "jetstream-ordered": "jetstream"}
        if kind := kinds.get(broker):
            names = [f"s{site}" for site in range(sites)]
            targets = [("127.0.0.1", port) for port in free_ports(sites)]
            for here in range(sites):
                nodes = [
                    NodeSpec(
                        name,
                        name,
                        await seen_from(here, there, targets[there]),
                        "s0" if there else None,
                        data=".",
                        observe="off",
                    )
                    for there, name in enumerate(names)
                ]
                known = (servers[here],) if broker == "embedded" else tuple(servers)
                place.deployments.append(
                    Deployment(
                        1,
                        "bench",
                        tuple(Region(name) for name in names),
                        {f"{a} {b}": 2 * DELAY_US / 1000 for i, a in enumerate(names) for b in names[i + 1 :]},
                        tuple(nodes),
                        tuple(TopicSpec(topic, names[(i + 1) % sites]) for i, topic in enumerate(TOPICS)),
                        BrokerSpec(kind, known),
                        Sequencing(by="clock" if broker == "nats-clock" else "tree"),
                    )
                )
                place.node_pids.append(start_node(place.deployments[here], names[here], directory, stack))
        sys.stdout.write(msgspec.json.encode(place).decode() + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


async def start_brokers(
    broker: Broker, sites: int, directory: Path, stack: AsyncExitStack
) -> tuple[list[str], list[int]]:
    match broker:
        case "nats" | "nats-clock" if sites > 1:
            cluster = NatsCluster(directory / "nats", sites, DELAY_US)
            stack.push_async_callback(cluster.stop)
            await cluster.start()
            return [server.url for server in cluster.servers], [server.pid for server in cluster.servers]
        case "embedded":
            port, broker_port = free_ports(2)
            only = NodeSpec("broker", "local", f"127.0.0.1:{port}", roles=("broker",), observe="off")
            address = f"127.0.0.1:{broker_port}"
            deployment = Deployment(1, "broker", nodes=(only,), broker=BrokerSpec("embedded", (address,)))
            return [address], [start_node(deployment, "broker", directory, stack)]
        case "redis" | "redis-1s":
            return await start_redis(directory, "always" if broker == "redis" else "everysec", stack)
        case _:
            sync = "always" if broker == "jetstream" else "2m"
            config = NatsServerConfig(jetstream=broker not in ("nats", "nats-clock"), jetstream_sync=sync)
            server = NatsServer(directory / "nats", config)
            stack.push_async_callback(server.stop)
            await server.start()
            return [server.url], [server.pid]


async def start_redis(directory: Path, sync: str, stack: AsyncExitStack) -> tuple[list[str], list[int]]:
    """A server that appends everything to a file; `sync` says how often that reaches the disk."""
    (port,) = free_ports(1)
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", sync]
    with (directory / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    async with asyncio.timeout(REDIS_UP_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return [f"127.0.0.1:{port}"], [process.pid]


def missing_for_redis() -> list[str]:
    """What has to be installed before a Redis stream can be among the peers."""
    found = {"redis-server": shutil.which("redis-server"), "redis": find_spec("redis")}
    return [name for name, there in found.items() if not there]


def start_node(deployment: Deployment, name: str, directory: Path, stack: AsyncExitStack) -> int:
    file = directory / f"{name}.toml"
    file.write_text(dump_deployment(deployment))
    command = [Path(sys.executable).with_name("unisono"), "node", file, name, "--journal", "off"]
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process.pid


@asynccontextmanager
async def world(broker: Broker, sites: int) -> AsyncIterator[Place]:
    Path("out").mkdir(exist_ok=True)  # on a disk: what is in memory only has no fdatasync to pay
    with TemporaryDirectory(dir="out", prefix="bench-order-") as directory:
        command = [sys.executable, __file__, broker, str(sites), directory]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = await asyncio.to_thread(process.stdout.readline)
            yield msgspec.json.decode(line, type=Place)
        finally:
            process.stdin.close()
            await asyncio.to_thread(process.wait)


if __name__ == "__main__":
    kind, count, where = sys.argv[1:]
    run_loop(hold_world(kind, int(count), Path(where).absolute()))  # type: ignore[arg-type]
