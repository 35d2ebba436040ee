"""Starting a node, as processes: one process per data directory, the right directory, and every failure ends it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

import unisono
from tests.runtime.test_session import take
from unisono.model.deployment import Deployment, dump_deployment, load_deployment
from unisono.model.ids import Address
from unisono.model.settings import BrokerSpec, LogSpec, NodeSpec, Sequencing
from unisono.model.time import Micros
from unisono.protocols.naming import messages as naming
from unisono.runtime.driver.data_directory import DataDirectory, Identity
from unisono.runtime.driver.log import FileLog, LogConfig
from unisono.runtime.links import control
from unisono.runtime.node.node import Node, NodeConfig
from unisono.runtime.node.ordering import TREE_LOG
from unisono.runtime.tools.ports import free_ports
from unisono.turns import Logged

UNISONO = (sys.executable, "-c", "from unisono.cli.main import main; main()")


def write(directory: Path, name: str = "start", **changes: object) -> Path:
    """A deployment of one node, in a file."""
    (port,) = free_ports(1)
    spec = NodeSpec("n", listen=f"127.0.0.1:{port}", roles=("sequencer", "broker"), data="data")
    broker = BrokerSpec("embedded", (f"127.0.0.1:{free_ports(1)[0]}",))
    deployment = structs.replace(Deployment(1, name, nodes=(spec,), broker=broker), **changes)
    file = directory / f"{name}.toml"
    file.write_text(dump_deployment(deployment))
    return file


def start(file: Path, *options: str) -> subprocess.Popen[str]:
    command = [*UNISONO, "node", str(file), "n", "--journal", "off", *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@contextmanager
def running(file: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A node that serves; killed in the end if it still runs."""
    node = start(file, *options)
    try:
        assert node.stderr is not None
        said = [node.stderr.readline()]
        while said[-1] and "listens on port" not in said[-1]:
            said.append(node.stderr.readline())
        assert said[-1], said
        yield node
    finally:
        node.kill()
        node.communicate()


def refused(file: Path, *options: str) -> str:
    """What a node says that cannot start: one line, exit 2."""
    node = start(file, *options)
    assert node.stderr is not None
    try:
        said = node.stderr.readline()
        assert said.startswith("unisono: "), said
        said += node.communicate(timeout=60)[1]
    finally:
        node.kill()
        node.wait()
    assert (node.returncode, said.count("\n")) == (2, 1), said
    return said


async def publish(file: Path, *data: int) -> None:
    async with unisono.connect(file, timeout=30) as session:
        for item in data:
            assert isinstance(await session.publish("a", item), unisono.Accepted)


async def next_number(file: Path) -> int:
    async with unisono.connect(file, timeout=30) as session, session.subscribe("a") as stream:
        await session.publish("a", "next")
        (event,) = await take(stream, 1)
        assert event.number is not None
        return event.number


@pytest.mark.parametrize("port", [pytest.param("same", marks=pytest.mark.campaign), "other"])
def test_a_second_process_on_the_same_data_is_refused_and_the_first_loses_nothing(tmp_path: Path, port: str) -> None:
    file = write(tmp_path)
    second = file
    if port == "other":
        spec = load_deployment(file).nodes[0]
        moved = structs.replace(spec, listen=f"127.0.0.1:{free_ports(1)[0]}")
        second = write(tmp_path / "..", "start", nodes=(structs.replace(moved, data=str(tmp_path / "data")),))
    with running(file) as first:
        asyncio.run(publish(file, *range(10)))
        assert f"is in use by process {first.pid}" in refused(second)
        asyncio.run(publish(file, *range(10)))
        first.send_signal(signal.SIGKILL)
        first.wait()
    with running(file):
        assert asyncio.run(next_number(file)) == 21


def test_the_data_of_another_deployment_or_node_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path)
    with running(file):
        asyncio.run(publish(file, 1))
    assert "belongs to node 'n' of deployment 'start'" in refused(write(tmp_path, "elsewhere"))
    (tmp_path / "data" / "n").rename(tmp_path / "data" / "m")
    deployment = load_deployment(file)
    renamed = structs.replace(deployment, nodes=(structs.replace(deployment.nodes[0], name="m"),))
    file.write_text(dump_deployment(renamed))
    with pytest.raises(unisono.UnisonoError, match="belongs to node 'n'"):
        asyncio.run(start_and_stop(renamed, "m", tmp_path))
    (tmp_path / "data" / "m" / "IDENTITY").unlink()
    with pytest.raises(unisono.UnisonoError, match="nobody knows whose it is"):
        asyncio.run(start_and_stop(renamed, "m", tmp_path))


async def start_and_stop(deployment: Deployment, name: str, base: Path) -> None:
    node = Node(deployment, name, base)
    try:
        await node.start()
    finally:
        async with asyncio.timeout(60):
            await node.stop()


