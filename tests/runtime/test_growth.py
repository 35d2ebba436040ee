"""A deployment that grows: topics stay where they were born, new ones spread over the nodes there are then."""

import asyncio
import random
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.test_cluster import running
from tests.runtime.test_session import take
from unisono.machine import Send
from unisono.model.deployment import Deployment
from unisono.model.homes import SLOTS, home_of, slot
from unisono.model.ids import Address, Topic
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.model.time import Micros
from unisono.protocols.naming.messages import Claimed, OpenTopics, TopicsOpened
from unisono.protocols.naming.topic_names import TopicNames
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.node import TopicManager
from unisono.runtime.client.publishing.named import NamedEvent, named_publisher
from unisono.runtime.node.ordering import CLOCK_TOPICS, TREE_TOPICS
from unisono.runtime.tools.ports import free_ports

OLD = [f"old.{i}" for i in range(24)]
NEW = [f"new.{i}" for i in range(24)]


def two_sizes() -> tuple[Deployment, Deployment]:
    hub, east, west = free_ports(3)
    small = Deployment(
        1,
        "growing",
        nodes=(
            NodeSpec("hub", listen=f"127.0.0.1:{hub}", roles=("sequencer", "broker"), data="data"),
            NodeSpec("east", listen=f"127.0.0.1:{east}", parent="hub", data="data"),
        ),
        broker=BrokerSpec("embedded"),
    )
    return small, structs.replace(
        small, nodes=(*small.nodes, NodeSpec("west", listen=f"127.0.0.1:{west}", parent="east", data="data"))
    )


def test_a_deployment_that_grows_keeps_the_homes_of_its_topics_and_spreads_new_ones(tmp_path: Path) -> None:
    async def run() -> None:
        small, large = two_sizes()
        assert any(home_of(small, name) != home_of(large, name) for name in OLD)
        born: dict[str, Topic] = {}
        async with (
            asyncio.timeout(120),
            running(small, tmp_path),
            unisono.connect(small, timeout=60) as session,
        ):
            for name in OLD:
                assert isinstance(await session.publish(name, 1), unisono.Accepted)
                born[name] = session.topic_of(name) or Topic(0)
        async with (
            asyncio.timeout(120),
            running(large, tmp_path) as nodes,
            unisono.connect(large, timeout=60) as session,
            session.subscribe(*OLD, *NEW) as stream,
        ):
            assert {name: session.topic_of(name) for name in OLD} == born
            for name in (*OLD, *NEW):
                assert isinstance(await session.publish(name, 2), unisono.Accepted)
            heard = {event.topic: event.number for event in await take(stream, len(OLD) + len(NEW))}
            assert heard == {**dict.fromkeys(OLD, 2), **dict.fromkeys(NEW, 1)}
            mine = {name: list(node.topic_names.mine) for name, node in nodes.items() if node.topic_names is not None}
            assert not set(mine["west"]) & set(OLD)
            assert all(set(names) & set(NEW) for names in mine.values())
            # Who still has the old file, and draws another home for a name, finds the same topic; so does a publisher
            # with a name.
            moved = next(name for name in NEW if home_of(small, name) != home_of(large, name))
            stayed = next(name for name in OLD if home_of(small, name) != home_of(large, name))
            async with named_publisher(large, "feed") as publisher:
                assert await publisher.publish([NamedEvent(stayed, 1, b"3")]) == 1
            (event,) = await take(stream, 1)
            assert (event.topic, event.number) == (stayed, 3)
            async with unisono.connect(small, timeout=60) as old:
                assert isinstance(await old.publish(stayed, 4), unisono.Accepted)
                with pytest.raises(unisono.MisuseError, match="newer deployment file"):
                    await old.publish(moved, 4)

    asyncio.run(run())


class Tree:
    """Nodes that know names, and the lines between them, each of which keeps its order."""

    def __init__(self, parents: dict[str, str | None]) -> None:
        self.nodes: dict[str, TopicNames] = {}
        self.answers: list[TopicsOpened] = []
        self.lines: dict[tuple[str, str], list[object]] = {}
        for name, parent in parents.items():
            children = tuple(Address(child) for child, above in parents.items() if above == name)
            above = Address(parent) if parent is not None else None
            manager = TopicManager(Address(name), above, children, (), {}, SequencerConfig())
            self.nodes[name] = TopicNames(Address(name), manager, above, TREE_TOPICS)

    def say(self, me: str, message: object) -> None:
        for effect in self.nodes[me].handle(message, Micros(0)):
            if isinstance(effect, Send) and effect.to in self.nodes:
                self.lines.setdefault((me, effect.to), []).append(effect.message)
            elif isinstance(effect, Send):
                assert isinstance(effect.message, TopicsOpened)
                self.answers.append(effect.message)

    def step(self, dice: random.Random) -> None:
        line = dice.choice([line for line, waiting in self.lines.items() if waiting])
        self.say(line[1], self.lines[line].pop(0))

    @property
    def is_quiet(self) -> bool:
        return not any(self.lines.values())


def test_where_homes_do_not_move_a_forgotten_name_is_born_anew_at_its_birthplace() -> None:
    """By clock: what others know of the topic is the number that it had before its node forgot it."""
    me, root = Address("a"), Address("root")
    manager = TopicManager(me, root, (), (), {}, SequencerConfig())
    old = Topic(1 * SLOTS + slot(me))
    for messages in (CLOCK_TOPICS, TREE_TOPICS):
        names = TopicNames(me, manager, root, messages)
        names.handle(OpenTopics(me, 1, ("x",)), Micros(0))
        names.handle(Claimed("x", slot(me), (), old), Micros(0))
        assert ("x" in names.at_home) is (messages is CLOCK_TOPICS)


@pytest.mark.parametrize("seed", range(50))
def test_a_name_is_born_once_however_many_ask_for_it_anywhere_in_any_order(seed: int) -> None:
    dice = random.Random(seed)
    tree = Tree({"root": None, "a": "root", "b": "root", "a1": "a", "a2": "a"})
    asks = [(dice.choice(list(tree.nodes)), OpenTopics(Address(f"c{i}"), i, ("x",))) for i in range(5)]
    while asks or not tree.is_quiet:
        if asks and (tree.is_quiet or dice.random() < 0.3):
            tree.say(*asks.pop())
        else:
            tree.step(dice)
    (home,) = [name for name, topic_names in tree.nodes.items() if "x" in topic_names.mine]
    places = [topic % SLOTS for answer in tree.answers for _, topic in answer.topics]
    places += [place for answer in tree.answers for _, place in answer.elsewhere]
    assert len(tree.answers) == 5
    assert set(places) == {slot(Address(home))}
