"""A port that somebody else has, or that there is not."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.test_links import CODEC, PARENT, sender
from unisono.errors import MisuseError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.runtime.brokers.deployed import embedded_endpoint, embedded_listens
from unisono.runtime.driver.loop import new_loop
from unisono.runtime.links.frames import Hello
from unisono.runtime.links.links import Links
from unisono.runtime.tools.ports import PAGE_ABOVE, free_ports


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


@pytest.mark.skipif(sys.platform != "linux", reason="the range of the system is read where Linux tells it")
def test_ports_of_processes_to_come_are_none_that_the_system_gives_to_whoever_asks_for_any() -> None:
    """A tenth of those may be held by connections that were closed a moment ago."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = free_ports(200)
    own = [each for port in ports for each in (port, port + 1, port + PAGE_ABOVE)]
    assert len(set(own)) == 600
    assert not [port for port in own if low <= port <= high]