def damage(directory: Path, how: str) -> str:
    """Spoils the log of a node; returns what it says then."""
    (log,) = directory.glob("log-*")
    if how == "log":
        data = bytearray(log.read_bytes())
        data[90] ^= 1
        log.write_bytes(bytes(data))
        return "damaged at byte"
    if how == "version":
        log.write_bytes(log.read_bytes().replace(TREE_LOG.encode(), b"x" * len(TREE_LOG)))
        return "damaged at byte 0"
    if how == "identity":
        (directory / "IDENTITY").write_text("{}")
        return "does not say whose the directory is"
    written = FileLog(directory, TREE_LOG, control.Logged, LogConfig())
    list(written.recover()[1])
    if how == "inputs":
        written.commit([Logged(Micros(2), naming.TopicsOpened(1, ()))])
    else:
        written.finish_snapshot(written.begin_snapshot(Micros(1), {"links": 1}))
    written.close()
    if how == "snapshot":
        (snapshot,) = directory.glob("snapshot-*")
        snapshot.write_bytes(snapshot.read_bytes()[:-1])
        return "the snapshot is damaged"
    return "is whole but not readable" if how == "inputs" else "can be read but not handled again"


@pytest.mark.parametrize(
    "how",
    [
        "log",
        *(pytest.param(how, marks=pytest.mark.campaign) for how in ("version", "identity", "state")),
        "snapshot",
        "inputs",
    ],
)
def test_a_node_whose_log_cannot_be_read_says_so_and_ends(tmp_path: Path, how: str) -> None:
    file = write(tmp_path)
    with running(file):
        asyncio.run(publish(file, 1, 2, 3))
    expected = damage(tmp_path / "data" / "n", how)
    if how == "state":  # a mistake of ours: its trace is told first
        node = start(file)
        _, said = node.communicate(timeout=60)
        assert (node.returncode, said.splitlines()[-1][:8]) == (2, "unisono:")
        assert expected in said
    else:
        assert expected in refused(file)


@pytest.mark.parametrize(
    ("whose", "problem"), [("node", "unisono: cannot listen on"), ("page", "cannot serve health and metrics on")]
)
def test_a_node_whose_port_is_taken_says_so_and_leaves_its_log_alone(tmp_path: Path, whose: str, problem: str) -> None:
    file = write(tmp_path)
    with running(file):
        asyncio.run(publish(file, 1, 2, 3))
    directory = tmp_path / "data" / "n"
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "LOCK"}
    at = load_deployment(file).nodes[0].listen if whose == "node" else f"127.0.0.1:{free_ports(1)[0]}"
    with socket.create_server(("127.0.0.1", int(at.rpartition(":")[2]))):
        said = refused(file, *(("--observe", at) if whose == "page" else ()))
        assert problem in said
        assert "Address already in use" in said
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "LOCK"} == before


def test_an_embedded_broker_whose_port_is_taken_says_so(tmp_path: Path) -> None:
    file = write(tmp_path)
    with socket.create_server(("127.0.0.1", int(load_deployment(file).broker.servers[0].rpartition(":")[2]))):
        assert "the embedded broker cannot listen on 127.0.0.1:" in refused(file)


def away(tmp_path: Path, kind: str) -> dict[str, object]:
    """A deployment whose broker, or the servers of whose log, are not there."""
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    if kind == "embedded":
        return {"nodes": (NodeSpec("n", listen=listen, data="data"),), "broker": BrokerSpec("embedded", (nobody,))}
    if kind == "log":
        spec = NodeSpec("n", listen=listen, roles=("sequencer", "broker"), data="data", log="jetstream")
        return {"nodes": (spec,), "log": LogSpec((f"nats://{nobody}",))}
    servers = (nobody,) if kind == "udp" else (f"nats://{nobody}",)
    kinds = {"nats": "nats", "jetstream": "jetstream", "udp": "udp"}
    return {"nodes": (NodeSpec("n", listen=listen, data="data"),), "broker": BrokerSpec(kinds[kind], servers)}  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["embedded", "nats", "jetstream", "udp", "log"])
def test_a_node_that_waits_for_its_broker_stops_when_it_is_told_to(tmp_path: Path, kind: str) -> None:
    file = write(tmp_path, **away(tmp_path, kind))
    node = start(file, "--log-level", "info")
    try:
        lock = tmp_path / "data" / "n" / "LOCK"
        while not lock.exists() or not lock.read_bytes():
            assert node.poll() is None
        # It has installed its signal handler before it took the directory.
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=60)
        assert node.returncode == 0
    finally:
        node.kill()
        node.communicate()


