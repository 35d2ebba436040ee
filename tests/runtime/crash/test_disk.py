"""A full disk under a node: it stops before anything leaves, says so, and issues no number twice afterwards."""

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

import unisono
from tests.runtime.test_session import take
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.runtime.tools.ports import free_ports

UNISONO = (sys.executable, "-c", "from unisono.cli.main import main; main()")
ROOM_BYTES = 48 << 10


def start(file: Path, is_small: bool) -> subprocess.Popen[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES, ROOM_BYTES))

    return subprocess.Popen(
        [*UNISONO, "node", str(file), "n", "--journal", "off"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit if is_small else None,
    )


def test_a_node_with_a_full_disk_stops_and_issues_no_number_twice(tmp_path: Path) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        (port,) = free_ports(1)
        file = tmp_path / "deployment.toml"
        spec = NodeSpec("n", listen=f"127.0.0.1:{port}", roles=("sequencer", "broker"), data="data")
        file.write_text(dump_deployment(Deployment(1, "disk", nodes=(spec,), broker=BrokerSpec("embedded"))))
        node = start(file, is_small=True)
        try:
            async with asyncio.timeout(120), unisono.connect(file, timeout=30) as session:
                publisher = await session.publisher("a")
                sent = 0
                while node.poll() is None:
                    await publisher.send(sent)
                    sent += 1
                    await asyncio.sleep(0.0005)
                assert node.returncode == 2
                assert node.stderr is not None
                assert "File too large" in await loop.run_in_executor(None, node.stderr.read)
                assert publisher.accepted < sent
                node = start(file, is_small=False)
                await publisher.drain()
                # On a busy machine the node may be away for longer than a caller waits; it is asked all the same.
                assert all(isinstance(failure, unisono.Unknown) for failure in publisher.failures)
                assert publisher.accepted + len(publisher.failures) == sent
                async with session.subscribe("a") as stream:
                    await session.publish("a", "last")
                    (event,) = await take(stream, 1)
                    assert event.number == sent + 1
        finally:
            node.kill()
            node.communicate()

    asyncio.run(run())
