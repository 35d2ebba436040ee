"""Homes that have moved since the moment to which a node is set back (HOMES): each topic has one home."""

from itertools import pairwise
from typing import Any

import pytest

from tests.papers.sequencer.test_reborn import CONFIG, INCARNATION, LEFT, RIGHT, ROOT, Tree, numbered
from unisono.machine import Deliver, Publish, Refuse, Send, Unknown
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.naming.topic_names import TopicNames
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.inputs import Migrate
from unisono.protocols.sequencer.lives import Lives
from unisono.protocols.sequencer.messages import Ask, Creates, Moved, Taken, Told, Wanted
from unisono.protocols.sequencer.node import NUMBERS
from unisono.structures.sessions import Reborn, Reconnected

RULES = ("HOMES",)

BEGUN = (INCARNATION << NUMBERS) + 1
"""The first number of a topic that is begun again."""


def move(tree: Tree, name: str, *path: Address) -> None:
    for source, to in pairwise(path):
        tree.tell(source, Migrate(tree.topics[name], to))


def homes(tree: Tree, name: str) -> list[Address]:
    """Every node that believes to be the home; the way from the root must lead to it."""
    topic = tree.topics[name]
    found = [node for node in tree.nodes if topic in tree.manager(node).hosted]
    way = tree.manager(ROOT).below.get(topic, ROOT)
    assert way in found or not found, f"the root looks for it at {way}"
    for node in (LEFT, RIGHT):
        assert (topic in tree.manager(node).clock) == (node in found)
    return found


def names(tree: Tree, node: Address) -> TopicNames:
    inside = tree.nodes[node].inside.inside
    assert isinstance(inside, TopicNames)
    return inside


def told(tree: Tree, node: Address, name: str, number: int) -> Told:
    (answer,) = [m for m in tree.tell(node, Ask(Address("s/1"), tree.topics[name], number)) if isinstance(m, Told)]
    return answer


def restored(tree: Tree, node: Address) -> Lives:
    made = tree.make(node)
    made.restore(tree.nodes[node].snapshot())
    return made


def set_back(tree: Tree, node: Address, snapshot: Any) -> None:
    """A node that was not there for what has happened meanwhile."""
    tree.nodes[node] = tree.make(node)
    tree.nodes[node].restore(snapshot)


def test_what_a_node_gave_to_its_parent_before_it_was_set_back_stays_there() -> None:
    tree = Tree()
    numbered(tree, 2)
    snapshot = tree.nodes[LEFT].snapshot()
    move(tree, "of-left", LEFT, ROOT)
    tree.publish(ROOT, "of-left", 3)
    tree.forget(LEFT, snapshot)
    assert homes(tree, "of-left") == [ROOT]
    assert names(tree, LEFT).at_home == []
    assert Moved(tree.topics["of-left"], ROOT) in tree.publish(LEFT, "of-left", 4)
    assert tree.number(ROOT, "of-left") == 4, "its home has forgotten nothing"


def test_what_a_node_gave_to_a_child_before_it_was_set_back_stays_there() -> None:
    tree = Tree()
    numbered(tree, 2)
    snapshot = tree.nodes[ROOT].snapshot()
    move(tree, "of-root", ROOT, LEFT)
    tree.publish(LEFT, "of-root", 3)
    tree.forget(ROOT, snapshot)
    assert homes(tree, "of-root") == [LEFT]
    assert tree.number(LEFT, "of-root") == 3, "its home has forgotten nothing"
    assert names(tree, ROOT).at_home == []
    assert names(tree, LEFT).at_home == ["of-left", "of-root"]


def test_what_went_through_a_node_that_was_set_back_is_found_where_it_went() -> None:
    """Both ends of the first link have forgotten; the last link has not."""
    tree = Tree()
    snapshots = {node: tree.nodes[node].snapshot() for node in (LEFT, ROOT)}
    move(tree, "of-left", LEFT, ROOT, RIGHT)
    for node in (LEFT, ROOT):
        set_back(tree, node, snapshots[node])
    for node in (LEFT, ROOT):
        tree.tell(node, Reborn(INCARNATION))
    for node in (LEFT, RIGHT):
        tree.tell(ROOT, Reconnected(node))
        tree.tell(node, Reconnected(ROOT))
    assert homes(tree, "of-left") == [RIGHT]
    assert homes(tree, "of-root") == [ROOT]
    assert names(tree, LEFT).at_home == []


@pytest.mark.parametrize(("giver", "taker", "name"), [(ROOT, LEFT, "of-root"), (LEFT, ROOT, "of-left")])
def test_what_a_node_was_given_after_the_moment_it_is_set_back_to_is_begun_again_there(
    giver: Address, taker: Address, name: str
) -> None:
    """Crash campaign with moves, seed 5: a topic in nobody's hands, which the parent gave back to one that was not its
    birthplace, and which a child can not give back at all."""
    tree = Tree()
    tree.subscribe("s/1")
    numbered(tree, 2)
    snapshot = tree.nodes[taker].snapshot()
    move(tree, name, giver, taker)
    tree.publish(taker, name, 3)
    tree.forget(taker, snapshot)
    assert homes(tree, name) == [taker]
    assert told(tree, taker, name, 3).fate == "forgotten"
    assert name in names(tree, taker).at_home
    assert name not in names(tree, giver).at_home
    assert tree.publish(giver, name, 3) == [Moved(tree.topics[name], taker, BEGUN - 1)], "who asks must know first"
    tree.publish(taker, name, 4)
    assert tree.number(taker, name) == BEGUN
    move(tree, name, taker, giver)
    assert homes(tree, name) == [giver]
    assert tree.number(giver, name) == BEGUN


