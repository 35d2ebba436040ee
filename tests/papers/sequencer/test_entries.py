"""What a node puts into timestamps, against the plain rule: the values that have changed since the topic's last one."""

import random

import pytest

from unisono.machine import Broadcast
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.messages import Creates, Entries, Install, Part, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.protocols.sequencer.topic_manager.entries import Decisions

RULES = ("D2",)


@pytest.mark.parametrize("busy", [1, 3, 40])
def test_entries_are_what_has_changed_however_it_is_found(busy: int) -> None:
    """`busy` topics move most of the time, so that both little and much happens between two numbers of a topic."""
    dice = random.Random(busy)
    clock: Entries = {Topic(number): 0 for number in range(40)}
    groups = {topic: tuple(Topic(x) for x in range(50) if x != topic and dice.random() < 0.8) for topic in clock}
    given: dict[Topic, Entries] = {topic: {} for topic in clock}
    decisions = Decisions(everything=False, root=False)
    sizes = []
    for step in range(5000):
        topic = Topic(dice.randrange(busy if dice.random() < 0.95 else 40))
        clock[topic] += dice.randint(1, 3)
        decisions.note(topic, clock[topic])
        if step % 4000 == 3999:
            restored = Decisions(everything=False, root=False)
            restored.restore(decisions.snapshot())
            decisions = restored
        group = groups[topic]
        full = (group[0],) if dice.random() < 0.1 else ()
        bars = {group[1]: clock.get(group[1], 0) + 1} if dice.random() < 0.1 else {}
        now = {x: max(clock[x], bars.get(x, 0)) for x in group if x in clock}
        expected = {x: number for x, number in now.items() if given[topic].get(x) != number or x in full}
        given[topic] = now
        topics, numbers, rest = decisions.fill(clock, topic, group, full, bars)
        got = dict(zip(topics, numbers, strict=True))
        assert got == expected
        assert rest == tuple(x for x in group if x not in clock)
        sizes.append(len(got))
    assert max(sizes) > 20
    assert min(sizes) < 5


def test_a_large_group_says_what_was_issued_and_what_has_passed_since() -> None:
    topics = tuple(Topic(number) for number in range(30))
    own, other, below = topics[0], topics[1], topics[-1]
    node = TopicManager(Address("n"), None, (Address("c"),), topics[:-1], {below: Address("c")})
    now = Micros(0)
    for sid in ("a", "b"):
        for topic in topics[:-1]:
            node.handle(Install(Address(sid), 1, (topic,), topics), now)

    def create(topic: Topic, request: int) -> Entries:
        effects = node.handle(Creates(Address("p"), (Wanted(topic, request),)), now)
        (piece,) = next(effect.message.pieces for effect in effects if isinstance(effect, Broadcast))
        entries: Entries = piece.run.entries
        return entries

    assert len(create(own, 1)) == len(topics) - 1
    create(other, 1)
    assert create(own, 2) == {other: 1}
    node.handle(Part({below: 5}, Address("a"), 2, (own,)), now)
    assert create(own, 3) == {below: 5}
    assert create(own, 4) == {}
