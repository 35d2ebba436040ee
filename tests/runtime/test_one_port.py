"""A port that somebody else has, or that there is not."""

import asyncio
from collections.abc import Callable

import pytest

from tests.runtime.test_links import CODEC, PARENT, sender
from unisono.errors import MisuseError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.runtime.brokers.deployed import embedded_endpoint, embedded_listens
from unisono.runtime.driver.loop import new_loop
from unisono.runtime.links.frames import Hello
from unisono.runtime.links.links import Links


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, new_loop])
def test_of_two_that_took_one_port_before_either_listened_the_second_is_told(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def run() -> None:
        links = Links(Hello("node", (PARENT,)), CODEC, lambda _: None, sender, lambda _: None, lambda *_: None)
        port = await links.bind("127.0.0.1", 0)
        async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", port):
            with pytest.raises(TransportError, match="in use"):
                await links.serve()
        await links.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


def test_an_embedded_broker_has_no_room_above_the_last_port() -> None:
    spec = NodeSpec("n", listen="127.0.0.1:65535", roles=("sequencer", "broker"))
    last = Deployment(1, "last", nodes=(spec,), broker=BrokerSpec("embedded"))
    for where in (embedded_listens, embedded_endpoint):
        with pytest.raises(MisuseError, match="65534 or less"):
            where(last)
