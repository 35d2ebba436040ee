"""Subscribing and leaving: every scenario that broke a weaker rule (spec section 11).

The weaker rules are planted by `tests/mutants/sequencer.toml`; each kills the test that bears the scenario's name.
Topics X and T live in different regions of a star unless said; events are named after their topics.
"""

from typing import Any

from msgspec.structs import replace

from tests.papers.sequencer.pump import STAMP, Deployment, but
from unisono.machine import Deliver, Fired, Gap, Heard, Joined, Send, Subscribe, Unsubscribe
from unisono.model.event import Event, Payload
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import (
    Collect,
    Collected,
    Install,
    Installed,
    Piece,
    Pieces,
    Run,
    Stamps,
    Told,
    Update,
    Updated,
)

RULES = ("D1", "C9")

X, T, U, V = 1, 2, 3, 4
FULL = replace(STAMP, encoding="full")
CAUSAL = replace(STAMP, shared_subscriptions_min=1, causal=True)


def star(config: SequencerConfig = STAMP) -> Deployment:
    return Deployment({"hub": None, "r1": "hub", "r2": "hub", "r3": "hub"}, {X: "r1", T: "r2", U: "r3"}, config)


def finish(world: Deployment) -> None:
    world.settle()
    assert world.complaints() == []
    assert world.unforced() == []


def test_c06_joining_does_not_touch_the_clocks_of_old_topics() -> None:
    world = star()
    world.client("s", X)
    world.publish("p", X, "x")
    world.run(but(("Stamps", "s", X)))
    world.subscribe("s", T)
    world.run(but(("Stamps", "s", X)))
    assert world.order("s") == ""
    finish(world)
    assert world.order("s") == "x"


def c07() -> Deployment:
    world = star()
    world.client("a", X, T)
    world.client("b", X, T)
    world.client("s", X)
    world.subscribe("s", T)
    world.run(but(("Installed", "s")))
    world.publish("p", T, "t")
    world.run(but(("Installed", "s"), ("Payload", "s", T)))
    world.publish("p", X, "x")
    world.run(but(("Installed", "s"), ("Payload", "s", T)))
    return world


def test_c07_d08_events_with_an_entry_of_a_topic_being_joined_are_held() -> None:
    world = c07()
    assert world.order("s") == ""
    finish(world)
    assert world.order("s") == world.order("a") == "t,x"


def test_an_event_that_waits_is_held_for_a_topic_joined_meanwhile() -> None:
    """t has entries for X, which nobody here has, and for U, for which it waits; then X is joined."""
    home = Address("home")
    client = OrderingClient(Address("s"), dict.fromkeys((X, T, U), home), STAMP)

    def handle(*inputs: Any) -> list[Any]:
        effects = [effect for one in inputs for effect in client.handle(one, Micros(1))]
        return [effect.item for effect in effects if isinstance(effect, Deliver)]

    def event(topic: int, topics: tuple[int, ...] = (), numbers: tuple[int, ...] = ()) -> tuple[Heard, Heard]:
        payload = Payload(Address("p"), 1, Event("p", 1, str(topic), b""))
        run = Run(1, 1, Address("p"), 1, topics, numbers)
        return Heard(topic, payload), Heard(topic, Stamps(topic, (run,)))

    handle(Subscribe((T, U)), Joined(T), Joined(U), Installed(T, 1, 0), Installed(U, 1, 0))
    assert handle(*event(T, (X, U), (1, 1))) == []
    handle(Subscribe((X,)))
    assert [item.topic for item in handle(*event(U))] == [U]
    joined, told = handle(Joined(X), Collected(T, 2), Collected(U, 2), Installed(X, 2, 1))
    assert (joined, told.topic) == (Joined(X, 1), T)


def leave_and_look() -> Deployment:
    """s and z have X and T; s is notified of x and leaves X; t follows."""
    world = star()
    world.client("s", X, T)
    world.client("z", X, T)
    world.publish("p", X, "x")
    world.run(but(("Stamps", "z", X)))
    assert world.order("s") == "x"
    world.unsubscribe("s", X)
    return world


