"""Brokers of a causal mesh say on their pages who of them is away."""

import asyncio
import logging

import pytest

from tests.runtime.test_cluster import FAST
from unisono.model.deployment import Deployment
from unisono.model.settings import NodeSpec, Region
from unisono.runtime.node.measuring import metrics
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports

PLACES = ("eu", "us", "jp")


def test_a_broker_that_is_away_is_named_by_all_others_and_nobody_else_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "unisono")

    async def run() -> None:
        nodes = tuple(
            NodeSpec(f"{region}-1", region, f"127.0.0.1:{port}", roles=("causal",))
            for region, port in zip(PLACES, free_ports(3))
        )
        deployment = Deployment(1, "watched", kind="causal", regions=tuple(map(Region, PLACES)), nodes=nodes)
        async with (
            asyncio.timeout(60),
            Node(deployment, "eu-1", config=FAST) as eu,
            Node(deployment, "us-1", config=FAST) as us,
        ):
            assert [peer.node for peer in eu.health().peers] == ["us-1", "jp-1"]

            async def see(node: Node, **up: bool) -> None:
                while {peer.node.partition("-")[0]: peer.up for peer in node.health().peers} != up:
                    await asyncio.sleep(0.02)

            for _ in range(2):
                async with Node(deployment, "jp-1", config=FAST) as jp:
                    await see(eu, us=True, jp=True)
                    await see(us, eu=True, jp=True)
                    await see(jp, eu=True, us=True)
                    assert [node.health().problems() for node in (eu, us, jp)] == [[], [], []]
                await see(eu, us=True, jp=False)
                await see(us, eu=True, jp=False)
                for node in (eu, us):
                    assert [problem.split(":")[0] for problem in node.health().problems()] == ["node jp-1"]
                    assert node.health().is_ready, "it goes on for those it reaches"

            told = [text for record in caplog.records if "is down" in (text := record.getMessage())]
            assert [text.split(":")[0] for text in told] == ["peer jp-1 is down"] * 4, "each of the two, each time"
            up = [line for line in metrics(eu, eu.health()).splitlines() if line.startswith("unisono_peer_up{")]
            assert sorted(up) == ['unisono_peer_up{peer="jp-1"} 0', 'unisono_peer_up{peer="us-1"} 1']

    asyncio.run(run())
