"""Replicas: operations per CPU second, and how long an answer takes, beside one PostgreSQL and its own replication.

The same work everywhere: `UPDATE account … RETURNING` of one of eight rows, a transaction each. CPU is that of
everything: this process, PostgreSQL with all its backends, nats-server. `one PostgreSQL` answers one client, one
operation after the other; `logical replication` adds a second database that subscribes to the first (one writer, and
nothing on a conflict), and its latency is until the second one has it. Of replicas two write at once, `under_way`
operations each: with many the number of operations is worth reading, with one the time that an answer takes;
`answer_ms` is until the answer is stable, `tentative_ms` until there is one. `held back` applies only what the session
delivers (`tail_max=0`), `optimistic` also what the other replica has published. All on one machine, so no distance is
in the numbers: a replica's stable answer takes the sequencer's way besides.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

import unisono
from unisono.model.deployment import Deployment
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.postgres.address import is_postgres
from unisono.replicas import Replica, ReplicaConfig
from unisono.runtime.node.node import Node
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports
from unisono.runtime.tools.postgres_server import PostgresServer

OPERATIONS = 4000
UNDER_WAY = 50
ROWS = 8
TABLE = "CREATE TABLE account(id INTEGER PRIMARY KEY, n BIGINT)"
FILL = [f"INSERT INTO account VALUES ({number}, 0)" for number in range(ROWS)]
CASES: dict[str, dict[str, Any]] = {
    "SQLite": {},
    "SQLite, one operation at a time each": {"under_way": 1},
    "SQLite, held back": {"config": ReplicaConfig(tail_max=0)},
    "SQLite, optimistic": {"optimistic": True},
    "PostgreSQL": {},
    "PostgreSQL, one operation at a time each": {"under_way": 1},
    "PostgreSQL, held back": {"config": ReplicaConfig(tail_max=0)},
}
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_of(*roots: int) -> float:
    """CPU seconds of these processes, their children, and the children they have outlived."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(path.parent.name) in roots or int(fields[1]) in roots:
            total += sum(map(int, fields[11:13])) * TICK_S
        if int(path.parent.name) in roots:
            total += sum(map(int, fields[13:15])) * TICK_S
    return total


def row(case: str, spent: float, took: list[float], **more: Any) -> dict[str, Any]:
    return {
        "case": case,
        "operations": len(took),
        "operations_per_cpu_s": round(len(took) / spent),
        "answer_ms": round(median(took) * 1e3, 2),
        "load": round(os.getloadavg()[0], 1),
        **more,
    }


