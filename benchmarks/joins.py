"""Joining: messages, bytes and CPU over all processes, by how many topics and sessions.

A node with the embedded broker runs in a process of its own, the sessions here. `at once` is one subscription to all
topics, new ones; `one more` is a further topic for a stream that hears so many already. Letters and bytes are those
between sessions and node, both ways; `log_bytes` is what the node has written.
"""

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any

from ordering.spent import cpu_s

import unisono
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.runtime.client.sequenced import SequencedSession
from unisono.runtime.driver.loop import run as run_loop
from unisono.runtime.tools.ports import free_ports

AT_ONCE = ((10, 1), (100, 1), (1000, 1), (5000, 1), (1000, 2), (100, 20), (10, 200))
ONE_MORE = (100, 200, 400, 1000)
MORE = 10


class Usage:
    """What has been used up to now."""

    def __init__(self, node: Popen[bytes], data: Path, sessions: list[Any]) -> None:
        self.node_s = cpu_s(node.pid)
        self.here_s = time.process_time()
        # without the space that a log has ahead
        self.log = sum(len(file.read_bytes().rstrip(b"\0")) for file in data.rglob("*") if file.is_file())
        self.letters = sum(session.links.counters.sent + session.links.counters.received for session in sessions)
        self.bytes = sum(map(_link_bytes, sessions))

    def since(self, before: "Usage") -> dict[str, float]:
        return {
            "node_cpu_s": round(self.node_s - before.node_s, 3),
            "sessions_cpu_s": round(self.here_s - before.here_s, 3),
            "letters": self.letters - before.letters,
            "link_bytes": self.bytes - before.bytes,
            "log_bytes": self.log - before.log,
        }


@contextmanager
def started_node(directory: Path, nats: str | None = None) -> Iterator[tuple[Deployment, Popen[bytes]]]:
    """A node of its own process, with the embedded broker or on a NATS server, on a disk; its file is
    `deployment.toml` there."""
    port, broker = free_ports(2)
    roles = ("sequencer", "broker") if nats is None else ("sequencer",)
    spec = NodeSpec("hub", "here", f"127.0.0.1:{port}", roles=roles, data="data")
    carries = BrokerSpec("nats", (nats,)) if nats else BrokerSpec("embedded", (f"127.0.0.1:{broker}",))
    deployment = Deployment(1, "bench", nodes=(spec,), broker=carries)
    (directory / "deployment.toml").write_text(dump_deployment(deployment))
    command = [Path(sys.executable).with_name("unisono"), "node", directory / "deployment.toml", "hub"]
    with (directory / "node.log").open("wb") as log:
        node = Popen([*command, "--journal", "off"], stderr=log)
    try:
        yield deployment, node
    finally:
        node.terminate()
        node.wait()


def _link_bytes(session: SequencedSession) -> int:
    """Acknowledged and received, by the kernel's word, on the connections to nodes."""
    total = 0
    for connection in session.links._connections:
        where: socket.socket = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
        info = where.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        total += sum(struct.unpack_from("QQ", info, 120))
    return total


async def _measure() -> list[dict[str, Any]]:
    cases = [(topics, sessions, 0) for topics, sessions in AT_ONCE] + [(topics, 1, MORE) for topics in ONE_MORE]
    return [await _in_a_world(*case) for case in cases]


async def _in_a_world(topics: int, sessions: int, more: int) -> dict[str, Any]:
    Path("out").mkdir(exist_ok=True)
    with TemporaryDirectory(dir="out", prefix="bench-joins-") as name:
        directory = Path(name).absolute()
        with started_node(directory) as (deployment, node):
            async with AsyncExitStack() as stack:
                return await _join(deployment, node, directory / "data", topics, sessions, more, stack)


async def _join(
    deployment: Deployment, node: Popen[bytes], data: Path, topics: int, count: int, more: int, stack: AsyncExitStack
) -> dict[str, Any]:
    sessions: list[Any] = [
        await stack.enter_async_context(unisono.connect(deployment, timeout=600)) for _ in range(count)
    ]
    for session in sessions:
        await session.open_topics(["warm"])  # the node is up, and connected
    names = [f"t{i}" for i in range(topics)]
    before, began = Usage(node, data, sessions), time.monotonic()

    async def subscribe(session: Any) -> Any:
        return await stack.enter_async_context(session.subscribe(*names))

    streams = [await subscribe(session) for session in sessions]
    case = f"{count} x {topics} topics at once"
    if more:
        before, began = Usage(node, data, sessions), time.monotonic()
        for i in range(more):
            await streams[0].subscribe(f"more{i}")
        case = f"one more than {topics} topics"
    span = time.monotonic() - began
    await asyncio.sleep(0.3)  # what is acknowledged last
    used = Usage(node, data, sessions).since(before)
    per = more or 1
    row: dict[str, Any] = {"case": case, "wall_s": round(span / per, 3)}
    row |= {key: round(value / per, 4) for key, value in used.items()}
    row["cpu_us_per_topic_and_session"] = round(
        (used["node_cpu_s"] + used["sessions_cpu_s"]) / per / (count * topics) * 1e6, 1
    )
    return row


def run() -> list[dict[str, Any]]:
    return run_loop(_measure())
