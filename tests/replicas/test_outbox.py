"""Rows that are committed become events: each once, in the order of the commits, whoever is killed when."""

import asyncio
import random
import shutil
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import unisono
from tests.replicas.test_replica import plays
from tests.runtime.test_cluster import running, star, url
from unisono.errors import DataLossError, ForgottenError, MisuseError, TransportError
from unisono.model.deployment import Deployment, dump_deployment
from unisono.outbox import Outbox, OutboxConfig
from unisono.outbox import source as outbox_source
from unisono.outbox.source import OutboxSource
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.tools.postgres_server import PostgresServer

QUICK = OutboxConfig(poll_s=0.02, retry_s=0.1)
BOX = "CREATE TABLE box(id int PRIMARY KEY, topic text NOT NULL, payload jsonb)"
INSERT = "INSERT INTO box VALUES (%s, 'trades', %s::text::jsonb)"


@asynccontextmanager
async def hearing(base: Path) -> AsyncGenerator[tuple[Deployment, Stream]]:
    """A deployment, and somebody who hears what is published on `trades`."""
    deployment = star()
    async with (
        running(deployment, base),
        unisono.connect(url(deployment, "west")) as west,
        west.subscribe("trades") as stream,
    ):
        yield deployment, stream


@asynccontextmanager
async def relaying(deployment: Deployment, place: str, **given: Any) -> AsyncGenerator[Outbox]:
    async with Outbox(url(deployment, "east"), place, "box", config=QUICK, **given) as outbox:
        task = asyncio.create_task(outbox.run())
        try:
            yield outbox
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def heard(stream: Stream, count: int) -> list[Any]:
    return [(await anext(stream)).data for _ in range(count)]


@plays
async def test_rows_become_events_in_the_order_of_their_commits(tmp_path: Path, fresh: Callable[[], str]) -> None:
    place = fresh()
    with psycopg.connect(place) as one, psycopg.connect(place) as other:
        one.execute(BOX)
        one.execute("INSERT INTO box VALUES (1, 'trades', '\"before the relay\"')")
        one.commit()
        async with hearing(tmp_path) as (deployment, stream):
            async with relaying(deployment, place) as outbox:
                one.execute(INSERT, (2, "2"))
                other.execute(INSERT, (3, "3"))
                one.execute(INSERT, (4, '{"px": 1.50}'))
                with suppress(psycopg.errors.DivisionByZero), one.transaction():
                    one.execute(INSERT, (5, "5"))
                    one.execute("SELECT 1 / 0")
                other.commit()
                one.execute("UPDATE box SET payload = '0'")
                one.commit()
                assert await heard(stream, 3) == [3, 2, {"px": 1.5}]
                while outbox.status().published < 3:
                    await asyncio.sleep(0.01)
            one.execute(INSERT, (6, "null"))
            one.commit()
            async with relaying(deployment, place):
                assert await heard(stream, 1) == [None]


@plays
async def test_a_row_is_its_payload_or_itself(tmp_path: Path, fresh: Callable[[], str]) -> None:
    place = fresh()
    with psycopg.connect(place, autocommit=True) as hand:
        hand.execute("CREATE TABLE box(id bigint, ok bool, px numeric, at date, more json, word text)")
        hand.execute("CREATE TABLE raw(payload bytea)")
        async with hearing(tmp_path) as (deployment, stream):
            async with Outbox(url(deployment, "east"), place, "box", name="none", config=QUICK) as outbox:
                hand.execute("INSERT INTO box VALUES (0)")
                with pytest.raises(MisuseError, match="--topic"):
                    await outbox.run()
            async with relaying(deployment, place, topic="trades"):
                hand.execute("INSERT INTO box VALUES (2, true, 1.50, '2026-01-31', '[1]', 'ö\"')")
                hand.execute("INSERT INTO box VALUES (3)")
                row = {"id": 2, "ok": True, "px": "1.50", "at": "2026-01-31", "more": [1], "word": 'ö"'}
                assert await heard(stream, 2) == [row, dict.fromkeys(row) | {"id": 3}]
            async with Outbox(url(deployment, "east"), place, "raw", topic="trades", config=QUICK) as outbox:
                task = asyncio.create_task(outbox.run())
                hand.execute("INSERT INTO raw VALUES ('\\x00ff')")
                assert (await anext(stream)).payload == b"\x00\xff"
                task.cancel()


