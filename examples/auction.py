"""An auction whose items are sold at two sites, each with a database of its own.

Bidders at `west` and `east` take the last pieces at nearly the same moment. First bare: both sites publish their bids
on one topic of a NATS cluster with 20 ms between its servers, and each database applies them as they come. Then through
unisono: the same bids as operations of a replica at each site, with the same distance from east to the node and the
broker at west.

    python examples/auction.py

Exit status: 0 if the databases of the second run are equal, 1 if not, 2 if something could not run.
"""

import argparse
import asyncio
import random
import socket
import sqlite3
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import nats
from msgspec import structs
from nats.aio.client import Client
from nats.aio.msg import Msg
from rich.console import Console
from rich.table import Table

import unisono
from unisono.model.deployment import Deployment
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.model.time import Micros
from unisono.replicas import Execution, Replica
from unisono.runtime.driver.loop import run
from unisono.runtime.node.node import Node
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.nats_server import NatsCluster, NatsServer, NatsServerConfig

DISTANCE_US = Micros(10_000)
ITEMS, PIECES, BIDS = 20, 3, 200
PATIENCE_S = 120.0
SCHEMA = "CREATE TABLE item(id INTEGER PRIMARY KEY, left INTEGER NOT NULL CHECK (left >= 0), buyer TEXT)"
FILL = "INSERT INTO item VALUES (?, ?, '')"
BUY = "UPDATE item SET left = left - 1, buyer = buyer || ? WHERE id = ? RETURNING left"


def bids(seed: int) -> list[tuple[str, int]]:
    """Who takes what: the bidders of a site are called by its first letter."""
    dice = random.Random(seed)
    return [(dice.choice("we"), dice.randrange(ITEMS)) for _ in range(BIDS)]


def differ(first: sqlite3.Connection, second: sqlite3.Connection) -> int:
    """How many items are not the same in both."""
    every = "SELECT * FROM item ORDER BY id"
    return sum(one != other for one, other in zip(first.execute(every), second.execute(every), strict=True))


def applier(database: sqlite3.Connection, heard: dict[str, int], site: str) -> Callable[[Msg], Awaitable[None]]:
    """What a site does with a bid: it applies it, if there is a piece left."""

    async def apply(message: Msg) -> None:
        buyer, item = msgspec.json.decode(message.data, type=tuple[str, int])
        with suppress(sqlite3.IntegrityError):
            database.execute(BUY, (buyer, item)).fetchall()
        heard[site] += 1

    return apply


async def all_hear_all(clients: dict[str, Client]) -> None:
    """Returns when what is published at any site reaches all: interest travels, too."""
    heard: set[tuple[str, str]] = set()
    for site, client in clients.items():

        async def hear(message: Msg, site: str = site) -> None:
            heard.add((site, message.data.decode()))

        await client.subscribe("hello", cb=hear)
    async with asyncio.timeout(PATIENCE_S):
        while len(heard) < len(clients) ** 2:
            for site, client in clients.items():
                await client.publish("hello", site.encode())
            await asyncio.sleep(0.02)


async def bare(base: Path, wanted: list[tuple[str, int]]) -> int:
    """How many items the two databases disagree about."""
    cluster = NatsCluster(base / "bare")
    await cluster.start()
    sites = dict(zip("we", cluster.servers))
    databases: dict[str, sqlite3.Connection] = {}
    try:
        clients = {site: await nats.connect(server.url) for site, server in sites.items()}
        heard = dict.fromkeys(sites, 0)
        for site, client in clients.items():
            database = databases[site] = sqlite3.connect(base / f"bare-{site}.db", isolation_level=None)
            database.execute(SCHEMA)
            database.executemany(FILL, [(number, PIECES) for number in range(ITEMS)])

            await client.subscribe("auction", cb=applier(database, heard, site))
        await all_hear_all(clients)
        for bidder, item in wanted:
            await clients[bidder].publish("auction", msgspec.json.encode((bidder, item)))
        async with asyncio.timeout(PATIENCE_S):
            while min(heard.values()) < len(wanted):
                await asyncio.sleep(0.01)
        for client in clients.values():
            await client.close()
        return differ(*databases.values())
    finally:
        for database in databases.values():
            database.close()
        await cluster.stop()


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


