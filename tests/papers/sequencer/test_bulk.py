"""Large turns with the `[fast]` extra: a node that uses the kernel cannot be told from one that does not."""

import random
from typing import Any

import pytest

pytest.importorskip("numba")

from unisono.machine import Effect, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.inputs import Migrate
from unisono.protocols.sequencer.messages import Creates, Fill, Install, Move, Part, Run, Turn, Update, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.protocols.sequencer.topic_manager.changes import KERNEL, Changes, turn

RULES = ("TURN",)

PARENT, CHILD, ME = Address("parent"), Address("child"), Address("me")
HOSTED = tuple(Topic(number) for number in range(20))
BELOW = tuple(Topic(number) for number in range(20, 26))
ABOVE = tuple(Topic(number) for number in range(26, 30))


class Load:
    """Random inputs of one node: turns large and small, what passes it, subscriptions, moves."""

    def __init__(self, seed: int, root: bool) -> None:
        self.dice = random.Random(seed)
        self.requests: dict[tuple[str, Topic], int] = {}
        self.passed = dict.fromkeys(BELOW, 0)
        self.version = 0
        self.away: dict[Topic, Move] = {}
        self.everything = HOSTED + BELOW + (() if root else ABOVE)

    def next(self) -> Any:
        dice = self.dice
        kind = dice.random()
        if kind < 0.5:
            return Turn(tuple(self._creates(f"p{i}") for i in range(dice.randint(1, 6))))
        if kind < 0.65:
            return self._creates("p0")
        if kind < 0.75:
            topic = dice.choice(BELOW)
            self.passed[topic] += 1
            todo = tuple(dice.sample(HOSTED, 5))
            return Fill(topic, Run(self.passed[topic], 1, Address("q"), self.passed[topic]), todo, todo[:1])
        if kind < 0.8:
            return Part({dice.choice(BELOW): dice.randint(0, 3)}, Address("s9"), 1, ())
        if kind < 0.95:
            self.version += 1
            topics = tuple(dice.sample(self.everything, 12))
            sid = Address(f"s{dice.randrange(4)}")
            here = [topic for topic in topics if topic in HOSTED]
            if dice.random() < 0.7 and here:
                return Install(sid, self.version, (here[0],), topics, {dice.choice(HOSTED): 1})
            return Update(sid, self.version, (dice.choice(HOSTED),), topics[:6], {dice.choice(HOSTED): 1})
        if self.away and dice.random() < 0.7:
            return self.away.pop(next(iter(self.away)))
        return Migrate(dice.choice(HOSTED), CHILD)

    def saw(self, effects: list[Effect]) -> None:
        self.away |= {e.message.topic: e.message for e in effects if isinstance(e, Send) and type(e.message) is Move}

    def _creates(self, publisher: str) -> Creates:
        items = []
        for topic in self.dice.sample(HOSTED, self.dice.choice((1, 2, 12))):
            first, count = self.requests.get((publisher, topic), 1), self.dice.randint(1, 3)
            self.requests[publisher, topic] = first + count
            items.append(Wanted(topic, first, count, first))
        return Creates(Address(publisher), tuple(items), wait=self.dice.random() < 0.2)


def manager(config: SequencerConfig, root: bool) -> TopicManager:
    below = dict.fromkeys(BELOW, CHILD)
    return TopicManager(ME, None if root else PARENT, (CHILD,), HOSTED, below, config)


@pytest.mark.parametrize("root", [True, False], ids=["root", "below the root"])
@pytest.mark.parametrize(
    "config",
    [
        SequencerConfig(),
        SequencerConfig(early=False),
        SequencerConfig(shared_subscriptions_min=1),
    ],
    ids=["early delta", "whole delta", "shared_subscriptions_min 1"],
)
def test_the_kernel_makes_the_same_timestamps(config: SequencerConfig, root: bool) -> None:
    assert KERNEL.wait() is not None
    plain, quick = manager(config, root), manager(config, root)
    assert quick.use_compiled_kernel()
    load = Load(7, root)
    for step in range(500):
        message, now = load.next(), Micros(step)
        expected = plain.handle(message, now)
        assert quick.handle(message, now) == expected, f"step {step}: {message}"
        load.saw(expected)
        if step % 125 == 124:
            assert quick.snapshot() == plain.snapshot()
            plain, quick = manager(config, root), plain  # who was plain so far changes over in the middle of the load
            assert quick.use_compiled_kernel()
            plain.restore(quick.snapshot())
    assert sum(plain.clock.values()) > 1500


@pytest.mark.parametrize("is_compiled", [False, True])
def test_readers_are_told_what_has_changed_since_they_looked(is_compiled: bool) -> None:
    kernel = KERNEL.wait() if is_compiled else turn
    assert kernel is not None
    dice = random.Random(3)
    watching: dict[int, dict[int, int]] = {}
    rows: dict[int, int] = {}
    values = dict.fromkeys(range(100, 400), 0)
    counters = Changes(kernel)
    for _ in range(400):
        if dice.random() < 0.4 or not watching:  # more segments than the pool holds at first, most of them given up
            reader = dice.choice(list(values))
            watching[reader] = dict.fromkeys(dice.sample(list(values), dice.randint(0, 40)), -1)
            rows[reader] = counters.watch(reader, list(watching[reader]), watching[reader].values())
            for counter in watching[reader]:
                counters.set(counter, values[counter])
        readers = dice.sample(list(watching), min(len(watching), 10))
        ends, numbers = counters.turn([rows[reader] for reader in readers], [2] * len(readers))
        names = counters.names()
        for reader, start, end in zip(readers, [0, *ends], ends, strict=False):
            values[reader] += 2
            news = {c: values[c] for c, seen in watching[reader].items() if values[c] != seen}
            assert dict(zip(names[start:end], numbers[start:end], strict=True)) == news
            watching[reader] |= news
