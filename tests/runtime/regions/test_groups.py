"""Groups of brokers whose members are kept in a bucket: who may act, who stands in for whom, and how a group grows."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.overlay.test_overlay import take, until, url
from tests.runtime.regions.test_regions import role, two_regions
from unisono.errors import MisuseError, TransportError
from unisono.model.deployment import Deployment, dump_deployment, parse_deployment
from unisono.model.settings import MembershipSpec, NodeSpec
from unisono.runtime.node.node import Node, NodeConfig
from unisono.runtime.node.runnable import check_runnable
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

QUICK_S = 0.5


@asynccontextmanager
async def bucket(directory: Path) -> AsyncGenerator[NatsServer, None]:
    server = NatsServer(directory / "nats", NatsServerConfig(jetstream=True, jetstream_sync="2m"))
    await server.start()
    try:
        yield server
    finally:
        server.kill()


def grouped(server: NatsServer) -> Deployment:
    return structs.replace(two_regions(), membership=MembershipSpec((server.url,), 1, QUICK_S))


def knows_all(node: Node, count: int) -> bool:
    return node.failure is None and len(role(node).view.members) == count


def has_looked(node: Node) -> bool:
    """Often enough to know what there is to know."""
    return node.membership is not None and node.membership._beats >= 20


@asynccontextmanager
async def all_of(deployment: Deployment) -> AsyncGenerator[dict[str, Node], None]:
    nodes: dict[str, Node] = {}
    try:
        for spec in deployment.nodes:
            nodes[spec.name] = Node(deployment, spec.name, Path())
        await asyncio.gather(*(node.start() for node in nodes.values()))  # all of them change one view
        await until(lambda: all(knows_all(node, len(nodes)) or has_looked(node) for node in nodes.values()))
        assert [name for name, node in nodes.items() if not knows_all(node, len(nodes))] == []
        await until(lambda: all(role(node).report()["attached"] for node in nodes.values()))
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes.values()))


async def die(node: Node) -> None:
    """As a kill: nothing is said to the bucket."""
    membership, node.membership = node.membership, None
    assert membership is not None
    assert membership._keeper is not None
    membership._keeper.cancel()
    await node.stop()


def test_a_group_that_nobody_keeps_is_refused_at_start() -> None:
    with pytest.raises(MisuseError, match=r"e1, e2 are a group as roots of eu.*\[membership\]"):
        check_runnable(two_regions(), "u2")
    kept = structs.replace(two_regions(), membership=MembershipSpec(("nats://127.0.0.1:4222",)))
    check_runnable(kept, "u2")
    assert parse_deployment(dump_deployment(kept)) == kept


def test_a_broker_that_dies_is_a_member_no_more_and_its_sibling_stands_in(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            bucket(tmp_path) as server,
            all_of(deployment := grouped(server)) as nodes,
            unisono.connect(url(deployment, "e3"), region="eu") as here,
            unisono.connect(url(deployment, "u2"), region="us") as there,
            there.subscribe("trades", order="fifo") as stream,
        ):
            sender = await here.publisher("trades")
            for i in range(30):
                await sender.send({"px": i})
            await take(stream, 10)
            await die(nodes.pop("u2"))
            for i in range(30, 60):
                await sender.send({"px": i})
            await sender.drain()
            assert [told.data["px"] for told in await take(stream, 50)] == list(range(10, 60))
            await until(lambda: role(nodes["u3"]).view.find("u2") is None)
            assert nodes["u3"].failure is None

    asyncio.run(run())


def test_a_second_broker_of_a_living_name_is_refused_and_a_dead_one_is_followed(tmp_path: Path) -> None:
    async def run() -> None:
        async with bucket(tmp_path) as server, all_of(deployment := grouped(server)) as nodes:
            elsewhere = f"127.0.0.1:{free_ports(1)[0]}"
            moved = tuple(structs.replace(n, listen=elsewhere) if n.name == "u2" else n for n in deployment.nodes)
            twin = Node(structs.replace(deployment, nodes=moved), "u2", Path())
            with pytest.raises(MisuseError, match="another broker is 'u2'"):
                await twin.start()
            await twin.stop()
            assert nodes["u2"].failure is None
            await die(nodes.pop("u2"))
            nodes["u2"] = Node(deployment, "u2", Path())
            await nodes["u2"].start()
            await until(lambda: bool(role(nodes["u2"]).report()["attached"]))

    asyncio.run(run())


def test_who_was_taken_for_dead_stops_when_it_finds_out(tmp_path: Path) -> None:
    async def run() -> None:
        async with bucket(tmp_path) as server, all_of(grouped(server)) as nodes:
            membership = nodes["u3"].membership
            assert membership is not None
            await membership.change(lambda view: view.left("u2", (view.find("u2") or membership.me).life))
            theirs = nodes["u2"].membership
            assert theirs is not None
            until_beat = theirs._beats + 5
            await until(lambda: nodes["u2"].failure is not None or theirs._beats >= until_beat)
            assert "a member no more" in str(nodes["u2"].failure)

    asyncio.run(run())


def test_while_the_bucket_is_away_members_go_on_and_nobody_enters(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            bucket(tmp_path) as server,
            all_of(deployment := grouped(server)) as nodes,
            unisono.connect(url(deployment, "e3"), region="eu") as here,
            unisono.connect(url(deployment, "u2"), region="us") as there,
            there.subscribe("trades", order="fifo") as stream,
        ):
            await nodes.pop("u3").stop()
            server.kill()
            late = Node(deployment, "u3", Path(), NodeConfig(broker_patience_s=0.3))
            with pytest.raises(TransportError):
                await late.start()
            await late.stop()
            for i in range(20):
                assert isinstance(await here.publish("trades", {"px": i}), unisono.Accepted)
            assert [told.data["px"] for told in await take(stream, 20)] == list(range(20))
            assert all(node.failure is None for node in nodes.values())

    asyncio.run(run())


def test_a_group_grows_and_a_level_is_put_in_while_events_flow(tmp_path: Path) -> None:
    """New brokers run with a newer file; those that run need not be told, and one that changes its parent restarts."""

    async def run() -> None:
        async with (
            bucket(tmp_path) as server,
            all_of(deployment := grouped(server)) as nodes,
            unisono.connect(url(deployment, "e3"), region="eu") as here,
            unisono.connect(url(deployment, "u2"), region="us") as there,
            there.subscribe("trades", order="fifo") as stream,
        ):
            sender = await here.publisher("trades")
            ports = free_ports(2)
            more = (
                NodeSpec("u4", "us", f"127.0.0.1:{ports[0]}", "u1", ("regions",), observe="off"),
                NodeSpec("mid", "us", f"127.0.0.1:{ports[1]}", "u1", ("regions",), observe="off"),
            )
            newer = tuple(structs.replace(n, parent="mid") if n.name == "u2" else n for n in deployment.nodes)
            larger = structs.replace(deployment, nodes=(*newer, *more))
            for spec in more:
                nodes[spec.name] = Node(larger, spec.name, Path())
                await nodes[spec.name].start()
            await until(lambda: all(role(nodes[name]).report()["attached"] for name in ("u4", "mid")))
            for i in range(30):
                await sender.send({"px": i})
            await nodes["u2"].stop()
            nodes["u2"] = Node(larger, "u2", Path())
            await nodes["u2"].start()
            await until(lambda: role(nodes["u2"]).broker.parent == "mid")
            for i in range(30, 60):
                await sender.send({"px": i})
            await sender.drain()
            assert sender.failures == []
            assert [told.data["px"] for told in await take(stream, 60)] == list(range(60))
            async with (
                unisono.connect(url(deployment, "u1")) as asking,
                asking.subscribe("trades", order="fifo") as at_new,
            ):
                assert "u4" in [node.name for node in asking.deployment.nodes]
                await sender.send({"px": 60})
                assert [told.data["px"] for told in await take(at_new, 1)] == [60]

    asyncio.run(run())


def test_who_connects_before_the_others_know_its_place_is_heard_as_soon_as_they_do(tmp_path: Path) -> None:
    async def run() -> None:
        async with bucket(tmp_path) as server:
            kept = structs.replace(two_regions(), membership=MembershipSpec((server.url,), 1, 5.0))
            nodes = {name: Node(kept, name, Path()) for name in ("u1", "u2")}
            try:
                await nodes["u1"].start()
                await nodes["u2"].start()
                await until(lambda: bool(role(nodes["u2"]).report()["attached"]))
                assert role(nodes["u1"]).view.find("u2") is None
                async with (
                    unisono.connect(url(kept, "u2"), region="us", timeout=20.0) as session,
                    session.subscribe("trades", order="fifo") as stream,
                ):
                    assert isinstance(await session.publish("trades", 1), unisono.Accepted)
                    assert [told.data for told in await take(stream, 1)] == [1]
                assert role(nodes["u1"]).report()["dropped"] == 0
            finally:
                await asyncio.gather(*(node.stop() for node in nodes.values()))

    asyncio.run(run())
