"""Random hierarchies under a random scheduler, with every fault at any moment (specs: entourage, section 0)."""

from typing import Any

import msgspec
import pytest

from tests.papers.regions.fuzz import RegionPlay
from tests.papers.regions.net import QUIET
from unisono.protocols.regions.config import RegionsConfig

RULES = ("R-SAFE",)

WORLDS: dict[str, dict[str, Any]] = {
    "faults": {},
    "short logs": {"log_max": 6, "replay_max": 3},
    "short buffers": {"buffer_max": 2, "replay_max": 2},
    "deaths": {"gone_us": 2_000_000},
    "deaths and short logs": {"gone_us": 2_000_000, "log_max": 6, "buffer_max": 3},
    "goodbyes": {"gone_us": 2_000_000},
    "counting": {"discovery_us": 500_000, "count_gap_us": 20_000, "budget_us": 400_000, "closeness": 0.2},
}


def play(seed: int, world: str, steps: int = 120) -> list[str]:
    """What goes wrong in one run: losses, repetitions, disorder, ports and sessions that are stuck."""
    changes = WORLDS[world]
    config: RegionsConfig = msgspec.structs.replace(QUIET, **changes)
    run = RegionPlay(seed, config)
    run.run(steps, kills=0.01 if "deaths" in world else 0.0, goodbyes=0.03 if world == "goodbyes" else 0.0)
    may_miss = "log_max" in changes or "gone_us" in changes
    return run.net.problems(may_miss) + run.net.stuck() + run.net.half_open()


def broken(seeds: range, world: str, steps: int = 120) -> dict[int, str]:
    found = {seed: play(seed, world, steps) for seed in seeds}
    return {seed: problems[0] for seed, problems in found.items() if problems}


@pytest.mark.parametrize("world", WORLDS)
def test_nothing_is_lost_repeated_misordered_or_stuck(world: str) -> None:
    assert broken(range(30), world) == {}


@pytest.mark.parametrize("seed", [18, 26, 39, 69, 129, 333, 692, 1151])
def test_runs_that_once_lost_something(seed: int) -> None:
    """Roots that meet late, filtered streams, echoes, moves with an epoch that nobody above knew: decision 60."""
    assert play(seed, "faults") == []


def test_a_run_in_which_a_link_was_read_of_after_a_newer_one() -> None:
    """The network of these runs kept the newer link open at the end that dialled: no node does (`test_links`)."""
    assert play(11230, "counting") == []


@pytest.mark.campaign
@pytest.mark.parametrize("world", WORLDS)
def test_thousands_of_runs_keep_the_promise(world: str) -> None:
    assert broken(range(10_000, 12_000), world) == {}


@pytest.mark.campaign
def test_ten_thousand_runs_with_every_fault_keep_the_promise() -> None:
    assert broken(range(20_000, 30_000), "faults") == {}
