"""The invariants of spec section 6 hold after every step of random runs, with churn and moves."""

import msgspec
import pytest

from tests.papers.sequencer.fuzz import MODES, complaints, fuzz
from tests.papers.sequencer.invariants import Watched, contradictions
from tests.papers.sequencer.test_early import V, e1

RULES = ("C3",)


@pytest.mark.parametrize("moves", [False, True], ids=["homes stay", "homes move"])
@pytest.mark.parametrize("mode", MODES)
def test_invariants_hold_after_every_step(mode: str, moves: bool) -> None:
    for seed in range(1000, 1008):
        world = fuzz(seed, MODES[mode], moves, make=Watched)
        assert world.checks > 20
        assert contradictions(world) == [], f"seed {seed}"
        assert complaints(world) == [], f"seed {seed}"


def test_what_was_notified_early_is_required_when_it_has_met_the_other_topic() -> None:
    world = e1((V,), False, Watched)
    world.settle()
    assert complaints(world) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_restored_node_is_the_same_node(mode: str) -> None:
    """Every part of the state survives the disk, in the middle of everything."""
    for seed in range(1000, 1010):
        world = fuzz(seed, MODES[mode], moves=True, stop=True)
        for node in world.nodes.values():
            disk = msgspec.msgpack.encode(node.snapshot())
            restored = type(node)(node.me, node._site.parent, node._site.children, (), {}, node.config)
            restored.restore(msgspec.msgpack.decode(disk, strict=False))
            assert msgspec.msgpack.encode(restored.snapshot()) == disk
            for home in restored.hosted.values():
                assert home.group._count == node.hosted[home.topic].group._count
