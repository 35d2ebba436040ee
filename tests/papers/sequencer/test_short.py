"""Groups that are told in short: an event names the last of its group before it, and stands for all before that."""

import random
from itertools import count
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.papers.sequencer.alike import alike
from tests.papers.sequencer.fuzz import complaints, crashing
from tests.papers.sequencer.pump import Deployment, wire
from unisono.machine import Broadcast, Fired, Gap, Heard, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.inputs import Migrate
from unisono.protocols.sequencer.messages import Ask, Creates, Install, Pieces, Run, Told, Update, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.protocols.sequencer.topic_manager.groups import Lists
from unisono.protocols.sequencer.topic_manager.topic import HostedTopic

RULES = ("SHORT",)
SHORT = SequencerConfig(short_from=3)
MODES = {
    "stamp": SequencerConfig(early=False, short_from=2),
    "early": SequencerConfig(short_from=2),
    "early causal": SequencerConfig(short_from=2, shared_subscriptions_min=1, causal=True),
}
SEEDS = range(60)


@pytest.mark.parametrize("mode", MODES)
def test_any_schedule_keeps_one_order_and_loses_nothing(mode: str) -> None:
    short = 0
    for seed in SEEDS:
        world = alike(seed, MODES[mode], moves=seed % 2 == 0)
        assert complaints(world) == [], f"seed {seed}"
        short += len(world.short)
    assert short > 3 * len(SEEDS)


@pytest.mark.parametrize("mode", MODES)
def test_so_it_does_where_nodes_crash_and_letters_are_lost(mode: str) -> None:
    for seed in SEEDS:
        world = alike(seed, MODES[mode], make=crashing(seed))
        assert world.complaints() == [], f"seed {seed}"


def group(size: int, subscribers: int = 2) -> Deployment:
    world = Deployment({"n0": None}, dict.fromkeys(range(size), "n0"), SHORT)
    for number in range(subscribers):
        world.client(f"s{number}", *range(size))
    return world


def entries_told(world: Deployment, to: str) -> list[int]:
    """How many entries each event on its way to somebody has."""
    heard = [x.message.message for x in world.letters if x.to == to and isinstance(x.message, Heard)]
    return [len(piece.run.topics) for message in heard if isinstance(message, Pieces) for piece in message.pieces]


def test_an_event_of_a_large_group_costs_one_entry_whatever_the_size() -> None:
    world = group(40)
    told = []
    for i in range(200):
        world.publish("p", (7 * i) % 40, f"e{i}")
        world.run(hold=lambda letter: letter.kind == "Pieces")
        told += entries_told(world, "s0")
        world.run()
    assert len(told) == 200
    assert sum(told[80:]) == 120
    world.settle()
    assert complaints(world) == []
    assert len(world.log["s0"]) == 200


def test_a_small_group_is_told_whole() -> None:
    world = group(2)
    for i in range(10):
        world.publish("p", i % 2, f"e{i}")
        world.run()
    assert world.short == {}


def test_who_has_left_the_topic_that_is_named_asks_what_it_stands_for() -> None:
    """s0 leaves topic 2 before it has heard 2:2, which alone is named by 0:3. Behind that is 1:2."""
    world = group(3)
    for topic in (0, 1, 2, 0):
        world.publish("p", topic, f"before {topic}")
        world.run()
    for topic in (1, 2, 0):
        world.publish("p", topic, f"then {topic}")
        world.run(hold=lambda letter: letter.to == "s0")
    assert world.short[0, 3].entries == {2: 2}
    world.unsubscribe("s0", 2)
    while letters := [x for x in world.letters if x.to == "s0" and x.kind == "Pieces" and x.topic == 0]:
        world.deliver(letters[0])
    world.run(hold=lambda letter: letter.to == "s0" and letter.topic == 1)
    assert "then 0" not in world.order("s0")
    world.settle()
    assert world.order("s0").endswith("then 1,then 0")
    assert complaints(world) == []


def test_who_hears_the_whole_group_asks_for_nothing() -> None:
    """Who hears two of five topics could tell little from events that name the others: those two are told whole."""
    world = group(5, subscribers=3)
    world.client("some", 0, 1)
    world.client("more", 0, 1)
    asked: list[Any] = []
    for i in range(60):
        world.publish("p", (3 * i) % 5, f"e{i}")
        world.run(hold=lambda letter: letter.kind == "Ask")
        asked += [x for x in world.letters if x.kind == "Ask"]
        world.settle()
    assert asked == []
    assert complaints(world) == []
    assert {topic for topic, _ in world.short} <= {2, 3, 4}


