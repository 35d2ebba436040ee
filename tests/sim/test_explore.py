"""All interleavings: complete, without repetition, and able to find what is wrong."""

from math import comb
from typing import Any

import pytest

from unisono.errors import InvariantError
from unisono.machine import Broadcast, Deliver, Effect, Heard, Join, Joined, Publish, Send, Subscribe, Unsubscribe
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.fifo.machine import FifoMachine
from unisono.sim.explore import BrokenError, Situation, explore, settle

T, S = Topic(1), Address("s")


class Sender:
    """Sends what it is asked to publish to s."""

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        return [Send(S, message.message)]


class Listener:
    """Delivers what comes."""

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if message == "poison":
            raise InvariantError("swallowed poison")
        return [Deliver(message)]


class Unordered:
    """A client without any order: everything as it comes."""

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=inner):
                return [Broadcast(topic, inner)]
            case Subscribe(topics=topics):
                return [Join(topic) for topic in topics]
        return [Deliver(message)]


def orders(fifo: bool, *scripts: list[str]) -> list[list[str]]:
    """Every order in which s can hear what the senders say."""
    machines: dict[str, Any] = {"s": Listener(), **{f"p{i}": Sender() for i in range(len(scripts))}}
    found: list[list[str]] = []
    told = explore(
        Situation.of(machines, fifo=lambda source, to: fifo),
        {f"p{i}": [Publish(T, text) for text in texts] for i, texts in enumerate(scripts)},
        at_end=lambda final: found.append(final.delivered("s")),
    )
    assert told.is_complete
    assert told.finals == len(found)
    assert len({tuple(order) for order in found}) == len(found)
    return found


def test_fifo_links_interleave_and_keep_their_own_order() -> None:
    found = orders(True, ["a", "b", "c"], ["x", "y"])
    assert len(found) == comb(5, 2)
    assert all(order.index("a") < order.index("b") < order.index("c") for order in found)


def test_other_links_give_every_order() -> None:
    assert len(orders(False, ["a", "b", "c", "d"])) == 24


def test_equal_messages_are_not_counted_twice() -> None:
    assert orders(False, ["a", "a", "a"]) == [["a", "a", "a"]]


def fifo_group() -> Situation:
    start = Situation.of({"s": FifoMachine(S), "p": FifoMachine(Address("p")), "q": FifoMachine(Address("q"))})
    return settle(start.tell("s", Subscribe((T,))))


def test_fifo_holds_in_every_order_the_ens_can_choose() -> None:
    def check(final: Situation) -> None:
        heard = [item.message for item in final.delivered("s") if isinstance(item, Heard)]
        assert [text for text in heard if text[0] == "p"] == ["p1", "p2", "p3"]
        assert [text for text in heard if text[0] == "q"] == ["q1", "q2"]

    scripts = {"p": [Publish(T, f"p{n}") for n in (1, 2, 3)], "q": [Publish(T, f"q{n}") for n in (1, 2)]}
    found = explore(fifo_group(), scripts, check)
    assert found.is_complete
    assert found.finals >= comb(5, 2)


def test_a_broken_promise_is_told_with_the_way_there() -> None:
    def check(final: Situation) -> None:
        assert [item.message for item in final.delivered("s")[1:]] == ["one", "two"]

    start = settle(Situation.of({"s": Unordered(), "p": Unordered()}).tell("s", Subscribe((T,))))
    with pytest.raises(BrokenError, match=r"s handles Heard\(.*'two'.*\) of the ENS"):
        explore(start, {"p": [Publish(T, "one"), Publish(T, "two")]}, check)


def test_a_broken_invariant_is_told_with_the_way_there() -> None:
    start = Situation.of({"s": Listener(), "p": Sender()})
    with pytest.raises(BrokenError, match="swallowed poison; after: p handles"):
        explore(start, {"p": [Publish(T, "poison")]}, lambda final: None)


def test_a_bound_on_states_is_reported() -> None:
    found = explore(
        Situation.of({"s": Listener(), "p": Sender()}, fifo=lambda source, to: False),
        {"p": [Publish(T, n) for n in range(8)]},
        lambda final: None,
        states_max=100,
    )
    assert not found.is_complete
    assert found.states == 100


def test_who_leaves_hears_no_more() -> None:
    start = fifo_group().tell("p", Publish(T, "p1")).tell("s", Unsubscribe((T,)))
    assert list(start.moves()) == []
    assert start.delivered("s") == [Joined(T)]
