"""What one order costs: raw brokers, unisono on top of them, and everything in one acknowledged stream.

2 topics, 2 publishers, 2 subscribers of both, 100 B payloads; at one site, and at three sites 20 ms apart (a user-space
delay). All clients are in this process; nats-servers and sequencer nodes are processes of their own with their logs on
disk (fdatasync before anything leaves a node). CPU seconds are those of all of them, without the delay proxies, which
stand for the network. First everybody publishes as fast as windows allow (messages per second and per CPU second, the
median round), then slowly (latency). Ratios and differences are those within a round, and of them the median.
Disagreement is the share of events in a pair that two subscribers saw in different orders. Bytes are those that all
processes hand to the kernel, logs included.

There are two raw baselines on NATS core, and both are told. `per_cpu_s_to_raw` compares with our own client, which
unisono itself stands on: it hands over what one read brought as a list, and has no task, queue or callback per message.
`per_cpu_s_to_nats_py` compares with nats-py, the client that most programs use.
"""

import argparse
import asyncio
import gc
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Literal, NamedTuple

import msgspec
import nats as nats_py

import unisono
from unisono.audit.inversions import count_inversions
from unisono.model.deployment import BrokerSpec, Deployment, NodeSpec, Region, TopicSpec, dump_deployment
from unisono.model.time import Micros
from unisono.runtime.brokers import open_patiently
from unisono.runtime.delay import DelayProxy
from unisono.runtime.ens.adapter import Ens, EnsNotice, Item, Parcel
from unisono.runtime.ens.embedded import EmbeddedEns
from unisono.runtime.ens.jetstream import JetStreamEns
from unisono.runtime.ens.nats import NatsEns
from unisono.runtime.ens.nats_wire import NatsOptions
from unisono.runtime.loop import new_loop
from unisono.runtime.loop import run as run_loop
from unisono.runtime.nats_server import NatsCluster, NatsServer, NatsServerConfig

TOPICS = ("trades", "quotes")
RAW_TOPICS = ("trader", "quoter")
NATS_PY_TOPICS = ("tradex", "quotex")
"""Of the same length, and others: whoever is measured must not be heard by the rest."""
PAYLOAD_BYTES = 100
DELAY_US = Micros(20_000)
BATCH = 256
SMALL_BATCH = 64
"""How many messages a publisher hands over at once. What both sides do per write, and unisono per request and commit,
is shared by a batch."""
SLOW_PER_S = 200.0
SLOW_S = 1.0
WAIT_S = 60.0
COMMITS = "fdatasync as soon as the disk is free; what arrives meanwhile is the next commit"

Broker = Literal["nats", "jetstream", "jetstream-2m", "embedded"]


class Place(msgspec.Struct):
    """A running world: where things are as each site sees them, and whose CPU counts."""

    sites: int
    servers: list[str]
    deployments: list[Deployment]
    broker_pids: list[int]
    node_pids: list[int]