def test_after_a_restart_a_node_says_what_it_would_have_said() -> None:
    world = group(4)
    for i in range(8):
        world.publish("p", (3 * i) % 4, f"e{i}")
        world.run()
    node = world.nodes["n0"]
    again = TopicManager(node.me, None, (), (), {}, SHORT)
    again.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(node.snapshot()), strict=False))
    for topic in (0, 3, 2):
        request = wire(Creates(Address("q"), (Wanted(topic, 1),)))
        said = node.handle(request, world.now)
        assert said == again.handle(request, world.now)
        runs = [x.message.pieces[0].run for x in said if isinstance(x, Broadcast) and isinstance(x.message, Pieces)]
        assert [run.short for run in runs] == [True]


def told_by(node: TopicManager, topics: tuple[int, ...], now: Any, names: Any = count()) -> list[bool]:
    """Whether an event of each of these topics is told in short, when nothing is new to anybody any more."""
    publisher = Address(f"q{next(names)}")
    for request in (1, 2):
        said = [node.handle(wire(Creates(publisher, (Wanted(topic, request),))), now) for topic in topics]
    told = [x.message for effects in said for x in effects if isinstance(x, Broadcast)]
    return [message.pieces[0].run.short for message in told if isinstance(message, Pieces)]


def test_who_reads_whole_timestamps_only_is_told_whole_also_after_a_move_and_a_restart() -> None:
    """A subscriber of the release before says nothing of short ones, and would take them for whole."""
    world = group(3, subscribers=2)
    node, topics = world.nodes["n0"], (Topic(0), Topic(1), Topic(2))
    assert told_by(node, (0, 1, 2), world.now) == [True] * 3
    node.handle(wire(Install(Address("old"), 1, topics, topics)), world.now)
    assert told_by(node, (0, 1, 2), world.now) == [False] * 3
    again = TopicManager(node.me, None, (), (), {}, SHORT)
    again.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(node.snapshot()), strict=False))
    assert told_by(again, (0, 1, 2), world.now) == [False] * 3
    node.handle(wire(Install(Address("old"), 2, topics, topics, short=True)), world.now)
    assert told_by(node, (0, 1, 2), world.now) == [True] * 3


def test_a_home_that_comes_from_a_node_of_the_release_before_tells_its_subscribers_whole() -> None:
    home = group(3).nodes["n0"].hosted[Topic(0)]
    lists = Lists()
    packed = home.pack(lists)
    del packed["told_whole"]
    moved = HostedTopic(Topic(0), 2)
    moved.unpack(packed, lists.all)
    assert list(moved.told_whole) == [Address("s0"), Address("s1")]


def test_full_timestamps_are_never_short() -> None:
    world = Deployment({"n0": None}, dict.fromkeys(range(5), "n0"), replace(SHORT, encoding="full"))
    for name in ("s0", "s1"):
        world.client(name, *range(5))
    for i in range(10):
        world.publish("p", i % 5, f"e{i}")
        world.run()
    assert world.short == {}
    assert complaints(world) == []


def test_a_repeated_short_timestamp_replaces_no_whole_one() -> None:
    world = group(3)
    delivery = world.clients["s0"].subscriber.delivery
    feed = delivery.feeds[Topic(0)]
    delivery.complete(Topic(0), feed, Run(1, 1, Address("p"), 1, (Topic(1), Topic(2)), (5, 6)), world.now)
    delivery.complete(Topic(0), feed, Run(1, 1, Address("p"), 1, (Topic(2),), (6,), True), world.now)
    assert feed.items[1].numbers == (5, 6)
    assert not feed.items[1].short


def test_what_somebody_has_left_is_named_beside() -> None:
    """s0 has left topic 9, which is in nobody's group, and only the home of topic 2 has heard of it yet."""
    world = Deployment({"n0": None}, dict.fromkeys([0, 1, 2, 3, 9], "n0"), SHORT)
    for name in ("s0", "s1"):
        world.client(name, 0, 1, 2, 3)
    world.publish("p", 9, "left")
    for topic in (0, 1, 2, 3):
        world.publish("p", topic, "e")
    world.run()
    node = world.nodes["n0"]
    topics = (Topic(0), Topic(1), Topic(2), Topic(3))
    node.handle(Update(Address("s0"), 9, (Topic(2),), topics, {Topic(9): 1}, True), world.now)
    told = []
    for topic in (0, 1, 2):
        said = node.handle(Creates(Address("q"), (Wanted(topic, 1),)), world.now)
        told += [x.message.pieces[0].run for x in said if isinstance(x, Broadcast) and isinstance(x.message, Pieces)]
    assert [run.short for run in told] == [False, True, False]
    assert told[2].entries[9] == 1


