"""Sequencers over the brokers of regions: one deployment, nodes with both roles, orders side by side."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.overlay.test_overlay import take, until, url
from tests.runtime.regions.test_regions import role, running, two_regions
from unisono.errors import FormatError
from unisono.model.deployment import Deployment, dump_deployment, parse_deployment
from unisono.model.homes import sequencing_part
from unisono.runtime.client.regions import RegionsSession
from unisono.runtime.node.node import Node


def ordered_regions(**how: float) -> Deployment:
    """As `two_regions`; the roots of eu and us, and a broker below the latter, are sequencers, too."""
    plain = two_regions(**how)
    both = ("regions", "sequencer")
    nodes = tuple(structs.replace(n, roles=both) if n.name in ("e1", "u1", "u3") else n for n in plain.nodes)
    return structs.replace(plain, name="ordered", nodes=nodes)


def test_subscribers_of_two_topics_agree_on_one_order_over_brokers_of_regions() -> None:
    async def run() -> None:
        deployment = ordered_regions()
        async with (
            running(deployment),
            unisono.connect(url(deployment, "e3"), region="eu") as here,
            unisono.connect(url(deployment, "u2"), region="us") as there,
            here.subscribe("trades", "quotes", order="total") as eu,
            there.subscribe("quotes", "trades", order="total") as us,
            there.subscribe("trades", order="fifo", where="px >= 30") as high,
        ):
            outcomes = await asyncio.gather(
                *(
                    session.publish(topic, {"px": i})
                    for i in range(40)
                    for session in (here, there)
                    for topic in ("trades", "quotes")
                )
            )
            assert all(isinstance(outcome, unisono.Accepted) for outcome in outcomes)
            first, second = await take(eu, 160), await take(us, 160)
            assert [(e.topic, e.id) for e in first] == [(e.topic, e.id) for e in second]
            natively = await take(high, 20)
            numbered = {e.id: e.data for e in first if e.topic == "trades"}
            assert {e.id: e.data for e in natively} == {name: d for name, d in numbered.items() if d["px"] >= 30}
            for publisher in {e.id.rpartition(":")[0] for e in natively}:
                assert [e.data["px"] for e in natively if e.id.rpartition(":")[0] == publisher] == list(range(30, 40))

    asyncio.run(run())


def test_a_total_order_goes_on_when_a_broker_between_dies() -> None:
    async def run() -> None:
        deployment = ordered_regions()
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "e3"), region="eu") as here,
            unisono.connect(url(deployment, "u2"), region="us") as there,
            here.subscribe("trades", order="total") as eu,
            there.subscribe("trades", order="total") as us,
        ):
            sender = await here.publisher("trades")
            for i in range(30):
                await sender.send({"n": i})
            await take(us, 10)
            await nodes["u2"].stop()
            for i in range(30, 60):
                await sender.send({"n": i})
            nodes["u2"] = Node(deployment, "u2", Path())
            await nodes["u2"].start()
            await sender.drain()
            assert sender.failures == []
            assert [told.data["n"] for told in await take(eu, 60)] == list(range(60))
            assert [told.data["n"] for told in await take(us, 50)] == list(range(10, 60))

    asyncio.run(run())


def test_what_is_numbered_goes_directly_to_who_is_close_enough() -> None:
    async def run() -> None:
        deployment = ordered_regions(discovery_s=0.3, psi=0.2)
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "e3"), region="eu") as here,
            unisono.connect(url(deployment, "u2"), region="us") as there,
            there.subscribe("trades", order="total") as stream,
        ):
            assert isinstance(here, RegionsSession)
            sender = await here.publisher("trades", advertise="px between 0 and 99")
            sent = 0
            async with asyncio.timeout(60):
                while "u2" not in here.entourage().targets:
                    await sender.send({"px": sent % 100})
                    sent += 1
                    await asyncio.sleep(0.02)
            await until(lambda: bool(role(nodes["u2"]).direct()))
            for _ in range(30):
                await sender.send({"px": sent % 100})
                sent += 1
            await sender.drain()
            assert [told.data["px"] for told in await take(stream, sent)] == [n % 100 for n in range(sent)]

    asyncio.run(run())


def test_sequencers_of_regions_are_one_tree_whatever_the_brokers_draw() -> None:
    part = sequencing_part(ordered_regions())
    assert {node.name: node.parent for node in part.nodes} == {"e1": None, "u1": "e1", "u3": "u1"}


def test_a_deployment_with_both_roles_is_written_and_read_back_and_names_no_other_broker() -> None:
    deployment = ordered_regions()
    text = dump_deployment(deployment)
    assert parse_deployment(text) == deployment
    assert parse_deployment(text.replace('kind = "regions"\n', "")) == deployment
    with pytest.raises(FormatError, match="role regions, too"):
        parse_deployment(text.replace('["regions", "sequencer"]', '["sequencer"]'))
