"""Indexed hold-back: a head is looked at again when the one thing it waits for has happened, and not before."""

from unisono.model.ids import Topic
from unisono.structures.holdback import HoldBack

A, B, C = Topic(1), Topic(2), Topic(3)


def opened(*topics: Topic) -> HoldBack:
    hold = HoldBack()
    for topic in topics:
        hold.open(topic, 0)
    return hold


def due(hold: HoldBack) -> list[Topic]:
    return list(hold.due())


def test_a_sleeper_wakes_when_its_number_is_reached_and_not_before() -> None:
    hold = opened(A, B)
    hold.sleep(A, B, 3)
    for number in (1, 2):
        hold.advance(B, number)
        assert due(hold) == []
    hold.advance(B, 3)
    assert due(hold) == [A]
    hold.advance(B, 4)
    assert due(hold) == []


def test_sleepers_wake_in_the_order_of_what_they_wait_for() -> None:
    hold = opened(A, B, C)
    hold.sleep(A, C, 2)
    hold.sleep(B, C, 1)
    hold.advance(C, 2)
    assert due(hold) == [B, A]


def test_waiting_twice_for_the_same_wakes_once() -> None:
    hold = opened(A, B)
    for _ in range(1000):
        hold.sleep(A, B, 1)
    hold.advance(B, 1)
    assert due(hold) == [A]


def test_nobody_waits_for_a_queue_that_has_been_closed() -> None:
    hold = opened(A, B)
    hold.sleep(A, B, 5)
    hold.close(B)
    assert due(hold) == [A]


def test_a_closed_queue_is_never_due() -> None:
    hold = opened(A, B)
    hold.wake(A)
    hold.sleep(A, B, 1)
    hold.close(A)
    hold.advance(B, 1)
    assert due(hold) == []


def test_a_queue_that_opens_behind_an_awaited_number_wakes_the_sleeper() -> None:
    hold = opened(A)
    hold.sleep(A, B, 2)
    hold.open(B, 2)
    assert due(hold) == [A]


def test_a_queue_that_waits_for_another_is_not_due_for_a_reason_of_its_own() -> None:
    hold = opened(A, B)
    hold.sleep(A, B, 1)
    assert not hold.wake(A)
    assert due(hold) == []
    hold.advance(B, 1)
    assert due(hold) == [A]
    assert hold.wake(A)