@asynccontextmanager
async def ordered(base: Path) -> AsyncGenerator[dict[str, Deployment], None]:
    """A deployment, as each site sees it: node, archive and JetStream are at west."""
    server = NatsServer(base / "nats", NatsServerConfig(jetstream=True))
    await server.start()
    hub, shelf = free_port(), free_port()
    proxies = {port: DelayProxy(DISTANCE_US) for port in (server.port, hub, shelf)}
    nodes = (
        NodeSpec("hub", listen=f"127.0.0.1:{hub}", data="data"),
        NodeSpec("shelf", listen=f"127.0.0.1:{shelf}", parent="hub", roles=("archive",), data="data"),
    )
    near = Deployment(1, "auction", nodes=nodes, broker=BrokerSpec("jetstream", (server.url,)))
    away = {port: await proxy.start(("127.0.0.1", port)) for port, proxy in proxies.items()}
    far = structs.replace(
        near,
        nodes=tuple(
            structs.replace(node, listen=f"127.0.0.1:{away[int(node.listen.split(':')[1])]}") for node in nodes
        ),
        broker=BrokerSpec("jetstream", (f"nats://127.0.0.1:{away[server.port]}",)),
    )
    running = [Node(near, node.name, base) for node in nodes]
    try:
        for node in running:
            await node.start()
        yield {"w": near, "e": far}
    finally:
        for node in reversed(running):
            await node.stop()
        for proxy in proxies.values():
            await proxy.stop()
        server.kill()


async def replicated(base: Path, wanted: list[tuple[str, int]]) -> tuple[int, int, int]:
    """How many items the two replicas disagree about, how many answers were told before their order was known, and how
    many of these were taken back."""
    async with (
        asyncio.timeout(PATIENCE_S),
        ordered(base) as seen_from,
        unisono.connect(seen_from["w"]) as west,
        unisono.connect(seen_from["e"]) as east,
        Replica(west, base / "w.db", ["auction"], name="west") as at_west,
        Replica(east, base / "e.db", ["auction"], name="east") as at_east,
    ):
        replicas = {"w": at_west, "e": at_east}
        await at_west.transaction([(SCHEMA, ()), *[(FILL, (number, PIECES)) for number in range(ITEMS)]])
        for replica in replicas.values():
            await at_west.wait_stable()
            await replica.catch_up()
        executions: list[Execution] = []
        for bidder, item in wanted:
            executions.append(await replicas[bidder].execute(BUY, (bidder, item)))
        told = sum(execution.answer is not None for execution in executions)
        for replica in replicas.values():
            await replica.wait_stable()
        for replica in replicas.values():
            await replica.catch_up()
        await at_west.catch_up()
    differing = differ(sqlite3.connect(base / "w.db"), sqlite3.connect(base / "e.db"))
    return differing, told, sum(execution.withdrawals > 0 for execution in executions)


async def main(seed: int) -> int:
    wanted = bids(seed)
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        apart = await bare(base, wanted)
        differing, told, taken_back = await replicated(base, wanted)
    table = Table(title=f"{BIDS} bids on {ITEMS} items of {PIECES} pieces, at two sites 20 ms apart")
    for title in ("", "bare NATS", "unisono"):
        table.add_column(title, justify="left" if not title else "right")
    table.add_row("items that the two databases disagree about", str(apart), str(differing))
    table.add_row("answers told at once", str(BIDS * 2), str(told))
    table.add_row("of these taken back when the order was known", "never, and wrong", str(taken_back))
    Console().print(table)
    return 0 if not differing else 1


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="An auction at two sites, bare and through unisono.")
    options.add_argument("--seed", type=int, default=1)
    sys.exit(run(main(options.parse_args().seed)))