def test_c08_d07_leaving_a_topic_leaves_a_bar() -> None:
    world = leave_and_look()
    world.run(but(("Stamps", "z", X)))
    world.publish("p", T, "t")
    world.run(but(("Stamps", "z", X)))
    assert world.order("z") == ""
    finish(world)
    assert world.order("s") == world.order("z") == "x,t"


def test_c09_a_stale_unsubscription_changes_nothing() -> None:
    world = star()
    world.client("s", X, T)
    world.client("z", X, T)
    world.unsubscribe("s", X)
    world.run(but(("Update", "r2")))
    world.subscribe("s", X)
    world.run(but(("Update", "r2")))
    world.run()
    world.publish("p", X, "x")
    world.run(but(("Stamps", "z", X)))
    world.publish("p", T, "t")
    world.run(but(("Stamps", "z", X)))
    assert world.order("z") == ""
    finish(world)
    assert world.order("s") == "x,t"


def test_c17_d06_what_was_notified_before_leaving_precedes_what_is_joined_later() -> None:
    world = star()
    world.client("z", X, T)
    world.client("s", X)
    world.publish("p", X, "x")
    world.run(but(("Stamps", "z", X)))
    world.unsubscribe("s", X)
    world.run(but(("Stamps", "z", X)))
    world.subscribe("s", T)
    world.run(but(("Stamps", "z", X)))
    world.publish("p", T, "t")
    world.run(but(("Stamps", "z", X)))
    assert (world.order("s"), world.order("z")) == ("x,t", "")
    finish(world)


def test_c21_on_a_line_a_subscription_may_overtake_an_unsubscription() -> None:
    world = Deployment({"n0": None, "n1": "n0", "n2": "n1"}, {0: "n0", 1: "n1", 2: "n2"})
    world.client("s", 0, 1)
    world.client("z", 0, 1)
    world.publish("p", 1, "b")
    world.run(but(("Stamps", "z", 1)))
    world.unsubscribe("s", 1)
    held = (("Stamps", "z", 1), ("Update", "n0", 0))
    world.run(but(*held))
    world.subscribe("s", 2)
    world.run(but(*held))
    world.publish("p", 0, "a")
    world.run(but(*held))
    assert (world.order("s"), world.order("z")) == ("b,a", "")
    finish(world)


def test_c22_the_gate_holds_with_full_timestamps_too() -> None:
    world = Deployment({"n0": None, "n1": "n0"}, {0: "n0", 1: "n1"}, FULL)
    world.client("s", 0)
    world.client("z", 0)
    world.publish("p", 0, "x")
    late = but(("Stamps", "z", 0))
    world.run(late)
    world.unsubscribe("s", 0)
    world.run(late)
    world.subscribe("s", 1)
    world.run(late)
    world.publish("p", 1, "t1")
    world.run(late)
    world.subscribe("z", 1)
    world.run(late)
    world.publish("p", 1, "t2")
    world.run(late)
    assert (world.order("s"), world.order("z")) == ("x,t1,t2", "")
    finish(world)
    assert world.order("z") == "x,t2"


def test_d01_no_install_before_every_part_has_reached_its_height() -> None:
    world = star()
    world.client("z", X, T)
    world.client("s", X)
    world.subscribe("s", T)
    held = (("Collect", "r1"), ("Stamps", "z", X))
    world.run(but(*held))
    world.publish("p", X, "x")
    world.run(but(*held))
    world.publish("p", T, "t")
    world.run(but(*held))
    finish(world)


