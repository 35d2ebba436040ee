"""Spec section 12 in small: random trees, random churn, random schedules, every mode. Campaigns live in scenarios."""

import pytest

from tests.papers.sequencer.fuzz import MODES, complaints, fuzz

RULES = ("C3", "C1", "D1")

SEEDS = range(40)


@pytest.mark.parametrize("mode", MODES)
def test_any_schedule_keeps_one_order_and_loses_nothing(mode: str) -> None:
    for seed in SEEDS:
        assert complaints(fuzz(seed, MODES[mode])) == [], f"seed {seed}"


@pytest.mark.parametrize("mode", MODES)
def test_topics_may_move_at_any_moment(mode: str) -> None:
    for seed in SEEDS:
        assert complaints(fuzz(seed, MODES[mode], moves=True)) == [], f"seed {seed}"


@pytest.mark.parametrize("mode", MODES)
def test_joining_may_be_given_up_at_any_moment(mode: str) -> None:
    for seed in SEEDS:
        assert complaints(fuzz(seed, MODES[mode], moves=seed % 2 == 0, gives_up=True)) == [], f"seed {seed}"
