"""What a node has shown and what its log knows: every life and every commit, however late somebody reminds it."""

import asyncio
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import unisono
from tests.runtime.test_cluster import FAST
from tests.runtime.test_wal import batch, open_log
from tests.runtime.toy import Adder, until
from unisono.machine import Deliver
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.model.time import Micros
from unisono.protocols.naming import messages as naming
from unisono.protocols.sequencer import lives as room
from unisono.protocols.sequencer.lives import Began, Height, Lives, Reminds, Seal
from unisono.runtime.driver.log import FileLog
from unisono.runtime.driver.shown_heights import ShownHeights
from unisono.runtime.links import control
from unisono.runtime.node.node import Node
from unisono.runtime.node.ordering import TREE_LOG
from unisono.runtime.tools.ports import free_ports

NODE = Address("n")
SEAL = Seal("d", NODE, "token")


def lived(*lives: tuple[str, int]) -> Lives:
    machine = Lives(Adder())
    for life, height in lives:
        assert Deliver(Began(life, height)) in machine.handle(Began(life, height), Micros(1))
    return machine


@pytest.mark.parametrize(
    ("life", "height", "is_known"),
    [
        ("a", 0, True),
        ("a", 7, True),
        ("a", 8, False),
        ("b", 8, True),
        ("b", 12, True),
        ("b", 13, False),
        ("c", 3, False),
    ],
)
def test_a_log_knows_its_lives_and_where_each_ended(life: str, height: int, is_known: bool) -> None:
    machine = lived(("a", 0), ("b", 7))
    again = Lives(Adder())
    again.restore(machine.snapshot())
    for each in (machine, again):
        assert (each.forgotten(SEAL.put(0, life, height), 12) is None) == is_known


def test_what_an_earlier_incarnation_has_shown_accuses_nobody_and_a_later_one_does() -> None:
    machine = lived(("a", 0))
    machine.incarnation = 5
    assert machine.forgotten(SEAL.put(4, "x", 99), 3) is None
    assert machine.forgotten(SEAL.put(6, "a", 1), 3) is not None


def test_lives_that_are_no_longer_kept_are_believed_up_to_where_they_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LIVES_MAX", 2)
    machine = lived(("a", 0), ("b", 7), ("c", 9))
    assert machine.forgotten(SEAL.put(0, "a", 7), 12) is None
    assert machine.forgotten(SEAL.put(0, "a", 8), 12) is not None
    assert machine.forgotten(SEAL.put(0, "b", 9), 12) is None


def test_a_seal_is_that_of_one_node_of_one_deployment_with_its_token() -> None:
    shown = SEAL.put(0, "a", 3)
    assert SEAL.is_ours(shown)
    for other in (Seal("e", NODE, "token"), Seal("d", Address("m"), "token"), Seal("d", NODE, "guess")):
        assert not other.is_ours(shown)
    assert not SEAL.is_ours(Height(NODE, 0, "a", 4, shown.seal))


def test_the_height_of_a_log_counts_on_across_snapshots_and_restarts(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    list(log.recover()[1])
    for number in range(5):
        log.commit(batch(number, 2))
    log.finish_snapshot(log.begin_snapshot(Micros(5), 1))
    log.commit(batch(6, 1))
    assert log.height == 6
    log.close()
    again = open_log(tmp_path)
    list(again.recover()[1])
    assert again.height == 6
    again.close()


def test_a_witness_keeps_what_it_was_shown(tmp_path: Path) -> None:
    witness, sent = ShownHeights(), []
    witness.keep_in(tmp_path)
    witness.note(SEAL.put(0, "a", 3))
    witness.note(SEAL.put(0, "a", 4))
    witness.save()
    again = ShownHeights()
    again.keep_in(tmp_path)
    for node in (NODE, Address("other")):
        again.remind(node, Address("me"), lambda to, message: sent.append((to, message)))
    assert sent == [(NODE, Reminds(Address("me"), SEAL.put(0, "a", 4)))]


def test_nodes_whose_disks_take_longer_than_the_pause_between_two_savings_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node of a deployment stopped in the same moment when their disk stood still for a second."""
    synced: list[int] = []

    def slowly(file: int) -> None:
        threading.Event().wait(0.05)  # what a slow disk takes
        synced.append(file)

    async def run() -> None:
        ports = free_ports(2)
        hub, leaf = (NodeSpec(name, listen=f"127.0.0.1:{port}", data="data") for name, port in zip("nm", ports))
        deployment = Deployment(1, "slow", nodes=(hub, replace(leaf, parent="n")), broker=BrokerSpec("memory"))
        async with (
            asyncio.timeout(60),
            Node(deployment, "n", tmp_path, FAST) as one,
            Node(deployment, "m", tmp_path, FAST) as other,
        ):
            monkeypatch.setattr(os, "fsync", slowly)
            async with unisono.connect(deployment) as session:
                while len(synced) < 8:
                    assert isinstance(await session.publish("a", 1), unisono.Accepted)
                    assert (one.failure, other.failure) == (None, None)

    monkeypatch.setattr("unisono.runtime.node.node.SAVE_S", 0.01)
    asyncio.run(run())


class Standing(ThreadPoolExecutor):
    """Threads of a disk that stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Future[Any]] = []

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        self.asked.append(Future())
        return self.asked[-1]