def test_d02_the_first_entry_after_a_base_is_explicit() -> None:
    world = star()
    world.client("z", X, T)
    world.client("y", X, T)
    world.client("s", T)
    world.subscribe("s", X)
    held = (("Install", "r1"), ("Stamps", "s", T))
    world.run(but(*held))
    world.publish("p", T, "t")
    world.run(but(*held))
    world.publish("p", X, "x1")
    world.run(but(*held))
    world.run(but(held[1]))
    world.publish("p", X, "x2")
    world.run(but(held[1]))
    assert world.order("s") == ""
    finish(world)
    assert world.order("s") == "t,x2"


def test_d02_the_first_entry_after_the_base_of_a_repeated_install_is_explicit() -> None:
    """The answer to the first Install is lost, and x1 takes the explicit entry that s would have needed."""
    world = star()
    world.client("z", X, T)
    world.client("y", X, T)
    world.client("s", T)
    world.subscribe("s", X)
    slow = (("Stamps", "s", T), ("Told", "s", T))
    world.run(but(*slow, ("Installed", "s")))
    world.letters.remove(world.find("Installed", "s"))
    world.publish("p", T, "t")
    world.run(but(*slow))
    world.publish("p", X, "x1")
    world.run(but(*slow))
    world.until(lambda: world.bases["s"].get(X) == 1, but(*slow))
    world.publish("p", X, "x2")
    world.run(but(*slow))
    assert (world.order("z"), world.order("s")) == ("t,x1,x2", "")
    finish(world)
    assert world.order("s") == "t,x2"


def test_d03_a_base_is_not_a_number_that_was_notified() -> None:
    world = star(CAUSAL)
    world.client("z", X, T)
    world.client("s", T)
    world.publish("p", X, "x")
    climbing = but(("Fill", "hub", X))
    world.run(climbing)
    world.subscribe("s", X)
    world.run(climbing)
    assert world.bases["s"][X] == 1
    world.unsubscribe("s", X)
    world.run(climbing)
    world.publish("q", T, "t")
    world.run(climbing)
    finish(world)


def test_d04_those_who_join_behind_a_bar_get_it_as_a_gate() -> None:
    world = star()
    world.client("s", X)
    world.client("z", X)
    held = [("Install", "r2"), ("Stamps", "z", X)]
    world.subscribe("z", T)
    world.run(but(*held))
    slow = world.find("Install", "r2")
    world.publish("p", X, "x")
    world.run(but(*held))
    world.unsubscribe("s", X)
    world.run(but(*held))
    world.subscribe("s", T)
    world.run(lambda letter: letter == slow or but(held[1])(letter))
    world.publish("p", T, "t1")
    world.run(lambda letter: letter == slow or but(held[1])(letter))
    assert world.order("s") == "x,t1"
    world.run(but(held[1]))
    world.publish("p", T, "t2")
    world.run(but(held[1]))
    assert (world.order("s"), world.order("z")) == ("x,t1,t2", "")
    finish(world)
    assert world.order("z") == "x,t2"


def test_d05_a_part_tells_the_nodes_it_passes() -> None:
    world = star()
    world.client("z", X, T)
    world.client("s", X)
    world.publish("p", X, "x")
    late = but(("Stamps", "z", X))
    world.run(late)
    world.subscribe("s", T)
    world.run(late)
    world.publish("p", T, "t")
    world.run(late)
    assert (world.order("s"), world.order("z")) == ("x,t", "")
    finish(world)


def test_d12_topics_that_come_back_together_are_collected_too() -> None:
    a, b, d = 1, 2, 3
    world = Deployment({"n0": None, "n1": "n0", "n2": "n0", "n3": "n1"}, {a: "n2", b: "n1", d: "n3"})
    world.client("y", a, b, d)
    world.client("y2", b, d)
    world.client("y3", a, d)
    world.client("s", a)
    world.publish("p", a, "a1")
    world.run()
    world.unsubscribe("s", a)
    world.run()
    world.subscribe("s", b)
    world.run()
    world.publish("p", d, "d")
    slow = but(("Fill", "n0", d))
    world.run(slow)
    world.publish("p", b, "b")
    world.run(slow)
    assert world.order("s") == "a1,b"
    world.unsubscribe("s", b)
    world.run(slow)
    world.subscribe("s", a, b)
    world.run(slow)
    world.publish("p", a, "a2")
    world.run(slow)
    finish(world)
    assert sorted(world.order("y").split(",")) == ["a1", "a2", "b", "d"]