@plays
async def test_a_row_without_a_topic_stops_the_relay_until_it_is_told_where_such_rows_go(
    tmp_path: Path, fresh: Callable[[], str]
) -> None:
    place = fresh()
    with psycopg.connect(place, autocommit=True) as hand:
        hand.execute("CREATE TABLE box(id int PRIMARY KEY, topic text, payload jsonb)")
        async with hearing(tmp_path) as (deployment, stream):
            async with Outbox(url(deployment, "east"), place, "box", config=QUICK) as outbox:
                hand.execute(INSERT, (1, "1"))
                hand.execute("INSERT INTO box VALUES (2, 'no topic!', '\"two\"'), (3, NULL, '3')")
                hand.execute(INSERT, (4, "4"))
                with pytest.raises(MisuseError, match=r'has no topic: "two" .*--otherwise TOPIC'):
                    await outbox.run()
            async with relaying(deployment, place, otherwise="trades") as outbox:
                assert await heard(stream, 4) == [1, "two", 3, 4]
                while outbox.status().published < 4:
                    await asyncio.sleep(0.01)
            async with Outbox(url(deployment, "east"), place, "box", config=QUICK) as outbox:
                assert outbox.status().published == 4, "it tells at once how far it is"
            for given in ({"topic": "a.*"}, {"otherwise": "no topic!"}):
                with pytest.raises(MisuseError, match="is not a word"):
                    Outbox(url(deployment, "east"), place, "box", **given)


