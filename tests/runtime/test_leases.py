"""How long a node remembers a client that is away: exactly as long as subscribers believe."""

import asyncio

from tests.runtime.test_cluster import FAST, star
from tests.runtime.test_tokens import introduce
from unisono.model.ids import Address
from unisono.model.time import SECOND
from unisono.runtime.frames import Hello
from unisono.runtime.node import Node
from unisono.runtime.sequencing import sequencer_config


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
