"""A replica that is killed with its undo and redo half done comes back as a prefix of the order, and catches up."""

import asyncio
import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import unisono
from tests.replicas.test_replica import QUICK, kept
from tests.replicas.worker import PLACES, SUM, in_words_of
from unisono.errors import TransportError, WithdrawnError
from unisono.model.deployment import dump_deployment
from unisono.replicas import Replica
from unisono.replicas.comparing import read_replica
from unisono.runtime.tools.postgres_server import PostgresServer

ROUNDS = 3
ACCOUNTS = [
    ("CREATE TABLE account(id INTEGER PRIMARY KEY, n INTEGER)", ()),
    ("CREATE TABLE history(id INTEGER PRIMARY KEY, text TEXT)", ()),
    *[(f"INSERT INTO account VALUES ({number}, 1000)", ()) for number in range(8)],
]


async def killed_again_and_again(
    base: Path, places: tuple[str, str], rounds: int, seed: int, where: tuple[str, ...] = ()
) -> None:
    """In every round a process that writes is killed: at some moment, or by itself at the next of these places."""
    dice, file = random.Random(seed), base / "deployment.toml"
    add = in_words_of(places[0], "UPDATE account SET n = n + 1 WHERE id = ?")
    async with (
        kept(base) as deployment,
        unisono.connect(deployment) as session,
        Replica(session, places[0], ["a", "b"], config=QUICK) as here,
    ):
        file.write_text(dump_deployment(deployment))
        await here.transaction(ACCOUNTS)
        await here.wait_stable()
        for turn in range(rounds):
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.replicas.worker", str(file), places[1], str(seed + turn)),
                *where[turn % len(where) :][:1] if where else (),
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                assert worker.stdout is not None
                assert await worker.stdout.readline() == b"ready\n"
                for _ in range(5000 if where else dice.randrange(5, 40)):
                    await here.execute(add, (dice.randrange(8),), topic="b")
                    await asyncio.sleep(dice.random() / 100)
                    if worker.returncode is not None:
                        break
                assert not where or worker.returncode == -signal.SIGKILL, "it has come to this place"
            finally:
                with suppress(ProcessLookupError):
                    worker.kill()
                await worker.wait()
            assert read_replica(places[1]).problems == []  # it can be read, and is whole
        async with Replica(session, places[1], ["a", "b"], config=QUICK) as there:
            await there.catch_up()
            await here.catch_up()
            await there.check()
            everything = "SELECT * FROM history ORDER BY id"
            assert (await there.query(everything)).rows == (await here.query(everything)).rows
            assert here.status().operations == there.status().operations
            assert (await here.query("SELECT count(*) FROM history")).rows[0][0] > (0 if where else rounds * 5)


def files_in(base: Path) -> tuple[str, str]:
    return str(base / "here.db"), str(base / "there.db")


def test_a_replica_that_is_killed_comes_back_as_a_prefix_of_the_order(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(killed_again_and_again(tmp_path, files_in(tmp_path), ROUNDS, seed=1), 120))


def test_so_does_one_in_postgres(tmp_path: Path, fresh: Callable[[], str]) -> None:
    asyncio.run(asyncio.wait_for(killed_again_and_again(tmp_path, (fresh(), fresh()), ROUNDS, seed=1), 120))


def test_so_does_one_that_dies_in_the_middle_of_an_undo_or_a_merge(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(killed_again_and_again(tmp_path, files_in(tmp_path), 4, 7, PLACES), 120))


@pytest.mark.campaign
def test_fifty_kills_in_the_middle_of_undos_and_merges(tmp_path: Path) -> None:
    asyncio.run(killed_again_and_again(tmp_path, files_in(tmp_path), 50, 200, PLACES))


@pytest.mark.campaign
def test_fifty_kills_in_the_middle_of_undos_and_merges_in_postgres(tmp_path: Path, fresh: Callable[[], str]) -> None:
    asyncio.run(killed_again_and_again(tmp_path, (fresh(), fresh()), 50, 200, PLACES))


@pytest.mark.campaign
def test_fifty_kills_leave_every_replica_equal(tmp_path: Path) -> None:
    asyncio.run(killed_again_and_again(tmp_path, files_in(tmp_path), 50, seed=100))


@pytest.mark.campaign
def test_fifty_kills_leave_every_replica_in_postgres_equal(tmp_path: Path, fresh: Callable[[], str]) -> None:
    asyncio.run(killed_again_and_again(tmp_path, (fresh(), fresh()), 50, seed=100))


async def the_server_dies(base: Path, server: PostgresServer, fresh: Callable[[], str], rounds: int) -> None:
    place, second = fresh(), fresh()
    async with kept(base) as deployment, unisono.connect(deployment) as session:
        for turn in range(rounds):
            dice = random.Random(turn)
            async with Replica(session, place, ["a", "b"], config=QUICK) as replica:
                await replica.catch_up()
                if not turn:
                    await (await replica.transaction(ACCOUNTS)).stable()
                done = [await replica.transaction([(SUM, ())], dice.choice("ab")) for _ in range(30)]
                await done[dice.randrange(30)].stable()
                await asyncio.to_thread(server.kill)
                with suppress(TransportError, WithdrawnError):
                    while True:
                        await (await replica.transaction([(SUM, ())])).stable()
                with pytest.raises(TransportError, match=r"postgres://postgres@127\.0\.0\.1"):
                    await replica.catch_up()
            await server.start()
        async with (
            Replica(session, place, ["a", "b"], config=QUICK, name="first") as replica,
            Replica(session, second, ["a", "b"], config=QUICK, name="second") as other,
        ):
            await replica.catch_up()
            assert list(await other.check()) == ["first"]
            await other.catch_up()
            await replica.catch_up()
            rows = (await replica.query("SELECT * FROM history ORDER BY id")).rows
            assert rows == (await other.query("SELECT * FROM history ORDER BY id")).rows
            assert len(rows) >= 30 * rounds, "what was published has its effect, once"
            assert [number for number, _ in rows] == list(range(1, len(rows) + 1))


def test_a_replica_whose_server_is_killed_stops_and_goes_on_later(
    tmp_path: Path, postgres: PostgresServer, fresh: Callable[[], str]
) -> None:
    asyncio.run(asyncio.wait_for(the_server_dies(tmp_path, postgres, fresh, rounds=1), 120))


@pytest.mark.campaign
def test_fifty_kills_of_the_server_leave_every_replica_equal(
    tmp_path: Path, postgres: PostgresServer, fresh: Callable[[], str]
) -> None:
    asyncio.run(the_server_dies(tmp_path, postgres, fresh, rounds=50))
