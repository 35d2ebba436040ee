"""A node that has forgotten and goes on (C12, C14): neighbours tell it what it once knew before it orders anything."""

from collections import deque
from typing import Any

from unisono.machine import Broadcast, Deliver, Fired, Publish, Restarted, Send, Unknown
from unisono.model.event import Event
from unisono.model.homes import SLOTS
from unisono.model.ids import Address, Topic
from unisono.model.time import SECOND, Micros
from unisono.protocols.naming import messages as naming
from unisono.protocols.naming.topic_names import TopicNames
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.inputs import HomeReborn, Lapse
from unisono.protocols.sequencer.lives import Began, Lives
from unisono.protocols.sequencer.messages import (
    Ask,
    BrokerMessage,
    Creates,
    Install,
    Mark,
    Moved,
    Taken,
    Told,
    Wanted,
)
from unisono.protocols.sequencer.node import NUMBERS, TopicManager
from unisono.runtime.links import control
from unisono.runtime.node.ordering import TREE_TOPICS
from unisono.structures.sessions import Forgotten, Reborn, Reconnected, Sessions

RULES = ("REBORN",)

ROOT, LEFT, RIGHT = Address("root"), Address("left"), Address("right")
INCARNATION = 60_000_000
CONFIG = SequencerConfig(shared_subscriptions_min=1)


class Tree:
    """A root and two leaves, with one topic each, and links that lose nothing."""

    def __init__(self) -> None:
        self.nodes = {name: self.make(name) for name in (ROOT, LEFT, RIGHT)}
        self.said: list[tuple[Address, Any]] = []
        """To clients."""
        self.delivered: list[Any] = []
        self.topics: dict[str, Topic] = {}
        for name in self.nodes:
            self.tell(name, Began(f"life of {name}", 0))
            self.open(name, f"of-{name}")

    def make(self, name: Address) -> Lives:
        parent = None if name == ROOT else ROOT
        children = (LEFT, RIGHT) if name == ROOT else ()
        topic_names = TopicNames(name, TopicManager(name, parent, children, (), {}, CONFIG), parent, TREE_TOPICS)
        peers = children or (ROOT,)
        return Lives(Sessions(topic_names, name, peers, control.NodeMessage, BrokerMessage))

    def tell(self, to: Address, message: Any) -> list[Any]:
        """Everything that follows, until nobody says anything more; returns what clients were sent."""
        before = len(self.said)
        letters = deque([(to, message)])
        while letters:
            to, message = letters.popleft()
            for effect in self.nodes[to].handle(message, Micros(INCARNATION * SECOND)):
                if isinstance(effect, Send):
                    letters += [(effect.to, effect.message)] if effect.to in self.nodes else []
                    self.said += [] if effect.to in self.nodes else [(effect.to, effect.message)]
                elif isinstance(effect, Deliver):
                    self.delivered.append(effect.item)
        return [message for _, message in self.said[before:]]

    def open(self, node: Address, name: str) -> Topic:
        (answer,) = [
            m
            for m in self.tell(node, naming.OpenTopics(Address("c"), 1, (name,)))
            if isinstance(m, naming.TopicsOpened)
        ]
        self.topics[name] = answer.topics[0][1]
        return self.topics[name]

    def manager(self, node: Address) -> TopicManager:
        inside = self.nodes[node].inside.inside
        assert isinstance(inside, TopicNames)
        assert isinstance(inside.inside, TopicManager)
        return inside.inside

    def number(self, node: Address, name: str) -> int:
        return self.manager(node).clock[self.topics[name]]

    def publish(self, node: Address, name: str, request: int) -> list[Any]:
        return self.tell(node, Creates(Address("p/1"), (Wanted(self.topics[name], request, 1, request),)))

    def subscribe(self, sid: str) -> None:
        everything = tuple(self.topics.values())
        for name, topic in self.topics.items():
            node = Address(name.removeprefix("of-"))
            self.tell(node, Install(Address(sid), 1, (topic,), everything))

    def rested(self) -> None:
        """The pause is over in which whoever listened comes back."""
        for node in self.nodes:
            self.tell(node, Fired("rest"))

    def forget(self, node: Address, snapshot: Any) -> None:
        """Back to a snapshot; then a person says that it shall go on, and it meets its neighbours."""
        self.nodes[node] = self.make(node)
        self.nodes[node].restore(snapshot)
        self.tell(node, Restarted())
        self.tell(node, Reborn(INCARNATION))
        self.tell(node, Began("another life", 0))
        for peer in self.nodes if node == ROOT else (ROOT,):
            if peer != node:
                self.tell(node, Reconnected(peer))
                self.tell(peer, Reconnected(node))
        self.rested()
        assert not [item for item in self.delivered if isinstance(item, Forgotten)]


