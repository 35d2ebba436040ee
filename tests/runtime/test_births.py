"""Where topics are born that nobody has planned: near whoever uses them first, and once."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from msgspec import structs

import unisono
from tests.runtime.test_cluster import FAST
from unisono.model.deployment import Deployment
from unisono.model.homes import home_of
from unisono.model.ids import Address
from unisono.model.settings import BrokerSpec, NodeSpec, Region
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.runtime.client.publishing.named import NamedEvent, named_publisher
from unisono.runtime.links.dialing import endpoint
from unisono.runtime.node.node import Node
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.ports import free_ports

NAMES = [f"t{i}" for i in range(12)]


def two_regions(*more: NodeSpec) -> Deployment:
    east, west = free_ports(2)
    return Deployment(
        1,
        "births",
        regions=(Region("east"), Region("west"), Region("island"), Region("far")),
        round_trip_ms={"east west": 80.0, "west island": 10.0, "island east": 70.0},
        nodes=(
            NodeSpec("east-1", "east", f"127.0.0.1:{east}", roles=("sequencer", "broker")),
            NodeSpec("west-1", "west", f"127.0.0.1:{west}", "east-1"),
            *more,
        ),
        broker=BrokerSpec("embedded", (f"127.0.0.1:{east + 1}",)),
    )


def born(nodes: Iterable[Node]) -> dict[str, list[str]]:
    return {node.spec.name: sorted(node.topic_names.mine) for node in nodes if node.topic_names is not None}


async def start(deployment: Deployment, base: Path, *names: str) -> list[Node]:
    nodes = [Node(deployment, name, base, FAST) for name in names]
    for node in nodes:
        await node.start()
    return nodes


async def stop(nodes: list[Node]) -> None:
    for node in reversed(nodes):
        await node.stop()


def test_a_topic_is_born_in_the_region_of_who_publishes_or_subscribes_first(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = two_regions()
        nodes = await start(deployment, tmp_path, "east-1", "west-1")
        async with (
            asyncio.timeout(60),
            unisono.connect(deployment, region="east") as east,
            unisono.connect(deployment, region="west") as west,
            unisono.connect(deployment, region="island") as island,  # which has no node: the nearest region's serves it
        ):
            await west.publish("published", 1)
            async with west.subscribe("heard"), east.subscribe("published", "heard", "other"):
                await east.publish("heard", 1)
            await island.publish("of-the-island", 1)
            async with named_publisher(deployment, "feed", region="west") as publisher:
                assert await publisher.publish([NamedEvent("fed", 1, b"x"), NamedEvent("other", 1, b"x")]) == 2
            assert born(nodes) == {
                "east-1": ["other"],
                "west-1": ["fed", "heard", "of-the-island", "published"],
            }
        await stop(nodes)

    asyncio.run(run())


def test_who_does_not_say_where_it_is_is_in_the_region_of_the_nearest_node(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = two_regions()
        nodes = await start(deployment, tmp_path, "east-1", "west-1")
        far = DelayProxy(Micros(300_000))
        for name in ("east-1", "west-1"):
            port = await far.start(endpoint(deployment.node(name).listen))
            distant = structs.replace(deployment.node(name), listen=f"127.0.0.1:{port}")
            seen = [distant if node.name == name else node for node in deployment.nodes]
            async with asyncio.timeout(60), unisono.connect(structs.replace(deployment, nodes=tuple(seen))) as session:
                for node in ("east-1", "west-1"):
                    await session.status(node)  # both are connected
                await session.publish(f"not-at-{name}", 1)
            await far.stop()
        assert born(nodes) == {"east-1": ["not-at-west-1"], "west-1": ["not-at-east-1"]}
        await stop(nodes)

    asyncio.run(run())


def test_where_no_node_of_the_region_is_there_another_one_bears_the_topic(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = two_regions()
        nodes = await start(deployment, tmp_path, "east-1")
        async with asyncio.timeout(60), unisono.connect(deployment, region="west") as session:
            assert isinstance(await session.publish("trades", 1), unisono.Accepted)
        assert born(nodes) == {"east-1": ["trades"]}
        await stop(nodes)

    asyncio.run(run())


def test_nodes_of_one_region_share_its_births_and_all_who_are_there_ask_the_same_one() -> None:
    deployment = two_regions(NodeSpec("west-2", "west", parent="east-1"), NodeSpec("west-3", "west", parent="west-1"))
    homes = [home_of(deployment, name, "west") for name in NAMES]
    assert set(homes) == {"west-1", "west-2", "west-3"}
    assert homes == [home_of(deployment, name, "west") for name in NAMES]
    assert {home_of(deployment, name, "east") for name in NAMES} == {"east-1"}
    alive = [home_of(deployment, name, "west", lambda node: node != Address("west-2")) for name in NAMES]
    assert set(alive) == {"west-1", "west-3"}


def test_topics_that_are_born_one_after_another_are_joined_together(tmp_path: Path) -> None:
    """Each joining costs as much as the subscription is long: whoever bears two hundred topics causes few of them."""
    (port,) = free_ports(1)
    spec = NodeSpec("hub", listen=f"127.0.0.1:{port}", roles=("sequencer", "broker"))
    deployment = Deployment(1, "births", nodes=(spec,), broker=BrokerSpec("embedded"))

    async def run() -> int:
        async with (
            asyncio.timeout(60),
            Node(deployment, "hub", tmp_path, FAST),
            unisono.connect(deployment) as session,
            session.subscribe("b.*") as stream,
        ):
            for number in range(200):
                await session.open_topics([f"b.{number}"])
            while len(stream.bases) < 200:
                await asyncio.sleep(0.01)
            assert stream.host is not None
            assert isinstance(stream.host.machine, OrderingClient)
            return stream.host.machine.subscriber.subscription.version

    assert asyncio.run(run()) <= 25
