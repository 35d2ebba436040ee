"""All interleavings: complete, without repetition, and able to find what is wrong."""

from copy import deepcopy
from math import comb
from typing import Any

import pytest

from unisono.errors import InvariantError
from unisono.machine import (
    Broadcast,
    Deliver,
    Effect,
    Heard,
    Join,
    Joined,
    Leave,
    Publish,
    Send,
    Subscribe,
    Unsubscribe,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.fifo.machine import FifoMachine
from unisono.sim.explore import ENS, BrokenError, Situation, explore, settle

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


def plainly(machines: dict[str, Any], scripts: dict[str, list[Any]], fifo: bool) -> set[tuple[tuple[str, ...], ...]]:
    """The same the plain way: every sequence of steps is gone to its end, and nothing is remembered. Returns what was
    delivered by whom, for every end."""
    found: set[tuple[tuple[str, ...], ...]] = set()

    def go(hosts: Any, letters: Any, members: Any, scripts: Any, heard: Any) -> None:
        moves = [(to, inputs[0], -1) for to, inputs in scripts.items() if inputs]
        for at, (source, to, message) in enumerate(letters):
            older = any(other[:2] == (source, to) for other in letters[:at])
            if not (older and fifo and source != ENS):
                moves.append((to, message, at))
        if not moves:
            found.add(tuple(tuple(map(str, heard[name])) for name in hosts))
        for to, message, at in moves:
            again, post, told = deepcopy((hosts, letters, heard))
            listening, rest = dict(members), {name: list(inputs) for name, inputs in scripts.items()}
            del (rest[to] if at < 0 else post)[max(at, 0)]
            for effect in again[to].handle(message, Micros(0)):
                match effect:
                    case Send(to=other, message=sent):
                        post.append((to, other, sent))
                    case Broadcast(topic=topic, message=sent, control=control):
                        post += [(ENS, name, Heard(topic, sent, control)) for name in listening.get(topic, ())]
                    case Join(topic=topic):
                        listening[topic] = (*listening.get(topic, ()), to)
                        post.append((ENS, to, Joined(topic)))
                    case Deliver(item=item):
                        told[to].append(item)
            go(again, post, listening, rest, told)

    go(machines, [], {}, scripts, {name: [] for name in machines})
    return found


class Echo:
    """Answers the first word of each sender, and what it answers depends on what it has heard before."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        self.heard.append(message)
        return [Deliver(message), Send(S, f"{message}{len(self.heard)}")]


def say(text: str) -> Publish:
    return Publish(T, text)


PLAIN: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "listener": ({"s": Listener(), "p": Sender(), "q": Sender()}, {"p": [say("a"), say("b")], "q": [say("x")]}),
    "echo": ({"s": Listener(), "e": Echo(), "f": Echo()}, {"e": ["a", "b"], "f": ["a"]}),
    "fifo": (
        {"s": FifoMachine(S), "p": FifoMachine(Address("p"))},
        {"s": [Subscribe((T,))], "p": [say("1"), say("2")]},
    ),
    "unordered": (
        {"s": Unordered(), "p": Unordered()},
        {"s": [Subscribe((T,))], "p": [say("1"), say("2"), say("3")]},
    ),
}


@pytest.mark.parametrize("fifo", [True, False])
@pytest.mark.parametrize("case", PLAIN)
def test_what_is_remembered_hides_nothing(case: str, fifo: bool) -> None:
    machines, scripts = PLAIN[case]
    found: list[tuple[tuple[str, ...], ...]] = []

    def at_end(final: Situation) -> None:
        found.append(tuple(tuple(map(str, final.delivered(name))) for name in machines))

    assert explore(Situation.of(machines, lambda source, to: fifo), scripts, at_end).is_complete
    assert {*found} == plainly(machines, scripts, fifo)
    assert len({*found}) > 1


class Two:
    """Two rooms, and a list that both write to."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.rooms = [self.said, self.said]

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        self.rooms[len(self.said) % 2].append(message)
        return [Deliver(len(self.said))]


def test_what_parts_of_a_machine_share_stays_shared() -> None:
    assert Situation.of({"s": Two()}).tell("s", "a", "b", "c").delivered("s") == [1, 2, 3]


def test_equal_machines_are_one_state_whatever_they_share() -> None:
    text, again = "a long text", "".join(["a long ", "text"])
    start = Situation.of({"s": Listener()})
    freeze = start.memory.freeze
    assert freeze([text, text]) == freeze([text, again])
    assert freeze([Leave(T), Leave(T)]) == freeze([Leave(T)] * 2)
    assert freeze([[], []]) != freeze([[]] * 2), "one of these will show a change in two places"


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
