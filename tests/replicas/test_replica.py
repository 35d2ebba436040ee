"""Replicas over sessions: the same state everywhere, answers that are tentative and then stable, and a stop with a
reason where a replica could only go on by differing from the others."""

import asyncio
import functools
import random
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.archive.test_replay import running, shop
from unisono.audit import JUDGES, Trace
from unisono.errors import DataLossError, DivergedError, MisuseError, PlanError
from unisono.model.deployment import Deployment
from unisono.model.journal import Header, Journal, Record
from unisono.model.settings import BrokerSpec, Sequencing
from unisono.replicas import Replica, ReplicaConfig, SqlAnswer
from unisono.replicas.operation import SqlOperation, SqlStatement, encode_replica_message
from unisono.runtime.client.session import Session
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.testing import MemoryDeployment

PATIENCE_S = 60
QUICK = ReplicaConfig(check_wait_s=0.3)
STOCK = [
    ("CREATE TABLE stock(id INTEGER PRIMARY KEY, n INTEGER CHECK (n >= 0))", ()),
    ("INSERT INTO stock VALUES (1, 5)", ()),
]


def plays(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a story in an event loop of its own."""

    @functools.wraps(story)
    def test(*arguments: object, **fixtures: object) -> None:
        async def play() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await story(*arguments, **fixtures)

        asyncio.run(play())

    return test


def forgetful(session: Session, path: Path | str, name: str, config: ReplicaConfig = QUICK) -> Replica:
    """In memory nobody keeps operations: a set begins with all of its replicas."""
    return Replica(session, path, ["ops"], name=name, start="latest", reliability="best-effort", config=config)


@asynccontextmanager
async def pair_in(world: MemoryDeployment, base: Path) -> AsyncGenerator[tuple[Replica, Replica], None]:
    async with (
        world.connect() as here,
        world.connect() as there,
        forgetful(here, base / "a.db", "a") as first,
        forgetful(there, base / "b.db", "b") as second,
    ):
        yield first, second


@asynccontextmanager
async def pair(base: Path, **faults: object) -> AsyncGenerator[tuple[Replica, Replica], None]:
    async with (
        unisono.testing.deployment(**faults) as world,  # type: ignore[arg-type]
        pair_in(world, base) as both,
    ):
        yield both


async def goes_on(replica: Replica) -> None:
    """For ever, unless it hears what stops it."""
    while True:
        await replica.catch_up()


@plays
async def test_two_replicas_have_one_state_whoever_writes(tmp_path: Path) -> None:
    dice = random.Random(7)
    async with pair(tmp_path, delay="3ms", reorder=True, seed=7) as (first, second):
        await (await first.transaction(STOCK)).stable()
        await second.catch_up()
        executions = []
        for turn in range(120):
            replica = dice.choice((first, second))
            executions.append(
                await replica.execute("UPDATE stock SET n = n * 3 % 1009 + ? WHERE id = 1", (dice.randrange(9),))
            )
            if turn % 40 == 0:
                await asyncio.sleep(0)
        for execution in executions:
            assert (await execution.stable()).error is None
        await first.catch_up()
        await second.catch_up()
        await first.catch_up()
        rows = (await first.query("SELECT * FROM stock")).rows
        assert rows == (await second.query("SELECT * FROM stock")).rows
        assert first.status().rollbacks.with_undo + second.status().rollbacks.with_undo > 0
        assert sum(execution.withdrawals for execution in executions) == 0  # these answers say how many rows, no more


@plays
async def test_a_tentative_answer_that_others_overtake_is_replaced(tmp_path: Path) -> None:
    """Both take the last one: each is told yes at first, and one of them no in the end."""
    async with unisono.testing.deployment() as world, pair_in(world, tmp_path) as (first, second):
        await (await first.transaction(STOCK)).stable()
        await second.catch_up()
        take = "UPDATE stock SET n = n - 5 WHERE id = 1 RETURNING n"
        world.take_home_away()  # neither hears of the other
        mine, theirs = await first.execute(take), await second.execute(take)
        world.bring_home_back()
        assert mine.answer is not None
        assert theirs.answer is not None
        assert (mine.answer.rows, theirs.answer.rows) == (((0,),), ((0,),))
        told: list[SqlAnswer] = [answer async for answer in theirs.answers()]
        answers = [await mine.stable(), await theirs.stable()]
        assert sorted(answer.error is None for answer in answers) == [False, True], "one of them has failed for good"
        assert mine.withdrawals + theirs.withdrawals == 1
        assert told[-1] == await theirs.stable()


@plays
async def test_stable_answers_of_a_key_form_one_order_and_tentative_ones_do_not(tmp_path: Path) -> None:
    """R7: the thesis claims linearizability; it is that of the final order, and not of what is told before."""
    stable = [Record("call", 1, event="begin", topic="n", note='["write", 5]'), Record("answer", 2, event="begin")]
    tentative = list(stable)

    def moment() -> int:
        return round(asyncio.get_running_loop().time() * 1e6)

    async def add(replica: Replica, name: str) -> None:
        call = Record("call", moment(), event=name, topic="n", note='["add", 1]')
        execution = await replica.execute("UPDATE stock SET n = n + 1 RETURNING n")
        assert execution.answer is not None
        tentative.extend((call, Record("answer", moment(), event=name, note=str(execution.answer.rows[0][0]))))
        told = (await execution.stable()).rows[0][0]
        stable.extend((call, Record("answer", moment(), event=name, note=str(told))))

    async with pair(tmp_path, delay="3ms", seed=3) as (first, second):
        await (await first.transaction(STOCK)).stable()
        await second.catch_up()
        for turn in range(10):
            await asyncio.gather(add(first, f"a{turn}"), add(second, f"b{turn}"))
    judged = [JUDGES["linearizable"](Trace(Journal(Header(), records))) for records in (stable, tentative)]
    assert [verdict.holds for verdict in judged if verdict is not None] == [True, False]


@plays
async def test_a_replica_that_applies_what_the_session_delivers_and_nothing_before_rolls_nothing_back(
    tmp_path: Path,
) -> None:
    """TO as the thesis means it, held back until the order is known: no answer is tentative, none is taken back."""
    patient = structs.replace(QUICK, tail_max=0)
    async with (
        unisono.testing.deployment(delay="3ms", reorder=True, seed=5) as world,
        world.connect() as here,
        world.connect() as there,
        forgetful(here, tmp_path / "a.db", "a", patient) as first,
        forgetful(there, tmp_path / "b.db", "b", patient) as second,
    ):
        await (await first.transaction(STOCK)).stable()
        await second.catch_up()
        executions = []
        for turn in range(200):
            replica = (first, second)[turn % 2]
            executions.append(await replica.execute("UPDATE stock SET n = n * 3 % 1009 + ? WHERE id = 1", (turn,)))
        assert {execution.answer for execution in executions if not execution.is_stable} == {None}
        for execution in executions:
            assert (await execution.stable()).error is None
        await first.catch_up()
        await second.catch_up()
        for replica in (first, second):
            counts = replica.status().rollbacks
            assert counts.arrivals >= 200
            assert (counts.with_undo, counts.undone, counts.undos) == (0, 0, 0)
        assert sum(execution.withdrawals for execution in executions) == 0


@plays
async def test_what_others_have_published_is_tentative_before_its_order_is_known(tmp_path: Path) -> None:
    """A subscription with order="fifo" is the tentative stream: the same events under the same ids, sooner."""
    async with (
        unisono.testing.deployment() as world,
        world.connect() as here,
        world.connect() as there,
        here.subscribe("ops", order="fifo") as early,
        here.subscribe("ops") as ordered,
        forgetful(here, tmp_path / "a.db", "a") as cautious,
        Replica(
            *(here, tmp_path / "b.db", ["ops"]),
            name="b",
            start="latest",
            reliability="best-effort",
            optimistic=True,
            config=QUICK,
        ) as optimistic,
        forgetful(there, tmp_path / "c.db", "c") as writer,
    ):
        await (await writer.transaction(STOCK)).stable()
        await cautious.catch_up()
        await optimistic.catch_up()
        asked = "SELECT n FROM stock"
        world.take_home_away()  # nobody numbers what comes now
        execution = await writer.execute("UPDATE stock SET n = 3")
        async for result in optimistic.watch(asked, tentative=True):
            if result.rows == ((3,),):
                break
        assert (await optimistic.query(asked)).rows == ((5,),)
        assert (await cautious.query(asked, tentative=True)).rows == ((5,),)
        assert not execution.is_stable
        assert optimistic.status().tentative == 1
        world.bring_home_back()
        await execution.stable()
        await optimistic.catch_up()
        assert (await optimistic.query(asked)).rows == ((3,),)
        ids = [(await anext(stream)).id for stream in (early, ordered) for _ in range(4)]
        assert ids[:4] == ids[4:], "one event has one name, whether its order is known or not"


@plays
async def test_a_query_that_takes_long_keeps_no_operation_waiting(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < ?) SELECT count(*) FROM c"
    async with (
        unisono.testing.deployment() as world,
        world.connect() as session,
        forgetful(session, tmp_path / "a.db", "a") as replica,
    ):
        await (await replica.transaction(STOCK)).stable()
        asked = asyncio.create_task(replica.query(endless, (10**12,)))
        try:
            async with asyncio.timeout(PATIENCE_S / 4):
                for number in range(5):
                    await (await replica.execute("UPDATE stock SET n = ?", (number,))).stable()
                assert (await replica.query("SELECT n FROM stock", tentative=True)).rows == ((4,),)
            assert not asked.done()
        finally:
            replica._database._reader.interrupt()
        with pytest.raises(MisuseError, match="interrupted"):
            await asked
        assert (await replica.query("SELECT n FROM stock")).rows == ((4,),)


@plays
async def test_what_is_no_operation_is_refused_in_words(tmp_path: Path) -> None:
    async with (
        unisono.testing.deployment() as world,
        world.connect() as session,
        forgetful(session, tmp_path / "a.db", "a") as replica,
    ):
        for given in ("SELECT 1", [("SELECT 1",)], ["SELECT 1"], [("SELECT 1", (), 3)], None, 7):
            with pytest.raises(MisuseError, match=r"statements: a list of \(sql, params\)"):
                await replica.transaction(given)  # type: ignore[arg-type]
        for blank in ("", " \n"):
            with pytest.raises(MisuseError, match="without a word"):
                await replica.execute(blank)
        with pytest.raises(MisuseError, match="is text"):
            await replica.execute(b"SELECT 1")  # type: ignore[arg-type]


@plays
async def test_a_caller_that_does_not_wait_leaves_nothing_half_done(tmp_path: Path) -> None:
    """An operation whose caller was cancelled was not tried, or it is published like any other."""
    async with pair(tmp_path) as (first, second):
        await (await first.transaction(STOCK)).stable()
        for steps in range(12):
            given_up = asyncio.create_task(first.execute("UPDATE stock SET n = n + 1"))
            for _ in range(steps):
                await asyncio.sleep(0)
            given_up.cancel()
        for replica in (first, second, first):
            await replica.catch_up()
        assert first.status().tentative == 0
        asked = "SELECT n FROM stock"
        rows = [(await replica.query(asked, tentative=True)).rows for replica in (first, second)]
        assert rows[0] == rows[1]


@plays
async def test_numbers_of_a_replica_have_no_holes_but_what_was_withdrawn(tmp_path: Path) -> None:
    """What was done is kept for ever, as a floor and runs beyond it: its size is that of the holes."""
    async with pair(tmp_path) as (first, second):
        await (await first.transaction(STOCK)).stable()
        for _ in range(3):
            with pytest.raises(MisuseError):
                await first.execute("UPDATE stock SET n = random()")
            await first.check()
            await (await first.execute("UPDATE stock SET n = n + 1")).stable()
        await second.catch_up()
        database = second._database
        for number in (9, 10, 14, 12, 13, 8):
            database._done.add([("somebody", number)])
        assert [database._done.has("somebody", number) for number in range(7, 16)] == [
            *(False, True, True, True, False, True, True, True, False)
        ]
        known = "SELECT floor, beyond FROM _unisono_client WHERE client IN (?, 'somebody') ORDER BY client = 'somebody'"
        asked = database._writer.execute(known, (first._client,)).fetchall()
        assert asked == [(4, "[]"), (0, "[[8,10],[12,14]]")]


@plays
async def test_queries_see_what_is_stable_and_tentative_ones_what_is_ours(tmp_path: Path) -> None:
    async with (
        unisono.testing.deployment() as world,
        world.connect() as session,
        forgetful(session, tmp_path / "a.db", "a") as replica,
    ):
        await (await replica.transaction(STOCK)).stable()
        world.take_home_away()  # the order of what comes now is not known
        execution = await replica.execute("UPDATE stock SET n = 1")
        assert (await replica.query("SELECT n FROM stock")).rows == ((5,),)
        assert (await replica.query("SELECT n FROM stock", tentative=True)).rows == ((1,),)
        with sqlite3.connect(tmp_path / "a.db") as other:
            assert other.execute("SELECT n FROM stock").fetchall() == [(5,)], "others read what is stable"
        assert not execution.is_stable
        world.bring_home_back()
        await execution.stable()
        assert (await replica.query("SELECT n FROM stock")).rows == ((1,),)
        with pytest.raises(MisuseError, match="execute"):
            await replica.query("UPDATE stock SET n = 2")


@plays
async def test_what_waits_long_for_its_order_is_taken_back_until_it_goes_on(tmp_path: Path) -> None:
    """A transaction must not stay open for as long as a home is away."""
    impatient = structs.replace(QUICK, tail_max_s=0.05)
    async with (
        unisono.testing.deployment() as world,
        world.connect() as session,
        forgetful(session, tmp_path / "a.db", "a", impatient) as replica,
    ):
        await (await replica.transaction(STOCK)).stable()
        world.take_home_away()
        first = await replica.execute("UPDATE stock SET n = n - 1 RETURNING n")
        while (await replica.query("SELECT n FROM stock", tentative=True)).rows != ((5,),):
            await asyncio.sleep(0.01)
        second = await replica.execute("UPDATE stock SET n = n - 1 RETURNING n")
        assert first.answer is not None
        assert (first.answer.rows, second.answer) == (((4,),), None)
        world.bring_home_back()
        assert (await first.stable()).rows == ((4,),)
        assert (await second.stable()).rows == ((3,),)
        assert first.withdrawals + second.withdrawals == 0, "what was told has come true"


@plays
async def test_a_watched_query_fires_when_its_result_changes(tmp_path: Path) -> None:
    async with pair(tmp_path) as (first, second):
        await (await first.transaction(STOCK)).stable()
        await second.catch_up()
        seen: list[object] = []

        async def watch() -> None:
            async for result in second.watch("SELECT n FROM stock WHERE id = ?", (1,)):
                seen.append(result.rows[0][0])
                if seen[-1] == 9:
                    return

        watching = asyncio.create_task(watch())
        for number in (6, 6, 9):
            await (await first.execute("UPDATE stock SET n = ?", (number,))).stable()
        await watching
        assert seen[0] in (5, 6)
        assert len(seen) == len(set(seen)), "a result that has not changed is not told again"


@plays
async def test_what_no_replica_should_do_is_refused_and_never_published(tmp_path: Path) -> None:
    async with pair(tmp_path) as (first, second):
        await (await first.transaction(STOCK)).stable()
        with pytest.raises(MisuseError, match="random"):
            await first.execute("UPDATE stock SET n = random()")
        with pytest.raises(MisuseError, match="bound"):
            await first.execute("UPDATE stock SET n = ?", ([1],))
        with pytest.raises(MisuseError, match="64 bits"):
            await first.execute("UPDATE stock SET n = ?", (2**70,))
        with pytest.raises(MisuseError, match="topic"):
            await first.execute("UPDATE stock SET n = 1", topic="other")
        execution = await first.execute("UPDATE stock SET n = -1")
        assert (await execution.stable()).error is not None, "a constraint is an answer, not a refusal"
        await second.catch_up()
        assert second.status().operations == 3  # the schema, the failed update, the catching up


@plays
async def test_events_that_no_replica_published_are_counted_and_change_nothing(tmp_path: Path) -> None:
    async with (
        unisono.testing.deployment() as world,
        world.connect() as session,
        forgetful(session, tmp_path / "a.db", "a") as replica,
    ):
        await session.publish("ops", b"\xff\x00 not an operation")
        await session.publish("ops", {"sql": "DROP TABLE x"})
        await replica.catch_up()
        assert (replica.status().ignored, replica.status().operations) == (2, 1)


@plays
async def test_an_operation_of_another_version_stops_the_replica_and_says_why(tmp_path: Path) -> None:
    async with (
        unisono.testing.deployment() as world,
        world.connect() as session,
        forgetful(session, tmp_path / "a.db", "a") as replica,
    ):
        await session.publish("ops", b"unisono-replica\x00\x09later")
        with pytest.raises(unisono.FormatError, match="version 9"):
            await replica.catch_up()
        with pytest.raises(unisono.FormatError, match="version 9"):
            await replica.query("SELECT 1")


@plays
async def test_what_was_under_way_when_the_replica_stopped_says_what_is_wrong_and_is_not_published(
    tmp_path: Path,
) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    long = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 400000) SELECT count(*) FROM c"
    for sql, wrong in ((endless, "steps_max"), (long, "version 9")):
        async with (
            unisono.testing.deployment() as world,
            world.connect() as session,
            session.subscribe("ops") as heard,
            forgetful(session, tmp_path / f"{wrong}.db", "a", structs.replace(QUICK, steps_max=10_000_000)) as replica,
        ):
            under_way = asyncio.create_task(replica.execute(sql))
            await asyncio.sleep(0)
            await session.publish("ops", b"unisono-replica\x00\x09later")
            while replica.status().waits_for is None:
                await asyncio.sleep(0.001)
            assert not under_way.done()
            with pytest.raises(unisono.UnisonoError, match=wrong):
                await under_way
            await session.publish("ops", b"the last")
            assert [(await anext(heard)).payload[-4:] for _ in range(2)] == [b"ater", b"last"]


@plays
async def test_a_replica_of_another_engine_than_the_set_stops_before_it_applies_anything(tmp_path: Path) -> None:
    made = (SqlStatement("CREATE TABLE t(x)"),)
    async with (
        unisono.testing.deployment() as world,
        world.connect() as session,
        forgetful(session, tmp_path / "a.db", "a") as replica,
        forgetful(session, tmp_path / "b.db", "b") as other,
    ):
        await session.publish("ops", encode_replica_message(SqlOperation("x", 1, made, "SQLite 3.0")))
        with pytest.raises(MisuseError, match=r"run SQLite 3\.0, and this one runs SQLite 3\."):
            await replica.catch_up()
        with pytest.raises(MisuseError, match="begin a set of your own"):
            await other.query("SELECT 1")
    async with (
        unisono.testing.deployment() as world,
        world.connect() as session,
        forgetful(session, tmp_path / "c.db", "c") as replica,
    ):
        await (await replica.execute("CREATE TABLE u(x)")).stable()
        await session.publish("ops", encode_replica_message(SqlOperation("x", 1, made, "SQLite 3.0")))
        await replica.catch_up()
        assert (await replica.query("SELECT count(*) FROM t")).rows == ((0,),), "it is a text like any other"


@plays
async def test_a_number_that_will_not_come_stops_the_replica_before_it_differs(tmp_path: Path) -> None:
    async with (
        unisono.testing.deployment() as world,
        world.connect() as session,
        forgetful(session, tmp_path / "a.db", "a") as replica,
    ):
        await (await replica.transaction(STOCK)).stable()
        world.set_faults(loss=1.0)
        assert isinstance(await session.publish("ops", b"has a number, and is lost"), unisono.Accepted)
        world.set_faults()
        later = await replica.execute("UPDATE stock SET n = n + 1")
        with pytest.raises(DataLossError, match="will not come"):
            await later.stable()
        with pytest.raises(DataLossError, match="begin again with a copy"):
            await replica.query("SELECT 1")
        assert "will not come" in (replica.status().waits_for or "")
    with sqlite3.connect(tmp_path / "a.db") as other:
        assert other.execute("SELECT n FROM stock").fetchall() == [(5,)]


@plays
async def test_two_replicas_on_one_file_are_refused(tmp_path: Path) -> None:
    async with pair(tmp_path) as (first, _):
        with pytest.raises(MisuseError, match=r"a\.db"):
            await forgetful(first._session, tmp_path / "a.db", "again").__aenter__()


@plays
async def test_nobody_writes_beside_a_replica(tmp_path: Path) -> None:
    async with pair(tmp_path) as (first, _):
        await (await first.transaction(STOCK)).stable()
        with (
            sqlite3.connect(tmp_path / "a.db", timeout=0) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("UPDATE stock SET n = 99")


@plays
async def test_a_file_of_something_else_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as other:
        other.execute("CREATE TABLE mine(x)")
    (tmp_path / "b.db").write_text("a text that is longer than the head of a database file " * 10)
    async with unisono.connect("memory://files") as session:
        with pytest.raises(MisuseError, match="begin empty"):
            await forgetful(session, tmp_path / "a.db", "a").__aenter__()
        with pytest.raises(unisono.FormatError, match="is it an SQLite file"):
            await forgetful(session, tmp_path / "b.db", "b").__aenter__()
        async with forgetful(session, tmp_path / "c.db", "c"):
            pass
        with pytest.raises(MisuseError, match="topics"):
            await Replica(session, tmp_path / "c.db", ["else"], start="latest", reliability="best-effort").__aenter__()
        (tmp_path / "directory").mkdir()
        for place in (tmp_path / "directory", "", tmp_path / "nowhere" / "d.db"):
            with pytest.raises(MisuseError, match="name a file"):
                await forgetful(session, place, "d").__aenter__()
    with sqlite3.connect(tmp_path / "a.db") as other:
        assert [name for (name,) in other.execute("SELECT name FROM sqlite_master")] == ["mine"]
    assert not (tmp_path / "b.db-lock").exists()


@plays
async def test_a_file_that_was_edited_by_hand_is_found(tmp_path: Path) -> None:
    async with unisono.testing.deployment() as world:
        async with (
            world.connect() as session,
            forgetful(session, tmp_path / "a.db", "a") as first,
            forgetful(session, tmp_path / "b.db", "b") as second,
            forgetful(session, tmp_path / "c.db", "c") as third,
        ):
            await (await first.transaction(STOCK)).stable()
            assert set((await first.check()).keys()) == {"b", "c"}
            for replica in (first, second, third):
                await replica.catch_up()
        with sqlite3.connect(tmp_path / "b.db") as hand:
            hand.execute("UPDATE stock SET n = 6")
        async with (
            world.connect() as session,
            forgetful(session, tmp_path / "a.db", "a") as first,
            forgetful(session, tmp_path / "b.db", "b") as second,
            forgetful(session, tmp_path / "c.db", "c") as third,
        ):
            await first.check()
            with pytest.raises(DivergedError, match="a, c"):
                await goes_on(second)
            await third.catch_up()  # the others agree, and go on
            await first.catch_up()


@plays
async def test_a_replica_that_has_begun_in_the_middle_is_found(tmp_path: Path) -> None:
    """It has followed fewer operations to the same place: the number alone is no name of a place."""
    async with pair(tmp_path) as (first, second):
        await (await first.transaction(STOCK)).stable()
        await second.catch_up()
        async with forgetful(first._session, tmp_path / "c.db", "late") as late:
            assert set((await first.check()).keys()) == {"b", "late"}
            with pytest.raises(DivergedError, match="begun in the middle"):
                await goes_on(late)
            await first.catch_up()
            await second.catch_up()


@plays
async def test_replicas_compare_their_states_by_themselves(tmp_path: Path) -> None:
    often = structs.replace(QUICK, check_every=5)
    async with (
        unisono.testing.deployment() as world,
        world.connect() as session,
        forgetful(session, tmp_path / "a.db", "a", often) as first,
        forgetful(session, tmp_path / "b.db", "b", often) as second,
    ):
        await (await first.transaction(STOCK)).stable()
        await second.catch_up()
        second._database._writer.execute("UPDATE stock SET n = 7")  # memory that has rotted
        for _ in range(5):
            await first.catch_up()
        with pytest.raises(DivergedError):
            async for _ in second.watch("SELECT n FROM stock"):
                pass


@plays
async def test_replicas_of_several_topics_need_one_order_of_all() -> None:
    async with unisono.connect("memory://orders") as session:
        with pytest.raises(PlanError, match=r"sequencing\.order"):
            Replica(session, "x.db", ["a", "b"])
        for topics in ("a", []):
            with pytest.raises(MisuseError, match="list"):
                Replica(session, "x.db", topics)
        for topic, reason in (("a.*", "is not a word"), ("", "characters"), ("a b", "word")):
            with pytest.raises(MisuseError, match=reason):
                Replica(session, "x.db", [topic])
        with pytest.raises(PlanError, match="jetstream"):
            Replica(session, "x.db", ["a"])


@asynccontextmanager
async def kept(base: Path) -> AsyncGenerator[Deployment, None]:
    """A deployment in which nothing accepted is lost: real JetStream, a sequencer and an archive."""
    server = NatsServer(base / "nats", NatsServerConfig(jetstream=True))
    await server.start()
    deployment = structs.replace(
        shop(), sequencing=Sequencing(order="global"), broker=BrokerSpec("jetstream", (server.url,))
    )
    hub, store = deployment.nodes
    deployment = structs.replace(deployment, nodes=(structs.replace(hub, roles=("sequencer",)), store))
    try:
        async with running(deployment, base):
            yield deployment
    finally:
        server.kill()
