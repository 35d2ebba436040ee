"""No secret leaves: every byte that nodes and clients send, every log line, status, journal and error is searched."""

import asyncio
import logging
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

import unisono
from tests.runtime.hostile.world import CLIENT_TOKEN, NODE_TOKEN, SECURITY
from tests.runtime.test_cluster import FAST
from unisono.errors import UnisonoError
from unisono.model.deployment import Deployment, dump_deployment, for_clients
from unisono.model.settings import ArchiveSpec, BrokerSpec, LogSpec, NodeSpec
from unisono.runtime.brokers.deployed import embedded_endpoint
from unisono.runtime.brokers.nats.codec import normalize
from unisono.runtime.brokers.nats.discovery import discover
from unisono.runtime.links import control
from unisono.runtime.links.dialing import endpoint
from unisono.runtime.links.questions import ask_node
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports

SECRETS = (CLIENT_TOKEN, NODE_TOKEN)


class Tap:
    """Stands before a port and keeps every byte that passes, both ways."""

    def __init__(self, behind: tuple[str, int]) -> None:
        self.bytes = bytearray()
        self._behind = behind
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._behind)
        self._tasks += [
            asyncio.create_task(self._copy(reader, back)),
            asyncio.create_task(self._copy(there, writer)),
        ]

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.bytes += data
                writer.write(data)
        except ConnectionError:
            pass
        writer.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


@pytest.fixture(autouse=True)
def _tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE_CLIENT_TOKEN", CLIENT_TOKEN)
    monkeypatch.setenv("HOSTILE_NODE_TOKEN", NODE_TOKEN)


def found_in(text: bytes | str) -> list[str]:
    data = text.encode() if isinstance(text, str) else bytes(text)
    return [secret for secret in SECRETS if secret.encode() in data]


def test_no_token_is_in_any_byte_log_status_journal_or_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two nodes, an embedded broker and clients talk through taps; a stranger with a wrong token, too."""
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    async def run() -> None:
        hub, below, hub_tap, below_tap, broker_tap = free_ports(5)
        real = Deployment(
            1,
            "taps",
            nodes=(
                NodeSpec("hub", listen=f"127.0.0.1:{hub}", roles=("sequencer", "broker"), data="data"),
                NodeSpec("below", listen=f"127.0.0.1:{below}", parent="hub", data="data"),
            ),
            broker=BrokerSpec("embedded"),
            security=SECURITY,
        )
        # What everybody dials are the taps; each node itself listens where it is said to.
        dialed = msgspec.structs.replace(
            real,
            nodes=(
                msgspec.structs.replace(real.nodes[0], listen=f"127.0.0.1:{hub_tap}"),
                msgspec.structs.replace(real.nodes[1], listen=f"127.0.0.1:{below_tap}"),
            ),
            broker=BrokerSpec("embedded", (f"127.0.0.1:{broker_tap}",)),
        )
        taps = [Tap(endpoint(node.listen)) for node in real.nodes] + [Tap(embedded_endpoint(real))]
        for tap, port in zip(taps, (hub_tap, below_tap, broker_tap)):
            await tap.start(port)
        nodes = [
            Node(real, "hub", tmp_path, FAST),
            Node(msgspec.structs.replace(dialed, nodes=(dialed.nodes[0], real.nodes[1])), "below", tmp_path, FAST),
        ]
        for node in nodes:
            await node.start()
        async with (
            unisono.connect(dialed, token=CLIENT_TOKEN, journal=tmp_path / "journal") as session,
            session.subscribe("trades", "quotes") as stream,
        ):
            await session.publish("trades", 1)
            await session.publish("quotes", 2)
            heard = [await anext(stream), await anext(stream)]
            assert {event.data for event in heard} == {1, 2}
        for place in (dialed.nodes[0].listen, dialed.nodes[1].listen):
            directory = await ask_node(place, CLIENT_TOKEN, control.AskDeployment, control.RunningDeployment)
            report = await ask_node(place, CLIENT_TOKEN, control.AskReport, control.NodeReport)
            shown.append(repr(directory) + repr(report))
            for wrong in (NODE_TOKEN + "x", CLIENT_TOKEN[:-1]):
                with pytest.raises(UnisonoError) as caught:
                    await ask_node(place, wrong, control.AskDeployment, control.RunningDeployment)
                shown.append(str(caught.value))
        for node in reversed(nodes):
            await node.stop()
        for tap in taps:
            await tap.stop()
            assert len(tap.bytes) > 500
            assert found_in(bytes(tap.bytes)) == []

    asyncio.run(run())
    assert found_in("".join(shown)) == []
    assert found_in(caplog.text) == []
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("journal" in str(path) for path in kept)
    assert any("log-" in path.name for path in kept)
    assert [(path, found_in(path.read_bytes())) for path in kept if found_in(path.read_bytes())] == []


def test_credentials_that_only_nodes_need_are_not_told_to_clients() -> None:
    password = f"p{random.Random(1).getrandbits(64):x}"
    url = f"nats://node:{password}@127.0.0.1:4222"
    deployment = Deployment(
        1,
        nodes=(NodeSpec("hub"),),
        log=LogSpec((url,)),
        archive=ArchiveSpec(stream="rows", servers=(url,)),
    )
    told = for_clients(deployment)
    assert password not in dump_deployment(told)
    assert told.log.servers == told.archive.servers == ("nats://127.0.0.1:4222",)


def test_errors_about_addresses_do_not_repeat_their_credentials() -> None:
    attempts: list[Any] = [lambda: normalize("http://me:hush@host:1"), lambda: normalize("nats://me:hush@host:nowhere")]
    for attempt in attempts:
        with pytest.raises(UnisonoError) as caught:
            attempt()
        assert "hush" not in str(caught.value)

    async def nobody() -> None:
        with pytest.raises(UnisonoError) as caught:
            await discover("nats://me:hush@127.0.0.1:1", 0.1)
        assert "hush" not in str(caught.value)
        with pytest.raises(UnisonoError) as caught:
            async with unisono.connect("amqp://me:hush@host"):
                pass
        assert "hush" not in str(caught.value)

    asyncio.run(nobody())