def test_d13_a_subscription_may_overtake_an_unsubscription() -> None:
    world = leave_and_look()
    held = (("Stamps", "z", X), ("Update", "r2"))
    world.run(but(*held))
    world.subscribe("s", U)
    world.run(but(*held))
    world.publish("p", T, "t")
    world.run(but(*held))
    assert (world.order("s"), world.order("z")) == ("x,t", "")
    finish(world)


def test_d14_every_unsubscription_carries_all_that_was_left() -> None:
    world = star()
    world.client("s", X, T, U)
    world.client("z", X, T)
    world.publish("p", U, "u")
    world.publish("p", X, "x")
    late = ("Stamps", "z", X)
    world.run(but(late))
    world.unsubscribe("s", X)
    first = world.find("Update", "r2")
    world.unsubscribe("s", U)
    world.run(lambda letter: letter == first or but(late)(letter))
    world.publish("p", T, "t")
    world.run(lambda letter: letter == first or but(late)(letter))
    assert world.order("z") == ""
    finish(world)


def test_a_subscription_registers_nobody_at_topics_that_were_left() -> None:
    world = star()
    for name in ("a", "b"):
        world.client(name, X)
    world.publish("p", X, "x")
    world.run()
    for name in ("a", "b"):
        world.unsubscribe(name, X)
        world.run()
        world.subscribe(name, T)  # collected at X too, of which it has notified
        world.run()
        assert not world.nodes["r1"].hosted[X].group.has(Address(name))
    world.publish("p", X, "for nobody")
    world.run(but(("Fill",)))
    assert not [letter for letter in world.letters if letter.kind == "Fill"], "nobody has X and T together"
    finish(world)


def test_a_topic_that_is_left_before_its_joining_has_begun_is_never_joined() -> None:
    world = star()
    world.client("s", X)
    world.subscribe("s", T)
    waits = but(("Installed", "s", T))
    world.run(waits)
    world.subscribe("s", U, T)
    world.unsubscribe("s", U)
    world.run(but(("Installed", "s")))
    world.publish("p", U, "u")
    world.run(but(("Installed", "s", U)))
    finish(world)
    assert (world.order("s"), world.clients["s"].subscriber.subscribed) == ("", (X, T))
    assert not [period for period in world.periods["s"] if period[:2] == ("join", U)]
    world.subscribe("s", U)
    finish(world)
    assert world.clients["s"].subscriber.subscribed == (X, T, U)


def forgotten() -> Deployment:
    """s is joining T, and waits for numbers of X that the home no longer knows; its question is answered later."""
    world = star(replace(STAMP, issued_max=2))
    world.client("s", X)
    for i in range(8):
        world.publish("p", X, f"x{i}")
        world.run(but(("Stamps", "s", X)))
    world.letters = [letter for letter in world.letters if letter.kind != "Stamps"]
    world.subscribe("s", T)
    answer = but(("Installed", "s", T), ("Told", "s", X))
    world.until(lambda: any(letter.kind == "Told" for letter in world.letters), answer)
    return world


def test_a_topic_that_is_left_is_not_joined_again_because_its_home_has_forgotten() -> None:
    for told_first in (False, True):
        world = forgotten()
        if told_first:
            world.run(but(("Installed", "s", T)))
        world.unsubscribe("s", X)
        world.run(but(("Installed", "s", T)))
        finish(world)
        assert world.clients["s"].subscriber.subscribed == (T,)
        assert [period[:2] for period in world.periods["s"]].count(("join", X)) == 1
        world.publish("p", X, "meanwhile")
        finish(world)
        world.subscribe("s", X)
        finish(world)
        assert not [notice for who, notice in world.notices if isinstance(notice, Gap)], "it was not there"


