"""Crash and restart on trees, with moves, lost letters, repeated Collects and Installs (spec section 9)."""

import pytest

from tests.papers.sequencer.fuzz import MODES, complaints, crashing, fuzz

SEEDS = range(12)


@pytest.mark.parametrize("mode", MODES)
def test_crashes_losses_and_moves_together_reorder_nothing_and_lose_nothing(mode: str) -> None:
    crashed = 0
    for seed in SEEDS:
        world = fuzz(seed, MODES[mode], moves=True, make=crashing(seed))
        assert complaints(world) == [], f"seed {seed}"
        crashed += world.crashed
    assert crashed > 20
