"""Early stamps (spec section 15): a subscriber waits for the entries of its own topics only."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.papers.sequencer.pump import Deployment, but
from unisono.protocols.sequencer.config import SequencerConfig

RULES = ("E2",)

EARLY = SequencerConfig()
FULL = replace(EARLY, encoding="full")
T, Y, X, V = 1, 2, 3, 4


def star(config: SequencerConfig = FULL, hub: tuple[int, ...] = (V,), make: Any = Deployment) -> Any:
    homes = {T: "r1", Y: "r2", X: "r3", V: "r4"} | dict.fromkeys(hub, "hub")
    return make({"hub": None} | {f"r{i}": "hub" for i in range(1, 5)}, homes, config)


def finish(world: Deployment) -> None:
    world.settle()
    assert world.complaints() == []
    assert world.unforced() == []


def test_nobody_waits_for_topics_of_others() -> None:
    world = star()
    world.client("z", T, X)
    world.client("z2", T, X)
    world.client("s", T)
    world.publish("p", T, "t")
    world.run(but(("Fill",)))
    assert (world.order("s"), world.order("z")) == ("t", "")
    finish(world)
    assert world.order("z") == "t"


def e1(hub: tuple[int, ...], joiners: bool, make: Any = Deployment) -> Any:
    """s is notified of t early and leaves T, while t is still on the link to the hub; then y, then x."""
    world = star(FULL, hub, make)
    world.client("z", T, X)
    world.client("z2", T, X)
    world.client("v", Y, V)
    world.client("v2", Y, V)
    world.client("s", T, Y)
    if joiners:
        world.client("z3", Y)
        world.client("z4", Y)
    world.publish("p", T, "t")
    slow = world.run
    climbing = but(("Fill", "hub", T))
    slow(climbing)
    assert world.order("s") == "t"
    world.unsubscribe("s", T)
    slow(climbing)
    if joiners:
        world.subscribe("z3", T)
        world.subscribe("z4", T)
        slow(climbing)
    world.publish("p", Y, "y")
    slow(climbing)
    world.publish("p", X, "x")
    slow(climbing)
    return world


@pytest.mark.parametrize(("hub", "joiners"), [((V,), False), ((V, Y), False), ((V,), True)], ids=["e1", "e1b", "e1c"])
def test_e1_only_its_own_messages_raise_what_is_known_of_a_topic(hub: tuple[int, ...], joiners: bool) -> None:
    world = e1(hub, joiners)
    finish(world)
    assert sorted(world.order("z").split(",")) == ["t", "x"]


def test_e2_a_missing_topic_that_is_being_joined_holds() -> None:
    world = star()
    world.client("z", X, T)
    world.client("z2", X, T)
    world.client("s", X)
    world.subscribe("s", T)
    held = (("Installed", "s"), ("Payload", "s", T))
    world.run(but(*held))
    world.publish("p", T, "t")
    world.run(but(*held))
    world.publish("p", X, "x")
    world.run(but(*held, ("Fill",)))
    assert world.order("s") == ""
    finish(world)
    assert world.order("s") == world.order("z") == "t,x"


def test_e3_a_missing_topic_of_ones_own_holds() -> None:
    world = star()
    world.client("z", X, T)
    world.client("s", X, T)
    held = (("Payload", "s", T),)
    world.publish("p", T, "t")
    world.run(but(*held))
    world.publish("p", X, "x")
    world.run(but(*held, ("Fill",)))
    assert world.order("s") == ""
    finish(world)
    assert world.order("s") == world.order("z") == "t,x"


def e4(config: SequencerConfig) -> Deployment:
    w, x, t = 0, 1, 2
    world = Deployment({"n0": None, "n1": "n0", "n2": "n1"}, {w: "n0", x: "n1", t: "n2"}, config)
    world.client("s", w, x, t)
    world.client("z", w, x, t)
    world.publish("p", x, "x")
    world.run(but(("Payload", "s", x)))
    world.publish("p", t, "t")
    world.run(lambda letter: letter.to == "s" and (letter.kind == "Payload" or letter.source == "n1"))
    world.run(lambda letter: letter.to == "s" and letter.source == "n1")
    return world


@pytest.mark.parametrize("config", [FULL, EARLY], ids=["full", "delta"])
def test_e4_a_topic_is_settled_by_the_node_that_decides_it_and_by_no_other_piece(config: SequencerConfig) -> None:
    world = e4(config)
    assert "t" not in world.order("s").split(",")  # the root's piece has overtaken that of n1
    finish(world)
    assert world.order("s") == "x,t"


def test_e4_a_topic_is_settled_though_its_entry_is_omitted() -> None:
    world = e4(EARLY)
    world.run()
    world.publish("p", 2, "t2")
    world.run()
    assert world.order("s") == "x,t,t2"  # without asking anybody
    finish(world)


@pytest.mark.parametrize("leave", [False, True])
def test_e5_a_publisher_waits_until_nothing_it_was_notified_of_is_open(leave: bool) -> None:
    world = star(replace(EARLY, shared_subscriptions_min=1, causal=True))
    world.client("z", X, T)
    world.client("q", T)
    world.publish("p", T, "ask")
    world.run(but(("Fill", "hub", T)))
    assert world.order("q") == "ask"
    if leave:
        world.unsubscribe("q", T)
    world.publish("q", X, "ans")
    world.run(but(("Fill", "hub", T)))
    finish(world)
    assert world.order("z") == "ask,ans"


def lose_pieces(world: Deployment, name: str) -> None:
    world.run(but(("Pieces", name)))
    world.letters = [letter for letter in world.letters if letter.kind != "Pieces"]


def test_a_timestamp_that_its_home_has_forgotten_holds_no_publisher_back() -> None:
    """q has heard `ask` and not that it is complete; when it asks, the home has forgotten how it ended."""
    world = star(replace(EARLY, shared_subscriptions_min=1, causal=True, issued_max=1))
    world.client("z", X, T)
    world.client("q", T)
    world.publish("p", T, "ask")
    world.run(but(("Fill", "hub", T)))
    assert world.order("q") == "ask"
    lose_pieces(world, "q")
    for payload in ("more", "and more"):
        world.publish("p", T, payload)
        world.run()
    world.publish("q", X, "ans")
    world.run()
    assert world.clients["q"].subscriber.open
    finish(world)
    assert world.order("z") == "ask,more,and more,ans"


def test_what_was_notified_on_joining_and_is_still_open_is_asked_for() -> None:
    """Event and number came while q was joining, so nothing waits afterwards, and nothing would look again."""
    world = star(replace(EARLY, shared_subscriptions_min=1, causal=True))
    world.client("z", X, T)
    world.subscribe("q", T)
    world.run(but(("Installed", "q")))
    world.publish("p", T, "ask")
    world.run(but(("Installed", "q"), ("Fill", "hub", T)))
    world.run(but(("Fill", "hub", T)))
    assert world.order("q") == "ask"
    lose_pieces(world, "q")
    world.publish("q", X, "ans")
    finish(world)
    assert world.order("z") == "ask,ans"


def test_e6_joining_a_topic_that_is_still_missing_waits_for_nothing_more() -> None:
    world = star()
    world.client("z", X, T)
    world.client("z2", X, T)
    world.client("s", T)
    world.publish("p", T, "t")
    world.run(but(("Fill", "hub", T)))
    assert world.order("s") == "t"
    world.subscribe("s", X)
    world.run(but(("Fill", "hub", T)))
    world.publish("p", X, "x")
    world.run(but(("Fill", "hub", T)))
    finish(world)  # the part of s has followed t on the same link, so x, which t waits for, is not owed
    assert (world.bases["s"][X], world.order("s"), world.order("z")) == (1, "t", "x,t")
