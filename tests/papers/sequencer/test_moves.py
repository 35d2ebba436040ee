"""Moving homes, new topics, forwarding (spec section 10)."""

from itertools import pairwise

import pytest

from tests.papers.sequencer.pump import STAMP, Deployment, but
from unisono.machine import Deliver, Send
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.inputs import Host, Migrate
from unisono.protocols.sequencer.messages import Announced, Creates, Fill, Wanted

X, T = Topic(1), Topic(2)


def line() -> Deployment:
    """X below T: n2 hosts X, n1 hosts T."""
    return Deployment({"n0": None, "n1": "n0", "n2": "n1"}, {X: "n2", T: "n2"}, STAMP)


def move(world: Deployment, topic: Topic, *path: str) -> None:
    for here, there in pairwise(path):
        world.command(here, Migrate(topic, Address(there)))
        world.run()


def finish(world: Deployment) -> None:
    world.settle()
    assert world.complaints() == []
    assert world.unforced() == []


def test_a_move_carries_what_the_old_home_had_seen() -> None:
    """x and t were decided at n2; when T has moved up, x's number must be known there."""
    world = line()
    for name in ("s", "z"):
        world.client(name, X, T)
    world.publish("p", X, "x")
    late = but(("Stamps", "z", X))
    world.run(late)
    world.command("n2", Migrate(T, Address("n1")))
    world.run(late)
    world.publish("p", T, "t")
    world.run(late)
    assert (world.order("s"), world.order("z")) == ("x,t", "")
    finish(world)


def test_who_decides_an_entry_follows_the_homes() -> None:
    """T stays at n2; X goes up and comes back, so entries of X are decided at n2, at n1, and at n2 again."""
    world = line()
    for name in ("s", "z"):
        world.client(name, X, T)
    climbs = []
    for number, path in enumerate([(), ("n2", "n1"), ("n1", "n2")], 1):
        move(world, X, *path)
        effects = world.nodes["n2"].handle(Creates(Address("s"), (Wanted(T, number),)), world.now)
        climbs.append(any(isinstance(effect, Send) and isinstance(effect.message, Fill) for effect in effects))
        world.perform("n2", effects)
        world.run()
    assert climbs == [False, True, False]


@pytest.mark.parametrize("path", [("n2", "n1"), ("n2", "n1", "n0"), ("n2", "n1", "n2"), ("n2", "n1", "n0", "n1")])
def test_clients_find_a_moved_home_and_remember_it(path: tuple[str, ...]) -> None:
    world = line()
    world.client("s", X, T)
    world.client("z", X, T)
    move(world, T, *path)
    world.publish("p", T, "t")
    world.publish("p", X, "x")
    finish(world)
    assert world.clients["p"].homes[T] == path[-1]
    assert len(world.log["s"]) == 2


def test_requests_for_a_topic_in_transit_follow_it() -> None:
    world = line()
    world.client("s", X, T)
    world.command("n2", Migrate(T, Address("n1")))
    world.publish("p", T, "t")
    world.subscribe("z", T)
    world.run(but(("Move",)))
    assert world.order("s") == ""
    finish(world)
    assert world.order("s") == "t"


def test_only_a_home_moves_a_topic_and_only_to_a_neighbour() -> None:
    world = line()
    world.command("n1", Migrate(T, Address("n0")))
    world.command("n2", Migrate(T, Address("n0")))
    assert [reason.split(":")[0] for _, reason in world.refusals] == [
        "n1 is not the home of topic 2",
        "n0 is no neighbour of n2",
    ]
    assert T in world.nodes["n2"].hosted


def test_a_move_skips_no_node() -> None:
    """Past n1, which would go on filling in what it knew of T: x and t would not know of each other."""
    world = line()
    for name in ("s", "z"):
        world.client(name, X, T)
    world.command("n2", Migrate(T, Address("n0")))
    late = but(("Stamps", "z", T))
    world.run(late)
    world.publish("p", T, "t")
    world.run(late)
    world.publish("p", X, "x")
    world.run(late)
    assert world.order("s") == "t,x"
    finish(world)


def test_a_new_topic_is_announced_when_the_whole_tree_knows_it() -> None:
    world = line()
    new = Topic(9)
    effects = world.nodes["n2"].handle(Host(new), world.now)
    assert not any(isinstance(effect, Deliver) for effect in effects)
    world.perform("n2", effects)
    world.run()
    assert ("n2", Announced(new)) in world.notices
    assert [new in world.nodes[n].clock for n in ("n0", "n1", "n2")] == [True] * 3
    world.homes[new] = Address("n0")  # any node will do
    world.client("s", X, new)
    world.publish("p", new, "first")
    finish(world)
    assert world.order("s") == "first"


def test_a_topic_is_born_once() -> None:
    world = line()
    world.command("n1", Host(X))
    assert world.refusals == [("n1", "topic 1 exists")]
