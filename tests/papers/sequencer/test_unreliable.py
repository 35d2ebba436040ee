"""A broker that may lose events (paper, section 4; spec section 7, V5): optimistic, tagged, and never out of order."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.papers.sequencer.fuzz import fuzz
from tests.papers.sequencer.pump import Deployment, Letter
from unisono.errors import MisuseError
from unisono.machine import Gap, Heard
from unisono.protocols.sequencer.config import SequencerConfig

LOSSY = SequencerConfig(mode="ticket", encoding="full", unreliable=True)


def one(config: SequencerConfig = LOSSY) -> Deployment:
    world = Deployment({"n": None}, {0: "n", 1: "n"}, config)
    for name in ("a", "b"):
        world.client(name, 0, 1)
    return world


def event(world: Deployment, to: str, payload: str) -> Letter:
    letters = [x for x in world.letters if x.to == to and x.kind == "Ticketed"]
    return next(x for x in letters if x.message.message.event.payload == payload.encode())


def tagged(world: Deployment) -> list[tuple[str, str]]:
    return [(who, n.message.payload.decode()) for who, n in world.notices if isinstance(n, Heard) and n.late]


def gaps(world: Deployment) -> list[tuple[str, int, int, int]]:
    return [(who, n.topic, n.first, n.last) for who, n in world.notices if isinstance(n, Gap)]


def test_an_event_that_waited_long_enough_is_delivered_and_its_predecessor_tagged() -> None:
    world = one()
    world.publish("p", 0, "x")
    world.run(lambda letter: letter.kind == "Ticketed" and letter.to == "a")
    late = event(world, "a", "x")
    world.publish("p", 1, "y")
    world.run(lambda letter: letter == late)
    assert world.order("a") == ""
    world.until(lambda: ("a", "patience") not in world.timers, lambda letter: letter == late)
    assert world.order("a") == "y"
    assert gaps(world) == [("a", 0, 1, 1)]
    world.settle()
    assert (world.order("a"), world.order("b")) == ("y", "x,y")
    assert tagged(world) == [("a", "x")]


def test_a_full_buffer_pushes_out_the_event_that_waited_longest() -> None:
    world = one(replace(LOSSY, patience_events_max=2))
    for payload in ("x1", "x2", "x3", "x4"):
        world.publish("p", 0, payload)
        world.run(lambda letter: letter.kind == "Ticketed" and letter.to == "a")
    lost = event(world, "a", "x1")
    world.letters.remove(lost)
    world.deliver(event(world, "a", "x2"))
    world.deliver(event(world, "a", "x3"))
    assert world.order("a") == ""
    world.deliver(event(world, "a", "x4"))
    assert world.order("a") == "x2,x3,x4"


def test_what_is_here_is_delivered_in_order_before_what_is_forced() -> None:
    world = one()
    for topic, payload in ((0, "x1"), (0, "x2"), (1, "y")):
        world.publish("p", topic, payload)
        world.run(lambda letter: letter.kind == "Ticketed" and letter.to == "a")
    world.letters.remove(event(world, "a", "x1"))
    world.deliver(event(world, "a", "y"))
    world.deliver(event(world, "a", "x2"))
    world.settle()
    assert world.order("a") == "x2,y"


def test_repetitions_are_dropped_not_tagged() -> None:
    world = one()
    world.publish("p", 0, "x")
    world.run(lambda letter: letter.kind == "Ticketed")
    world.letters = world.letters * 2
    world.settle()
    assert (world.order("a"), tagged(world)) == ("x", [])


class Losing(Deployment):
    """A broker that loses every fifth event."""

    def __init__(self, *arguments: Any, **machines: Any) -> None:
        super().__init__(*arguments, **machines)
        self.broker_dice = random.Random(3)

    def _post(self, source: str, to: str, message: Any) -> None:
        if not isinstance(message, Heard) or self.broker_dice.random() < 0.8:
            super()._post(source, to, message)

    def shuffle(self, dice: random.Random, steps: int | None = None) -> None:
        super().shuffle(dice, steps)
        if steps is not None and self.timers and dice.random() < 0.3:
            self.fire()


def test_untagged_events_keep_one_order_whatever_is_lost_or_forced() -> None:
    forced = 0
    for seed in range(60):
        world = fuzz(seed, LOSSY, make=Losing)
        wrong = [text for text in world.complaints() if "disagree" in text or "twice" in text or "holds" in text]
        assert wrong == [], f"seed {seed}"
        forced += len(gaps(world))
    assert forced > 50


def test_it_needs_timestamps_that_say_everything() -> None:
    with pytest.raises(MisuseError, match="encoding='full'"):
        SequencerConfig(mode="ticket", unreliable=True)


def test_what_was_left_behind_is_said_by_every_event() -> None:
    """a is notified of x, leaves its topic and is notified of y1 and y2; b loses y1, which carried the bar."""
    world = Deployment({"n": None}, {0: "n", 1: "n"}, LOSSY)
    world.client("a", 0)
    world.client("b", 0, 1)
    world.publish("p", 0, "x")
    world.run(lambda letter: letter.kind == "Ticketed" and letter.to == "b")
    late = event(world, "b", "x")
    world.unsubscribe("a", 0)
    world.run(lambda letter: letter == late)
    world.subscribe("a", 1)
    world.run(lambda letter: letter == late)
    world.publish("p", 1, "y1")
    world.run(lambda letter: letter.kind == "Ticketed" and letter.to == "b")
    world.letters.remove(event(world, "b", "y1"))
    world.publish("p", 1, "y2")
    world.run(lambda letter: letter == late)
    world.until(lambda: ("b", "patience") not in world.timers, lambda letter: letter == late)
    assert (world.order("a"), world.order("b")) == ("x,y1,y2", "y2")
    world.settle()
    assert world.order("b") == "y2"
    assert tagged(world) == [("b", "x")]
