"""Brokers of regions say on their pages who of those that they have links with is away."""

import asyncio

from tests.runtime.test_cluster import FAST
from unisono.model.deployment import Deployment
from unisono.model.settings import NodeSpec, Region
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports


def test_a_root_that_is_away_is_named_by_the_other_and_back_when_it_is() -> None:
    async def run() -> None:
        nodes = tuple(
            NodeSpec(f"{region}-1", region, f"127.0.0.1:{port}", roles=("regions",))
            for region, port in zip(("eu", "us"), free_ports(2))
        )
        deployment = Deployment(1, "watched", kind="regions", regions=(Region("eu"), Region("us")), nodes=nodes)
        async with asyncio.timeout(60), Node(deployment, "eu-1", config=FAST) as eu:

            async def sees(up: bool) -> None:
                while [(peer.node, peer.up) for peer in eu.health().peers] != [("us-1", up)]:
                    await asyncio.sleep(0.02)

            await sees(up=False)
            for _ in range(2):
                async with Node(deployment, "us-1", config=FAST) as us:
                    await sees(up=True)
                    assert eu.health().problems() == []
                    assert [peer.node for peer in us.health().peers] == ["eu-1"]
                await sees(up=False)
                assert [problem.split(":")[0] for problem in eu.health().problems()] == ["node us-1"]
                assert eu.health().is_ready, "it goes on for those it reaches"

    asyncio.run(run())
