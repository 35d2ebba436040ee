"""Subscribing and leaving: every scenario that broke a weaker rule (spec section 11).

The weaker rules are planted by `tests/mutants/sequencer.toml`; each kills the test that bears the scenario's name.
Topics X and T live in different regions of a star unless said; events are named after their topics.
"""

from typing import Any

from msgspec.structs import replace

from tests.papers.sequencer.pump import STAMP, Deployment, but
from unisono.machine import Deliver, Heard, Joined, Subscribe
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Collected, Installed, Payload, Run, Stamps

X, T, U = 1, 2, 3
FULL = replace(STAMP, encoding="full")
CAUSAL = replace(STAMP, sgmin=1, causal=True)


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
