"""A sequencer node is killed or paused under load, and its standby goes on with the same log."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime.archive.takeover import Takeovers
from tests.runtime.crash.harness import JUDGES, Plan

VICTIMS = ("kill", "pause", "nats")


def check(directory: Path, plan: Plan, in_turn: bool = False) -> None:
    run = Takeovers(directory, plan, in_turn)
    verdicts = {verdict.judge: verdict for verdict in asyncio.run(run.play())}
    told = "; ".join(run.story)
    print(f"seed {plan.seed}: {told}: {run.found}")
    assert run.found.takeovers == plan.faults
    assert (run.found.twice, run.found.lost) == (0, 0), told
    for judge in JUDGES:
        assert verdicts[judge].holds, f"seed {plan.seed} ({told}): {judge}: {verdicts[judge].witness}"


def test_a_standby_takes_over_three_times_and_no_number_is_issued_twice(tmp_path: Path) -> None:
    """kill -9; a pause after which the old owner finds itself fenced; kill -9 together with one of three servers."""
    plan = Plan(1, faults=3, victims=VICTIMS, broker="jetstream", interval_us=15_000, pause_s=(3.0, 3.0))
    check(tmp_path, plan, in_turn=True)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(10))
def test_fifty_takeovers_under_load(tmp_path: Path, seed: int) -> None:
    plan = Plan(seed, faults=5, victims=VICTIMS, broker="jetstream", interval_us=20_000, pause_s=(3.0, 30.0))
    check(tmp_path, plan)
