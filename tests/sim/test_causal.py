"""The scenarios of the causal mesh keep what they promise, and show what they are there for."""

from collections import Counter

import pytest

from unisono.audit.judges.table import judge
from unisono.model.journal import Journal
from unisono.sim import scenario

NAMES = [name for name in scenario.names() if name.startswith("causal/")]


def played(name: str, seed: int) -> Journal:
    journal = scenario.play(scenario.load(name), seed)
    assert [verdict for verdict in judge(journal, journal.header.promises) if not verdict.holds] == [], seed
    return journal


@pytest.mark.parametrize("name", NAMES)
def test_causal_scenarios_keep_their_promises(name: str) -> None:
    journal = played(name, 1)
    assert sum(record.kind == "deliver" for record in journal.records) > 300


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
def test_causal_scenarios_keep_their_promises_over_many_seeds(name: str) -> None:
    for seed in range(2, 200):
        played(name, seed)


def test_whoever_comes_back_is_told_nothing_twice() -> None:
    kinds = Counter(record.kind for record in played("causal/crash", 3).records)
    assert kinds["restart"] > 5


def test_clocks_too_far_apart_cost_refusals_and_no_order() -> None:
    chosen = scenario.with_options(scenario.load("causal/skew"), {"workload.duration": 2_000_000})
    world = scenario.stage(chosen, 2)
    world.run(until=6_000_000)
    future = sum(host.machine.report().get("future", 0) for host in world.hosts.values())  # type: ignore[attr-defined]
    assert future > 0
