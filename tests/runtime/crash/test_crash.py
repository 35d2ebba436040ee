"""kill -9 of nodes, of the broker and of clients under load: nothing reordered, nothing twice, every loss told."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime.crash.harness import JUDGES, Plan, Run, drawn_plan


def check(directory: Path, plan: Plan) -> None:
    run = Run(directory, plan)
    verdicts = {verdict.judge: verdict for verdict in asyncio.run(run.play())}
    faults = "; ".join(run.story)
    for judge in JUDGES:
        verdict = verdicts[judge]
        assert verdict.holds, f"seed {plan.seed} ({faults}): {judge}: {verdict.witness}"
    assert run.broken_promises() == [], f"seed {plan.seed} ({faults})"


@pytest.mark.parametrize("victim", ["hub", "east", "nats", "subscriber", "pause"])
def test_a_crash_under_load_reorders_nothing_and_loses_nothing_silently(tmp_path: Path, victim: str) -> None:
    check(tmp_path, Plan(seed=1, faults=1, victims=(victim,), away_s=(0.2, 0.6), pause_s=(0.2, 0.6)))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(100))
def test_random_crashes_reorder_nothing_and_lose_nothing_silently(tmp_path: Path, seed: int) -> None:
    check(tmp_path, drawn_plan(seed))
