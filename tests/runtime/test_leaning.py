"""Lanes of the clock order lean as what is measured suggests; what is heard stays one order."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.test_by_clock import by_clock
from tests.runtime.test_cluster import FAST, running, star, url
from tests.runtime.test_placing import three_regions
from tests.runtime.test_session import take
from unisono.errors import FormatError, PlanError
from unisono.model.deployment import Deployment, dump_deployment, parse_deployment
from unisono.model.settings import Sequencing, TopicSpec
from unisono.model.time import MILLISECOND, Micros
from unisono.planning.homes import HomesConfig
from unisono.planning.leaning import LeansConfig
from unisono.protocols.clock.deployed import clock_config
from unisono.runtime.node.node import Node

SOON = LeansConfig(period_us=Micros(200 * MILLISECOND), dwell_us=Micros(MILLISECOND))


def leaning() -> Deployment:
    """`busy` is at home in the east, `rare` in the west: who hears both in the east waits for the west."""
    topics = (TopicSpec("busy", home="east-1"), TopicSpec("rare", home="west-1"))
    nodes = tuple(structs.replace(node, data="data") for node in three_regions().nodes)
    return three_regions(nodes=nodes, sequencing=Sequencing(by="clock"), topics=topics)


def leans(node: Node) -> dict[str, int]:
    report = node.report()
    assert report.stamper is not None
    return {lane.topic: lane.lean_us for lane in report.stamper.lanes if lane.lean_us}


def test_a_busy_topic_leans_back_when_its_subscribers_wait_for_a_far_one_and_all_agree(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = leaning()
        soon = structs.replace(FAST, homes=HomesConfig(leans=SOON))
        nodes = {spec.name: Node(deployment, spec.name, tmp_path, soon) for spec in deployment.nodes}
        count = 0
        async with asyncio.timeout(120):
            for node in nodes.values():
                await node.start()
            async with (
                unisono.connect(url(deployment, "east-1"), region="east") as east,
                unisono.connect(url(deployment, "west-1"), region="west") as west,
                east.subscribe("busy", "rare") as one,
                east.subscribe("rare", "busy") as two,
            ):
                with pytest.raises(PlanError, match=r"sequencing\.order"):
                    east.subscribe("busy", order="causal")
                while "busy" not in leans(nodes["east-1"]):
                    await asyncio.gather(*(east.publish("busy", count + i) for i in range(20)))
                    await west.publish("rare", count)
                    count += 20
                assert leans(nodes["east-1"])["busy"] < 0, "who hears `rare` too has to wait for it anyway"
                for _ in range(10):
                    await asyncio.gather(*(east.publish("busy", count + i) for i in range(20)))
                    await west.publish("rare", count)
                    count += 20
                heard = await asyncio.gather(take(one, count + count // 20), take(two, count + count // 20))
                assert [event.id for event in heard[0]] == [event.id for event in heard[1]]
                assert len({event.id for event in heard[0]}) == count + count // 20
                report = (await east.status("hub")).leans
                assert report is not None
                assert (report.leans, report.problem, report.changes > 0) == ("auto", None, True)
            for node in reversed(nodes.values()):
                await node.stop()
            without = structs.replace(deployment, sequencing=Sequencing(by="clock", leans="off"))
            async with running(without, tmp_path) as again:  # leans are durable; what the file says counts
                while leans(again["east-1"]):
                    await asyncio.sleep(0.05)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sequencing", "do_lean"),
    [
        (Sequencing(by="clock"), True),
        (Sequencing(by="clock", leans="off"), False),
        (Sequencing(by="clock", order="causal"), False),
        (Sequencing(by="clock", tolerance_ms=20), False),
        (Sequencing(), False),
    ],
)
def test_lanes_lean_where_nothing_was_asked_for_that_leans_would_break(sequencing: Sequencing, do_lean: bool) -> None:
    deployment = structs.replace(by_clock() if sequencing.by == "clock" else star(), sequencing=sequencing)
    assert parse_deployment(dump_deployment(deployment)) == deployment
    assert deployment.sequencing.leans_lanes is do_lean
    assert clock_config(deployment).causal is not do_lean


def test_leans_are_for_the_clock() -> None:
    with pytest.raises(FormatError, match="leans"):
        parse_deployment(dump_deployment(structs.replace(star(), sequencing=Sequencing(leans="off"))))