def test_one_saving_waits_for_a_disk_that_stands_still_and_no_more_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        (port,) = free_ports(1)
        spec = NodeSpec("n", listen=f"127.0.0.1:{port}", data="data")
        deployment, threads = Deployment(1, "still", nodes=(spec,), broker=BrokerSpec("memory")), Standing()
        async with Node(deployment, "n", tmp_path, FAST), unisono.connect(deployment) as session:
            assert isinstance(await session.publish("a", 0), unisono.Accepted)
            asyncio.get_running_loop().set_default_executor(threads)
            try:
                await until(lambda: bool(threads.asked))
                for number in range(20):
                    assert isinstance(await session.publish("a", number), unisono.Accepted)
                assert len(threads.asked) == 1
            finally:
                asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
                for waiting in threads.asked:
                    waiting.set_result(None)

    monkeypatch.setattr("unisono.runtime.node.node.SAVE_S", 0.001)
    asyncio.run(run())


def test_what_is_saved_twice_at_once_is_whole(tmp_path: Path) -> None:
    witness = ShownHeights()
    witness.keep_in(tmp_path)

    def save(height: int) -> None:
        witness.note(SEAL.put(0, "a", height))
        witness.save()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(save, range(1, 200)))
    again = ShownHeights()
    again.keep_in(tmp_path)
    assert again.witness.shown[NODE].height


def test_who_was_shown_nothing_learns_from_a_later_incarnation_that_something_may_be_forgotten() -> None:
    witness = ShownHeights()
    assert not witness.note(SEAL.put(0, "a", 3))
    assert witness.note(SEAL.put(7, "b", 4))
    assert not witness.note(SEAL.put(7, "b", 5))
    assert ShownHeights().note(SEAL.put(7, "b", 5))


def test_a_client_learns_by_itself_that_a_node_is_reborn_and_is_numbered_for(tmp_path: Path) -> None:
    async def run() -> None:
        (port,) = free_ports(1)
        spec = NodeSpec("n", listen=f"127.0.0.1:{port}", data="data")
        deployment = Deployment(1, "reborn", nodes=(spec,), broker=BrokerSpec("memory"))
        node = Node(deployment, "n", tmp_path, replace(FAST, new_incarnation=True))
        async with asyncio.timeout(60), node:
            assert node.sequencer is not None
            lives = node.sequencer.lives
            await until(lambda: lives is not None and lives.incarnation > 0)
            async with unisono.connect(deployment) as session:  # learns it by itself
                while not isinstance(await session.publish("a", 1), unisono.Accepted):
                    pass  # what it has asked before it knew is Unknown

    asyncio.run(run())


def test_nobody_stops_a_node_with_heights_that_he_made_up(tmp_path: Path) -> None:
    async def run() -> None:
        (port,) = free_ports(1)
        spec = NodeSpec("n", listen=f"127.0.0.1:{port}", data="data")
        deployment = Deployment(1, "made-up", nodes=(spec,), broker=BrokerSpec("memory"))
        async with Node(deployment, "n", tmp_path, FAST) as node, unisono.connect(deployment) as session:
            await until(lambda: session.links.is_up(NODE))
            forged = Seal("made-up", NODE, "a guess").put(0, "a", 1 << 40)
            session.links.send(NODE, Reminds(session.address, forged))
            assert isinstance(await session.publish("a", 1), unisono.Accepted)
            assert node.failure is None
            session.links.send(NODE, Reminds(session.address, Seal("made-up", NODE, "").put(0, "a", 1 << 40)))
            await until(lambda: node.failure is not None)
            assert "has forgotten" in str(node.failure)

    asyncio.run(run())


def test_a_node_numbers_nothing_before_its_witnesses_had_time_to_speak(tmp_path: Path) -> None:
    async def run() -> None:
        (port,) = free_ports(1)
        spec = NodeSpec("n", listen=f"127.0.0.1:{port}", data="data")
        deployment = Deployment(1, "early", nodes=(spec,), broker=BrokerSpec("memory"))
        node = Node(deployment, "n", tmp_path, replace(FAST, witness_s=3600))
        async with node, unisono.connect(deployment) as session:
            await until(lambda: session.links.is_up(NODE))
            received = node.links.counters.received
            session.links.send(NODE, naming.OpenTopics(session.address, 1, ("a",)))
            await until(lambda: node.links.counters.received > received)
            assert node.host is not None
            await node.host.settle()
            session.links.send(NODE, Reminds(session.address, Seal("early", NODE, "").put(0, "a", 9)))
            await until(lambda: node.failure is not None)
        log = FileLog(tmp_path / "data" / "n", TREE_LOG, control.Logged)
        assert [type(logged.message) for logged in log.recover()[1]] == [Began]
        log.close()

    asyncio.run(run())
