"""Moving homes, new topics, forwarding (spec section 10)."""

from itertools import pairwise
from typing import Any

import pytest
from msgspec import Struct, structs
from msgspec.structs import replace

from tests.papers.sequencer.pump import STAMP, Deployment, but
from unisono.machine import PERSIST, Broadcast, Deliver, Fired, Send, SetTimer
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.inputs import Inherited, Migrate
from unisono.protocols.sequencer.messages import Creates, Fill, Install, Mark, Relocate, Routed, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.structures.hosting import Announced, Forget, HostTopic, Lapse

RULES = ("C18", "BORN")

X, T = Topic(1), Topic(2)


def line() -> Deployment:
    """X below T: n2 hosts X, n1 hosts T."""
    return Deployment({"n0": None, "n1": "n0", "n2": "n1"}, {X: "n2", T: "n2"}, STAMP)


def move(world: Deployment, topic: Topic, *path: str) -> None:
    for here, there in pairwise(path):
        world.command(here, Migrate(topic, Address(there)))
        world.run()


def relocate(world: Deployment, at: str, topic: Topic, *path: str) -> None:
    world.command(at, Relocate(topic, tuple(map(Address, path))))


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


def test_a_topic_moves_over_several_links_in_one_go() -> None:
    """Ordered at the root, which is not its home: the order finds the home, and events go on meanwhile."""
    world = Deployment({"n0": None, "n1": "n0", "n2": "n1", "n3": "n0"}, {X: "n2", T: "n2"}, STAMP)
    for name in ("s", "z"):
        world.client(name, X, T)
    world.publish("p", X, "x")
    relocate(world, "n0", X, "n1", "n0", "n3")
    world.publish("p", X, "y")
    world.publish("q", T, "t")
    world.run()
    assert [name for name, node in world.nodes.items() if X in node.hosted] == ["n3"]
    assert world.nodes["n0"].below[X] == Address("n3")
    world.publish("p", X, "w")
    finish(world)
    assert world.order("s") == world.order("z")


def test_a_way_that_is_none_moves_nothing_further() -> None:
    world = line()
    relocate(world, "n0", T, "n1", "n7")
    world.run()
    assert [name for name, node in world.nodes.items() if T in node.hosted] == ["n1"]
    relocate(world, "n0", T)
    relocate(world, "n0", T, "n1")
    world.run()
    assert [name for name, node in world.nodes.items() if T in node.hosted] == ["n1"]
    assert len(world.refusals) == 3


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
    effects = world.nodes["n2"].handle(HostTopic(new), world.now)
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
    world.command("n1", HostTopic(X))
    assert world.refusals == [("n1", "topic 1 exists")]


def moving() -> Deployment:
    """s is registered at X, which is on its way from n2 to n1."""
    world = line()
    world.client("s", X)
    world.client("z", X)
    world.publish("s", X, "x")
    world.run()
    world.command("n2", Migrate(X, Address("n1")))
    assert world.find("Move", "n1")
    return world


def test_a_client_that_has_said_goodbye_is_forgotten_by_a_topic_in_transit() -> None:
    world = moving()
    for node in world.nodes:
        world.command(node, Forget(Address("s")))
    world.run()
    assert world.home(X).hosted[X].clients() == ["z"]
    # Nor does what is still under way bring it back.
    late = Routed(X, Install(Address("s"), 9, (X,), (X, T))), Routed(X, Creates(Address("s"), (Wanted(X, 1),)))
    for message in late:
        world.perform("n2", [Send(Address("n1"), message)])
    restored = TopicManager(Address("n1"), Address("n0"), (Address("n2"),), (), {}, STAMP)
    restored.restore(world.nodes["n1"].snapshot())
    world.nodes["n1"] = restored
    world.run()
    assert world.home(X).hosted[X].clients() == ["z"]
    assert world.nodes["n1"].clock[X] == 1, "what had its number gets no second one"
    assert len(world.refusals) == 2


def test_a_client_that_stayed_away_from_one_node_is_known_to_topics_that_come_from_another() -> None:
    """It has renewed its lease where the topic was, and goes on notifying for as long."""
    world = moving()
    world.command("n1", Lapse(Address("s")))
    world.run()
    assert world.home(X).hosted[X].group.has(Address("s"))
    world.command("n1", Lapse(Address("s")))
    assert world.home(X).hosted[X].clients() == ["z"]


def test_the_new_home_is_told_whom_it_has_to_watch() -> None:
    world = moving()
    move = world.find("Move", "n1")
    world.letters.remove(move)
    effects = world.nodes["n1"].handle(move.message, world.now)
    assert Deliver(Inherited((Address("s"), Address("z")), X)) in effects
    assert world.nodes["n1"].clients() == ["s", "z"]


def test_those_who_have_said_goodbye_are_kept_in_mind_up_to_a_bound() -> None:
    node = TopicManager(Address("n"), None, (), (X,), {}, replace(STAMP, gone_max=2))
    for name in ("a", "b", "c"):
        node.handle(Forget(Address(name)), Micros(0))
    installed = [
        any(isinstance(effect, Send) for effect in node.handle(Install(Address(name), 1, (X,), (X,)), Micros(0)))
        for name in ("a", "b", "c")
    ]
    assert installed == [True, False, False]


def test_a_registration_that_waits_for_a_proof_goes_with_its_client() -> None:
    node = TopicManager(Address("n"), Address("above"), (), (X,), {}, STAMP)
    node.handle(Install(Address("s"), 1, (X,), (X, T), {T: 5}), Micros(0))
    node.handle(Install(Address("z"), 1, (X,), (X, T), {T: 5}), Micros(0))
    node.handle(Lapse(Address("s")), Micros(0))
    assert [message.sid for message in node.hosted[X].parked] == ["z"]


def test_a_move_carries_no_time_of_the_old_homes_clock() -> None:
    """The clock of n2 is years ahead; marks follow the last number all the same, as soon as after any change."""
    ahead, here = Micros(10**15), Micros(7)
    old = TopicManager(Address("n2"), Address("n1"), (), (X,), {}, STAMP)
    new = TopicManager(Address("n1"), None, (Address("n2"),), (), {X: Address("n2")}, STAMP)
    old.handle(Creates(Address("p"), (Wanted(X, 1),)), ahead)
    (move,) = [e.message for e in old.handle(Migrate(X, Address("n1")), ahead) if isinstance(e, Send)]
    assert old.handle(Fired("marks"), ahead) == [PERSIST], "it is no longer ours to tell"
    effects = new.handle(move, here)
    assert SetTimer("marks", Micros(here + STAMP.mark_us)) in effects
    told = new.handle(Fired("marks"), Micros(here + STAMP.mark_us))
    assert Broadcast(X, Mark(X, 1), control=True) in told
    assert not [value for value in numbers_in(move) if value > 10**9]


def numbers_in(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [n for item in [*value.keys(), *value.values()] for n in numbers_in(item)]
    if isinstance(value, list | tuple):
        return [n for item in value for n in numbers_in(item)]
    if isinstance(value, Struct):
        return [n for item in structs.astuple(value) for n in numbers_in(item)]
    return [value] if isinstance(value, int) else []
