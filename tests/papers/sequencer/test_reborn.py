"""A node that has forgotten and goes on (C12, C14): neighbours tell it what it once knew before it orders anything."""

from collections import deque
from typing import Any

from unisono.machine import Broadcast, Deliver, Fired, Publish, Restarted, Send, Unknown
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import SECOND, Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.inputs import HomeReborn, Reborn
from unisono.protocols.sequencer.messages import (
    Ask,
    BrokerMessage,
    Creates,
    Install,
    Mark,
    Taken,
    Told,
    Wanted,
)
from unisono.protocols.sequencer.node import NUMBERS, TopicManager
from unisono.runtime import edge
from unisono.runtime.desk import Desk
from unisono.runtime.homes import SLOTS
from unisono.runtime.lives import Began, Lives
from unisono.structures.sessions import Forgotten, Reconnected, Sessions

RULES = ("REBORN",)

ROOT, LEFT, RIGHT = Address("root"), Address("left"), Address("right")
INCARNATION = 60_000_000
CONFIG = SequencerConfig(sgmin=1)


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
        desk = Desk(name, TopicManager(name, parent, children, (), {}, CONFIG), parent)
        peers = children or (ROOT,)
        return Lives(Sessions(desk, name, peers, edge.NodeMessage, BrokerMessage))

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
        (answer,) = [m for m in self.tell(node, edge.Open(Address("c"), 1, (name,))) if isinstance(m, edge.Opened)]
        self.topics[name] = answer.topics[0][1]
        return self.topics[name]

    def manager(self, node: Address) -> TopicManager:
        inside = self.nodes[node].inside.inside
        assert isinstance(inside, Desk)
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
            self.tell(node, Install(Address(sid), 1, topic, everything))

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
    assert tree.number(ROOT, "of-left") == 5, "what it had passed on is what its child says"
    assert tree.publish(ROOT, "of-root", 6) == [], "one child has not spoken yet"
    tree.nodes[RIGHT] = right
    tree.tell(ROOT, Reconnected(RIGHT))
    tree.tell(RIGHT, Reconnected(ROOT))
    assert tree.number(ROOT, "of-right") == 5
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
    told = client.handle(HomeReborn((topic,)), Micros(1))
    assert [effect.item for effect in told if isinstance(effect, Deliver)] == [
        Unknown(1, "the home of its topic has forgotten it")
    ]
    again = client.handle(Publish(topic, Event("c", 2, "t", b"y"), 2), Micros(2))
    (creates,) = [effect.message for effect in again if isinstance(effect, Send)]
    assert creates.items == (Wanted(topic, 2, 1, 2),)
