"""The invariants of spec section 6 hold after every step of random runs, with churn and moves."""

import pytest

from tests.papers.sequencer.fuzz import MODES, complaints, fuzz
from tests.papers.sequencer.invariants import Watched, contradictions


@pytest.mark.parametrize("moves", [False, True], ids=["homes stay", "homes move"])
@pytest.mark.parametrize("mode", MODES)
def test_invariants_hold_after_every_step(mode: str, moves: bool) -> None:
    for seed in range(1000, 1012):
        world = fuzz(seed, MODES[mode], moves, make=Watched)
        assert world.checks > 20
        assert contradictions(world) == [], f"seed {seed}"
        assert complaints(world) == [], f"seed {seed}"
