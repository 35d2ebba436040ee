"""A node whose data is older than what it told others: it notices, numbers nothing more, and says what to do."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.crash.data_faults import written_bytes
from tests.runtime.crash.test_start import UNISONO
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.settings import BrokerSpec, NodeSpec, OrderedBy, Sequencing, TopicSpec
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports


class World:
    """Nodes as processes, over a broker of their own or a NATS server."""

    def __init__(self, directory: Path, deployment: Deployment) -> None:
        self.directory, self.deployment = directory, deployment
        self.file = directory / "deployment.toml"
        self.file.write_text(dump_deployment(deployment))
        self.nodes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, *options: str) -> None:
        command = [*UNISONO, "node", str(self.file), name, "--journal", "off", *options]
        self.nodes[name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def kill(self, name: str) -> None:
        node = self.nodes.pop(name)
        node.kill()
        node.communicate()

    def data(self, name: str) -> Path:
        return self.directory / "data" / name

    async def ended(self, name: str) -> tuple[int, str]:
        """Exit status of a node that ends by itself, and what it said."""
        node = self.nodes.pop(name)
        try:
            async with asyncio.timeout(60):
                said = (await asyncio.get_running_loop().run_in_executor(None, node.communicate))[1]
        finally:
            node.kill()
        return node.returncode, said


@asynccontextmanager
async def world(directory: Path, broker: str, names: tuple[str, ...], by: OrderedBy = "tree") -> AsyncIterator[World]:
    nats = NatsServer(directory / "nats", NatsServerConfig())
    if broker == "nats":
        await nats.start()
    ports = free_ports(len(names) + 1)
    nodes = tuple(
        NodeSpec(name, listen=f"127.0.0.1:{port}", parent=None if name == names[0] else names[0], data="data")
        for name, port in zip(names, ports, strict=False)
    )
    spec = BrokerSpec("nats", (nats.url,)) if broker == "nats" else BrokerSpec("embedded", (f"127.0.0.1:{ports[-1]}",))
    if broker == "embedded":
        nodes = (structs.replace(nodes[0], roles=("sequencer", "broker")), *nodes[1:])
    topics = tuple(TopicSpec(f"of-{name}", name) for name in names)
    made = World(
        directory, Deployment(1, "forgotten", nodes=nodes, topics=topics, broker=spec, sequencing=Sequencing(by=by))
    )
    try:
        for name in names:
            made.start(name)
        yield made
    finally:
        for name in list(made.nodes):
            made.kill(name)
        if broker == "nats":
            nats.kill()


def connected(made: World) -> unisono.Session:
    return unisono.connect(made.file, timeout=60)


async def publish(session: unisono.Session, topic: str, count: int) -> None:
    for number in range(count):
        assert isinstance(await session.publish(topic, number), unisono.Accepted)


async def ended_first(made: World, name: str, session: unisono.Session) -> tuple[int, str]:
    """How a node ended, which must not have accepted anything before."""
    ended = asyncio.create_task(made.ended(name))
    publishing = asyncio.create_task(session.publish(f"of-{name}", "after"))
    try:
        await asyncio.wait((ended, publishing), return_when=asyncio.FIRST_COMPLETED)
        assert ended.done(), "it has accepted an event"
        return ended.result()
    finally:
        ended.cancel()
        publishing.cancel()


def spoil(data: Path, backup: Path, how: str) -> None:
    """Makes a directory older than it was."""
    if how == "emptied":
        shutil.rmtree(data)
    elif how == "rolled back":
        shutil.rmtree(data)
        shutil.copytree(backup, data)
    else:
        (log,) = data.glob("log-*")
        os.truncate(log, written_bytes(backup / log.name))


@pytest.mark.parametrize(
    ("broker", "how"),
    [
        ("embedded", "rolled back"),
        pytest.param("embedded", "truncated", marks=pytest.mark.campaign),
        pytest.param("embedded", "emptied", marks=pytest.mark.campaign),
        pytest.param("nats", "rolled back", marks=pytest.mark.campaign),
        pytest.param("nats", "truncated", marks=pytest.mark.campaign),
        pytest.param("nats", "emptied", marks=pytest.mark.campaign),
    ],
)
def test_a_node_that_a_client_remembers_better_stops(tmp_path: Path, broker: str, how: str) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), world(tmp_path, broker, ("n",)) as made, connected(made) as session:
            await publish(session, "of-n", 3)
            shutil.copytree(made.data("n"), tmp_path / "backup")
            await publish(session, "of-n", 3)
            made.kill("n")
            spoil(made.data("n"), tmp_path / "backup", how)
            made.start("n")
            code, said = await ended_first(made, "n", session)
            assert code == 2
            assert "node n has forgotten what it told others" in said
            assert said.rstrip().endswith("unisono node FILE n --new-incarnation")

    asyncio.run(run())


@pytest.mark.parametrize("victim", [pytest.param("hub", marks=pytest.mark.campaign), "leaf"])
def test_the_newest_data_put_back_is_welcome(tmp_path: Path, victim: str) -> None:
    """What the node said with older data, before it noticed, is held against nobody."""

    async def run() -> None:
        async with asyncio.timeout(120), world(tmp_path, "nats", ("hub", "leaf")) as made, connected(made) as session:
            await publish(session, f"of-{victim}", 3)
            shutil.copytree(made.data(victim), tmp_path / "backup")
            await publish(session, f"of-{victim}", 3)
            made.kill(victim)
            shutil.copytree(made.data(victim), tmp_path / "newest")
            spoil(made.data(victim), tmp_path / "backup", "emptied")
            made.start(victim)
            assert (await ended_first(made, victim, session))[0] == 2
            shutil.rmtree(made.data(victim), ignore_errors=True)
            shutil.copytree(tmp_path / "newest", made.data(victim))
            made.start(victim)
            await publish(session, f"of-{victim}", 3)

    asyncio.run(run())


@pytest.mark.parametrize("victim", ["hub", pytest.param("leaf", marks=pytest.mark.campaign)])
def test_a_node_that_only_its_neighbour_remembers_better_stops(tmp_path: Path, victim: str) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), world(tmp_path, "nats", ("hub", "leaf")) as made:
            async with (
                connected(made) as session,
                session.subscribe("of-hub", "of-leaf"),
                session.subscribe("of-hub", "of-leaf"),
            ):
                await publish(session, "of-leaf", 3)
                shutil.copytree(made.data(victim), tmp_path / "backup")
                await publish(session, "of-leaf", 3)
                await publish(session, "of-hub", 3)
            # The other is killed as well: what it knows must be on its disk, not in its head.
            for name in ("hub", "leaf"):
                made.kill(name)
            spoil(made.data(victim), tmp_path / "backup", "rolled back")
            for name in ("hub", "leaf"):
                made.start(name)
            code, said = await made.ended(victim)
            assert code == 2
            assert f"node {victim} has forgotten" in said

    asyncio.run(run())


@pytest.mark.campaign
def test_a_node_that_has_lost_nothing_goes_on_whoever_reminds_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(120),
            world(tmp_path, "embedded", ("n",)) as made,
            connected(made) as session,
            connected(made) as old,
        ):
            await publish(old, "of-n", 1)
            for _ in range(3):
                await publish(session, "of-n", 2)
                made.kill("n")
                made.start("n")
            await publish(session, "of-n", 1)
            await publish(old, "of-n", 1)

    asyncio.run(run())
