"""Regions of real nodes on loopback sockets: filters, direct connections, crashes of brokers, what is refused."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import unisono
from tests.runtime.overlay.test_overlay import take, until, url
from unisono.errors import FormatError
from unisono.model.deployment import Deployment, dump_deployment, parse_deployment
from unisono.model.settings import EntourageSpec, NodeSpec, Region
from unisono.runtime.client.regions import RegionsSession
from unisono.runtime.node.content.regions import RegionsRole
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports


def two_regions(**how: float) -> Deployment:
    """In eu two roots and a broker below the first, in us a root and two brokers below it."""
    plan = [("e1", "eu", None), ("e2", "eu", None), ("e3", "eu", "e1")]
    plan += [("u1", "us", None), ("u2", "us", "u1"), ("u3", "us", "u1")]
    nodes = tuple(
        NodeSpec(name, region, f"127.0.0.1:{port}", parent, ("regions",), observe="off")
        for (name, region, parent), port in zip(plan, free_ports(len(plan)), strict=True)
    )
    entourage = EntourageSpec(**{"discovery_s": 0.0, **how})
    return Deployment(1, "two", kind="regions", regions=(Region("eu"), Region("us")), nodes=nodes, entourage=entourage)


def role(node: Node) -> RegionsRole:
    assert isinstance(node.overlay, RegionsRole)
    return node.overlay


def is_linked(nodes: dict[str, Node]) -> bool:
    return all(role(node).report()["attached"] and not role(node).broker.waiting for node in nodes.values())


@asynccontextmanager
async def running(deployment: Deployment) -> AsyncGenerator[dict[str, Node], None]:
    nodes: dict[str, Node] = {}
    try:
        for spec in deployment.nodes:
            nodes[spec.name] = Node(deployment, spec.name, Path())
            await nodes[spec.name].start()
        await until(lambda: is_linked(nodes))
        yield nodes
    finally:
        for node in nodes.values():
            await node.stop()


def test_subscribers_get_what_their_filters_select_in_every_publishers_order() -> None:
    async def run() -> None:
        deployment = two_regions()
        async with (
            running(deployment),
            unisono.connect(url(deployment, "e3"), region="eu") as here,
            unisono.connect(url(deployment, "u2"), region="us") as there,
            there.subscribe("trades", "quotes", order="fifo", where="px >= 50") as high,
            here.subscribe("trades", order="fifo", where="px < 60") as low,
        ):
            senders = [await session.publisher("trades") for session in (here, there)]
            for i in range(100):
                await senders[i % 2].send({"px": i})
            for sender in senders:
                await sender.drain()
                assert sender.failures == []
            for stream, wanted in ((high, range(50, 100)), (low, range(60))):
                got = [told.data["px"] for told in await take(stream, len(wanted))]
                assert sorted(got) == list(wanted)
                for first in (0, 1):
                    assert [px for px in got if px % 2 == first] == [px for px in wanted if px % 2 == first]

    asyncio.run(run())


def test_a_publisher_connects_directly_to_whom_it_finds_and_nothing_is_missed() -> None:
    async def run() -> None:
        deployment = two_regions(discovery_s=0.3, psi=0.2)
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "e3"), region="eu") as here,
            unisono.connect(url(deployment, "u2"), region="us") as there,
            there.subscribe("trades", order="fifo", where="px >= 10") as stream,
        ):
            assert isinstance(here, RegionsSession)
            sender = await here.publisher("trades", advertise="px between 0 and 99")
            for i in range(50):
                await sender.send({"px": i % 100})
            async with asyncio.timeout(60):
                while not here.entourage().targets:
                    await sender.send({"px": 5})
                    await asyncio.sleep(0.02)
            assert here.entourage().targets == ("u2",)
            await until(lambda: bool(role(nodes["u2"]).direct()))
            before = role(nodes["u1"]).broker.counters.accepted
            for i in range(50, 100):
                await sender.send({"px": i})
            await sender.drain()
            got = [told.data["px"] for told in await take(stream, 90)]
            assert got == list(range(10, 100))
            assert role(nodes["u1"]).broker.counters.accepted - before <= 50
            assert "connections" in here.entourage().reason
            (told,) = role(nodes["e3"]).entourages().items()
            assert told[1] == 1
            assert told[0].endswith(here.entourage().reason)
            reckoned = here.entourage().copy_us
            here.door.measure()
            await until(lambda: here.entourage().copy_us != reckoned)
            assert 0 < here.entourage().copy_us < 1_000_000

    asyncio.run(run())


@pytest.mark.parametrize("victim", ["u2", "u1", "e3"])
def test_a_broker_that_dies_costs_nobody_an_event(victim: str) -> None:
    async def run() -> None:
        deployment = two_regions()
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "e3"), region="eu") as here,
            unisono.connect(url(deployment, "u2"), region="us") as there,
            there.subscribe("trades", order="fifo") as stream,
        ):
            sender = await here.publisher("trades")
            for i in range(30):
                await sender.send({"px": i})
            await take(stream, 10)
            await nodes[victim].stop()
            for i in range(30, 60):
                await sender.send({"px": i})
            if victim == "u1":  # the only root of its region
                nodes[victim] = Node(deployment, victim, Path())
                await nodes[victim].start()
            await sender.drain()
            assert sender.failures == []
            got = [told.data["px"] for told in await take(stream, 50)]
            assert got == list(range(10, 60))

    asyncio.run(run())


def test_what_regions_cannot_promise_is_refused_with_the_kind_that_can() -> None:
    async def run() -> None:
        deployment = two_regions()
        async with running(deployment), unisono.connect(url(deployment, "e1")) as session:
            for wish, words in (
                ({"order": "total"}, '"regions", "sequencer"'),
                ({"order": "causal"}, 'kind = "sequencer"'),
                ({"order": "fifo", "reliability": "reliable"}, "archive"),
                ({"order": "fifo", "deadline": "1s"}, "deadline"),
            ):
                with pytest.raises(unisono.PlanError, match=words):
                    async with session.subscribe("trades", **wish):  # type: ignore[arg-type]
                        pass
            for publishes in (session.publish("trades.>", 1), session.publisher("trades.>")):
                with pytest.raises(unisono.MisuseError, match="'>' is not a word"):
                    await publishes

    asyncio.run(run())


def test_a_deployment_of_regions_is_written_and_read_back() -> None:
    deployment = two_regions(psi=0.25, discovery_s=5.0)
    assert parse_deployment(dump_deployment(deployment)) == deployment
    for wrong, words in (
        ("psi = 0.25", "psi = 2.5"),
        ("psi = 0.25", "bandwidth_bytes_per_s = -1.0"),
        ('parent = "u1"', 'parent = "e1"'),
    ):
        with pytest.raises(FormatError):
            parse_deployment(dump_deployment(deployment).replace(wrong, words))
