"""Between regions: one order on default settings, beside raw NATS, one central stream, and homes by a plan.

A NATS server and a sequencer node per region, each a process of its own; every way between two regions passes a proxy
that delays it by half the round trip of two public cloud regions. Four subscribers per region hear four topics each;
`everywhere`: any topics, published anywhere; `local`: those of their region, published there; `10 % remote`: one
subscription and one publication in ten is for another region's topic. All four ways have the same people and demand.

`direct` and `bound` are computed for these very people and events: the mean of the payloads' ways, and what no order
can beat. Publishers know where their topics live: who publishes on one for the first time asks, once. `default` begins
with topics born where they were first used, and is measured after `warm_s` of this demand; then everybody goes home,
and other people want in each region what those of the region before did: `default, changed` is measured in the last
10 s of their first minute. `by clock, leans` has default settings but for the planned homes as keepers, and one order
for all where the others have one per pair of subscribers; `by clock, causes first` also has causes before effects
across topics, and no lane leans (`by clock` in rows of before). `expected_ms` is what the programme that finds leans
expects for these very people and events, of the best leans or of none, where every clock is heard half a beat late: no
plan of leans is below it, and who measures more has lost it on the way. Latency runs from before `publish` to
the notification, on one clock. Each region's raw subscribers hear what they are told in no order. The central stream
stands in the region nearest to all and is read in its order.

The ways take turns; the three kinds of demand run side by side, by clock one after the other, each in a deployment of
its own. `times_plan` and `times_central`: means, in this run. `--only "3 regions*"` leaves out the others; medians of
five runs say more.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import nats as nats_py

import unisono
from unisono.experiments.sequencer.bound import direct_and_bound_us
from unisono.experiments.sequencer.sites import Crowd, CrowdSubscriber, Publication, Sites
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.region import public_cloud
from unisono.model.settings import BrokerSpec, NodeSpec, Region, Sequencing, TopicSpec
from unisono.model.time import Micros
from unisono.planning.leans import plan_leans
from unisono.planning.placement import Demand, Interest, place, stars
from unisono.protocols.clock.config import ClockConfig
from unisono.runtime.driver.loop import run as run_loop
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

REGIONS = {
    3: ("us-east-1", "eu-west-1", "ap-northeast-1"),
    5: ("us-east-1", "us-west-2", "eu-west-1", "eu-central-1", "ap-northeast-1"),
}
WORKLOADS = {"everywhere": 1.0, "local": 0.0, "10 % remote": 0.1}
PER_REGION, TOPICS_PER_REGION, EACH = 4, 4, 4
EVENTS_PER_S = 30.0
TAIL_S = 3.0


class Spans(NamedTuple):
    """How long people publish before they are measured, and while they are."""

    measured_s: float = 10.0
    warm_s: float = 30.0
    planned_warm_s: float = 5.0
    plain_warm_s: float = 1.0
    changed_s: float = 60.0
    """So long after a change of demand the last event is published."""
    by_clock: bool = True


SMALL = Spans(2.0, 2.0, 1.0, 1.0, 4.0, by_clock=False)
"""For a look at whether all of it still runs."""


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
        self, topics: dict[str, str], name: str, sequencing: Sequencing, stack: AsyncExitStack
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
                nodes.append(NodeSpec(region, region, address, parent, data="data", observe="off"))
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
                sequencing=sequencing,
            )
            views.append(deployment)
        started = []
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
            started.append((region, node, directory / "node.log"))
        for one in started:
            await listening(*one)
        return views


async def listening(name: str, node: Popen[bytes], log: Path) -> None:
    """Returns when it does; a node that ends instead is told of by what it said last."""
    while "listens on port" not in (said := log.read_text()):
        if node.poll() is not None:
            raise SystemExit(f"node {name} ended: {' '.join(said.strip().splitlines()[-1:]) or node.returncode}")
        await asyncio.sleep(0.05)


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


def draw(regions: int, workload: str, measured_s: float, warm_s: float = 0.0) -> People:
    """The same people and measured events, whatever comes before them."""
    remote, dice = WORKLOADS[workload], Random(f"{regions} {workload}")
    topics = [[f"{_word(workload)}-{site}-{i}" for i in range(TOPICS_PER_REGION)] for site in range(regions)]
    everything = [topic for own in topics for topic in own]

    def one_of(site: int, taken: tuple[str, ...] = ()) -> str:
        while True:
            others = everything if remote == 1.0 else [t for i, own in enumerate(topics) if i != site for t in own]
            chosen = dice.choice(others if dice.random() < remote else topics[site])
            if chosen not in taken:
                return chosen

    def events(begin_s: float, seconds: float) -> list[Event]:
        found, at = [], 0.0
        while (at := at + dice.expovariate(EVENTS_PER_S)) < seconds:
            site = dice.randrange(regions)
            found.append(Event(begin_s + at, site, one_of(site)))
        return found

    subscribers = []
    for site in range(regions):
        for _ in range(PER_REGION):
            own: tuple[str, ...] = ()
            for _ in range(EACH):
                own = (*own, one_of(site, own))
            subscribers.append((site, own))
    measured = events(warm_s, measured_s)
    return People(subscribers, events(0.0, warm_s) + measured, everything)


def _word(workload: str) -> str:
    return workload.replace(" ", "").replace("%", "pc")


def shifted(people: People, count: int) -> People:
    """Each region hears and says what the one before it did."""
    events = [event._replace(site=(event.site + 1) % count) for event in people.events]
    return people._replace(subscribers=[((site + 1) % count, own) for site, own in people.subscribers], events=events)


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


async def raw(world: World, people: People, heard: Heard, plain_warm_s: float) -> None:
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

    await play(people, publish, heard, plain_warm_s)
    for client in [*publishers, *subscribers]:
        await client.close()


async def _say_nothing(error: Exception) -> None:
    """An ordered consumer wants to be made again when its connection is closed."""


async def central(world: World, people: People, heard: Heard, plain_warm_s: float) -> None:
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

    await play(people, publish, heard, plain_warm_s)
    for client in [*publishers, *subscribers, first]:
        await client.close()


class Turn(NamedTuple):
    """People who come, stay for their events and go, the first `warm_s` of which are not measured."""

    people: People
    warm_s: float

    def measured(self) -> People:
        return self.people._replace(events=[event for event in self.people.events if event.at_s >= self.warm_s])


async def ordered(world: World, views: list[Deployment], turns: list[Turn]) -> list[tuple[Heard, dict[str, Any]]]:
    """What they were told, one turn after the other."""
    async with AsyncExitStack() as stack:
        publishers = [await stack.enter_async_context(_connected(world, views, site)) for site in range(len(views))]

        async def publish(site: int, topic: str, payload: bytes) -> None:
            await publishers[site].publish(topic, payload)

        told = []
        for people, warm_s in turns:
            heard, problems = Heard(), 0
            async with AsyncExitStack() as present:

                async def listen(stream: Any, heard: Heard = heard) -> int:
                    notices = 0
                    async for event in stream:
                        if event.gap or event.stalled:
                            notices += 1
                        else:
                            heard.tell(event.payload)
                    return notices

                streams = []
                for site, own in people.subscribers:
                    session = await present.enter_async_context(_connected(world, views, site))
                    streams.append(await present.enter_async_context(session.subscribe(*own, deadline="20s")))
                listeners = [asyncio.create_task(listen(stream)) for stream in streams]
                used = dict.fromkeys((event.site, event.topic) for event in people.events)
                await asyncio.gather(*(publishers[site].publisher(topic) for site, topic in used))
                await play(people, publish, heard, warm_s)
            problems = sum(await asyncio.gather(*listeners))
            root = await publishers[world.hub].status(world.regions[world.hub])
            moves = len(root.homes.moves) if root.homes is not None else 0
            told.append((heard, {"notices": problems, "moves": moves}))
        return told


def _connected(world: World, views: list[Deployment], site: int) -> Any:
    return unisono.connect(views[site], region=world.regions[site], timeout=60)


def expected_us(world: World, people: People, homes: dict[str, str], leans: bool) -> float:
    """By clock: what the best leans take for these people and events, or none."""
    plan = plan_leans(people.demand(world.regions), world.table, homes, ClockConfig().beat_us // 2)
    return plan.latency_us if leans else plan.unplanned_us


def row(case: str, way: str, people: People, world: World, heard: Heard, since_s: float, **more: Any) -> dict[str, Any]:
    measured = Turn(people, since_s).measured()
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


@contextmanager
def kept_if_it_fails(directory: Path) -> Iterator[None]:
    """What nodes and servers have said is told nowhere else."""
    try:
        yield
    except BaseException:
        kept = directory.with_name(f"{directory.name}-failed")
        shutil.copytree(directory, kept)
        print(f"what its processes wrote is in {kept}", file=sys.stderr)
        raise


async def measure(count: int, workloads: tuple[str, ...], spans: Spans = Spans()) -> list[dict[str, Any]]:
    Path("out").mkdir(exist_ok=True)
    measured_s = spans.measured_s
    rows: list[dict[str, Any]] = []

    def keep(workload: str, way: str, people: People, heard: Heard, since_s: float, **more: Any) -> None:
        rows.append(row(f"{count} regions, {workload}", way, people, world, heard, since_s, **more))
        print(rows[-1], file=sys.stderr)

    with TemporaryDirectory(dir="out", prefix="bench-wan-") as name, kept_if_it_fails(Path(name)):
        async with AsyncExitStack() as stack:
            world = World(REGIONS[count], Path(name).absolute(), stack)
            await world.start_servers()
            people = {each: draw(count, each, measured_s, spans.plain_warm_s) for each in workloads}
            for way, go in (("raw NATS", raw), ("one central stream", central)):
                hearing = {each: Heard() for each in workloads}
                await asyncio.gather(
                    *(go(world, people[each], hearing[each], spans.plain_warm_s) for each in workloads)
                )
                for each in workloads:
                    keep(each, way, people[each], hearing[each], spans.plain_warm_s)
            trees = [tree for tree in stars(world.table) if tree.parents[world.hub] < 0]
            planned = {each: place(people[each].demand(world.regions), world.table, trees).homes for each in workloads}

            async def go_ordered(
                way: str,
                sequencing: Sequencing,
                homes: dict[str, dict[str, str]],
                ways: dict[str, float],
                kinds: tuple[str, ...] = workloads,
            ) -> None:
                """Each kind of demand in nodes of its own, side by side."""
                turns = {}
                for each in kinds:
                    first, *then = ways.values()
                    turns[each] = [Turn(draw(count, each, measured_s, first), first)]
                    turns[each] += [Turn(shifted(draw(count, each, measured_s, warm), count), warm) for warm in then]
                async with AsyncExitStack() as nodes:
                    views = {
                        each: await world.start_nodes(
                            homes.get(each, {}), f"{_word(way)}-{_word(each)}", sequencing, nodes
                        )
                        for each in kinds
                    }
                    told = await asyncio.gather(*(ordered(world, views[each], turns[each]) for each in kinds))
                for each, heard in zip(kinds, told):
                    for title, turn, (what, more) in zip(ways, turns[each], heard):
                        if sequencing.by == "clock":
                            least = expected_us(world, turn.measured(), homes[each], sequencing.leans_lanes)
                            more["expected_ms"] = round(least / 1000, 1)
                        keep(each, title, turn.people, what, turn.warm_s, **more)

            tree = Sequencing()
            await go_ordered("plan", tree, planned, {"homes by plan": spans.planned_warm_s})
            both = {"default": spans.warm_s, "default, changed": spans.changed_s - measured_s}
            await go_ordered("default", tree, {}, both)
            causal = Sequencing(by="clock", order="causal")
            for each in (
                workloads if spans.by_clock else ()
            ):  # fifteen nodes that beat are more than two cores can carry
                await go_ordered("causes", causal, planned, {"by clock, causes first": spans.planned_warm_s}, (each,))
                await go_ordered("leans", Sequencing(by="clock"), planned, {"by clock, leans": spans.warm_s}, (each,))
    compare(rows)
    return rows


def compare(rows: list[dict[str, Any]]) -> None:
    """Beside others in this run."""
    means = {(row["case"], row["way"]): row for row in rows}
    for row in rows:
        for key, way in (("times_plan", "homes by plan"), ("times_central", "one central stream")):
            if way != row["way"] and means[row["case"], way]["mean_ms"]:
                row[key] = round(row["mean_ms"] / means[row["case"], way]["mean_ms"], 2)


def run(only: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """`only`: patterns of cases, like "3 regions, *"."""
    for count in REGIONS:
        cases = {each: f"{count} regions, {each}" for each in WORKLOADS}
        chosen = tuple(
            each for each, case in cases.items() if not only or any(fnmatch(case, pattern) for pattern in only)
        )
        if chosen:
            yield from run_loop(measure(count, chosen))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--regions", type=int, default=5, choices=REGIONS)
    parser.add_argument("--workload", default="local", choices=WORKLOADS)
    parser.add_argument("--small", action="store_true", help="seconds instead of minutes, and not by clock")
    asked = parser.parse_args()
    for one in run_loop(measure(asked.regions, (asked.workload,), SMALL if asked.small else Spans())):
        sys.stdout.write(json.dumps(one) + "\n")
