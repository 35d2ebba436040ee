"""Attacks by datagram: dropped and counted, nobody is answered with more than he sent, honest clients are served."""

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest

from tests.runtime.hostile.world import SMALL, Target
from tests.runtime.test_cluster import FAST
from unisono.model.deployment import Deployment
from unisono.model.ids import Address, Topic
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.protocols.coded.messages import MemberHello
from unisono.protocols.coded.wire import DIGEST_BYTES, Geometry, Packet, pack
from unisono.runtime.brokers.udp.node import CHALLENGE, CONTROL, COOKIE_BYTES, DATA
from unisono.runtime.links import control
from unisono.runtime.links.questions import ask_node
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports


def packet(sequence: int, rows: int = 1) -> bytes:
    geometry = Geometry(rows, 8, 8 * rows, b"d" * DIGEST_BYTES)
    return pack(Packet(Topic(1), 7, sequence, 0, geometry, bytes([1]) + bytes(rows - 1), b"rowsrows"))


HELLO = msgspec.msgpack.encode(MemberHello(Address("127.0.0.1:9"), Topic(1)))
DATAGRAMS = {
    "noise": b"hello there",
    "nothing": b"",
    "a packet that is cut": packet(1)[:20],
    "a packet of another version": DATA + b"\x63" + packet(1)[3:],
    "a packet with a wrong check": packet(1)[:-1] + b"\x00",
    "a sequence at the end of 64 bits": packet(2**64 - 1),
    "a sequence just outside the range": packet(2**62 + 1),
    "control without a cookie": CONTROL + bytes(COOKIE_BYTES) + HELLO,
    "control with an invented cookie": CONTROL + b"c" * COOKIE_BYTES + HELLO,
    "a challenge that nobody waits for": CHALLENGE + b"c" * COOKIE_BYTES,
    "control in deep nesting": CONTROL + bytes(COOKIE_BYTES) + b"\x91" * 1_000,
}
HARMLESS = ("received", "sent", "peers")


@pytest.mark.parametrize("name", DATAGRAMS)
def test_a_hostile_datagram_is_dropped_and_counted_and_the_node_serves(tmp_path: Path, name: str) -> None:
    async def run() -> None:
        (port,) = free_ports(1)
        deployment = Deployment(
            1,
            "datagrams",
            nodes=(NodeSpec("hub", listen=f"127.0.0.1:{port}", data="data"),),
            broker=BrokerSpec("udp"),
            limits=SMALL,
        )

        async def dropped() -> int:
            report = await ask_node(deployment.nodes[0].listen, "", control.AskReport, control.NodeReport)
            return sum(count for what, count in report.counters["datagrams"].items() if what not in HARMLESS)

        node = Node(deployment, "hub", tmp_path, FAST)
        await node.start()
        try:
            async with asyncio.timeout(60):
                before = await dropped()
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                    stranger.setblocking(False)
                    stranger.connect(("127.0.0.1", port))
                    for _ in range(20):
                        stranger.send(DATAGRAMS[name])
                    while await dropped() < before + 20:
                        await asyncio.sleep(0.01)
                    answered = 0
                    try:
                        while True:
                            answered += len(stranger.recv(65_536))
                    except BlockingIOError:
                        pass
                    assert answered <= 3 * 20 * len(DATAGRAMS[name])
                await Target(deployment, node).serves()
        finally:
            await node.stop()

    asyncio.run(run())