class Killed(Exception):
    """Nothing after it happens."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["intend", "done", "advance", "peek"])
def test_a_relay_that_ends_at_any_step_is_continued(
    tmp_path: Path, fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    """Each step writes one thing: ending before or after it is all that can happen to the state."""

    @plays
    async def story() -> None:
        place = fresh()
        with psycopg.connect(place, autocommit=True) as hand:
            hand.execute(BOX)
            async with hearing(tmp_path) as (deployment, stream):
                async with Outbox(url(deployment, "east"), place, "box", config=QUICK):
                    hand.execute(INSERT, (1, "1"))
                    hand.execute(INSERT, (2, "2"))
                work = getattr(OutboxSource, step)

                def ends(source: OutboxSource, *arguments: Any) -> Any:
                    if when == "after":
                        work(source, *arguments)
                    raise Killed

                with monkeypatch.context() as patched, suppress(Killed):
                    patched.setattr(OutboxSource, step, ends)
                    async with Outbox(url(deployment, "east"), place, "box", config=QUICK) as outbox:
                        await outbox.run()
                hand.execute(INSERT, (3, "3"))
                async with relaying(deployment, place):
                    hand.execute(INSERT, (4, "4"))
                    assert await heard(stream, 4) == [1, 2, 3, 4]
                    hand.execute(INSERT, (5, "5"))
                    assert await heard(stream, 1) == [5], "nothing came twice in between"

    story()


@plays
async def test_what_was_about_to_be_published_has_to_be_there_still(tmp_path: Path, fresh: Callable[[], str]) -> None:
    place = fresh()
    with psycopg.connect(place, autocommit=True) as hand:
        hand.execute(BOX)
        source = OutboxSource(place, "box", "mine")
        hand.execute(INSERT, (1, "1"))
        source.intend(source.peek(10)[-1].end, 2)
        source.close()
        async with (
            hearing(tmp_path) as (deployment, _),
            Outbox(url(deployment, "east"), place, "box", name="mine", config=QUICK) as outbox,
        ):
            with pytest.raises(ForgottenError, match=r"2 rows up to .* and the slot has 1 of them"):
                await outbox.run()


def test_a_server_that_has_forgotten_how_far_it_was_read_is_told_again(
    postgres: PostgresServer, fresh: Callable[[], str]
) -> None:
    """It writes that down at checkpoints. A batch of what is relayed already would stand before what nobody has."""
    place, batch = fresh(), 5
    with psycopg.connect(place, autocommit=True) as hand:
        hand.execute(BOX)
        source = OutboxSource(place, "box", "forgotten")
        for number in range(4 * batch):
            hand.execute(INSERT, (number, str(number)))
    while source.state.number < 4 * batch:
        commits = source.peek(batch)
        source.intend(commits[-1].end, source.state.number + len(commits))
        source.done({"trades": source.state.next_number})
    source.close()
    postgres.kill()
    asyncio.run(postgres.start())
    with psycopg.connect(place, autocommit=True) as hand:
        hand.execute(INSERT, (4 * batch, "0"))
    source = OutboxSource(place, "box", "forgotten")
    assert [row.value("id") for commit in source.peek(batch) for row in commit.rows] == [str(4 * batch)]
    source.close()


CHANGES = {
    "anew": ("DROP TABLE box", BOX),
    "untold": ("ALTER PUBLICATION unisono_untold DROP TABLE box",),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_was_made_anew_is_told_and_not_passed_over(
    tmp_path: Path, fresh: Callable[[], str], change: str
) -> None:
    """A migration that drops the table and makes it again takes it out of what the server tells of."""

    @plays
    async def story() -> None:
        place = fresh()
        with psycopg.connect(place, autocommit=True) as hand:
            hand.execute(BOX)
            OutboxSource(place, "box", change).close()
            hand.execute(INSERT, (1, "1"))
            async with hearing(tmp_path) as (deployment, stream):
                async with relaying(deployment, place, name=change):
                    assert await heard(stream, 1) == [1]
                    hand.execute(INSERT, (2, "2"))
                    assert await heard(stream, 1) == [2]
                for text in CHANGES[change]:
                    hand.execute(text.encode())
                hand.execute(INSERT, (3, "3"))
                async with Outbox(url(deployment, "east"), place, "box", name=change, config=QUICK) as outbox:
                    with pytest.raises(DataLossError, match="may be relayed never"):
                        await outbox.run()

    story()


async def killed_again_and_again(base: Path, server: PostgresServer, place: str, rounds: int, seed: int) -> None:
    """The relay, a process, is killed in every round; in every third the server is, under whoever writes."""
    dice = random.Random(seed)
    committed: list[int] = []
    with psycopg.connect(place, autocommit=True) as hand:
        hand.execute(BOX)
    async with hearing(base) as (deployment, stream):
        file = base / "deployment.toml"
        file.write_text(dump_deployment(deployment))
        for turn in range(rounds):
            relay = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "unisono", "outbox", str(file), place, "--table", "box", "--json"),
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                assert relay.stdout is not None
                assert await relay.stdout.readline(), "it has begun"
                await asyncio.to_thread(write, place, committed, dice, server if turn % 3 == 2 else None)
                await asyncio.sleep(dice.random() / 2)
            finally:
                relay.kill()
                await relay.wait()
            if turn % 3 == 2:
                await server.start()
        with psycopg.connect(place) as hand:
            there = {number for (number,) in hand.execute("SELECT id FROM box")}
        expected = [number for number in committed if number in there]
        assert set(expected) == there
        async with relaying(deployment, place):
            found = await heard(stream, len(expected))
        assert Counter(found).most_common(1)[0][1] == 1
        assert found == expected


def write(place: str, committed: list[int], dice: random.Random, dies: PostgresServer | None) -> None:
    """Transactions of some rows from two connections that overlap; notes them in the order of the commits."""
    first = len(committed) * 2 + 1
    numbers = iter(range(first, first + 10_000))
    try:
        with psycopg.connect(place) as one, psycopg.connect(place) as other:
            for turn in range(dice.randrange(10, 40)):
                rows: dict[int, list[int]] = {0: [], 1: []}
                for _ in range(dice.randrange(1, 20)):
                    which = dice.randrange(2)
                    number = next(numbers)
                    (one, other)[which].execute(INSERT, (number, str(number)))
                    rows[which].append(number)
                for which in dice.sample([0, 1], 2):
                    committed += rows[which]  # perhaps: what is not in the table was not
                    (one, other)[which].commit()
                if dies is not None and turn == 8:
                    dies.kill()
    except psycopg.OperationalError:
        assert dies is not None


def test_relay_and_server_are_killed_and_no_row_is_lost_or_said_twice(
    tmp_path: Path, postgres: PostgresServer, fresh: Callable[[], str]
) -> None:
    asyncio.run(asyncio.wait_for(killed_again_and_again(tmp_path, postgres, fresh(), 3, seed=1), 120))


@pytest.mark.campaign
def test_fifty_kills_of_relay_and_server_lose_no_row(
    tmp_path: Path, postgres: PostgresServer, fresh: Callable[[], str]
) -> None:
    asyncio.run(killed_again_and_again(tmp_path, postgres, fresh(), 50, seed=9))


@plays
async def test_a_database_that_was_restored_is_noticed(
    tmp_path: Path, postgres: PostgresServer, fresh: Callable[[], str]
) -> None:
    """A copy of the whole server as it was: state and slot fit each other, and not what was published."""
    place = fresh()
    with psycopg.connect(place, autocommit=True) as hand:
        hand.execute(BOX)
    async with hearing(tmp_path) as (deployment, stream):

        async def relay(number: int) -> None:
            async with relaying(deployment, place) as outbox:
                with psycopg.connect(place, autocommit=True) as hand:
                    hand.execute(INSERT, (number, str(number)))
                assert await heard(stream, 1) == [number]
                while outbox.status().published < number:
                    await asyncio.sleep(0.01)

        await relay(1)
        data, kept = postgres.directory / "data", postgres.directory / "kept"
        await postgres.stop()
        await asyncio.to_thread(shutil.copytree, data, kept)
        await postgres.start()
        await relay(2)
        await postgres.stop()
        shutil.rmtree(data)
        kept.rename(data)
        if postgres.runs_as_postgres:
            for path in (data, *data.rglob("*")):
                shutil.chown(path, "postgres", "postgres")
        await postgres.start()
        with psycopg.connect(place, autocommit=True) as hand:
            hand.execute(INSERT, (9, "9"))
        async with Outbox(url(deployment, "east"), place, "box", config=QUICK) as outbox:
            with pytest.raises(ForgottenError, match="its home knows 2"):
                await outbox.run()


@plays
async def test_what_does_not_fit_is_refused_with_what_to_do(
    tmp_path: Path, postgres: PostgresServer, fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_source, "BUSY_S", 0.3)
    place = fresh()
    with psycopg.connect(place, autocommit=True) as hand:
        hand.execute(BOX)
        database = place.rpartition("/")[2]
        role, slot = f"clerk_{database}", f"unisono_clerk_{database}"
        hand.execute(f"CREATE ROLE {role} LOGIN")
        clerk = postgres.url(database, user=role)
        with pytest.raises(MisuseError, match=f"ALTER ROLE {role} REPLICATION; GRANT CREATE ON DATABASE"):
            OutboxSource(clerk, "box", role)
        with pytest.raises(MisuseError, match="no table nowhere"):
            OutboxSource(place, "nowhere", "x")
        with pytest.raises(MisuseError, match="write it as in SQL"):
            OutboxSource(place, "odd name", "x")
        hand.execute("CREATE VIEW seen AS SELECT 1 AS x")
        with pytest.raises(MisuseError, match="something else"):
            OutboxSource(place, "seen", "x")
        hand.execute("CREATE UNLOGGED TABLE light(x int)")
        with pytest.raises(MisuseError, match="unlogged"):
            OutboxSource(place, "light", "x")
        hand.execute(f"ALTER ROLE {role} REPLICATION")
        hand.execute(f"GRANT CREATE ON DATABASE {database} TO {role}")
        hand.execute(f"ALTER TABLE box OWNER TO {role}")
        source = OutboxSource(clerk, "box", role)  # no superuser is needed, and only this table can be read
        with pytest.raises(MisuseError, match="another relay"):
            OutboxSource(clerk, "box", role)
        source.close()
        with pytest.raises(MisuseError, match=f"'{role}' has the slot"):
            OutboxSource(clerk, "box", role.replace("_", "-"))
        hand.execute("CREATE TABLE second(x int)")
        with pytest.raises(MisuseError, match="choose another --name"):
            OutboxSource(place, "second", role)
        hand.execute("UPDATE _unisono_outbox.state SET system = '7'")
        with pytest.raises(ForgottenError, match="restored, or is a copy"):
            OutboxSource(clerk, "box", role)
        hand.execute("UPDATE _unisono_outbox.state SET system = (SELECT system_identifier FROM pg_control_system())")
        hand.execute(INSERT, (1, "1"))
        hand.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
        with pytest.raises(ForgottenError, match="somebody else"):
            OutboxSource(clerk, "box", role)
        hand.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        with pytest.raises(DataLossError, match="is gone"):
            OutboxSource(clerk, "box", role)
        with pytest.raises(TransportError, match="does_not_exist"):
            OutboxSource(postgres.url("does_not_exist"), "box", role)


def test_what_is_not_of_the_table_need_not_be_kept(fresh: Callable[[], str]) -> None:
    place = fresh()
    with psycopg.connect(place, autocommit=True) as hand:
        hand.execute(BOX)
        source = OutboxSource(place, "box", "idle")
        hand.execute("CREATE TABLE other AS SELECT generate_series(1, 20000) AS x")
        end, kept = source.lag()
        assert kept > 1_000_000
        for _ in range(3):  # the server forgets what is before a note of its own, which it writes now and then
            source.skip(end)
            hand.execute("CHECKPOINT")
            end, left = source.lag()
        assert left < kept / 2
        hand.execute(INSERT, (1, "1"))
        assert [len(commit.rows) for commit in source.peek(10) if commit.rows] == [1]
        source.close()
        again = OutboxSource(place, "box", "idle")
        assert [len(commit.rows) for commit in again.peek(10) if commit.rows] == [1]
        again.close()