def numbered(tree: Tree, upto: int, first: int = 1) -> None:
    for request in range(first, upto + 1):
        for node in tree.nodes:
            tree.publish(node, f"of-{node}", request)


def test_numbers_go_on_where_none_was_ever_issued_and_the_others_go_on_as_before() -> None:
    for victim in (ROOT, LEFT):
        tree = Tree()
        tree.subscribe("s/1")
        numbered(tree, 2)
        snapshot = tree.nodes[victim].snapshot()
        numbered(tree, 5, 3)
        tree.forget(victim, snapshot)
        numbered(tree, 6, 6)
        for node in tree.nodes:
            expected = (INCARNATION << NUMBERS) + 1 if node == victim else 6
            assert tree.number(node, f"of-{node}") == expected
        (told,) = tree.tell(victim, Ask(Address("s/1"), tree.topics[f"of-{victim}"], 4))
        assert isinstance(told, Told)
        assert (told.fate, told.floor) == ("forgotten", (INCARNATION << NUMBERS) + 1)


def test_a_parent_that_has_forgotten_orders_nothing_before_its_children_have_told_it_how_far_they_are() -> None:
    tree = Tree()
    tree.subscribe("s/1")
    snapshot = tree.nodes[ROOT].snapshot()
    numbered(tree, 5)
    tree.nodes[ROOT] = tree.make(ROOT)
    tree.nodes[ROOT].restore(snapshot)
    right = tree.nodes.pop(RIGHT)
    tree.tell(ROOT, Reborn(INCARNATION))
    tree.tell(ROOT, Reconnected(LEFT))
    tree.tell(LEFT, Reconnected(ROOT))
    assert tree.publish(ROOT, "of-root", 6) == [], "one child has not spoken yet"
    tree.nodes[RIGHT] = right
    tree.tell(ROOT, Reconnected(RIGHT))
    tree.tell(RIGHT, Reconnected(ROOT))
    assert [tree.number(ROOT, name) for name in ("of-left", "of-right")] == [5, 5], "what its children say"
    assert tree.publish(ROOT, "of-root", 6) == [], "those who listen have not come back yet"
    tree.rested()
    assert [type(message) for message in tree.publish(ROOT, "of-root", 6)] == [Taken]


def test_what_was_climbing_through_a_node_that_has_forgotten_is_given_up_and_told() -> None:
    tree = Tree()
    tree.subscribe("s/1")
    snapshot = tree.nodes[ROOT].snapshot()
    root = tree.nodes.pop(ROOT)
    numbered(tree, 3)
    topic = tree.topics["of-left"]
    home = tree.manager(LEFT).hosted[topic]
    assert len(home.open) == 3
    tree.nodes[ROOT] = root
    tree.forget(ROOT, snapshot)
    assert not home.open
    (told,) = tree.tell(LEFT, Ask(Address("s/1"), topic, 2))
    assert isinstance(told, Told)
    assert (told.fate, told.floor) == ("forgotten", 4)


def test_what_comes_by_way_of_another_node_is_not_numbered_before_its_publisher_has_asked_there_itself() -> None:
    """Crash campaign, seeds 12 and 13: while a home is away its publishers ask by way of the root, again."""
    tree = Tree()
    numbered(tree, 3)
    topic = tree.topics["of-left"]
    for request in (4, 7):
        snapshot = tree.nodes[LEFT].snapshot()
        tree.publish(LEFT, "of-left", request)
        tree.forget(LEFT, snapshot)
        number = tree.number(LEFT, "of-left")
        moved = [Moved(topic, LEFT, number)]
        assert tree.publish(ROOT, "of-left", request) == moved
        assert tree.number(LEFT, "of-left") == number
        tree.publish(LEFT, "of-left", request + 1)  # it knows, and has given up what it had asked for
        restored = tree.make(LEFT)
        restored.restore(tree.nodes[LEFT].snapshot())
        tree.nodes[LEFT] = restored
        assert Taken in [type(message) for message in tree.publish(ROOT, "of-left", request + 2)]
        tree.publish(ROOT, "of-left", request)  # what was on its way meanwhile
        assert tree.number(LEFT, "of-left") == number + 2
    tree.tell(LEFT, Lapse(Address("p/1")))
    assert tree.publish(ROOT, "of-left", 20) == moved
    assert tree.manager(LEFT).hosted[topic].aware == {}


