"""Numbers that clients supply (spec section 5, last point): believed only when they have passed the meeting point."""

from typing import Any

import pytest

from tests.papers.sequencer.pump import STAMP, Deployment, but
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.messages import SENDERS, Ask, Collect, Creates, Install, Update, Wanted, Withdraw
from unisono.protocols.sequencer.node import TopicManager
from unisono.structures.hosting import Forget

RULES = ("PROOF",)

X, T, U = Topic(1), Topic(2), Topic(3)
LIAR = Address("liar")


def star() -> Deployment:
    world = Deployment({"hub": None, "r1": "hub", "r2": "hub"}, {X: "r1", T: "r2", U: "r2"}, STAMP)
    for name in ("a", "b"):
        world.client(name, X, T, U)
    world.client("liar", X, T)
    return world


def lies(left: dict[Topic, int]) -> list[Any]:
    return [
        Update(LIAR, 100, (T,), (T,), left),
        Collect(LIAR, 100, (T,), (T, U), (U,), left),
        Install(LIAR, 100, (T,), (T,), left),
    ]


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("topic", [X, U, 77])
def test_a_number_that_was_never_issued_is_refused_and_blocks_nobody(kind: int, topic: int) -> None:
    world = star()
    world.command("r2", lies({Topic(topic): 2**60})[kind])
    world.run()
    home = world.nodes["r2"].hosted[T]
    assert (home.bar, home.hist, home.parked) == ({}, {}, [])
    assert any("never issued" in reason for _, reason in world.refusals)
    world.publish("p", T, "t")
    world.settle()
    assert world.order("a") == world.order("b") == "t"


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_number_still_below_the_meeting_point_is_not_believed_yet(kind: int) -> None:
    world = star()
    world.publish("p", X, "x")
    climbing = but(("Fill", "hub", X))
    world.run(climbing)
    world.command("r2", lies({X: 1})[kind])
    world.run(climbing)
    home = world.nodes["r2"].hosted[T]
    assert home.bar == {}
    assert len(home.parked) == 1
    world.publish("p", T, "t")
    world.run(climbing)
    world.run()
    assert home.parked == []
    assert home.hist == {X: 1}
    world.settle()
    assert world.complaints() == []
    assert world.order("a") == world.order("b") == "t,x"


def test_what_a_node_can_see_itself_costs_no_message() -> None:
    world = star()
    world.publish("p", U, "u")
    world.settle()
    before = world.count
    world.command("r2", lies({U: 1})[0])
    assert world.count == before + 1  # the answer
    assert world.nodes["r2"].hosted[T].bar == {U: 1}


def test_parked_registrations_are_bounded() -> None:
    world = star()
    world.publish("p", X, "x")
    world.run(but(("Fill",)))
    home = world.nodes["r2"].hosted[T]
    home.parked = lies({X: 1})[:1] * STAMP.parked_max
    world.command("r2", lies({X: 1})[0])
    assert len(home.parked) == STAMP.parked_max
    assert "wait for proofs" in world.refusals[-1][1]


def test_every_client_message_says_whose_it_is() -> None:
    messages = [
        *lies({}),
        Creates(LIAR, (Wanted(X, 1),)),
        Ask(LIAR, X, 1),
        Withdraw(LIAR, X, 1),
    ]
    assert [SENDERS[type(message)](message) for message in messages] == [LIAR] * 6


def test_proofs_survive_a_restart() -> None:
    """A log replayed on a snapshot must send the same messages again, so what saved a message is durable too."""
    world = star()
    world.client("c", X)
    world.publish("p", X, "x")
    world.run()
    world.command("r2", lies({X: 1})[0])
    world.run()
    node = world.nodes["r2"]
    assert node.hosted[T].proven == {X: 1}
    restored = TopicManager(node.me, Address("hub"), (), (), {}, STAMP)
    restored.restore(node.snapshot())
    assert restored.hosted[T].proven == {X: 1}


def test_a_topic_named_twice_counts_once() -> None:
    t, u = Topic(1), Topic(2)
    home = TopicManager(Address("home"), None, (), (t, u), {}, STAMP)
    for sid, topics in (("s", (t, u, u)), ("z", (t,))):
        home.handle(Install(Address(sid), 1, (t,), topics), Micros(0))
    assert home.hosted[t].group.listed() == ()
    home.handle(Install(Address("z"), 2, (t,), (t, u)), Micros(0))
    assert home.hosted[t].group.listed() == (u,)
    home.handle(Forget(Address("s")), Micros(0))
    assert home.hosted[t].group.listed() == ()
