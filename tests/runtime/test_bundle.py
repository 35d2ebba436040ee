"""Stamps of one turn travel together, and nothing counts as broadcast before it is."""

from typing import Any

from unisono.machine import Broadcast
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.messages import Mark, Piece, Pieces, Run
from unisono.runtime.bundle import PIECES_MAX, Bundle

A, B = Topic(1), Topic(2)


class World:
    """What reached the broker, and of how many broadcasts the machine was told."""

    def __init__(self) -> None:
        self.items: list[tuple[Topic, Any]] = []
        self.done = 0
        self.bundle = Bundle(self._publish, self._confirm)

    def _publish(self, topic: Topic, message: Any, control: bool) -> None:
        assert control
        self.items.append((topic, message))

    def _confirm(self, count: int) -> None:
        self.done += count


def stamp(topic: Topic, number: int) -> Broadcast:
    piece = Piece(Run(number, 1, Address("p"), number), (), ())
    return Broadcast(topic, Pieces(topic, (piece,)), control=True)


def numbers(message: Any) -> list[int]:
    return [piece.run.first for piece in message.pieces]


def test_stamps_of_a_turn_are_one_message_per_topic_in_their_order() -> None:
    world = World()
    for effect in (stamp(A, 1), stamp(B, 1), stamp(A, 2), stamp(B, 2), stamp(A, 3)):
        world.bundle.add(effect)
    world.bundle.end_turn()
    assert [(topic, numbers(message)) for topic, message in world.items] == [(A, [1, 2, 3]), (B, [1, 2])]


def test_a_mark_does_not_overtake_the_stamps_of_its_topic() -> None:
    world = World()
    for effect in (stamp(A, 1), Broadcast(A, Mark(A, 1), control=True), stamp(A, 2)):
        world.bundle.add(effect)
    world.bundle.end_turn()
    assert [type(message) for _, message in world.items] == [Pieces, Mark, Pieces]


def test_broadcasts_of_a_turn_are_done_when_its_last_item_is() -> None:
    world = World()
    for turn in (1, 2):
        for effect in (stamp(A, turn), stamp(B, turn), stamp(A, turn + 10)):
            world.bundle.add(effect)
        world.bundle.end_turn()
    told = []
    for _ in range(4):
        world.bundle.confirmed(1)
        told.append(world.done)
    assert told == [0, 3, 3, 6]


def test_a_message_holds_a_bounded_number_of_stamps() -> None:
    world = World()
    for number in range(PIECES_MAX + 1):
        world.bundle.add(stamp(A, number))
    world.bundle.end_turn()
    assert [len(message.pieces) for _, message in world.items] == [PIECES_MAX, 1]
    world.bundle.confirmed(2)
    assert world.done == PIECES_MAX + 1
