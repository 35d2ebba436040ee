"""A subscriber at the bound of what it holds back: nothing waits any more for a payload that may be lost."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.papers.sequencer.pump import STAMP
from tests.papers.sequencer.test_alone import Alone
from tests.papers.sequencer.test_delivery import P, T, X, event, payload, run, stamp
from unisono.machine import Fired, Gap, Heard, Missed, Paused
from unisono.model.event import Payload, Payloads
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.sequencer.messages import Ask, Mark, Piece, Pieces, Told, Update
from unisono.protocols.sequencer.ordering_client.held import Held

RULES = ("LOSS", "BOUND")

FULL = replace(STAMP, buffer_max=10, payload_wait_us=Micros(1_000), ask_us=Micros(50))


def test_a_payload_that_is_lost_costs_a_busy_topic_no_other_event() -> None:
    """A hundred events come in the time for which a payload is waited for, and ten have room."""
    alone, told = Alone(FULL, X), list[Any]()
    for number in range(1, 501):
        heard = [stamp(X, number)] if number == 1 else [payload(X, number), stamp(X, number)]
        told += alone.at(10 * number, *heard)
        if number % 5 == 0:
            asked = [one.number for one in alone.at(10 * number, Fired("ask")) if isinstance(one, Ask) and one.number]
            answers = [Told(X, one, "complete", run(one), mark=number) for one in asked if one <= number]
            told += alone.at(10 * number, *answers)
    assert [(gap.first, gap.last) for gap in told if isinstance(gap, Gap)] == [(1, 1)]
    assert [item.number for item in told if isinstance(item, Heard)] == [*range(2, 501)]


def test_what_holds_up_a_full_topic_from_another_is_given_up_too() -> None:
    """X lacks a payload and is idle; T waits for X, and is busy."""
    alone = Alone(FULL, X, T)
    told = alone.at(10, stamp(X, 1))
    for number in range(1, 12):
        told += alone.at(10, payload(T, number), stamp(T, number, {X: 1}))
    assert [(gap.topic, gap.first, gap.last) for gap in told if isinstance(gap, Gap)] == [(X, 1, 1)]
    assert [item.number for item in told if isinstance(item, Heard)] == [*range(1, 12)]


def test_a_topic_that_is_full_gives_up_nothing_whose_number_is_not_known() -> None:
    alone = Alone(FULL, X)
    told = alone.at(10, *[payload(X, number) for number in range(1, 14)])
    assert not [item for item in told if isinstance(item, Gap)]
    told = alone.at(20, *[stamp(X, number) for number in range(1, 11)])
    assert [item.number for item in told if isinstance(item, Heard)] == [*range(1, 11)]


def test_there_is_room_for_the_payload_that_all_others_wait_for() -> None:
    alone = Alone(FULL, X)
    alone.at(10, *[one for number in range(2, 12) for one in (payload(X, number), stamp(X, number))])
    told = alone.at(20, stamp(X, 1), payload(X, 1))
    assert not [item for item in told if isinstance(item, Gap)]
    assert [item.number for item in told if isinstance(item, Heard)][:3] == [1, 2, 3]


def test_a_lease_that_has_ended_lets_nothing_be_given_up_at_the_bound() -> None:
    alone = Alone(replace(FULL, subscriber_lease_us=Micros(1000)), X)
    alone.at(10, stamp(X, 1))
    told = alone.at(800, *[one for number in range(2, 14) for one in (payload(X, number), stamp(X, number))])
    assert not [item for item in told if isinstance(item, Gap)]


# What the broker says it has lost.


def gaps_at(times: tuple[int, ...], wait: int, missed: int, since: int = 0) -> list[int]:
    """When a payload is given up that is known of at `since`, the broker saying then that it may have lost some."""
    alone = Alone(replace(STAMP, payload_wait_us=Micros(wait), missed_wait_us=Micros(1_000)), X)
    for at in sorted((missed, since)):
        if at == missed:
            alone.at(at, Missed(X))
        if at == since:
            alone.at(at, stamp(X, 1))
    return [at for at in times if [item for item in alone.at(at, Fired("ask")) if isinstance(item, Gap)]]


def test_what_the_broker_may_have_lost_is_not_waited_for_as_long_as_what_it_brings() -> None:
    assert gaps_at((1_200, 1_500, 9_999, 60_000), wait=60_000, missed=300) == [1_500]
    assert gaps_at((1_500, 2_000, 60_000), wait=60_000, missed=300, since=600) == [2_000]


def test_what_is_known_of_long_after_a_loss_was_not_lost_then() -> None:
    assert gaps_at((3_000, 5_000, 61_999, 62_000), wait=60_000, missed=300, since=2_000) == [62_000]


def test_a_loss_puts_off_no_deadline() -> None:
    assert gaps_at((400, 500, 1_500), wait=500, missed=300) == [500]


def test_what_its_own_reader_has_no_room_for_is_not_given_up_however_long_that_takes() -> None:
    alone = Alone(replace(STAMP, payload_wait_us=Micros(1_000), missed_wait_us=Micros(500)), X)
    told = alone.at(0, Paused(True), stamp(X, 1)) + alone.at(9_000, Fired("ask"), Missed(X))
    told += alone.at(60_000, Fired("ask")) + alone.at(60_000, Paused(False))
    told += alone.at(60_499, Fired("ask"))
    assert not [item for item in told if isinstance(item, Gap)]
    assert [item for item in alone.at(60_500, Fired("ask")) if isinstance(item, Gap)]


# What a busy home has forgotten before the broker has brought it.


def behind() -> Alone:
    """T's home has told of five numbers of X of which the broker has brought nothing; X's home has been asked."""
    alone = Alone(FULL, X, T)
    alone.at(0, payload(T), stamp(T, 1, {X: 5}))
    assert [(one.topic, one.number) for one in alone.at(100, Fired("ask"), Fired("ask")) if isinstance(one, Ask)]
    return alone


def starts_again(said: list[Any]) -> bool:
    return any(isinstance(message, Update) for message in said)


def test_what_a_home_has_forgotten_and_the_broker_still_brings_is_no_gap() -> None:
    alone = behind()
    assert not starts_again(alone.at(110, Told(X, 1, "forgotten", floor=4, mark=9)))
    told = alone.at(120, *[one for number in range(1, 6) for one in (payload(X, number), stamp(X, number))])
    assert [(item.topic, item.number) for item in told] == [*((X, number) for number in range(1, 6)), (T, 1)]


def test_what_a_home_has_forgotten_and_the_broker_has_passed_over_is_given_up_at_once() -> None:
    for later in (stamp(X, 2), Heard(X, Mark(X, 5)), Heard(X, Pieces(X, (Piece(run(3), (), (T,)),))), Missed(X)):
        alone = behind()
        alone.at(105, later)
        assert starts_again(alone.at(110, Told(X, 1, "forgotten", floor=4, mark=9)))


def test_a_piece_of_another_node_does_not_say_how_far_the_home_is_heard() -> None:
    alone = behind()
    alone.at(105, Heard(X, Pieces(X, (Piece(run(3, {T: 1}), (T,)),))))
    assert not starts_again(alone.at(110, Told(X, 1, "forgotten", floor=4, mark=9)))


def test_what_a_home_has_forgotten_and_nobody_brings_is_given_up_at_the_deadline() -> None:
    alone = behind()
    assert not starts_again(alone.at(1_050, Told(X, 1, "forgotten", floor=4, mark=9)))
    assert starts_again(alone.at(1_100, Told(X, 1, "forgotten", floor=4, mark=9)))


# What has gone by takes no room.


def test_payloads_of_before_a_subscription_or_said_twice_leave_with_the_next_event_of_their_publisher() -> None:
    alone = Alone(FULL, X)
    row = Payloads(P, 1, tuple(event(X, request) for request in range(1, 4)))
    alone.at(0, payload(X, 1), stamp(X, 1))
    alone.at(0, Heard(X, row), Heard(X, Payload(Address("other"), 1, event(X, 1))))
    assert alone.feeds[X].payloads.count == 4
    told = alone.at(1, stamp(X, 2))
    assert [item.number for item in told] == [2]
    assert alone.feeds[X].payloads.count == 2, "what is still to be told, and another publisher's"
    assert [item.number for item in alone.at(2, stamp(X, 3))] == [3]


def test_of_a_row_that_has_gone_by_in_part_the_rest_is_told() -> None:
    held = Held()
    held.put_row(P, 1, tuple(event(X, request) for request in range(1, 6)))
    held.put(P, 7, event(X, 7))
    held.forget_before(P, 4)
    assert (held.count, [one.sequence for one in held.take(P, 4, 2)]) == (3, [4, 5])
    held.forget_before(P, 8)
    held.forget_before(P, 9)
    assert (held.count, held.take_all()) == (0, [])


# What nobody numbers takes nobody's room.

ROOMY = replace(FULL, buffer_max=64)


def flood(since: int, count: int, names: int) -> list[Any]:
    """Payloads whose publishers ask for no numbers."""
    sent = range(since, since + count)
    return [Heard(X, Payload(Address(f"mallory{at % names}"), 1 + at // names, event(X, at))) for at in sent]


@pytest.mark.parametrize("names", [1, 10, 1_000])
@pytest.mark.parametrize("looks", [False, True])
def test_payloads_that_nobody_numbers_cost_other_publishers_no_event(names: int, looks: bool) -> None:
    """Ten times as many as have room, while others publish: some before, some amid, each numbered a little later."""
    alone = Alone(ROOMY, X)
    told = alone.at(0, payload(X, 1), payload(X, 2))
    for number in range(1, 41):
        if looks:
            told += alone.at(10 * number, Fired("ask"))
        told += alone.at(10 * number, *flood(16 * number, 16, names), payload(X, number + 2), stamp(X, number))
        assert alone.feeds[X].payloads.count <= ROOMY.buffer_max
    assert [item.number for item in told if isinstance(item, Heard)] == [*range(1, 41)]
    assert not [item for item in told if isinstance(item, Gap)]


def test_a_few_payloads_without_numbers_are_kept_at_the_bound() -> None:
    """The publisher of some is slow; those of the others wait for one that is lost."""
    alone = Alone(ROOMY, X)
    alone.at(0, *flood(0, 20, 1), stamp(X, 1))
    told = alone.at(10, *[one for number in range(2, 50) for one in (payload(X, number), stamp(X, number))])
    assert [(gap.first, gap.last) for gap in told if isinstance(gap, Gap)] == [(1, 1)]
    assert (Address("mallory0"), 20) in alone.feeds[X].payloads
