"""How long a node remembers a client that is away: exactly as long as subscribers believe."""

import asyncio
from pathlib import Path

from tests.runtime.test_cluster import FAST, star
from tests.runtime.test_tokens import introduce
from unisono.model.ids import Address
from unisono.model.time import SECOND
from unisono.protocols.naming import messages as naming
from unisono.protocols.sequencer.deployed import sequencer_config
from unisono.protocols.sequencer.messages import Install
from unisono.runtime.links.frames import Hello
from unisono.runtime.node.node import Node


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be moved on; everything that became due meanwhile happens then."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s


def test_a_client_is_forgotten_after_the_lease_that_subscribers_count_on_and_not_before() -> None:
    deployment = star(data=False)
    lease_s = sequencer_config(deployment).subscriber_lease_us / SECOND
    client = Address("away")

    async def stay_away(node: Node, seconds: float) -> str:
        """What the node says to a client that was gone for so long."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        while node.links.is_up(client):
            await asyncio.sleep(0)
        loop.skipped_s += seconds
        for _ in range(2):  # what is due comes after us in the first turn
            await asyncio.sleep(0)
        return await introduce(deployment, Hello("client", (client,)))

    async def run() -> None:
        async with Node(deployment, "hub", config=FAST) as node:
            assert await introduce(deployment, Hello("client", (client,))) == ""
            for _ in range(2):  # coming back begins a new lease
                assert await stay_away(node, lease_s * 3 / 4) == ""
            assert "forgotten" in await stay_away(node, lease_s)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(run())


def test_a_client_that_a_restart_finds_in_the_log_is_forgotten_after_its_lease(tmp_path: Path) -> None:
    """Nobody has seen its connection end. When it comes after all it is turned away, also by the node's next life."""
    deployment = star()
    lease_s = sequencer_config(deployment).subscriber_lease_us / SECOND

    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        async with Node(deployment, "hub", tmp_path, FAST) as node:
            host, manager = node.host, node.sequencer.ordering.machine if node.sequencer is not None else None
            assert host is not None
            assert manager is not None
            host.post(naming.OpenTopics(Address("away"), 1, ("mine",)))
            await host.settle()
            (topic,) = manager.hosted
            host.post(Install(Address("away/1"), 1, (topic,), (topic,)))
            await host.settle()
            assert manager.clients() == ["away/1"]
        async with Node(deployment, "hub", tmp_path, FAST) as node:
            assert node.sequencer is not None
            manager = node.sequencer.ordering.machine
            assert manager.clients() == ["away/1"]
            loop.skipped_s += lease_s * 3 / 4
            for _ in range(3):
                await asyncio.sleep(0)
            assert manager.clients() == ["away/1"], "until then it may count on us"
            loop.skipped_s += lease_s
            for _ in range(1000):
                await asyncio.sleep(0)
            assert manager.clients() == []
        async with Node(deployment, "hub", tmp_path, FAST):
            assert "forgotten" in await introduce(deployment, Hello("client", (Address("away"),)))
            assert await introduce(deployment, Hello("client", (Address("new"),))) == ""

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(run())
