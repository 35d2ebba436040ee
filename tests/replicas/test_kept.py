"""Replicas where nothing that was accepted is lost: what they missed is fetched, wherever they begin again."""

import shutil
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.replicas.test_replica import QUICK, STOCK, kept, plays
from tests.runtime.archive.test_offline import Network
from unisono.errors import MisuseError, WithdrawnError
from unisono.model.deployment import Deployment
from unisono.replicas import Replica


@plays
async def test_a_replica_comes_back_where_it_stood_and_a_new_one_begins_with_a_copy(tmp_path: Path) -> None:
    async with kept(tmp_path) as deployment, unisono.connect(deployment) as session:

        def replica(name: str) -> Replica:
            return Replica(session, tmp_path / f"{name}.db", ["a", "b"], name=name, config=QUICK)

        async with replica("first") as first:
            await (await first.transaction(STOCK)).stable()
            for number in range(20):
                await first.execute("INSERT INTO stock VALUES (?, ?)", (10 + number, number), topic="ab"[number % 2])
            await first.wait_stable()
            await first.copy_to(tmp_path / "third.db")
            for number in range(20):
                await first.execute("UPDATE stock SET n = n * 2 + ?", (number,), topic="ab"[number % 2])
            await first.wait_stable()
            async with replica("second") as second:  # from the beginning, by the archive
                await second.catch_up()
                assert (await second.query("SELECT * FROM stock")).rows == (
                    await first.query("SELECT * FROM stock")
                ).rows
            await (await first.execute("DELETE FROM stock WHERE id = 12")).stable()
        async with replica("first") as first, replica("second") as second, replica("third") as third:
            others = await third.check()
            assert len(others) == 2
            await first.catch_up()
            assert {(await each.query("SELECT * FROM stock")).rows for each in (first, second, third)} == {
                (await first.query("SELECT * FROM stock")).rows
            }


@plays
async def test_sets_of_replicas_share_a_deployment_and_nothing_else(tmp_path: Path) -> None:
    async with kept(tmp_path) as deployment, unisono.connect(deployment) as session:

        def replica(name: str, *topics: str) -> Replica:
            return Replica(session, tmp_path / f"{name}.db", topics, name=name, config=QUICK)

        async with (
            replica("toys", "a") as toys,
            replica("toys too", "a") as also_toys,
            replica("books", "b") as books,
            replica("books too", "b") as also_books,
        ):
            for number, first in enumerate((toys, books)):
                await first.transaction(STOCK)
                await first.execute("UPDATE stock SET n = ?", (number,))
                await first.wait_stable()
            with pytest.raises(MisuseError, match="none of this replica's"):
                await toys.execute("UPDATE stock SET n = 7", topic="b")
            for replicas, number in (((toys, also_toys), 0), ((books, also_books), 1)):
                for each in replicas:
                    await each.catch_up()
                    assert (await each.query("SELECT n FROM stock")).rows == ((number,),)
            assert list(await toys.check()) == ["toys too"]


@plays
async def test_a_file_that_was_rolled_back_follows_again_from_where_it_is(tmp_path: Path) -> None:
    async with kept(tmp_path) as deployment, unisono.connect(deployment) as session:
        file, copy = tmp_path / "a.db", tmp_path / "copy.db"
        async with Replica(session, tmp_path / "b.db", ["a"], name="b", config=QUICK) as other:
            async with Replica(session, file, ["a"], config=QUICK) as replica:
                await (await replica.transaction(STOCK)).stable()
            shutil.copy(file, copy)
            async with Replica(session, file, ["a"], config=QUICK) as replica:
                for number in range(5):
                    await replica.execute("UPDATE stock SET n = n * 3 + ?", (number,))
                await replica.wait_stable()
            copy.replace(file)
            async with Replica(session, file, ["a"], config=QUICK) as replica:
                await replica.catch_up()
                assert list(await replica.check()) == ["b"]
                await replica.catch_up()
                await other.catch_up()
                assert (await replica.query("SELECT * FROM stock")).rows == (
                    await other.query("SELECT * FROM stock")
                ).rows


@plays
async def test_a_replica_that_was_cut_off_fetches_what_it_missed_before_anything_later(tmp_path: Path) -> None:
    """What is missing is fetched, in its place: the answers of what it then does itself are those of all."""
    network = Network()
    async with (
        kept(tmp_path) as deployment,
        unisono.connect(deployment) as here,
        unisono.connect(await seen_through(network, deployment)) as there,
        Replica(here, tmp_path / "a.db", ["a"], name="a", config=QUICK) as first,
        Replica(there, tmp_path / "b.db", ["a"], name="b", config=QUICK) as second,
    ):
        await (await first.transaction(STOCK)).stable()
        await second.catch_up()
        network.fail()
        mine = await second.execute("UPDATE stock SET n = n + 1000 RETURNING n")
        assert mine.answer is not None
        assert mine.answer.rows == ((1005,),)
        for number in range(50):
            await (await first.execute("UPDATE stock SET n = n * 3 % 1009 + ?", (number,))).stable()
        assert second.status().operations < 10
        network.come_back()
        stable = await mine.stable()
        await first.catch_up()
        await second.catch_up()
        assert (await second.query("SELECT * FROM stock")).rows == (await first.query("SELECT * FROM stock")).rows
        assert stable.rows == (await first.query("SELECT n FROM stock")).rows, "it came after all that was missed"
        assert mine.withdrawals == 1
    await network.stop()


async def seen_through(network: Network, deployment: Deployment) -> Deployment:
    """The deployment as it is for somebody whom a network separates from it."""
    nodes = tuple(
        [
            structs.replace(node, listen=f"127.0.0.1:{await network.to(int(node.listen.rpartition(':')[2]))}")
            for node in deployment.nodes
        ]
    )
    (server,) = deployment.broker.servers
    there = f"nats://127.0.0.1:{await network.to(int(server.rpartition(':')[2]))}"
    return structs.replace(deployment, nodes=nodes, broker=structs.replace(deployment.broker, servers=(there,)))


@plays
async def test_what_was_not_published_is_withdrawn(tmp_path: Path) -> None:
    async with (
        kept(tmp_path) as deployment,
        unisono.connect(deployment) as session,
        Replica(session, tmp_path / "a.db", ["a"], config=QUICK) as replica,
    ):
        await (await replica.execute("CREATE TABLE t(x)")).stable()
        execution = await replica.execute("INSERT INTO t VALUES (?)", ("x" * 40_000_000,))
        later = await replica.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(WithdrawnError, match="bytes") as withdrawn:
            await execution.stable()
        assert withdrawn.value.is_definite
        await later.stable()
        assert (await replica.query("SELECT count(*) FROM t", tentative=True)).rows == ((1,),)
