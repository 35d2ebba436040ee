"""Strangers that take all open files a process may have."""

import asyncio
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import unisono
from tests.runtime.crash.test_disk import UNISONO
from tests.runtime.hostile.world import SMALL, Attacker, broker_frame, target
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.ids import Address
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.runtime.brokers.deployed import embedded_endpoint
from unisono.runtime.brokers.embedded import server as wire
from unisono.runtime.links import connection
from unisono.runtime.links.frames import Hello, encode_frame
from unisono.runtime.links.links import TURNED_AWAY_MAX
from unisono.runtime.tools.ports import free_ports

GIVEN, ALLOWED = 256, 512
"""Open files of the node's process, as it is started and as it may ask for."""
KEPT = 100
"""That are free all the same."""


async def take_all(place: tuple[str, int], hello: Callable[[str], bytes]) -> list[Attacker]:
    """More connections than the process may have files, of those who introduce themselves."""
    many: list[Attacker] = []
    for number in range(ALLOWED):
        one = Attacker(*await asyncio.open_connection(*place))
        many.append(one)
        await one.send(hello(f"m{number}"))
    return many


def client(name: str) -> bytes:
    return encode_frame(Hello("client", (Address(name),)))


def of_the_broker(name: str) -> bytes:
    return broker_frame(wire.Greet(name))


def test_whoever_takes_all_connections_leaves_a_node_the_files_it_needs(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    spec = NodeSpec("hub", listen=f"127.0.0.1:{port}", roles=("sequencer", "broker", "archive"), data="data")
    deployment = Deployment(1, "files", nodes=(spec,), broker=BrokerSpec("embedded"))
    file = tmp_path / "deployment.toml"
    file.write_text(dump_deployment(deployment))
    node = subprocess.Popen(
        [*UNISONO, "node", str(file), "hub", "--observe", "off"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (GIVEN, ALLOWED)),
    )

    async def run() -> None:
        async with asyncio.timeout(60), unisono.connect(deployment, timeout=30) as session:
            assert isinstance(await session.publish("trades", 1), unisono.Accepted)
            many = await take_all(("127.0.0.1", port), client)
            many += await take_all(embedded_endpoint(deployment), of_the_broker)
            taken = len(os.listdir(f"/proc/{node.pid}/fd"))
            assert GIVEN < taken <= ALLOWED - KEPT
            assert isinstance(await session.publish("trades", 2), unisono.Accepted)
            many.append(Attacker(*await asyncio.open_connection("127.0.0.1", port)))
            assert await many[-1].is_told("connections")
            for one in many:
                one.close()
            async with session.subscribe("trades", start="earliest") as stream:
                assert [(await anext(stream)).data for _ in range(2)] == [1, 2]

    try:
        asyncio.run(run())
    finally:
        node.terminate()
        _, said = node.communicate(timeout=30)
    assert f"may have {ALLOWED} files open" in said
    assert "Too many open files" not in said, said
    assert node.returncode == 0


def test_of_those_for_whom_there_is_no_room_a_few_may_stay_to_read_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_LINGER_S", 60.0)

    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node:
            inside: list[Attacker] = []
            while len(node.node.links._accepted) < SMALL.connections_max:
                inside.append(Attacker(*await asyncio.open_connection(*node.place)))
                await inside[-1].enter(f"m{len(inside)}")
            many = [Attacker(*await asyncio.open_connection(*node.place)) for _ in range(3 * TURNED_AWAY_MAX)]
            for one in many[TURNED_AWAY_MAX:]:
                assert await one.body() is not None
                assert await one.body() is None
            assert len(node.node.links._turned_away) == TURNED_AWAY_MAX
            for one in (*inside, *many):
                one.close()

    asyncio.run(run())
