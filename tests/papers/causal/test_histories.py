"""Random worlds against ground truth: G1, G2 and G5 always, G3 and G4 as promised (specs, section 1)."""

import pytest
from msgspec.structs import replace

from tests.papers.causal import literal
from tests.papers.causal.histories import CASES, Case, Histories, case_of, play
from unisono.protocols.causal.order import CausalOrder

RULES = ("G1-5", "CLIENT")
SEEDS = 12
CAMPAIGN_SEEDS = 1000
BATCH = 100
"""A campaign that is stopped goes on after the last of these."""


@pytest.mark.parametrize("name", CASES)
def test_no_history_is_contradicted(name: str) -> None:
    for seed in range(SEEDS):
        assert play(name, seed).problems[:1] == [], f"play({name!r}, {seed})"


@pytest.mark.campaign  # 13 000 worlds
@pytest.mark.parametrize("first", range(0, CAMPAIGN_SEEDS, BATCH))
@pytest.mark.parametrize("name", CASES)
def test_no_history_is_contradicted_in_many_worlds(name: str, first: int) -> None:
    for seed in range(first, first + BATCH):
        assert play(name, seed).problems[:1] == [], f"play({name!r}, {seed})"


@pytest.mark.parametrize("name", ["equal", "churn"])
def test_with_equal_lives_nothing_on_time_is_turned_away(name: str) -> None:
    for seed in range(SEEDS):
        counts = Histories(replace(case_of(name), own_deadlines=0.0), seed).run().counts
        assert counts["delivered"] > 0
        assert "on-time-discarded" not in counts


def test_clocks_that_are_too_far_apart_cost_refusals() -> None:
    refused = sum(play("far skew", seed).counts.get("future", 0) for seed in range(SEEDS))
    assert refused > 0


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        (literal.NoContext, case_of("equal")),
        (literal.KnowledgeInTheTest, case_of("equal")),
        (literal.NewestOverflows, case_of("small buffer")),
        (literal.FloorNow, Case(crashes=0.8, delay=9, rate=0.9, repeats=0.5, skew=10)),
        (literal.ElidedAndLate, case_of("late delivered")),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_the_judge_sees_what_the_two_layers_break(
    kind: type[CausalOrder], case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.papers.causal.histories.CausalOrder", kind)
    assert any(Histories(case, seed).run().problems for seed in range(60))