def test_a_home_tells_what_a_short_timestamp_stands_for() -> None:
    """Over several thousand events, after a restart, and after the topic has moved."""
    world = Deployment({"n0": None, "n1": "n0"}, dict.fromkeys(range(5), "n0"), SHORT)
    for name in ("s0", "s1"):
        world.client(name, *range(5))
    node, dice = world.nodes["n0"], random.Random(1)
    issued: list[dict[Topic, int]] = []
    numbers = dict.fromkeys(map(Topic, range(5)), 0)
    at: dict[tuple[Topic, int], int] = {}
    for _ in range(2500):
        topic = dice.choice(list(numbers))
        node.handle(Creates(Address("q"), (Wanted(topic, numbers[topic] + 1),)), world.now)
        issued.append({x: number for x, number in numbers.items() if number and x != topic})
        numbers[topic] += 1
        at[topic, numbers[topic]] = len(issued) - 1

    def told(home: TopicManager, topic: Topic, number: int) -> Run:
        answer = home.handle(Ask(Address("s0"), topic, number), world.now)[-1]
        assert isinstance(answer, Send)
        assert isinstance(answer.message, Told)
        assert answer.message.run is not None
        return answer.message.run

    again = TopicManager(node.me, None, node._site.children, (), {}, SHORT)
    again.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(node.snapshot()), strict=False))
    for home in (node, again):
        for (topic, number), place in at.items():
            run = told(home, topic, number)
            assert not run.short
            before = issued[at[topic, number - 1]] if number > 1 else {}
            changed = {x: n for x, n in issued[place].items() if n != before.get(x)}
            named = {x: n for x, n in run.entries.items() if n}
            assert changed.items() <= named.items() <= issued[place].items()
    (move,) = [x for x in node.handle(Migrate(Topic(3), Address("n1")), world.now) if isinstance(x, Send)]
    there = world.nodes["n1"]
    there.handle(wire(move.message), world.now)
    known: dict[int, int] = {}
    for number in range(1, numbers[Topic(3)] + 1):
        known |= told(there, Topic(3), number).entries
        assert {x: n for x, n in known.items() if n} == issued[at[Topic(3), number]]


def test_only_the_last_of_a_group_is_marked() -> None:
    world = group(40)
    for i in range(80):
        world.publish("p", i % 40, f"e{i}")
        world.run()
    world.now = Micros(world.now + SHORT.mark_us)
    world.command("n0", Fired("marks"))
    assert {x.topic for x in world.letters if x.kind == "Mark"} == {39}
    world.settle()
    assert complaints(world) == []


@pytest.mark.parametrize("lost", ["the stamp", "the stamp and the next"])
def test_a_lost_stamp_is_noticed_by_the_next_of_the_group(lost: str) -> None:
    world = group(4)
    for topic in (0, 1, 2, 3):
        world.publish("p", topic, "e")
        world.run()
    for topic in (0, 1, 2):
        world.publish("p", topic, f"then {topic}")
        world.run(hold=lambda letter: letter.to == "s0" and letter.kind == "Pieces")
    gone = {"the stamp": (1,), "the stamp and the next": (0, 1)}[lost]
    world.letters = [x for x in world.letters if x.topic not in gone]
    world.settle()
    assert world.order("s0") == world.order("s1")
    assert complaints(world) == []


def test_who_leaves_all_others_hears_marks_again() -> None:
    """Both 1:2 and 2:2, which names it, were lost on their way to s0 when it leaves topic 2 and all others."""
    world = group(3)
    for topic in (0, 1, 2):
        world.publish("p", topic, "e")
        world.run()
    for topic in (1, 2):
        world.publish("p", topic, f"then {topic}")
        world.run(hold=lambda letter: letter.to == "s0")
    world.letters = [x for x in world.letters if x.to != "s0"]
    world.unsubscribe("s0", 0, 2)
    world.settle()
    assert [(n.topic, n.first, n.last) for who, n in world.notices if who == "s0" and isinstance(n, Gap)] == [(1, 2, 2)]
    assert complaints(world) == []


def test_a_quiet_topic_keeps_little_of_what_the_busy_ones_have_had() -> None:
    """One event in a hundred is of topic 0; of the others only the last ten numbers may be asked for."""
    config = replace(SHORT, issued_max=10)
    world = Deployment({"n0": None}, dict.fromkeys(range(5), "n0"), config)
    for name in ("s0", "s1"):
        world.client(name, *range(5))
    node, asked = world.nodes["n0"], dict.fromkeys(range(5), 0)
    for i in range(1000):
        topic = 0 if i % 100 == 0 else 1 + i % 4
        asked[topic] += 1
        node.handle(Creates(Address("q"), (Wanted(topic, asked[topic]),)), world.now)
    circles = {id(c): c for home in node.hosted.values() for c, _ in home.places.values()}
    kept = sum(len(home.issued) for home in node.hosted.values())
    assert sum(len(circle.links) for circle in circles.values()) <= 5 * kept