# The world: a process of its own, so that the CPU of the delays is nobody's.


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
        if not broker.startswith("jetstream"):
            names = [f"s{site}" for site in range(sites)]
            targets = [("127.0.0.1", port) for port in free_ports(sites)]
            for here in range(sites):
                nodes = [
                    NodeSpec(
                        name, name, await seen_from(here, there, targets[there]), "s0" if there else None, data="."
                    )
                    for there, name in enumerate(names)
                ]
                known = tuple(servers) if broker == "nats" else (servers[here],)
                place.deployments.append(
                    Deployment(
                        1,
                        "bench",
                        tuple(Region(name) for name in names),
                        {f"{a} {b}": 2 * DELAY_US / 1000 for i, a in enumerate(names) for b in names[i + 1 :]},
                        tuple(nodes),
                        tuple(TopicSpec(topic, names[(i + 1) % sites]) for i, topic in enumerate(TOPICS)),
                        BrokerSpec("nats" if broker == "nats" else "embedded", known),
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
        case "nats" if sites > 1:
            cluster = NatsCluster(directory / "nats", sites, DELAY_US)
            stack.push_async_callback(cluster.stop)
            await cluster.start()
            return [server.url for server in cluster.servers], [server.pid for server in cluster.servers]
        case "embedded":
            port, broker_port = free_ports(2)
            only = NodeSpec("broker", "local", f"127.0.0.1:{port}", roles=("broker",))
            address = f"127.0.0.1:{broker_port}"
            deployment = Deployment(1, "broker", nodes=(only,), broker=BrokerSpec("embedded", (address,)))
            return [address], [start_node(deployment, "broker", directory, stack)]
        case _:
            sync = "2m" if broker == "jetstream-2m" else "always"
            config = NatsServerConfig(jetstream=broker != "nats", jetstream_sync=sync)
            server = NatsServer(directory / "nats", config)
            stack.push_async_callback(server.stop)
            await server.start()
            return [server.url], [server.pid]


def start_node(deployment: Deployment, name: str, directory: Path, stack: AsyncExitStack) -> int:
    file = directory / f"{name}.toml"
    file.write_text(dump_deployment(deployment))
    command = [Path(sys.executable).with_name("unisono"), "node", file, name, "--journal", "off"]
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process.pid


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@asynccontextmanager
async def world(broker: Broker, sites: int) -> AsyncIterator[Place]:
    Path("out").mkdir(exist_ok=True)  # on a disk: what is in memory only has no fdatasync to pay
    with TemporaryDirectory(dir="out", prefix="bench-order-") as directory:
        command = [sys.executable, __file__, "--world", broker, str(sites), directory]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = await asyncio.to_thread(process.stdout.readline)
            yield msgspec.json.decode(line, type=Place)
        finally:
            process.stdin.close()
            await asyncio.to_thread(process.wait)


# Clients: two who publish, two who subscribe, however the broker is reached.


class Ear:
    """One subscriber: everything it was told, in order, as payloads."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.late_us: list[tuple[int, int]] = []
        self.slow = False
        self.expected = 0
        self.problem = ""
        self.done = asyncio.Event()

    def tell(self, payloads: list[bytes]) -> None:
        self.heard += payloads
        if self.slow:
            now = time.monotonic_ns()
            self.late_us += [(payload[0], (now - int(payload[20:40])) // 1000) for payload in payloads]
        if len(self.heard) >= self.expected:
            self.done.set()

    def on_items(self, items: Sequence[Parcel]) -> None:
        self.tell([item.payload for item in items if isinstance(item, Item)])  # who publishes raw names nobody

    def on_confirmed(self, count: int) -> None: ...

    def on_notice(self, notice: EnsNotice) -> None:
        raise RuntimeError(f"the load must not be too much for anybody: {notice}")


Publish = Callable[[list[tuple[int, bytes]]], Awaitable[None]]
"""Publishes a batch: on which of the two topics, and what."""


class Clients(msgspec.Struct):
    """`publishers` publish a batch on a topic; `finish` returns when everything published has its outcome."""

    publishers: list[Publish]
    ears: list[Ear]
    finish: Callable[[], Awaitable[None]]
    commits: Callable[[], Awaitable[int]]
    pids: list[int]
    """Whose CPU counts beside ours: the broker's processes, then the nodes."""
    brokers: int
    """How many of them are the broker's."""


def spots(sites: int) -> tuple[list[int], list[int]]:
    """Where publishers and subscribers are."""
    return [0, 1 % sites], [1 % sites, 2 % sites]


@asynccontextmanager
async def raw_clients(place: Place, make: Callable[[str, Ear], Ens], one_stream: bool) -> AsyncIterator[Clients]:
    """Straight to the broker; with `one_stream` both topics are one."""
    where, listening = spots(place.sites)
    ears = [Ear() for _ in listening]
    subscribers = [make(place.servers[site], ear) for site, ear in zip(listening, ears)]
    publishers = [make(place.servers[site], Ear()) for site in where]
    for ens in [*subscribers, *publishers]:
        await open_patiently(ens, WAIT_S)
    for ens in subscribers:
        for topic in RAW_TOPICS[: 1 if one_stream else None]:
            await ens.subscribe(topic)

    def publisher(ens: Ens) -> Publish:
        async def publish(batch: list[tuple[int, bytes]]) -> None:
            await ens.room()
            ens.publish([Item(RAW_TOPICS[0 if one_stream else which], payload) for which, payload in batch])

        return publish

    async def finish() -> None:
        for ens in publishers:
            await ens.flush()

    async def commits() -> int:
        return 0

    try:
        yield Clients(
            [publisher(ens) for ens in publishers], ears, finish, commits, place.broker_pids, len(place.broker_pids)
        )
    finally:
        for ens in [*publishers, *subscribers]:
            await ens.close()


@asynccontextmanager
async def nats_py_clients(place: Place) -> AsyncIterator[Clients]:
    """Straight to the NATS servers, with the client that most programs use."""
    where, listening = spots(place.sites)
    ears = [Ear() for _ in listening]
    subscribers = [await nats_py.connect(place.servers[site]) for site in listening]
    publishers = [await nats_py.connect(place.servers[site], pending_size=1 << 30) for site in where]
    for client, ear in zip(subscribers, ears):

        async def heard(message: Any, ear: Ear = ear) -> None:
            ear.tell([message.data])

        for topic in NATS_PY_TOPICS:
            await client.subscribe(topic, cb=heard, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await client.flush()
    await asyncio.sleep(10 * DELAY_US / 1e6)  # until the other servers know

    def publisher(client: Any) -> Publish:
        async def publish(batch: list[tuple[int, bytes]]) -> None:
            for which, payload in batch:
                await client.publish(NATS_PY_TOPICS[which], payload)

        return publish

    async def finish() -> None:
        for client in publishers:
            await client.flush()

    async def commits() -> int:
        return 0

    try:
        pids = place.broker_pids
        yield Clients([publisher(client) for client in publishers], ears, finish, commits, pids, len(pids))
    finally:
        for client in [*publishers, *subscribers]:
            await client.close()


@asynccontextmanager
async def ordered_clients(place: Place) -> AsyncIterator[Clients]:
    """Through unisono, total order."""
    where, listening = spots(place.sites)
    async with AsyncExitStack() as stack:

        async def connect(site: int) -> unisono.Session:
            return await stack.enter_async_context(
                unisono.connect(place.deployments[site], region=f"s{site}", timeout=60)
            )

        ears = [Ear() for _ in listening]
        for site, ear in zip(listening, ears):
            session = await connect(site)
            stream = await stack.enter_async_context(session.subscribe(*TOPICS, deadline="30s", buffer=10_000_000))
            listener = asyncio.create_task(listen(stream, ear))
            stack.callback(listener.cancel)
        sessions = [await connect(site) for site in where]
        lanes = [[await session.publisher(topic) for topic in TOPICS] for session in sessions]

        def publisher(lane: list[unisono.Publisher]) -> Publish:
            async def publish(batch: list[tuple[int, bytes]]) -> None:
                for topic, publisher in enumerate(lane):
                    await publisher.send_all([payload for which, payload in batch if which == topic])

            return publish

        async def finish() -> None:
            for session in sessions:
                await session.drain()

        async def commits() -> int:
            reports = [await sessions[0].status(f"s{site}") for site in range(place.sites)]
            return sum(report.counters["sequencer"]["commits"] for report in reports)

        pids = [*place.broker_pids, *place.node_pids]
        yield Clients([publisher(lane) for lane in lanes], ears, finish, commits, pids, len(place.broker_pids))


async def listen(stream: unisono.Stream, ear: Ear) -> None:
    async for batch in stream.batches(1000):
        payloads = [event.payload for event in batch]
        if b"" in payloads:
            ear.problem = next(str(event.gap or event.stalled) for event in batch if event.payload == b"")
            ear.done.set()
        ear.tell(payloads)


# Measuring.


def payload(publisher: int, number: int, at: int = 0) -> bytes:
    """100 bytes: who, which, when."""
    return b"%d %018d%020d" % (publisher, number, at) + bytes(PAYLOAD_BYTES - 40)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def written(pids: list[int]) -> int:
    """Bytes the processes have handed to the kernel by write calls, sockets and files alike."""
    return sum(int(Path(f"/proc/{pid}/io").read_text().split()[3]) for pid in [*pids, os.getpid()])


async def fast_round(clients: Clients, each: int, batch: int) -> dict[str, float]:
    """Publishers as fast as windows allow, until every subscriber has heard everything."""
    for ear in clients.ears:
        ear.heard, ear.expected = [], each * len(clients.publishers)
        ear.done.clear()

    async def publish(number: int, send: Publish) -> None:
        for start in range(0, each, batch):
            await send([(n % 2, payload(number, n)) for n in range(start, min(start + batch, each))])
            await asyncio.sleep(0)

    gc.collect()
    commits = await clients.commits()
    bytes_before, servers = written(clients.pids), [cpu_s(pid) for pid in clients.pids]
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(publish(number, send) for number, send in enumerate(clients.publishers)))
    async with asyncio.timeout(WAIT_S):
        for ear in clients.ears:
            await ear.done.wait()
            if ear.problem:
                raise RuntimeError(f"nothing may be missing: {ear.problem}")
        await clients.finish()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    spent = [cpu_s(pid) - before for pid, before in zip(clients.pids, servers)]
    server_cpu = sum(spent)
    messages = each * len(clients.publishers)
    made = await clients.commits() - commits
    streams = [[int(heard[0]) << 60 | int(heard[2:20]) for heard in ear.heard] for ear in clients.ears]
    if any(len(dict.fromkeys(stream)) != messages for stream in streams):
        raise RuntimeError("something was heard twice")
    inverted = count_inversions(streams[0], streams)
    return {
        "messages": messages,
        "batch": batch,
        "messages_per_s": messages / wall,
        "messages_per_cpu_s": messages / (cpu + server_cpu),
        "client_us_per_message": cpu / messages * 1e6,
        "broker_us_per_message": sum(spent[: clients.brokers]) / messages * 1e6,
        "node_us_per_message": sum(spent[clients.brokers :]) / messages * 1e6,
        "bytes_per_message": (written(clients.pids) - bytes_before) / messages,
        "disagreement_share": len(inverted.events) / messages,
        "messages_per_commit": messages / made if made else 0,
    }


async def slow_round(clients: Clients) -> list[list[int]]:
    """Latencies in microseconds per pair of publisher and subscriber, sorted, at a rate that troubles nobody."""
    each = round(SLOW_PER_S * SLOW_S)
    for ear in clients.ears:
        ear.heard, ear.late_us, ear.slow = [], [], True
        ear.expected = each * len(clients.publishers)
        ear.done.clear()

    async def publish(number: int, send: Publish) -> None:
        begin = time.monotonic()
        for n in range(each):
            await asyncio.sleep(max(0.0, begin + n / SLOW_PER_S - time.monotonic()))
            await send([(n % 2, payload(number, n, time.monotonic_ns()))])

    await asyncio.gather(*(publish(number, send) for number, send in enumerate(clients.publishers)))
    async with asyncio.timeout(WAIT_S):
        for ear in clients.ears:
            await ear.done.wait()
    paths: list[list[int]] = []
    for ear in clients.ears:
        ear.slow = False
        names = range(ord("0"), ord("0") + len(clients.publishers))
        paths += [sorted(late for who, late in ear.late_us if who == name) for name in names]
    return paths


def percentile(paths: list[list[int]], share: float) -> float:
    """The mean over the paths of what that share of their latencies does not exceed."""
    return statistics.mean(path[min(len(path) - 1, int(len(path) * share))] for path in paths)


def nats(server: str, ear: Ear) -> Ens:
    return NatsEns(NatsOptions((server,)), ear)


def jetstream(server: str, ear: Ear) -> Ens:
    return JetStreamEns(NatsOptions((server if "://" in server else f"nats://{server}",)), ear)


def embedded(server: str, ear: Ear) -> Ens:
    host, _, port = server.rpartition(":")
    return EmbeddedEns(host, int(port), ear)


class Case(NamedTuple):
    broker: Broker
    each: int
    """Messages per publisher."""
    base: str = ""
    """The case it is compared with."""
    peer: str = ""
    """The same with the client that most programs use."""
    batch: int = BATCH


CASES = {
    "nats core, raw": Case("nats", 20_000),
    "nats core, raw, nats-py": Case("nats", 10_000, "nats core, raw"),
    "nats core, unisono total order": Case("nats", 20_000, "nats core, raw", "nats core, raw, nats-py"),
    "nats core, raw, small batches": Case("nats", 20_000, batch=SMALL_BATCH),
    "nats core, unisono total order, small batches": Case(
        "nats", 20_000, "nats core, raw, small batches", "nats core, raw, nats-py", SMALL_BATCH
    ),
    "embedded broker, raw": Case("embedded", 20_000),
    "embedded broker, unisono total order": Case("embedded", 20_000, "embedded broker, raw", "nats core, raw, nats-py"),
    "one jetstream stream, synced before each acknowledgement": Case("jetstream", 1_000, "nats core, raw"),
    "one jetstream stream, synced every 2 minutes": Case("jetstream-2m", 5_000, "nats core, raw"),
}


@asynccontextmanager
async def clients_of(case: str, place: Place) -> AsyncIterator[Clients]:
    if "unisono" in case:
        async with ordered_clients(place) as clients:
            yield clients
    elif "nats-py" in case:
        async with nats_py_clients(place) as clients:
            yield clients
    else:
        make = jetstream if "jetstream" in case else nats if "nats" in case else embedded
        async with raw_clients(place, make, "jetstream" in case) as clients:
            yield clients


async def measure(sites: int, cases: list[str], scale: float, rounds: int) -> list[dict[str, Any]]:
    """Rounds of all cases take turns, so that a change of the machine's mood meets all of them."""
    async with AsyncExitStack() as stack:
        places = {broker: await stack.enter_async_context(world(broker, sites)) for broker in brokers_of(cases)}
        clients = {
            case: await stack.enter_async_context(clients_of(case, places[CASES[case].broker])) for case in cases
        }
        for case in cases:
            await fast_round(clients[case], SMALL_BATCH * 4, SMALL_BATCH)  # connections warm up, topics are born
        taken: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
        for _ in range(rounds):
            for case in cases:
                each, batch = CASES[case].each, CASES[case].batch
                taken[case].append(await fast_round(clients[case], max(batch, int(each * scale)), batch))
        late: dict[str, list[list[list[int]]]] = {case: [] for case in cases}
        for _ in range(rounds):
            for case in cases:
                late[case].append(await slow_round(clients[case]))
        sync_us = await disk_sync_us()
    rows = []
    for case in cases:
        rates = [one["messages_per_cpu_s"] for one in taken[case]]
        middle = taken[case][rates.index(sorted(rates)[rounds // 2])]
        row: dict[str, Any] = {"case": case, "sites": f"{sites} site{'s' if sites > 1 else ''}"}
        row |= {name: round(value, 4 if "share" in name else 1) for name, value in middle.items()}
        row |= {f"latency_p{p}_us": round(statistics.median(percentiles(late[case], p))) for p in (50, 99)}
        base, peer = CASES[case].base, CASES[case].peer
        if base in cases:
            row["per_cpu_s_to_raw"] = round(statistics.median(ratios(taken[case], taken[base])), 3)
            for p in (50, 99):
                pairs = zip(percentiles(late[case], p), percentiles(late[base], p))
                row[f"added_p{p}_us"] = round(statistics.median(ours - theirs for ours, theirs in pairs))
        if peer in cases:
            row["per_cpu_s_to_nats_py"] = round(statistics.median(ratios(taken[case], taken[peer])), 3)
        if "unisono" in case:
            row["commits"] = COMMITS
        row |= {"sync_p50_us": sync_us, "load_1min": round(os.getloadavg()[0], 1)}
        rows.append(row)
    return rows


def ratios(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> list[float]:
    """Round by round: neighbours in time meet the same mood of the machine."""
    return [mine["messages_per_cpu_s"] / other["messages_per_cpu_s"] for mine, other in zip(ours, theirs)]


def percentiles(rounds: list[list[list[int]]], p: int) -> list[float]:
    return [percentile(paths, p / 100) for paths in rounds]


async def disk_sync_us() -> int:
    """What a small append and fdatasync takes here and now, at the pace of slow rounds: nothing is durable sooner."""
    with TemporaryFile(dir="out", buffering=0) as file:
        taken: list[int] = []
        for _ in range(round(SLOW_PER_S)):
            await asyncio.sleep(1 / SLOW_PER_S)
            began = time.perf_counter_ns()
            file.write(bytes(200))
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter_ns() - began) // 1000)
        return round(statistics.median(taken))


def brokers_of(cases: list[str]) -> list[Broker]:
    return list(dict.fromkeys(CASES[case].broker for case in cases))


def run(
    scale: float = 1.0, sites: tuple[int, ...] = (1, 3), cases: tuple[str, ...] = tuple(CASES), rounds: int = 5
) -> list[dict[str, Any]]:
    missing = [
        name
        for name, ok in {"redis-server": shutil.which("redis-server"), "redis": find_spec("redis")}.items()
        if not ok
    ]
    if missing:
        sys.stderr.write(f"no Redis stream among the peers: {' and '.join(missing)} not installed\n")
    rows = []
    for count in sites:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            rows += runner.run(measure(count, list(cases), scale, rounds))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", nargs=3, metavar=("BROKER", "SITES", "DIRECTORY"))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--sites", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--cases", nargs="+", default=[""], help="parts of the names of cases")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    if asked.world:
        run_loop(hold_world(asked.world[0], int(asked.world[1]), Path(asked.world[2]).absolute()))
    else:
        chosen = tuple(case for case in CASES if any(part in case for part in asked.cases))
        for row in run(asked.scale, tuple(asked.sites), chosen, asked.rounds):
            sys.stdout.write(json.dumps(row) + "\n")
