"""kill -9 of nodes, of the broker and of clients under load: nothing reordered, nothing twice, every loss told."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime.crash.harness import JUDGES, Plan, Run


def check(directory: Path, plan: Plan) -> None:
    run = Run(directory, plan)
    verdicts = {verdict.judge: verdict for verdict in asyncio.run(run.play())}
    for judge in JUDGES:
        verdict = verdicts[judge]
        assert verdict.holds, f"seed {plan.seed} ({'; '.join(run.story)}): {judge}: {verdict.witness}"


@pytest.mark.parametrize("victim", ["hub", "east", "nats", "subscriber", "pause"])
def test_a_crash_under_load_reorders_nothing_and_loses_nothing_silently(tmp_path: Path, victim: str) -> None:
    check(tmp_path, Plan(seed=1, events=200, faults=1, victims=(victim,), pause_s=(0.2, 0.6)))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(100))
def test_random_crashes_reorder_nothing_and_lose_nothing_silently(tmp_path: Path, seed: int) -> None:
    check(tmp_path, Plan(seed=seed, events=600, faults=5, pause_s=(0.2, 3.0)))
