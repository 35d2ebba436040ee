"""Homes move to where their topics are used, while they are used; and are found there, whoever is dead."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.test_cluster import FAST
from unisono.errors import TransportError
from unisono.model.address import endpoint
from unisono.model.deployment import Deployment
from unisono.model.homes import home_of, unknown_distances
from unisono.model.ids import Address, Topic
from unisono.model.settings import BrokerSpec, NodeSpec, Region, Sequencing, TopicSpec
from unisono.model.time import MILLISECOND, Micros
from unisono.planning.demand import Asked, Audience, DemandView
from unisono.planning.homes import HomesConfig
from unisono.runtime.links import control
from unisono.runtime.links.frames import Codec, Letter, encode_frame
from unisono.runtime.links.questions import ask_node
from unisono.runtime.node.measuring import metrics
from unisono.runtime.node.node import Node, NodeConfig
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.ports import free_ports

SOON = structs.replace(
    FAST,
    homes=HomesConfig(period_us=Micros(100 * MILLISECOND), dwell_us=Micros(300 * MILLISECOND), requests_min=1),
)


def three_regions(**more: object) -> Deployment:
    hub, broker, east, west = free_ports(4)
    deployment = Deployment(
        1,
        "placing",
        regions=(Region("middle"), Region("east"), Region("west")),
        round_trip_ms={"middle east": 40.0, "middle west": 40.0, "east west": 80.0},
        nodes=(
            NodeSpec("hub", "middle", f"127.0.0.1:{hub}", roles=("sequencer", "broker")),
            NodeSpec("east-1", "east", f"127.0.0.1:{east}", "hub"),
            NodeSpec("west-1", "west", f"127.0.0.1:{west}", "hub"),
        ),
        broker=BrokerSpec("embedded", (f"127.0.0.1:{broker}",)),
    )
    return structs.replace(deployment, **more)


async def started(deployment: Deployment, base: Path, config: NodeConfig = SOON) -> dict[str, Node]:
    nodes = {spec.name: Node(deployment, spec.name, base, config) for spec in deployment.nodes}
    for node in nodes.values():
        await node.start()
    return nodes


async def apart(deployment: Deployment, base: Path) -> tuple[dict[str, Node], list[DelayProxy]]:
    """Nodes that are 40 ms from their parent: what they measure is what clients measure."""
    seen, proxies = await seen_from(deployment, *(node.name for node in deployment.nodes if node.parent is not None))
    nodes = await started(seen, base)
    return nodes, proxies


async def stopped(nodes: dict[str, Node]) -> None:
    for node in reversed(list(nodes.values())):
        await node.stop()


async def seen_from(deployment: Deployment, *near: str) -> tuple[Deployment, list[DelayProxy]]:
    """As a client sees it that has these nodes at hand: the others are 40 ms away."""
    proxies, nodes = [], []
    for spec in deployment.nodes:
        if spec.name not in near:
            proxy = DelayProxy(Micros(20 * MILLISECOND))
            spec = structs.replace(spec, advertise=f"127.0.0.1:{await proxy.start(endpoint(spec.listen))}")
            proxies.append(proxy)
        nodes.append(spec)
    return structs.replace(deployment, nodes=tuple(nodes)), proxies


def home(nodes: dict[str, Node], name: str) -> list[str]:
    return [each for each, node in nodes.items() if node.topic_names is not None and name in node.topic_names.at_home]


async def until(holds: Callable[[], bool], session: unisono.Session, *topics: str) -> int:
    """Publishes until it holds; how much."""
    async with asyncio.timeout(30):
        count = 0
        while not holds():
            await session.publish(topics[count % len(topics)], {"n": count})
            count += 1
            await asyncio.sleep(0.005)
        return count


def test_a_topic_moves_to_where_it_is_used_and_is_found_there_when_its_birthplace_is_dead(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = three_regions()
        nodes, between = await apart(deployment, tmp_path)
        (east, more), (seen, proxies) = await seen_from(deployment, "east-1"), await seen_from(deployment, "west-1")
        async with unisono.connect(east) as first:
            await first.publish("trades", {"n": -1})
        assert home(nodes, "trades") == ["east-1"]
        async with unisono.connect(seen, timeout=20) as session, session.subscribe("trades") as stream:
            count = await until(lambda: home(nodes, "trades") == ["west-1"], session, "trades")
            assert [(await stream.__anext__()).data["n"] for _ in range(count)] == [*range(count)]
            homes = nodes["hub"].report().homes
            assert homes is not None
            assert [(move.topic, move.at, move.to) for move in homes.moves] == [("trades", "east-1", "west-1")]
            assert "ms" in homes.moves[0].reason
            assert "unisono_home_moves_total 1\n" in metrics(nodes["hub"], nodes["hub"].health())
            await nodes.pop("east-1").stop()
            async with (
                unisono.connect(seen, timeout=20, region="middle") as late,
                late.subscribe("trades") as other,
            ):
                await late.publish("trades", {"n": "late"})
                assert (await other.__anext__()).data == {"n": "late"}
                assert (await stream.__anext__()).data == {"n": "late"}
        await stopped(nodes)
        for proxy in (*more, *proxies, *between):
            await proxy.stop()

    asyncio.run(run())


@pytest.mark.parametrize("why", ["fixed", "named in the file"])
def test_homes_that_are_to_stay_stay(tmp_path: Path, why: str) -> None:
    async def run() -> None:
        pinned = {"sequencing": Sequencing(placement="fixed")} if why == "fixed" else {}
        if not pinned:
            pinned = {"topics": (TopicSpec("trades", "east-1"),)}  # type: ignore[dict-item]
        deployment = three_regions(**pinned)
        nodes, between = await apart(deployment, tmp_path)
        (east, more), (seen, proxies) = await seen_from(deployment, "east-1"), await seen_from(deployment, "west-1")
        async with unisono.connect(east, timeout=20) as first:
            await first.publish("trades", {"n": -1})
        periods, wanted = SOON.homes.period_us * 10 / 1e6, 0
        placing = nodes["hub"].placing
        assert placing is not None

        def is_over() -> bool:
            """It moves, or somebody who asks has been told often enough that it should."""
            nonlocal wanted
            if why != "fixed":  # nobody is told: it is not planned for
                return asyncio.get_running_loop().time() - begin > periods
            wanted += len(placing.planned(control.PlanHomes(Address("somebody"))).moves)
            return wanted >= 50 or home(nodes, "trades") != ["east-1"]

        async with unisono.connect(seen, timeout=20) as session, session.subscribe("trades"):
            begin = asyncio.get_running_loop().time()
            await until(is_over, session, "trades")
        assert home(nodes, "trades") == ["east-1"]
        await stopped(nodes)
        for proxy in (*more, *proxies, *between):
            await proxy.stop()

    asyncio.run(run())


def test_a_person_moves_a_topic_and_is_told_what_cannot_be(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = three_regions()
        nodes = await started(deployment, tmp_path)

        async def move(topic: str, to: str, at: str = "hub") -> control.MoveOrdered:
            where = deployment.node(at).listen
            return await ask_node(where, "", lambda me: control.MoveTopic(me, topic, to), control.MoveOrdered)

        async with (
            unisono.connect(deployment, region="east", timeout=20) as session,
            session.subscribe("trades") as stream,
        ):
            await session.publish("trades", {"n": 1})
            while "home there" in ((answer := await move("trades", "west-1")).problem or ""):
                await asyncio.sleep(0.05)
            assert answer == control.MoveOrdered("trades", "west-1", "east-1")
            while home(nodes, "trades") != ["west-1"]:
                await asyncio.sleep(0.01)
            await session.publish("trades", {"n": 2})
            assert [(await stream.__anext__()).data["n"] for _ in range(2)] == [1, 2]
        assert "no topic 'news'" in ((await move("news", "hub")).problem or "")
        assert "no sequencer node" in ((await move("trades", "moon")).problem or "")
        assert "ask the root, hub" in ((await move("trades", "hub", at="east-1")).problem or "")
        answer = await ask_node(deployment.nodes[0].listen, "", control.PlanHomes, control.HomesPlanned)
        assert answer.moves == ()
        await stopped(nodes)

    async def bounded() -> None:
        async with asyncio.timeout(40):
            await run()

    asyncio.run(bounded())


def test_a_topic_that_never_moved_waits_for_its_home(tmp_path: Path) -> None:
    """The root knows the way, and nobody is there."""

    async def run() -> None:
        deployment = three_regions()
        nodes = await started(deployment, tmp_path)
        async with unisono.connect(deployment, region="east", timeout=20) as first:
            await first.publish("trades", {"n": -1})
        await nodes.pop("east-1").stop()
        async with unisono.connect(deployment, region="west", timeout=1) as session:
            with pytest.raises(TransportError, match="did not answer"):
                async with session.subscribe("trades"):
                    pass
        await stopped(nodes)

    asyncio.run(run())


def test_nodes_measure_how_far_they_are_from_each_other(tmp_path: Path) -> None:
    """The file knows nothing, and nobody is connected."""

    async def run() -> None:
        deployment = three_regions(round_trip_ms={})
        assert unknown_distances(deployment) == [("middle", "east"), ("middle", "west"), ("east", "west")]
        nodes, between = await apart(deployment, tmp_path)
        unknown: tuple[tuple[str, str], ...] = ()
        async with asyncio.timeout(30):
            while unknown != (("east", "west"),):
                homes = nodes["hub"].report().homes
                assert homes is not None
                unknown = homes.pairs_unknown
                await asyncio.sleep(0.02)
        assert homes.advice() == [
            "the distance between east and west is not known: add round_trip_ms, or connect a client in one of them"
        ]
        await stopped(nodes)
        for proxy in between:
            await proxy.stop()

    asyncio.run(run())


TOPICS = ("trades", "quotes")


async def used(where: Deployment, count: int) -> list[dict[str, list[int]]]:
    """Publishes on both topics until so many are heard; what two subscribers heard of each, by number."""
    async with (
        unisono.connect(where, region="east", timeout=30) as east,
        unisono.connect(where, region="west", timeout=30) as west,
        east.subscribe(*TOPICS) as first,
        west.subscribe(*TOPICS) as second,
    ):
        for n in range(count):
            assert isinstance(await (east, west)[n % 2].publish(TOPICS[n % 2], {"n": n}), unisono.Accepted)
            await asyncio.sleep(0.005)
        heard = [[await stream.__anext__() for _ in range(count)] for stream in (first, second)]
        assert [event.id for event in heard[0]] == [event.id for event in heard[1]]
        return [{name: [e.number for e in own if e.topic == name] for name in TOPICS} for own in heard]


def test_topics_heard_together_come_to_one_node_of_their_region(tmp_path: Path) -> None:
    async def run() -> None:
        hub, broker, beside = free_ports(3)
        deployment = Deployment(
            1,
            "sharing",
            nodes=(
                NodeSpec("hub", "middle", f"127.0.0.1:{hub}", roles=("sequencer", "broker")),
                NodeSpec("beside", "middle", f"127.0.0.1:{beside}", "hub"),
            ),
            broker=BrokerSpec("embedded", (f"127.0.0.1:{broker}",)),
        )
        topics = [f"t{number}" for number in range(6)]
        assert {home_of(deployment, topic, "middle") for topic in topics} == {"hub", "beside"}
        nodes = await started(deployment, tmp_path)
        async with unisono.connect(deployment) as session, session.subscribe(*topics) as stream:
            count = await until(lambda: len({*map(str, (home(nodes, t) for t in topics))}) == 1, session, *topics)
            assert [(await stream.__anext__()).data["n"] for _ in range(count)] == [*range(count)]
            homes = nodes["hub"].report().homes
            assert homes is not None
            assert {move.reason for move in homes.moves} == {
                "so that topics that are heard together are at one node of their region"
            }
        await stopped(nodes)

    asyncio.run(run())


def test_a_badly_placed_root_is_told_and_replaced_by_a_person(tmp_path: Path) -> None:
    """The page `operations`, section Another root, step by step."""

    async def run() -> None:
        homes = (TopicSpec("trades", "east-1"), TopicSpec("quotes", "west-1"))
        trips = {"middle east": 40.0, "middle west": 40.0, "east west": 2.0}
        old = three_regions(topics=homes, round_trip_ms=trips)
        often = structs.replace(SOON, homes=structs.replace(SOON.homes, root_periods=3))
        old = structs.replace(old, nodes=tuple(structs.replace(spec, data="data") for spec in old.nodes))
        seen, between = await seen_from(old, "east-1", "west-1")
        nodes = await started(seen, tmp_path / "old", often)
        before: list[dict[str, list[int]]] = []
        async with asyncio.timeout(60):
            while not before or (told := nodes["hub"].report().homes) is None or told.root is None:
                before = await used(seen, 100)
        assert told.root.node in ("east-1", "west-1")
        assert told.root.possible_us < 0.9 * told.root.expected_us
        assert f"with {told.root.node} there" in told.advice()[0]
        assert told.moves == (), "nobody moves a root, and these homes are in the file"
        await stopped(nodes)  # 1: nobody publishes any more, what was published has been heard, all nodes stop
        root = told.root.node
        moved = tuple(  # 2: the file names another root
            structs.replace(spec, parent=None if spec.name == root else root) for spec in seen.nodes
        )
        new = structs.replace(seen, nodes=moved)
        # 3: the data is moved aside, and each node begins a new incarnation
        nodes = await started(new, tmp_path / "new", structs.replace(often, new_incarnation=True))
        async with asyncio.timeout(60):
            async with unisono.connect(new, timeout=30) as session:  # 4: what nodes tell each other has come to an end
                for name in TOPICS:
                    while not isinstance(await session.publish(name, None), unisono.Accepted):
                        await asyncio.sleep(0.05)
            after = await used(new, 100)
        assert all(min(after[0][name]) > max(before[0][name]) for name in TOPICS), "no number names two events"
        await stopped(nodes)
        for proxy in between:
            await proxy.stop()

    asyncio.run(run())


@pytest.mark.parametrize("span_us", [0, 1, 4_000_000_000])
def test_whatever_a_client_has_measured_and_a_home_has_counted_passes_the_wire(span_us: int) -> None:
    """A round trip within one look at the clock, one of an hour, a busy topic: their senders were cut off. Crash
    campaign, seed 332 of cca2027."""
    client, node = Address("c"), Address("east-1")
    said = [
        control.ClientAt(client, "east", {"west": span_us}),
        DemandView(
            node,
            (Topic(1),),
            (Asked(Topic(1), "east", 5_000_000),),
            (Audience("east", (Topic(1),), 2_000_000),),
            {"east": {"west": span_us}},
        ),
    ]
    frame = encode_frame([Letter(Address("hub"), message) for message in said])
    letters = Codec(control.Letters).decode(frame[4:])
    assert [letter.message for letter in letters] == said
