"""A node that is told to stop finishes what has arrived, says so, and is kept from it by nobody for long."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.runtime.crash.test_start import publish, running, write
from tests.runtime.test_cluster import FAST, star
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.runtime.node.node import Node
from unisono.runtime.tools.nats_server import NatsServer
from unisono.runtime.tools.ports import free_ports


@pytest.mark.campaign
def test_sigterm_ends_a_node_whose_broker_does_not_answer(tmp_path: Path) -> None:
    """Its broker is stopped with all connections standing: nothing that waits for it is waited for without end."""

    async def run() -> None:
        nats = NatsServer(tmp_path / "nats")
        await nats.start()
        spec = NodeSpec("n", listen=f"127.0.0.1:{free_ports(1)[0]}", data="data")
        file = write(tmp_path, nodes=(spec,), broker=BrokerSpec("nats", (nats.url,)))
        loop = asyncio.get_running_loop()
        try:
            with running(file) as node:
                async with asyncio.timeout(60):
                    await loop.run_in_executor(None, lambda: asyncio.run(publish(file, 1)))
                nats.pause()
                node.send_signal(signal.SIGTERM)
                await asyncio.wait_for(loop.run_in_executor(None, node.wait), 60)
                assert node.returncode == 0
        finally:
            nats.resume()
            await nats.stop()

    asyncio.run(run())


def test_a_node_that_stops_is_not_ready_any_more(tmp_path: Path) -> None:
    async def run() -> None:
        node = Node(star(data=False), "hub", tmp_path, FAST)
        await node.start()
        async with asyncio.timeout(20):
            while not node.health().is_ready:
                await asyncio.sleep(0.02)
        stopping = asyncio.ensure_future(node.stop())
        await asyncio.sleep(0)
        assert node.health().problems()[0] == "node: is stopping"
        await stopping

    asyncio.run(run())