def test_a_stop_while_the_log_is_read_again_ends_the_node_and_keeps_the_log(tmp_path: Path) -> None:
    file = write(tmp_path)
    directory = tmp_path / "data" / "n"
    with running(file):
        asyncio.run(publish(file, 1))
    log = FileLog(directory, TREE_LOG, control.Logged, LogConfig(sync=False))
    inputs = list(log.recover()[1])
    many = [Logged(inputs[-1].at, naming.OpenTopics(Address("c"), i, (f"t{i}",))) for i in range(60_000)]
    log.commit(many)
    log.close()
    before = sorted(path.name for path in directory.iterdir())
    node = start(file)
    try:
        lock = directory / "LOCK"
        while lock.read_bytes() != f"{node.pid}\n".encode():
            assert node.poll() is None
        node.send_signal(signal.SIGTERM)
        _, said = node.communicate(timeout=60)
        assert node.returncode == 0, said
        assert "listens" not in said
    finally:
        node.kill()
        node.communicate()
    assert sorted(path.name for path in directory.iterdir()) == before, "a process that never served takes no snapshot"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Sequencing(), Sequencing(order="causal"), 'sequencing.order was "pairwise" and is "causal"'),
        (Sequencing(order="global"), Sequencing(), 'sequencing.order was "global" and is "pairwise"'),
        (Sequencing(), Sequencing(early=False), "sequencing.early was true and is false"),
        (Sequencing(), Sequencing(encoding="full"), 'sequencing.encoding was "delta" and is "full"'),
    ],
)
def test_a_log_is_not_continued_under_other_rules(
    tmp_path: Path, before: Sequencing, after: Sequencing, told: str
) -> None:
    """Its inputs would lead to other timestamps than subscribers were told, and topics would keep the old order."""
    file = write(tmp_path, sequencing=before)
    with running(file):
        asyncio.run(publish(file, 1, 2))
    kept = load_deployment(file)
    changed = structs.replace(kept, sequencing=after)
    file.write_text(dump_deployment(changed))
    assert told in refused(file)
    file.write_text(dump_deployment(kept))
    with running(file):
        assert asyncio.run(next_number(file)) == 3
    file.write_text(dump_deployment(changed))
    with running(file, "--new-incarnation"):
        assert asyncio.run(next_number(file)) > 2**40
    with running(file):
        asyncio.run(publish(file, 4))


def test_a_log_is_not_continued_elsewhere_in_the_tree(tmp_path: Path) -> None:
    file = write(tmp_path)
    kept = load_deployment(file)
    with running(file):
        asyncio.run(publish(file, 1))
    (port,) = free_ports(1)
    above = structs.replace(kept.nodes[0], name="a", listen=f"127.0.0.1:{port}", roles=("sequencer",))
    file.write_text(dump_deployment(structs.replace(kept, nodes=(structs.replace(kept.nodes[0], parent="a"), above))))
    assert 'parent was not given and is "a"' in refused(file)


def test_by_clock_a_node_goes_on_only_where_every_stamper_has_the_place_that_it_had(tmp_path: Path) -> None:
    """Keys and lanes name stampers by their places in the file: with others, events would have other numbers."""

    ports = dict(zip("abcdz", free_ports(5)))

    def file(*names: str) -> Deployment:
        nodes = tuple(
            NodeSpec(
                name,
                listen=f"127.0.0.1:{ports[name]}",
                parent=None if name == "a" else "a",
                roles=("sequencer", "broker") if name == "a" else ("sequencer",),
                data="data",
            )
            for name in names
        )
        return Deployment(1, "d", nodes=nodes, sequencing=Sequencing(by="clock"), broker=BrokerSpec("embedded"))

    async def begin(deployment: Deployment) -> None:
        node = Node(deployment, "a", tmp_path, NodeConfig(witness_s=0))
        try:
            await node.start()
        finally:
            await node.stop()

    asyncio.run(begin(file("a", "b")))
    asyncio.run(begin(file("a", "b", "c")))
    for names in (("b", "a", "c"), ("z", "a", "b", "c"), ("a", "c"), ("a", "b")):
        with pytest.raises(unisono.MisuseError, match="the sequencers of the file, which new ones follow"):
            asyncio.run(begin(file(*names)))
    asyncio.run(begin(file("a", "b", "c", "d")))


def test_a_lock_ends_with_its_process_and_an_identity_is_written_once(tmp_path: Path) -> None:
    held = DataDirectory(tmp_path)
    with pytest.raises(unisono.MisuseError, match=f"in use by process {os.getpid()}"):
        DataDirectory(tmp_path)
    mine = Identity("d", "n")
    held.identify(mine)
    held.identify(mine)
    assert msgspec.json.decode((tmp_path / "IDENTITY").read_bytes(), type=Identity) == mine
    with pytest.raises(unisono.MisuseError, match="name another directory"):
        held.identify(Identity("other", "n"))
    held.identify(Identity("d", "n", "4e0b"))  # the file has got an id since
    held.identify(mine)
    told = Identity("d", "n", rules={"sequencing.order": "pairwise"})
    held.identify(told)  # written before rules were
    known = msgspec.json.decode((tmp_path / "IDENTITY").read_bytes(), type=Identity)
    assert known == structs.replace(told, deployment_id="4e0b")
    held.identify(mine)
    with pytest.raises(unisono.MisuseError, match="id 4e0b"):
        held.identify(Identity("d", "n", "77aa"))
    held.release()
    DataDirectory(tmp_path).release()
