"""Crash and restart on trees, with moves, lost letters, repeated Collects and Installs (spec section 9)."""

import pytest

from tests.papers.sequencer.crashes import CrashingDeployment
from tests.papers.sequencer.fuzz import MODES, complaints, crashing, fuzz
from tests.papers.sequencer.pump import but
from unisono.protocols.sequencer.config import SequencerConfig

RULES = ("LOG",)

SEEDS = range(12)


@pytest.mark.parametrize("mode", MODES)
def test_crashes_losses_and_moves_together_reorder_nothing_and_lose_nothing(mode: str) -> None:
    crashed = 0
    for seed in SEEDS:
        world = fuzz(seed, MODES[mode], moves=True, make=crashing(seed))
        assert complaints(world) == [], f"seed {seed}"
        crashed += world.crashed
    assert crashed > 20


@pytest.mark.parametrize("mode", ["early full", "stamp full"])
@pytest.mark.parametrize("performed", range(5))
def test_a_number_is_given_once_wherever_its_home_dies(mode: str, performed: int) -> None:
    """s hears what the home said of a; what follows the restart must not give the number of a to b."""
    world = CrashingDeployment({"n": None}, {0: "n"}, MODES[mode])
    world.client("s", 0)
    world.publish("p", 0, "a")
    world.publish("q", 0, "b")
    world.dies_after = performed
    world.step("Creates", "n", 0, "p")
    world.run(but(("Creates",)))
    world.settle()
    assert complaints(world) == []
    assert sorted(world.order("s").split(",")) == ["a", "b"]


@pytest.mark.parametrize("mode", ["early full", "stamp full"])
@pytest.mark.parametrize("performed", range(5))
def test_an_entry_is_decided_once_wherever_the_meeting_point_dies(mode: str, performed: int) -> None:
    """x has met the hub before t; the hub dies, and t comes first when it is back."""
    world = CrashingDeployment({"hub": None, "r1": "hub", "r2": "hub"}, {1: "r1", 2: "r2"}, MODES[mode])
    world.client("s", 1, 2)
    world.client("z", 1, 2)
    world.publish("p", 1, "x")
    world.publish("p", 2, "t")
    slow = [("Frame", "hub"), ("Pieces", "z", 1), ("Stamps", "z", 1)]
    world.run(but(*slow))
    world.dies_after = performed
    world.step("Frame", "hub", source="r1")
    world.run(but(*slow))
    world.step("Frame", "hub", source="r2")
    world.run(but(*slow))
    world.settle()
    assert complaints(world) == []


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
