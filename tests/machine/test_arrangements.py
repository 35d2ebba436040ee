"""What a node and a client merge within a turn: requests, stamps, publications; and what leaves first."""

from typing import Any

import pytest

from unisono.machine import Broadcast, Deliver, Effect, Fired, Send
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.arrangements import LARGE_TURNS, PIECES_MAX, ClientArrangement, NodeArrangement
from unisono.protocols.sequencer.messages import Creates, Mark, Piece, Pieces, Run, Taken, Turn, Wanted
from unisono.protocols.sequencer.node import TopicManager

A, B = Topic(1), Topic(2)
TOPICS = tuple(Topic(number) for number in range(10))


def creates(publisher: str, *topics: int) -> Creates:
    return Creates(Address(publisher), tuple(Wanted(Topic(topic), 1) for topic in topics))


def manager() -> TopicManager:
    return TopicManager(Address("n"), None, (), TOPICS, {})


def stamp(topic: Topic, number: int) -> Broadcast:
    piece = Piece(Run(number, 1, Address("p"), number), (), ())
    return Broadcast(topic, Pieces(topic, (piece,)), control=True)


def arranged(*effects: Effect) -> list[Any]:
    return NodeArrangement(manager()).arrange(list(effects))


def numbers(effect: Any) -> tuple[Topic, list[int]]:
    return effect.topic, [piece.run.first for piece in effect.message.pieces]


def test_requests_are_joined_where_the_first_one_waits() -> None:
    a, b, fired = creates("a", 0), creates("b", 0, 1), Fired("marks")
    assert NodeArrangement(manager()).gather([fired, a, fired, b]) == [fired, Turn((a, b)), fired]


@pytest.mark.parametrize("inputs", [[], [Fired("marks")], [creates("a", 0), Fired("marks")]])
def test_what_is_alone_stays_as_it_is(inputs: list[Any]) -> None:
    assert NodeArrangement(manager()).gather(inputs) == inputs


def test_stamps_of_a_turn_are_one_message_per_topic_in_their_order() -> None:
    effects = arranged(stamp(A, 1), stamp(B, 1), stamp(A, 2), stamp(B, 2), stamp(A, 3))
    assert [numbers(effect) for effect in effects] == [(A, [1, 2, 3]), (B, [1, 2])]


def test_a_mark_does_not_overtake_the_stamps_of_its_topic() -> None:
    effects = arranged(stamp(A, 1), Broadcast(A, Mark(A, 1), control=True), stamp(A, 2))
    assert [type(effect.message) for effect in effects] == [Pieces, Mark, Pieces]


def test_a_message_holds_a_bounded_number_of_stamps() -> None:
    effects = arranged(*(stamp(A, number) for number in range(PIECES_MAX + 1)))
    assert [len(effect.message.pieces) for effect in effects] == [PIECES_MAX, 1]


def test_what_subscribers_wait_for_leaves_before_letters_and_after_what_stays_here() -> None:
    letter, notice = Send(Address("p"), Taken({A: 1})), Deliver("here")
    assert arranged(letter, stamp(A, 1), notice) == [notice, stamp(A, 1), letter]


def test_publications_of_a_turn_are_one_request_which_leaves_before_their_payloads() -> None:
    home, other, me = Address("h"), Address("o"), Address("p")
    effects: list[Effect] = [Deliver("here")]
    for request in (1, 2, 3):
        effects += [Broadcast(A, f"event {request}"), Send(home, Creates(me, (Wanted(A, request, 1, 1),)))]
    effects += [Send(other, Creates(me, (Wanted(B, 1),), wait=True)), Broadcast(B, "event")]
    assert ClientArrangement().arrange(effects) == [
        Deliver("here"),
        Send(home, Creates(me, (Wanted(A, 1, 3, 1),), wait=True)),
        Send(other, Creates(me, (Wanted(B, 1),), wait=True)),
        *(effect for effect in effects if isinstance(effect, Broadcast)),
    ]


def test_requests_in_line_are_left_as_they_are() -> None:
    in_line = Send(Address("h"), Creates(Address("p"), (Wanted(A, 2), Wanted(A, 1)), in_line=True))
    assert ClientArrangement().arrange([in_line]) == [in_line]


def test_a_node_with_many_large_turns_uses_the_kernel() -> None:
    pytest.importorskip("numba")
    from unisono.protocols.sequencer.topic_manager.changes import KERNEL

    node = manager()
    turns, small, large = NodeArrangement(node), [creates("a", 0)] * 20, [creates("a", *range(10))]
    KERNEL.wait()
    for _ in range(2 * LARGE_TURNS):
        turns.gather(small)
    assert not node.is_quick
    for _ in range(LARGE_TURNS):
        turns.gather(large)
    assert node.is_quick