@pytest.mark.parametrize(("giver", "taker", "name"), [(ROOT, LEFT, "of-root"), (LEFT, ROOT, "of-left")])
@pytest.mark.parametrize("is_giver", [True, False])
def test_a_topic_that_was_lost_on_its_way_is_taken_by_who_has_forgotten(
    giver: Address, taker: Address, name: str, is_giver: bool
) -> None:
    """Links begin anew, so what was under way on them is gone: the other end, which is sound, can not have it."""
    tree = Tree()
    numbered(tree, 2)
    there = tree.nodes.pop(taker)
    move(tree, name, giver, taker)
    tree.nodes[taker] = there
    reborn = giver if is_giver else taker
    tree.tell(reborn, Reborn(INCARNATION))
    for node in (LEFT, RIGHT):
        tree.tell(ROOT, Reconnected(node))
        tree.tell(node, Reconnected(ROOT))
    tree.rested()
    assert homes(tree, name) == [reborn]
    tree.publish(reborn, name, 3)
    assert tree.number(reborn, name) == BEGUN


def test_a_node_that_has_forgotten_serves_nothing_before_its_parent_has_said_what_is_its_own() -> None:
    tree = Tree()
    numbered(tree, 2)
    snapshot = tree.nodes[LEFT].snapshot()
    move(tree, "of-left", LEFT, ROOT)
    root = tree.nodes.pop(ROOT)
    set_back(tree, LEFT, snapshot)
    tree.tell(LEFT, Reborn(INCARNATION))
    waits = [Refuse("left has forgotten, and waits for what its parent knows: root")]
    topic = tree.topics["of-left"]
    asked = (Creates(Address("p/1"), (Wanted(topic, 3),)), Ask(Address("s/1"), topic, 1), Migrate(topic, ROOT))
    for question in asked:
        assert tree.nodes[LEFT].handle(question, Micros(0)) == waits
    tree.nodes[LEFT] = restored(tree, LEFT)
    assert tree.nodes[LEFT].handle(asked[0], Micros(0)) == waits, "nor after it is started again"
    tree.nodes[ROOT] = root
    tree.tell(LEFT, Reconnected(ROOT))
    tree.tell(ROOT, Reconnected(LEFT))
    assert homes(tree, "of-left") == [ROOT]


def test_a_topic_that_was_born_at_a_node_which_forgot_it_and_has_moved_away_is_not_born_again() -> None:
    tree = Tree()
    move(tree, "of-left", LEFT, ROOT)
    tree.forget(LEFT, Lives(tree.make(LEFT).inside).snapshot())  # of a node that has nothing
    topic = tree.topics["of-left"]
    assert tree.open(LEFT, "of-left") == topic
    assert homes(tree, "of-left") == [ROOT]
    assert names(tree, LEFT).at_home == []


def test_where_a_topic_has_moved_since_it_was_begun_again_nobody_is_heard_who_does_not_know_of_that() -> None:
    """Simulated, seed 171 of six nodes that lose data: an event got a number of its home's next life, too."""
    tree = Tree()
    numbered(tree, 3)
    topic = tree.topics["of-left"]
    tree.forget(LEFT, tree.nodes[LEFT].snapshot())
    since = tree.number(LEFT, "of-left")
    move(tree, "of-left", LEFT, ROOT, RIGHT)
    tree.nodes[RIGHT] = restored(tree, RIGHT)
    assert tree.publish(RIGHT, "of-left", 3) == [Moved(topic, RIGHT, since, is_here=False)]
    assert tree.number(RIGHT, "of-left") == since
    (taken,) = tree.tell(RIGHT, Creates(Address("p/1"), (Wanted(topic, 4, 1, 4, since),)))
    assert taken == Taken({topic: 4})
    tree.publish(RIGHT, "of-left", 3)
    assert tree.number(RIGHT, "of-left") == since + 1


def test_a_publisher_that_asks_a_home_which_a_topic_has_moved_to_learns_that_it_was_begun_again() -> None:
    topic, home = Topic(1), Address("home")
    client = OrderingClient(Address("c/p"), {topic: home}, CONFIG)
    client.handle(Publish(topic, Event("c", 1, "t", b"x"), 1), Micros(0))
    assert not [e for e in client.handle(Moved(topic, home, 7), Micros(1)) if isinstance(e, Deliver)], "told otherwise"
    told = [e.item for e in client.handle(Moved(topic, home, 7, is_here=False), Micros(1)) if isinstance(e, Deliver)]
    assert told == [Unknown(1, "the home of its topic has forgotten it")]
    again = client.handle(Publish(topic, Event("c", 2, "t", b"y"), 2), Micros(2))
    (creates,) = [effect.message for effect in again if isinstance(effect, Send)]
    assert creates.items == (Wanted(topic, 2, 1, 2, 7),)


def test_nobody_asks_a_home_that_begins_a_topic_again_for_what_another_one_may_have_numbered() -> None:
    topic, before, after = Topic(1), Address("before"), Address("after")
    client = OrderingClient(Address("c/p"), {topic: before}, CONFIG)
    client.handle(Publish(topic, Event("c", 1, "t", b"x"), 1), Micros(0))
    outcomes = [e.item for e in client.handle(Moved(topic, after, 7), Micros(1)) if isinstance(e, Deliver)]
    assert outcomes == [Unknown(1, "the home of its topic has forgotten it")]
    client.handle(Publish(topic, Event("c", 2, "t", b"y"), 2), Micros(2))
    assert not [e for e in client.handle(Moved(topic, after, 7), Micros(3)) if isinstance(e, Deliver)], "it knows"
