"""What a stamper and its publishers merge within a turn, and what leaves first."""

from unisono.machine import Broadcast, Deliver, Fired, Send
from unisono.model.event import Event, Payloads
from unisono.model.ids import Address, Topic
from unisono.protocols.clock.arrangements import MERGED_MAX, ClockClientArrangement, StamperArrangement
from unisono.protocols.clock.messages import Create, Granted, LaneName, LaneStamps, RenewLease, Stamped, StampTaken
from unisono.structures.sessions import Frame

A, B = Topic(1), Topic(2)
N, P = Address("n"), Address("p")


def stamps(topic: Topic, place: int, count: int = 1) -> Broadcast:
    return Broadcast(topic, LaneStamps(LaneName(topic, 0, 0), place, (Stamped(place, P, place, count),)), control=True)


def create(first: int, *runs: tuple[Topic, int]) -> Send:
    return Send(N, Create(P, N, first, runs, 0, 0))


def test_a_turn_that_may_stamp_ends_with_a_beat_and_no_other_does() -> None:
    gather = StamperArrangement().gather
    asked = create(1, (A, 1)).message
    assert gather([asked, Fired("renew")]) == [asked, Fired("renew"), Fired("beat")]
    granted, renewed = Frame(N, 1, Granted(A, 1, 1, 1)), Frame(N, 1, RenewLease(1, 1))
    assert gather([granted]) == [granted, Fired("beat")]
    assert gather([renewed, Fired("ceiling")]) == [renewed, Fired("ceiling")]


def test_stamps_of_a_turn_are_one_message_per_lane_and_leave_before_letters() -> None:
    taken = Send(P, StampTaken(3, 3))
    effects = StamperArrangement().arrange([taken, stamps(A, 1, 2), stamps(B, 7), stamps(A, 3), Deliver(1)])
    kinds = [(type(effect), getattr(effect, "topic", None)) for effect in effects]
    assert kinds == [(Deliver, None), (Broadcast, A), (Broadcast, B), (Send, None)]
    assert effects[1].message.entries == (Stamped(1, P, 1, 2), Stamped(3, P, 3))  # type: ignore[union-attr]


def test_stamps_with_a_hole_between_them_stay_apart_and_a_message_is_bounded() -> None:
    arrange = StamperArrangement().arrange
    assert len(arrange([stamps(A, 1), stamps(A, 3)])) == 2
    many = arrange([stamps(A, place) for place in range(1, MERGED_MAX + 2)])
    assert [len(effect.message.entries) for effect in many] == [MERGED_MAX, 1]  # type: ignore[union-attr]


def test_requests_of_a_turn_are_one_and_leave_before_the_payloads() -> None:
    payloads = Broadcast(A, Payloads(P, 1, (Event("p", 1, "a"),)))
    effects = ClockClientArrangement().arrange(
        [payloads, create(1, (A, 2)), Deliver(1), create(3, (A, 1), (B, 1)), payloads]
    )
    assert effects[0] == Deliver(1)
    assert effects[1] == create(1, (A, 3), (B, 1))
    assert effects[2:] == [payloads, payloads]


def test_requests_that_do_not_follow_each_other_stay_apart() -> None:
    effects = ClockClientArrangement().arrange([create(1, (A, 2)), create(4, (A, 1))])
    assert effects == [create(1, (A, 2)), create(4, (A, 1))]
