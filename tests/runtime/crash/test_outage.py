"""A node is down for long: what does not pass it goes on, the rest ends Refused or Unknown, and nothing is lost."""

import asyncio
from pathlib import Path

import pytest

import unisono
from tests.runtime.crash.harness import Plan, Run
from tests.runtime.crash.verdicts import judge

WINDOW = 1_000
LATER = 20


async def outage(run: Run, seconds: float) -> None:
    """`west`, home of quotes, is killed; trades are at home at `east`, and the two meet at `hub`."""
    async with (
        unisono.connect(run.file, journal=run.journals.clients / "here", timeout=60) as session,
        session.subscribe("trades") as trades,
    ):
        publisher = await session.publisher("quotes")
        run.kill("west")
        for number in range(WINDOW):
            await publisher.send(number)
        loop = asyncio.get_running_loop()
        until, sent = loop.time() + seconds, 0
        while loop.time() < until or len(publisher.failures) < WINDOW:
            assert isinstance(await session.publish("trades", sent), unisono.Accepted)
            assert (await anext(trades)).data == sent
            sent += 1
            await asyncio.sleep(0.02)
        assert {type(outcome) for outcome in publisher.failures} == {unisono.Unknown}
        # They are still repeated, so there is no room for more.
        outcomes = [await session.publish("quotes", "too many") for _ in range(LATER)]
        assert all(isinstance(outcome, unisono.Refused) for outcome in outcomes)
        run.start_node("west")
        while not isinstance(await session.publish("quotes", "room again"), unisono.Accepted):
            await asyncio.sleep(0.05)
        for _ in range(LATER):
            assert isinstance(await session.publish("quotes", "and order"), unisono.Accepted)
        await run.quiet()


def check(directory: Path, seconds: float) -> None:
    async def play(run: Run) -> None:
        try:
            async with asyncio.timeout(240 + seconds):
                await run.begin(publishers=0)
                await outage(run, seconds)
        finally:
            await run.stop()

    run = Run(directory, Plan(seed=0))
    asyncio.run(play(run))
    assert judge(run, []) == []
    journal = run.journals.journal(())
    assert [record for record in journal.records if record.kind == "gap"] == []
    quotes = [record for record in journal.records if record.kind == "deliver" and record.topic == "quotes"]
    for subscriber in dict.fromkeys(record.subscriber for record in quotes):
        numbers = [record.number for record in quotes if record.subscriber == subscriber]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > WINDOW + LATER


@pytest.mark.campaign
def test_a_node_that_is_down_past_every_deadline_costs_only_what_passes_it(tmp_path: Path) -> None:
    check(tmp_path, 1)


@pytest.mark.campaign
def test_a_node_that_is_down_for_a_minute_costs_only_what_passes_it(tmp_path: Path) -> None:
    check(tmp_path, 60)