def test_who_has_asked_for_one_topic_is_not_believed_to_know_of_another() -> None:
    """A request on the other one may be on its way since before it knew."""
    tree = Tree()
    tree.open(LEFT, "more")
    snapshot = tree.nodes[LEFT].snapshot()
    tree.forget(LEFT, snapshot)
    tree.publish(LEFT, "more", 1)
    assert tree.publish(ROOT, "of-left", 1) == [Moved(tree.topics["of-left"], LEFT, INCARNATION << NUMBERS)]


def test_a_topic_that_was_forgotten_and_given_back_is_no_new_one() -> None:
    tree = Tree()
    tree.forget(LEFT, Lives(tree.make(LEFT).inside).snapshot())  # of a node that has nothing
    assert tree.topics["of-left"] in tree.manager(LEFT).hosted
    assert tree.publish(ROOT, "of-left", 1) == [Moved(tree.topics["of-left"], LEFT, INCARNATION << NUMBERS)]


def test_a_child_is_told_of_the_topics_that_it_has_forgotten_and_new_ones_never_get_an_old_number() -> None:
    tree = Tree()
    snapshot = tree.nodes[LEFT].snapshot()
    late = tree.open(LEFT, "late")
    tree.forget(LEFT, snapshot)
    assert tree.open(LEFT, "late") == late, "its parent knew it"
    root_snapshot = tree.nodes[ROOT].snapshot()
    lost = tree.open(ROOT, "lost")
    tree.forget(ROOT, root_snapshot)
    other = tree.open(ROOT, "another")
    assert other != lost
    assert other // SLOTS > INCARNATION
    assert tree.number(ROOT, "another") == INCARNATION << NUMBERS


def test_a_reborn_home_marks_its_topics_so_that_whoever_listens_asks() -> None:
    tree = Tree()
    tree.subscribe("s/1")
    numbered(tree, 2)
    tree.forget(ROOT, tree.nodes[ROOT].snapshot())
    told = tree.manager(ROOT).handle(Fired("marks"), Micros(2 * INCARNATION * SECOND))
    marks = [effect.message for effect in told if isinstance(effect, Broadcast)]
    assert Mark(tree.topics["of-root"], INCARNATION << NUMBERS) in marks


def test_publications_whose_home_has_forgotten_are_unknown_and_never_asked_for_again() -> None:
    topic, home = Topic(1), Address("home")
    client = OrderingClient(Address("c/p"), {topic: home}, CONFIG)
    client.handle(Publish(topic, Event("c", 1, "t", b"x"), 1), Micros(0))
    told = client.handle(HomeReborn(home), Micros(1))
    assert [effect.item for effect in told if isinstance(effect, Deliver)] == [
        Unknown(1, "the home of its topic has forgotten it"),
        HomeReborn(home),
    ]
    again = client.handle(Publish(topic, Event("c", 2, "t", b"y"), 2), Micros(2))
    (creates,) = [effect.message for effect in again if isinstance(effect, Send)]
    assert creates.items == (Wanted(topic, 2, 1, 2),)


def test_publications_are_given_up_where_their_topic_is_at_home_not_where_it_was_said_to_be() -> None:
    """Who began while a home was away knows its topics by way of the root: crash campaign, seed 12 of 27ac5e7."""
    topic, root, home = Topic(1), Address("root"), Address("home")
    client = OrderingClient(Address("c/p"), {topic: root}, CONFIG)
    client.handle(Moved(topic, home), Micros(0))
    client.handle(Publish(topic, Event("c", 1, "t", b"x"), 1), Micros(1))
    assert Deliver(Unknown(1, "the home of its topic has forgotten it")) not in client.handle(
        HomeReborn(root), Micros(2)
    )
    assert Deliver(Unknown(1, "the home of its topic has forgotten it")) in client.handle(HomeReborn(home), Micros(3))
