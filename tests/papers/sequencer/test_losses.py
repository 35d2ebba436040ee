"""A broker that loses things: tails, asking, gaps by the safe rule, bounded memory (spec sections 7 and 14)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.papers.sequencer.pump import STAMP, Deployment, Letter, but
from unisono.machine import Accepted, Broadcast, Fired, Gap, Heard, Persist, Refused, SetTimer, Stalled, Unknown
from unisono.model.ids import Topic
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Mark

RULES = ("LOSS", "BOUND")

X, T = Topic(1), Topic(2)
EARLY = SequencerConfig()
MODES = [STAMP, EARLY, replace(EARLY, encoding="full")]


def star(config: SequencerConfig = STAMP) -> Deployment:
    world = Deployment({"hub": None, "r1": "hub", "r2": "hub"}, {X: "r1", T: "r2"}, config)
    for name in ("a", "b"):
        world.client(name, X, T)
    world.settle()
    for _ in range(20):  # the payloads that follow are not from before the subscription
        world.now += config.payload_wait_us
    return world


def lose(world: Deployment, *kinds: str, to: str = "a") -> None:
    world.letters = [x for x in world.letters if not (x.to == to and x.kind in kinds)]


def gaps(world: Deployment) -> list[Any]:
    return [(who, n.topic, n.first, n.last) for who, n in world.notices if isinstance(n, Gap)]


@pytest.mark.parametrize("config", MODES)
def test_the_last_stamp_lost_is_noticed_by_the_high_water_mark(config: SequencerConfig) -> None:
    world = star(config)
    world.publish("p", X, "x1")
    world.publish("p", X, "x2")
    world.run(but(("Stamps", "a"), ("Pieces", "a"), ("Payload", "a")))
    lose(world, "Stamps", "Pieces")
    kept, world.letters = world.letters, []
    world.fire()
    world.letters = kept
    world.settle()
    assert world.complaints() == []
    assert world.order("a") == "x1,x2"


@pytest.mark.parametrize("config", MODES)
def test_the_last_payload_lost_ends_in_a_gap(config: SequencerConfig) -> None:
    world = star(config)
    world.publish("p", X, "x1")
    world.run()
    world.publish("p", X, "x2")
    lose(world, "Payload")
    world.settle()
    assert world.complaints() == []
    assert (world.order("a"), world.order("b")) == ("x1", "x1,x2")
    assert gaps(world) == [("a", X, 2, 2)]


@pytest.mark.parametrize("config", MODES)
def test_the_last_stamp_and_payload_lost_end_in_a_gap(config: SequencerConfig) -> None:
    world = star(config)
    world.publish("p", X, "x1")
    world.run(but(("Stamps", "a"), ("Pieces", "a"), ("Payload", "a")))
    lose(world, "Stamps", "Pieces", "Payload")
    world.settle()
    assert world.complaints() == []
    assert gaps(world) == [("a", X, 1, 1)]


@pytest.mark.parametrize("config", MODES)
def test_runs_that_wait_are_bounded_and_asked_for_when_their_turn_comes(config: SequencerConfig) -> None:
    """The stamps of everything but the first payload have come, and it is late: memory holds a few runs, not all."""
    world = star(replace(config, buffer_max=5))
    for i in range(40):
        world.publish(f"p{i}", X, f"x{i + 1}")
        world.run(but(("Payload", "a"), ("Payloads", "a")))
    feed = world.clients["a"].subscriber.feeds[X]
    assert len(feed.items) <= 6
    world.settle()
    assert world.complaints() == []
    told = {event for event in world.order("a").split(",") if event}
    missed = {n for _, topic, first, last in gaps(world) if topic == X for n in range(first, last + 1)}
    assert len(told) + len(missed) == 40
    assert world.order("b").count(",") == 39


@pytest.mark.parametrize("config", MODES)
def test_topics_that_are_ordered_against_each_other_give_up_together(config: SequencerConfig) -> None:
    """Each waits for the other at every number: one step per timer would take them hours."""
    world = star(config)
    for i in range(20):
        for topic, name in ((X, "x"), (T, "t")):
            world.publish("p", topic, f"{name}{i}")
            lose(world, "Payload")
            world.run()
    steps = []
    while len(gaps(world)) < 40:
        before = len(gaps(world))
        world.fire()
        world.run()
        steps.append(len(gaps(world)) - before)
    assert [step for step in steps if step] == [40]
    world.settle()
    assert world.complaints() == []


@pytest.mark.parametrize("config", MODES)
def test_a_long_silence_of_the_broker_is_caught_up_with_in_one_wait(config: SequencerConfig) -> None:
    """Nothing of 300 events came, only the mark: they wait for their payloads together, not a hundred at a time."""
    world = star(config)
    unheard = but(("Payload", "a"), ("Stamps", "a"), ("Pieces", "a"))
    for i in range(300):
        world.publish("p", X, f"x{i}")
        world.run(unheard)
        lose(world, "Payload", "Stamps", "Pieces")
    world.until(lambda: world.clients["a"].subscriber.feeds[X].mark == 300, unheard)
    began = world.now
    world.until(lambda: len(gaps(world)) == 300, lambda letter: False)
    assert world.now - began < 2 * config.payload_wait_us
    world.settle()
    assert world.complaints() == []


@pytest.mark.parametrize("config", MODES)
@pytest.mark.parametrize("alone", [False, True])
def test_a_busy_topic_is_told_by_its_stamps_and_marked_when_it_is_quiet(config: SequencerConfig, alone: bool) -> None:
    world = Deployment({"r1": None}, {X: "r1"}, config) if alone else star(config)
    world.client("a", X)
    home = world.nodes["r1"]

    def fire() -> list[Any]:
        """What the home does when its timer says that it is time for marks."""
        world.now = max(world.now, world.timers.pop(("r1", "marks")))
        made = home.handle(Fired("marks"), world.now)
        world.perform("r1", made)
        return [type(effect) for effect in made]

    for i in range(10):
        world.publish("p", X, f"x{i}")
        world.run()
        world.now += config.mark_us // 2
        if world.timers["r1", "marks"] <= world.now:
            assert fire() == [Persist, SetTimer], "nothing to tell"
    while (told := fire()) == [Persist, SetTimer]:
        pass
    assert told == [Persist, Broadcast, SetTimer]
    assert world.letters[-1].message.message == Mark(X, 10)
    world.settle()
    assert world.complaints() == []


def test_a_payload_nobody_numbers_is_asked_for_and_dropped_in_the_end() -> None:
    world = star()
    world.publish("p", X, "x1")
    world.letters = [x for x in world.letters if x.kind != "Creates"]
    world.timers.pop(("p", "create"))  # the publisher is gone
    world.run()
    assert world.clients["a"].subscriber.feeds[X].payloads.count == 1
    world.settle()
    assert world.clients["a"].subscriber.feeds[X].payloads.oldest() is None
    assert gaps(world) == []


@pytest.mark.parametrize("config", MODES)
@pytest.mark.parametrize("away", ["r1", "hub"])
def test_payloads_outlast_a_node_that_is_away(config: SequencerConfig, away: str) -> None:
    config = replace(config, payload_keep_us=2 * config.stall_us)
    world = star(config)
    world.publish("p", X, "x1")
    world.publish("p", T, "t1")
    back = world.now + 2 * config.payload_keep_us
    world.until(lambda: world.now > back, lambda letter: letter.to == away)
    world.settle()
    assert gaps(world) == []
    assert world.complaints() == []
    assert sorted(world.order("a").split(",")) == ["t1", "x1"]


@pytest.mark.parametrize("config", MODES)
def test_a_home_that_comes_back_may_be_asked_before_publishers_repeat(config: SequencerConfig) -> None:
    config = replace(config, payload_keep_us=2 * config.stall_us)
    world = star(config)
    world.publish("p", X, "x1")
    back = world.now + 2 * config.payload_keep_us
    world.until(lambda: world.now > back, lambda letter: letter.to == "r1")
    world.letters = [letter for letter in world.letters if letter.to != "r1"]  # they came to a process that died
    feeds = [world.clients[name].subscriber.feeds[X] for name in ("a", "b")]
    world.until(lambda: all(feed.heard > back for feed in feeds), but(("Creates",)))
    world.settle()
    assert gaps(world) == []
    assert world.complaints() == []
    assert world.order("a") == world.order("b") == "x1"


def test_payloads_of_a_publisher_that_is_gone_are_dropped_together() -> None:
    world = star()
    for i in range(5):
        world.publish("p", X, f"x{i}")
    world.letters = [x for x in world.letters if x.kind != "Creates"]
    world.timers.pop(("p", "create"))
    world.publish("q", X, "y1")
    world.settle()
    assert world.clients["a"].subscriber.feeds[X].payloads.count == 0
    assert world.order("a") == "y1"
    assert gaps(world) == []


def test_a_payload_after_its_gap_is_tagged() -> None:
    world = star()
    world.publish("p", X, "x1")
    late = world.find("Payload", "a")
    world.run(lambda letter: letter == late)
    world.until(lambda: bool(gaps(world)), lambda letter: letter == late)
    world.run()
    assert world.order("a") == ""
    assert [n.message.payload for who, n in world.notices if isinstance(n, Heard) and n.late] == [b"x1"]


def test_a_repeated_payload_or_stamp_notifies_nobody_twice() -> None:
    world = star()
    world.publish("p", X, "x1")
    world.letters = [x for x in world.letters for _ in range(2 if x.kind == "Payload" else 1)]
    world.run(but(("Stamps",)))
    world.letters = [x for x in world.letters for _ in range(2)]
    world.settle()
    assert world.complaints() == []
    assert world.order("a") == "x1"
    assert world.clients["a"].subscriber.feeds[X].payloads.oldest() is None


def test_what_the_home_has_forgotten_is_a_gap_and_a_new_subscription() -> None:
    world = star(replace(STAMP, issued_max=3))
    for i in range(8):
        world.publish("p", X, f"x{i}")
        world.run(but(("Stamps", "a", X)))
    lose(world, "Stamps")
    world.settle()
    world.publish("p", X, "after")
    world.settle()
    assert world.complaints() == []
    assert world.order("a").split(",")[-1] == "after"
    assert gaps(world) == [("a", X, 1, 8)]


def test_a_home_keeps_a_bounded_number_of_timestamps() -> None:
    world = star(replace(STAMP, issued_max=5))
    for i in range(50):
        world.publish("p", X, f"x{i}")
        world.run()
    home = world.nodes["r1"].hosted[X]
    assert len(home.issued) <= 5
    assert home.floor > 40


def unreachable(letter: Letter) -> bool:
    return letter.to == "r1"


def stalls(world: Deployment) -> list[tuple[str, int, str]]:
    return [(who, n.topic, n.reason) for who, n in world.notices if isinstance(n, Stalled)]


def test_a_home_that_is_down_stalls_what_waits_for_it_and_nothing_else() -> None:
    world = star()
    world.client("c", T)
    world.publish("p", X, "x1")
    world.run(but(("Stamps", "a")))
    lose(world, "Stamps")
    world.publish("p", T, "t")
    world.until(lambda: len(stalls(world)) == 2, unreachable)
    assert sorted(stalls(world)) == [
        ("a", X, "its home does not answer"),
        ("a", T, "another topic it is ordered against"),
    ]
    assert (world.order("a"), world.order("b"), world.order("c")) == ("", "x1,t", "t")
    world.settle()
    assert world.complaints() == []
    assert world.order("a") == "x1,t"


def test_a_timestamp_that_cannot_climb_stalls_its_topic() -> None:
    world = star()
    world.publish("p", X, "x1")
    world.until(lambda: bool(stalls(world)), lambda letter: letter.to == "hub")
    assert stalls(world)[0][1:] == (X, "its timestamps are not completed")
    world.settle()
    assert world.order("a") == "x1"


def test_a_payload_whose_home_is_silent_stalls_its_topic() -> None:
    world = star()
    world.publish("p", X, "x1")
    world.until(lambda: bool(stalls(world)), unreachable)
    assert stalls(world)[0][1:] == (X, "its home does not answer")
    world.settle()
    assert world.order("a") == "x1"


def test_a_subscription_that_is_not_answered_is_reported_again_and_again() -> None:
    world = star()
    world.subscribe("c", X, T)
    world.until(lambda: len(stalls(world)) == 2, unreachable)
    assert stalls(world) == [("c", X, "its part of a subscription is not answered")] * 2
    world.settle()
    assert world.complaints() == []


def test_publications_end_accepted_unknown_or_refused() -> None:
    config = replace(STAMP, window=2)
    world = star(config)
    for i in range(3):
        world.publish("p", X, f"x{i}")
    outcomes = [n for who, n in world.notices if who == "p"]
    assert [type(n) for n in outcomes] == [Refused]
    world.until(lambda: sum(isinstance(n, Unknown) for _, n in world.notices) == 2, unreachable)
    world.settle()
    assert not any(isinstance(n, Accepted) for _, n in world.notices)  # told once, and that was Unknown
    assert world.complaints() == []
    assert world.order("a") == "x0,x1"


def test_a_stamp_lost_while_joining_is_asked_for() -> None:
    world = star(replace(STAMP, mark_repeats=4))
    world.subscribe("c", X)
    world.run(but(("Installed", "c")))
    world.publish("p", X, "x1")
    world.run(but(("Installed", "c"), ("Stamps", "c")))
    lose(world, "Stamps", to="c")
    world.publish("p", X, "x2")
    world.run(but(("Installed", "c")))
    for _ in range(20):  # the marks come and go before the subscription is complete
        world.timers = {key: at for key, at in world.timers.items() if key[0] != "c"}
        if not world.timers:
            break
        world.fire()
        world.run(but(("Installed", "c")))
    world.settle()
    assert world.complaints() == []
    assert world.order("c") == "x1,x2"