def make(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    return server.url(name)


def alone(server: PostgresServer, dice: random.Random) -> dict[str, Any]:
    with psycopg.connect(make(server, "alone"), autocommit=True) as connection:
        for text in (TABLE, *FILL):
            connection.execute(text)
        before, took = cpu_of(os.getpid(), server.pid), []
        for _ in range(OPERATIONS):
            begun = time.perf_counter()
            change(connection, dice)
            took.append(time.perf_counter() - begun)
        return row("one PostgreSQL", cpu_of(os.getpid(), server.pid) - before, took)


def change(connection: psycopg.Connection[Any], dice: random.Random) -> None:
    parameters = (dice.randrange(9), dice.randrange(ROWS))
    connection.execute("UPDATE account SET n = n + %s WHERE id = %s RETURNING n", parameters).fetchall()


def subscribed(server: PostgresServer, dice: random.Random) -> dict[str, Any]:
    first, second = make(server, "first"), make(server, "second")
    with psycopg.connect(first, autocommit=True) as one, psycopg.connect(second, autocommit=True) as other:
        for connection in (one, other):
            connection.execute(TABLE)
        one.execute("CREATE PUBLICATION all_of_it FOR TABLE account")
        one.execute("SELECT pg_create_logical_replication_slot('second', 'pgoutput')")
        for text in FILL:
            one.execute(text)
        other.execute(
            f"CREATE SUBSCRIPTION all_of_it CONNECTION 'host=127.0.0.1 port={server.port} user=postgres dbname=first' "
            "PUBLICATION all_of_it WITH (create_slot = false, slot_name = 'second', copy_data = false)"
        )
        wait_for(one, other)
        before, took = cpu_of(os.getpid(), server.pid), []
        for turn in range(OPERATIONS):
            begun = time.perf_counter()
            change(one, dice)
            if turn % 20 == 19:  # asking is work, too
                wait_for(one, other)
                took.append(time.perf_counter() - begun)
        wait_for(one, other)
        spent = cpu_of(os.getpid(), server.pid) - before
        other.execute("ALTER SUBSCRIPTION all_of_it DISABLE")
        other.execute("ALTER SUBSCRIPTION all_of_it SET (slot_name = NONE)")
        other.execute("DROP SUBSCRIPTION all_of_it")
        found = row("one PostgreSQL, logical replication to a second", spent, took)
        return {**found, "operations": OPERATIONS, "operations_per_cpu_s": round(OPERATIONS / spent)}


def wait_for(one: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> None:
    everything = "SELECT id, n FROM account ORDER BY id"
    wanted = one.execute(everything).fetchall()
    while other.execute(everything).fetchall() != wanted:
        time.sleep(0.0005)


def make_two(kind: str, server: PostgresServer, base: Path, number: int) -> tuple[str, str]:
    """Where two new replicas may be."""
    if kind == "SQLite":
        return str(base / f"west{number}.db"), str(base / f"east{number}.db")
    return make(server, f"west{number}"), make(server, f"east{number}")


@asynccontextmanager
async def deployed(base: Path) -> AsyncGenerator[tuple[Deployment, int]]:
    """JetStream, a sequencer and an archive, and the process of the broker."""
    broker = NatsServer(base / "nats", NatsServerConfig(jetstream=True))
    await broker.start()
    ports = free_ports(2)
    nodes = (
        NodeSpec("hub", listen=f"127.0.0.1:{ports[0]}", data="data"),
        NodeSpec("shelf", listen=f"127.0.0.1:{ports[1]}", parent="hub", roles=("archive",), data="data"),
    )
    deployment = Deployment(1, "bench", nodes=nodes, broker=BrokerSpec("jetstream", (broker.url,)))
    running = [Node(deployment, node.name, base) for node in nodes]
    try:
        for node in running:
            await node.start()
        yield deployment, broker.pid
    finally:
        for node in reversed(running):
            await node.stop()
        broker.kill()


async def replicated(
    case: str, places: tuple[str, str], server: PostgresServer, base: Path, under_way: int = UNDER_WAY, **options: Any
) -> dict[str, Any]:
    dice = random.Random(1)
    marks = ("$1", "$2") if is_postgres(places[0]) else ("?", "?")
    text = f"UPDATE account SET n = n + {marks[0]} WHERE id = {marks[1]} RETURNING n"
    async with (
        deployed(base) as (deployment, broker),
        unisono.connect(deployment) as west,
        unisono.connect(deployment) as east,
        Replica(west, places[0], ["work"], **options) as first,
        Replica(east, places[1], ["work"], **options) as second,
    ):
        await (await first.transaction([(sql, ()) for sql in (TABLE, *FILL)])).stable()
        await second.catch_up()
        took: list[float] = []
        told: list[float] = []

        async def write(replica: Replica, count: int) -> None:
            for _ in range(count):
                begun = time.perf_counter()
                execution = await replica.execute(text, (dice.randrange(9), dice.randrange(ROWS)))
                told.append(time.perf_counter() - begun)
                await execution.stable()
                took.append(time.perf_counter() - begun)

        roots = (os.getpid(), broker, server.pid)
        before = cpu_of(*roots)
        operations = OPERATIONS if under_way > 1 else OPERATIONS // 4
        writers = [
            write(replica, operations // under_way // 2) for replica in (first, second) for _ in range(under_way)
        ]
        await asyncio.gather(*writers)
        await first.catch_up()
        await second.catch_up()
        spent = cpu_of(*roots) - before
        counts = [replica.status().rollbacks for replica in (first, second)]
        undos = sum(each.undos for each in counts) / max(sum(each.arrivals for each in counts), 1)
        repair = sum(each.repair_s for each in counts) / len(took)
        more = {"undos_per_operation": round(undos, 2), "repair_us_per_operation": round(repair * 1e6)}
        tentative = round(median(told) * 1e3, 2)
        return row(case, spent, took, tentative_ms=tentative, under_way=under_way, **more)


def run() -> list[dict[str, Any]]:
    server, dice = PostgresServer(), random.Random(1)
    try:
        asyncio.run(server.start())
        rows = [alone(server, dice), subscribed(server, dice)]
        with TemporaryDirectory(prefix="bench-replicas-") as name:
            base = Path(name)
            for case, options in CASES.items():
                kind = "PostgreSQL" if "PostgreSQL" in case else "SQLite"
                places = make_two(kind, server, base, len(rows))
                (base / case).mkdir()
                rows.append(asyncio.run(replicated(f"two replicas, {case}", places, server, base / case, **options)))
        return rows
    finally:
        server.remove()
