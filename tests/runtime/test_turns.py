"""Requests of different publishers that wait at a node together are handled together."""

from typing import Any

import pytest

from unisono.machine import Fired
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.messages import Creates, Turn, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.runtime.turns import LARGE_TURNS, Turns

TOPICS = tuple(Topic(number) for number in range(10))


def creates(publisher: str, *topics: int) -> Creates:
    return Creates(Address(publisher), tuple(Wanted(Topic(topic), 1) for topic in topics))


def manager() -> TopicManager:
    return TopicManager(Address("n"), None, (), TOPICS, {})


def test_requests_are_joined_where_the_first_one_waits() -> None:
    a, b, fired = creates("a", 0), creates("b", 0, 1), Fired("marks")
    assert Turns(manager()).gather([fired, a, fired, b]) == [fired, Turn((a, b)), fired]


@pytest.mark.parametrize("inputs", [[], [Fired("marks")], [creates("a", 0), Fired("marks")]])
def test_what_is_alone_stays_as_it_is(inputs: list[Any]) -> None:
    assert Turns(manager()).gather(inputs) == inputs


def test_a_node_with_many_large_turns_uses_the_kernel() -> None:
    pytest.importorskip("numba")
    from unisono.protocols.sequencer.changes import KERNEL

    node = manager()
    turns, small, large = Turns(node), [creates("a", 0)] * 20, [creates("a", *range(10))]
    KERNEL.wait()
    for _ in range(2 * LARGE_TURNS):
        turns.gather(small)
    assert not node.is_quick
    for _ in range(LARGE_TURNS):
        turns.gather(large)
    assert node.is_quick
