"""A sequencer node is killed or paused under load, and its standby goes on with the same log."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime.archive.takeover import Takeovers, Trial

VICTIMS = ("kill", "pause", "nats")


def check(directory: Path, trial: Trial) -> None:
    run = Takeovers(directory, trial)
    problems = asyncio.run(run.play())
    told = "; ".join(run.story)
    print(f"seed {trial.seed}: {told}: {run.found}")
    assert run.found.takeovers == trial.faults
    assert (run.found.twice, run.found.lost, problems) == (0, 0, []), f"seed {trial.seed}: {told}"


def test_a_standby_takes_over_and_no_number_is_issued_twice(tmp_path: Path) -> None:
    check(tmp_path, Trial(1, faults=1, victims=("kill",), interval_us=15_000, pause_s=(3.0, 3.0), in_turn=True))


@pytest.mark.campaign
def test_a_standby_takes_over_three_times_and_no_number_is_issued_twice(tmp_path: Path) -> None:
    """kill -9; a pause after which the old owner finds itself fenced; kill -9 together with one of three servers."""
    check(tmp_path, Trial(1, faults=3, victims=VICTIMS, interval_us=15_000, pause_s=(3.0, 3.0), in_turn=True))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(10))
def test_fifty_takeovers_under_load(tmp_path: Path, seed: int) -> None:
    check(tmp_path, Trial(seed, faults=5, victims=VICTIMS, interval_us=20_000, pause_s=(3.0, 30.0)))
