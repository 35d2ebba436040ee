"""Between regions: one order on default settings, beside raw NATS, one central stream, and homes by a plan.

A NATS server and a sequencer node per region, each a process of its own; every way between two regions passes a proxy
that delays it by half the round trip of two public cloud regions. Four subscribers per region hear four topics each;
`everywhere`: any topics, published anywhere; `local`: those of their region, published there; `10 % remote`: one
subscription and one publication in ten is for another region's topic. All four ways have the same people and demand.

`direct` and `bound` are computed for these very people and events: the mean of the payloads' ways, and what no order
can beat. `default` begins with topics born where they were first used, and is measured after `WARM_S` of this demand.
`by clock` has the planned homes as keepers, and one order for all where the others have one per pair of subscribers.
Latency runs from before `publish` to the notification, on one clock. Each region's raw subscribers hear what they are
told in no order. The central stream stands in the region nearest to all and is read in its order.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import nats as nats_py
from ordering.world import free_ports

import unisono
from unisono.experiments.sequencer.bound import direct_and_bound_us
from unisono.experiments.sequencer.sites import Crowd, CrowdSubscriber, Publication, Sites
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.region import public_cloud
from unisono.model.settings import BrokerSpec, NodeSpec, OrderedBy, Region, Sequencing, TopicSpec
from unisono.model.time import Micros
from unisono.planning.placement import Demand, Interest, place, stars
from unisono.runtime.driver.loop import run as run_loop
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig

REGIONS = {
    3: ("us-east-1", "eu-west-1", "ap-northeast-1"),
    5: ("us-east-1", "us-west-2", "eu-west-1", "eu-central-1", "ap-northeast-1"),
}
WORKLOADS = {"everywhere": 1.0, "local": 0.0, "10 % remote": 0.1}
PER_REGION, TOPICS_PER_REGION, EACH = 4, 4, 4
EVENTS_PER_S = 30.0
WARM_S, MEASURED_S = 45.0, 10.0
TAIL_S = 3.0


class Event(NamedTuple):
    at_s: float
    site: int
    topic: str


class World:
    """Servers, nodes and the ways between them."""

    def __init__(self, regions: tuple[str, ...], directory: Path, stack: AsyncExitStack) -> None:
        self.table = public_cloud().among(regions)
        self.regions, self.directory, self._stack = self.table.regions, directory, stack
        self.hub = Sites(self.table, 0).hub
        self.urls: list[str] = []
        self.central: list[str] = []

    async def seen_from(self, here: int, there: int, target: tuple[str, int] | None = None) -> DelayProxy:
        proxy = DelayProxy(Micros(self.table.one_way_us[here][there]))
        await proxy.start(target)
        self._stack.push_async_callback(proxy.stop)
        return proxy

    async def start_servers(self) -> None:
        """A server per region, routed in pairs, and one with a stream in the middle."""
        servers = [NatsServer(self.directory / name, NatsServerConfig(name=name)) for name in self.regions]
        ways: dict[tuple[int, int], DelayProxy] = {}
        for i, server in enumerate(servers):
            for j in range(i):
                ways[i, j] = await self.seen_from(i, j, ("127.0.0.1", servers[j].cluster_port))
            routes = [f"nats-route://127.0.0.1:{ways[i, j].port}" for j in range(i)]
            # Servers tell each other where the others are; what they tell leads nowhere, so only these ways are used.
            server.cluster = {"name": "wan", "host": "127.0.0.1", "routes": routes, "advertise": "127.0.0.1:9"}
            await server.start()
            self._stack.push_async_callback(server.stop)
        self.urls = [server.url for server in servers]
        stream = NatsServer(self.directory / "central", NatsServerConfig(name="central", jetstream=True))
        await stream.start()
        self._stack.push_async_callback(stream.stop)
        for here in range(len(self.regions)):
            proxy = await self.seen_from(here, self.hub, ("127.0.0.1", stream.port))
            self.central.append(stream.url if here == self.hub else f"nats://127.0.0.1:{proxy.port}")
        await asyncio.sleep(3.0)  # routes

    async def start_nodes(
        self, topics: dict[str, str], name: str, by: OrderedBy, stack: AsyncExitStack
    ) -> list[Deployment]:
        """The deployment as each region sees it; its nodes run until the stack ends. `topics` are planned homes."""
        ports = free_ports(len(self.regions))
        views = []
        for here in range(len(self.regions)):
            nodes = []
            for there, (region, port) in enumerate(zip(self.regions, ports)):
                address = f"127.0.0.1:{port}"
                if here != there:
                    address = f"127.0.0.1:{(await self.seen_from(here, there, ('127.0.0.1', port))).port}"
                parent = None if there == self.hub else self.regions[self.hub]
                nodes.append(NodeSpec(region, region, address, parent, data="data"))
            trips = {
                f"{a} {b}": self.table.one_way_us[i][j] / 500
                for i, a in enumerate(self.regions)
                for j, b in enumerate(self.regions[:i])
            }
            planned = tuple(TopicSpec(topic, home) for topic, home in topics.items())
            broker = BrokerSpec("nats", tuple(self.urls))
            regions = tuple(map(Region, self.regions))
            deployment = Deployment(
                1,
                name,
                regions=regions,
                round_trip_ms=trips,
                nodes=tuple(nodes),
                topics=planned,
                broker=broker,
                sequencing=Sequencing(by=by),
            )
            views.append(deployment)
        for region, view in zip(self.regions, views):
            directory = self.directory / name / region
            directory.mkdir(parents=True)
            (directory / "deployment.toml").write_text(dump_deployment(view))
            command = [
                str(Path(sys.executable).with_name("unisono")),
                "node",
                str(directory / "deployment.toml"),
                region,
            ]
            with (directory / "node.log").open("wb") as log:
                node = Popen([*command, "--journal", "off"], stderr=log, stdout=log)
            stack.callback(node.wait)
            stack.callback(node.terminate)
        return views


class People(NamedTuple):
    """Who hears what where, and what is published."""

    subscribers: list[tuple[int, tuple[str, ...]]]
    events: list[Event]
    topics: list[str]

    def crowd(self) -> Crowd:
        index = {topic: number for number, topic in enumerate(self.topics)}
        heard = [
            CrowdSubscriber(f"s{i}", site, tuple(sorted(index[t] for t in own)))
            for i, (site, own) in enumerate(self.subscribers)
        ]
        said = [Publication(round(event.at_s * 1e6), event.site, index[event.topic]) for event in self.events]
        return Crowd(len(self.topics), TOPICS_PER_REGION, tuple(heard), tuple(said))

    def demand(self, regions: tuple[str, ...]) -> Demand:
        rates: dict[str, dict[str, float]] = {}
        for event in self.events:
            own = rates.setdefault(event.topic, {})
            own[regions[event.site]] = own.get(regions[event.site], 0.0) + 1.0
        return Demand(tuple(Interest(regions[site], own) for site, own in self.subscribers), rates)


def draw(regions: int, workload: str, seconds: float) -> People:
    remote, dice = WORKLOADS[workload], Random(f"{regions} {workload}")
    word = workload.replace(" ", "").replace("%", "pc")
    topics = [[f"{word}-{site}-{i}" for i in range(TOPICS_PER_REGION)] for site in range(regions)]
    everything = [topic for own in topics for topic in own]

    def one_of(site: int, taken: tuple[str, ...] = ()) -> str:
        while True:
            others = everything if remote == 1.0 else [t for i, own in enumerate(topics) if i != site for t in own]
            chosen = dice.choice(others if dice.random() < remote else topics[site])
            if chosen not in taken:
                return chosen

    subscribers = []
    for site in range(regions):
        for _ in range(PER_REGION):
            own: tuple[str, ...] = ()
            for _ in range(EACH):
                own = (*own, one_of(site, own))
            subscribers.append((site, own))
    events, at = [], 0.0
    while (at := at + dice.expovariate(EVENTS_PER_S)) < seconds:
        site = dice.randrange(regions)
        events.append(Event(at, site, one_of(site)))
    return People(subscribers, events, everything)


class Heard:
    """Latencies of what was published after `since_s`."""

    def __init__(self) -> None:
        self.late_us: list[float] = []
        self.since_ns = 0

    def tell(self, payload: bytes) -> None:
        sent = int(payload)
        if sent >= self.since_ns > 0:
            self.late_us.append((time.monotonic_ns() - sent) / 1000)


Publish = Callable[[int, str, bytes], Awaitable[None]]


async def play(people: People, publish: Publish, heard: Heard, warm_s: float) -> None:
    """Publishes at the moments that were drawn, again and again while it is warm."""
    tasks: set[asyncio.Task[None]] = set()
    begin = time.monotonic()
    for event in people.events:
        await asyncio.sleep(max(0.0, begin + event.at_s - time.monotonic()))
        if event.at_s >= warm_s and not heard.since_ns:
            heard.since_ns = time.monotonic_ns()
        payload = str(time.monotonic_ns()).encode()
        task = asyncio.ensure_future(publish(event.site, event.topic, payload))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    await asyncio.sleep(TAIL_S)


async def raw(world: World, people: People, heard: Heard) -> None:
    publishers = [await nats_py.connect(url) for url in world.urls]
    subscribers = []

    async def told(message: Any) -> None:
        heard.tell(message.data)

    for site, own in people.subscribers:
        client = await nats_py.connect(world.urls[site])
        subscribers.append(client)
        for topic in own:
            await client.subscribe(f"raw.{topic}", cb=told)
        await client.flush()
    await asyncio.sleep(1.0)

    async def publish(site: int, topic: str, payload: bytes) -> None:
        await publishers[site].publish(f"raw.{topic}", payload)

    await play(people, publish, heard, 1.0)
    for client in [*publishers, *subscribers]:
        await client.close()


async def _say_nothing(error: Exception) -> None:
    """An ordered consumer wants to be made again when its connection is closed."""


async def central(world: World, people: People, heard: Heard) -> None:
    first = await nats_py.connect(world.central[world.hub])
    name = people.topics[0].partition("-")[0]
    await first.jetstream().add_stream(name=name, subjects=[f"central.{name}.>"])
    publishers = [await nats_py.connect(url) for url in world.central]
    subscribers = []
    for site, own in people.subscribers:
        client = await nats_py.connect(world.central[site], error_cb=_say_nothing)
        subscribers.append(client)

        async def told(message: Any, own: frozenset[str] = frozenset(own)) -> None:
            if message.subject.rpartition(".")[2] in own:
                heard.tell(message.data)

        await client.jetstream().subscribe(f"central.{name}.>", cb=told, ordered_consumer=True)
    await asyncio.sleep(1.0)
    contexts = [client.jetstream() for client in publishers]

    async def publish(site: int, topic: str, payload: bytes) -> None:
        await contexts[site].publish(f"central.{name}.{topic}", payload)

    await play(people, publish, heard, 1.0)
    for client in [*publishers, *subscribers, first]:
        await client.close()


async def ordered(world: World, views: list[Deployment], people: People, heard: Heard, warm_s: float) -> dict[str, Any]:
    async with AsyncExitStack() as stack:

        async def connect(site: int) -> Any:
            where = unisono.connect(views[site], region=world.regions[site], timeout=60)
            return await stack.enter_async_context(where)

        publishers = [await connect(site) for site in range(len(world.regions))]
        problems: list[str] = []

        async def listen(stream: Any) -> None:
            async for event in stream:
                if event.gap or event.stalled:
                    problems.append(str(event.gap or event.stalled))
                else:
                    heard.tell(event.payload)

        async def subscribe(site: int, own: tuple[str, ...]) -> asyncio.Task[None]:
            session = await connect(site)
            return asyncio.create_task(listen(await stack.enter_async_context(session.subscribe(*own, deadline="20s"))))

        listeners = [await subscribe(site, own) for site, own in people.subscribers]

        async def publish(site: int, topic: str, payload: bytes) -> None:
            await publishers[site].publish(topic, payload)

        await play(people, publish, heard, warm_s)
        root = await publishers[world.hub].status(world.regions[world.hub])
        for listener in listeners:
            listener.cancel()
        return {"notices": len(problems), "moves": len(root.homes.moves) if root.homes is not None else 0}


def row(case: str, way: str, people: People, world: World, heard: Heard, since_s: float, **more: Any) -> dict[str, Any]:
    measured = people._replace(events=[event for event in people.events if event.at_s >= since_s])
    direct, bound = direct_and_bound_us(Sites(world.table, 0), measured.crowd())
    owed = sum(sum(topic in own for _, own in people.subscribers) for _, _, topic in measured.events)
    late = sorted(heard.late_us)
    if not late:
        raise SystemExit(f"{case}, {way}: nobody was told of anything")
    mean = statistics.fmean(late)
    return {
        "case": case,
        "way": way,
        "mean_ms": round(mean / 1000, 1),
        "p50_ms": round(late[len(late) // 2] / 1000, 1),
        "p99_ms": round(late[len(late) * 99 // 100] / 1000, 1),
        "direct_ms": round(direct / 1000, 1),
        "bound_ms": round(bound / 1000, 1),
        "times_direct": round(mean / direct, 2) if direct > 1000 else None,
        "times_bound": round(mean / bound, 2) if bound > 1000 else None,
        "told": round(len(late) / owed, 4),
        **more,
        "load": round(os.getloadavg()[0], 1),
    }


async def measure(count: int, workloads: tuple[str, ...] = tuple(WORKLOADS)) -> list[dict[str, Any]]:
    Path("out").mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(dir="out", prefix="bench-wan-") as name:
        async with AsyncExitStack() as stack:
            world = World(REGIONS[count], Path(name).absolute(), stack)
            await world.start_servers()
            briefly = {each: draw(count, each, 1.0 + MEASURED_S) for each in workloads}
            planned: dict[str, str] = {}
            for workload, people in briefly.items():
                case = f"{count} regions, {workload}"
                trees = [tree for tree in stars(world.table) if tree.parents[world.hub] < 0]
                planned |= place(people.demand(world.regions), world.table, trees).homes
                for way, go in (("raw NATS", raw), ("one central stream", central)):
                    heard = Heard()
                    await go(world, people, heard)
                    rows.append(row(case, way, people, world, heard, 1.0))
                    print(rows[-1], file=sys.stderr)
            ways: tuple[tuple[str, dict[str, str], float, OrderedBy], ...] = (
                ("default", {}, WARM_S, "tree"),
                ("homes by plan", planned, 5.0, "tree"),
                ("by clock", planned, 5.0, "clock"),
            )
            for way, topics, warm_s, by in ways:
                async with AsyncExitStack() as nodes:
                    views = await world.start_nodes(topics, way.replace(" ", "-"), by, nodes)
                    for workload in workloads:
                        people, heard = draw(count, workload, warm_s + MEASURED_S), Heard()
                        more = await ordered(world, views, people, heard, warm_s)
                        case = f"{count} regions, {workload}"
                        rows.append(row(case, way, people, world, heard, warm_s, **more))
                        print(rows[-1], file=sys.stderr)
    return rows


def run() -> list[dict[str, Any]]:
    return [row for count in REGIONS for row in run_loop(measure(count))]
