"""Crash and restart on trees, with moves, lost letters, repeated Collects and Installs (spec section 9)."""

import pytest

from tests.papers.sequencer.crashes import CrashingDeployment
from tests.papers.sequencer.fuzz import MODES, complaints, crashing, fuzz
from tests.papers.sequencer.pump import but
from unisono.protocols.sequencer.config import SequencerConfig

SEEDS = range(12)


@pytest.mark.parametrize("mode", MODES)
def test_crashes_losses_and_moves_together_reorder_nothing_and_lose_nothing(mode: str) -> None:
    crashed = 0
    for seed in SEEDS:
        world = fuzz(seed, MODES[mode], moves=True, make=crashing(seed))
        assert complaints(world) == [], f"seed {seed}"
        crashed += world.crashed
    assert crashed > 20


def test_a_restarted_home_repeats_its_marks() -> None:
    """The stamp was lost, then the home: only the mark can tell that there was an event."""
    world = CrashingDeployment({"n": None}, {0: "n"}, SequencerConfig(early=False))
    world.client("s", 0)
    world.publish("p", 0, "a")
    world.run(but(("Stamps", "s"), ("Payload", "s")))
    world.letters = []
    world.confirming["n"] = 0
    world.crash("n")
    world.letters = []  # nor does what it sends again arrive
    world.settle()
    assert [type(notice).__name__ for who, notice in world.notices if who == "s"] == ["Gap"]