class Alone:
    """A client by itself, at one home for all its topics, and what it says."""

    def __init__(self, config: SequencerConfig = STAMP) -> None:
        self.client = OrderingClient(Address("s"), dict.fromkeys((X, T, U, V), Address("home")), config)

    def handle(self, *inputs: Any) -> list[Any]:
        """What it sends and tells."""
        effects = [effect for one in inputs for effect in self.client.handle(one, Micros(1))]
        return [
            effect.item if isinstance(effect, Deliver) else effect.message
            for effect in effects
            if isinstance(effect, Deliver | Send)
        ]

    def join(self, version: int, *topics: int) -> None:
        self.handle(Subscribe(topics), *map(Joined, topics), *[Installed(topic, version, 0) for topic in topics])


def test_a_timestamp_that_comes_whole_is_looked_at_from_its_beginning() -> None:
    """Pieces came in another order than the whole has: X, which was met, stood before U, for which t waits."""
    alone = Alone(SequencerConfig())
    alone.join(1, X, T, U, V)

    def run(first: int, topics: tuple[int, ...] = (), numbers: tuple[int, ...] = ()) -> Run:
        return Run(first, 1, Address("p"), first, topics, numbers)

    def payload(topic: int) -> Heard:
        return Heard(topic, Payload(Address("p"), 1, Event("p", 1, str(topic), b"")))

    told = alone.handle(payload(X), Heard(X, Pieces(X, (Piece(run(1), (), ()),))))
    assert [item.topic for item in told] == [X]
    alone.handle(
        payload(T),
        Heard(T, Pieces(T, (Piece(run(1, (X,), (1,)), (X,)),))),
        Heard(T, Pieces(T, (Piece(run(1, (U,), (1,)), (), (X, 9)),))),  # 9 is a topic of others, still missing
    )
    assert alone.handle(Told(T, 1, "published", run(1, (U, X, 9), (1, 1, 1)))) == []
    left = alone.handle(Unsubscribe((V,)))  # everything is looked at again
    assert not [item for item in left if isinstance(item, Heard)], "u comes first"
    told = alone.handle(payload(U), Heard(U, Pieces(U, (Piece(run(1), (), ()),))))
    assert [item.topic for item in told] == [U, T]


def test_a_part_of_a_joining_that_was_given_up_says_nothing_about_the_next() -> None:
    alone = Alone()
    alone.join(1, X)
    alone.handle(Subscribe((T,)), Joined(T))
    alone.handle(Unsubscribe((T,)))
    (collect,) = [one for one in alone.handle(Subscribe((T,)), Joined(T)) if isinstance(one, Collect)]
    assert alone.handle(*[Collected(X, version) for version in range(collect.version)]) == []
    (install,) = alone.handle(Collected(X, collect.version))
    assert install == Install(Address("s"), collect.version, (T,), (X, T), short=True)
    assert alone.handle(*[Installed(T, version, 0) for version in range(collect.version)]) == []
    assert alone.handle(Installed(T, collect.version, 4)) == [Joined(T, 4)]


def test_an_older_registration_in_force_does_not_end_the_repetition_of_a_newer_one() -> None:
    alone = Alone()
    alone.join(1, X, T, U)
    first = [one for one in alone.handle(Unsubscribe((T,))) if isinstance(one, Update)]
    second = [one for one in alone.handle(Unsubscribe((U,))) if isinstance(one, Update)]
    assert [one.topics for one in second if X in one.here] == [(X,)]
    alone.handle(*[Updated(topic, one.version) for one in first for topic in one.here])
    assert [one for one in alone.handle(Fired("subscribe")) if isinstance(one, Update)] == second
    alone.handle(*[Updated(topic, one.version) for one in second for topic in one.here])
    assert alone.handle(Fired("subscribe")) == []
