"""Subscribers: increasing keys always, and nothing notified while something smaller can come."""

from itertools import permutations

from msgspec import structs

from tests.papers.clock.parts import (
    CONFIG,
    OWN_A,
    OWN_B,
    SECOND,
    STAMPERS,
    A,
    B,
    P,
    Q,
    SubscriberAlone,
)
from unisono.machine import Fired, Gap, Heard, Joined, Missed, Paused, Publish, Refused, Stalled, Unsubscribe
from unisono.model.event import Event, Payloads
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.clock.messages import (
    STAMPERS_MAX,
    Base,
    Closed,
    Create,
    FetchEntries,
    Gone,
    LaneClaim,
    LaneName,
    Lanes,
    LaneStamps,
    Opened,
    Reading,
    Stamped,
    Tide,
    before,
    number_of,
)


def test_k01_equal_stamps_of_two_lanes_have_one_order_whichever_comes_first() -> None:
    for order in permutations(("a", "b")):
        me = SubscriberAlone()
        me.join(A)
        me.join(B)
        for which in order:
            if which == "a":
                me.event(OWN_A, 1, 500, P)
            else:
                me.event(OWN_B, 1, 500, Q)
        me.claim(OWN_A, 1, 500)
        me.claim(OWN_B, 1, 500)
        assert me.heard == ["p:1", "q:1"]


def test_k02_a_watermark_is_believed_when_the_entries_before_it_are_held() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.join(B)
    me.event(OWN_A, 1, 500, P)
    me.claim(OWN_B, 1, 900)  # entry 1 of B is still on its way
    assert me.heard == []
    me.event(OWN_B, 1, 300, Q)
    assert me.heard == ["q:1", "p:1"]


def test_k20_one_lane_never_speaks_for_another_of_the_same_stamper() -> None:
    me = SubscriberAlone()
    me.join(A, lanes=((1, 1),), last=1)
    lane = LaneName(A, 1, 1)
    me.base(lane, 0, 100)
    me.join(B)
    me.event(OWN_B, 1, 500)  # by stamper 1
    me.claim(OWN_A, 1, 900)
    assert me.heard == []
    me.claim(lane, 0, 500)
    assert me.heard == ["p:1"]


def test_k09b_a_lane_is_waited_for_as_soon_as_its_opening_is_held() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.stamps(OWN_A, 1, Opened(400, 2))
    me.event(OWN_A, 2, 500)
    me.claim(OWN_A, 2, 900)
    assert me.heard == []
    lane = LaneName(A, 2, 1)
    me.event(lane, 1, 450, Q)
    assert me.heard == ["q:1"]
    me.claim(lane, 1, 500)
    assert me.heard == ["q:1", "p:1"]


def test_k09b_a_lane_is_not_waited_for_once_it_has_ended_and_nothing_of_it_is_missing() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.stamps(OWN_A, 1, Opened(400, 2))
    me.stamps(OWN_A, 2, Closed(800, 2, 1, 1, 450))
    me.event(OWN_A, 3, 900)
    me.claim(OWN_A, 3, 950)
    assert me.heard == []
    me.event(LaneName(A, 2, 1), 1, 450, Q)
    assert me.heard == ["q:1", "p:1"]


def test_k12_what_a_dead_stamper_may_have_stamped_is_told_as_a_gap_known_or_not() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.stamps(OWN_A, 1, Opened(400, 2))
    me.stamps(OWN_A, 2, Closed(800, 2, 1, -1, 700))
    me.event(OWN_A, 3, 900)
    me.claim(OWN_A, 3, 950)
    me.say(Fired("tick"))
    assert me.notices(Gap) == []
    me.say(Fired("tick"), after=CONFIG.hole_wait_us)
    assert [(g.topic, g.last) for g in me.notices(Gap)] == [(A, before(700))]
    assert me.heard == ["p:1"]


def test_k12_a_stamper_that_comes_back_says_how_its_lane_ended_and_nothing_is_told() -> None:
    me = SubscriberAlone()
    me.join(A)
    lane = LaneName(A, 2, 1)
    me.stamps(OWN_A, 1, Opened(400, 2))
    me.stamps(OWN_A, 2, Closed(800, 2, 1, -1, 700))
    me.event(OWN_A, 3, 900)
    me.claim(OWN_A, 3, 950)
    me.say(Fired("tick"))
    me.say(Base(lane, me.token, 0, 650, True))
    assert me.heard == ["p:1"]
    me.say(Fired("tick"), after=CONFIG.hole_wait_us)
    assert me.notices(Gap) == []


def test_k24_a_hole_in_a_lane_is_asked_for_then_told_as_a_gap() -> None:
    me = SubscriberAlone()
    me.join(A, lanes=((2, 1),), last=1)
    lane = LaneName(A, 2, 1)
    me.base(lane, 0, 100)
    me.event(lane, 2, 600, Q, request=2)
    me.claim(OWN_A, 1, 900)
    me.claim(lane, 2, 900)
    me.say(Fired("tick"))
    assert ("n2", FetchEntries("me", lane, 1, 1)) in me.sent
    me.say(Fired("tick"), after=CONFIG.hole_wait_us)
    assert [(g.first, g.last) for g in me.notices(Gap)] == [(before(100) + 1, before(599))]
    assert me.heard == ["q:2"]


def test_k34_a_gap_of_one_lane_settles_no_more_than_what_lay_before_it() -> None:
    """Events of other lanes lie in its span, and come: who commits the gap and resumes there is owed them."""
    me = SubscriberAlone()
    me.join(A, lanes=((2, 1),), last=1)
    lane = LaneName(A, 2, 1)
    me.base(lane, 0, 100)
    me.event(OWN_A, 2, 400, P)
    me.event(lane, 2, 600, Q, request=2)
    me.claim(OWN_A, 2, 900)
    me.claim(lane, 2, 900)
    me.say(Fired("tick"))
    me.say(Fired("tick"), after=CONFIG.hole_wait_us)
    gap, inside, after = [item for item in me.delivered if isinstance(item, Gap | Heard)]
    assert gap.first <= inside.number <= gap.last < after.number
    assert gap.settled == gap.first - 1


def test_k34_a_gap_of_what_a_dead_stamper_may_have_stamped_settles_no_more_than_what_lay_before_it() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.stamps(OWN_A, 1, Opened(400, 2))
    me.event(OWN_A, 2, 500)
    me.stamps(OWN_A, 3, Closed(800, 2, 1, -1, 700))
    me.claim(OWN_A, 3, 950)
    me.say(Fired("tick"))
    me.say(Fired("tick"), after=CONFIG.hole_wait_us)
    gap, inside = [item for item in me.delivered if isinstance(item, Gap | Heard)]
    assert gap.first <= inside.number <= gap.last
    assert gap.settled < inside.number


def test_k24_a_hole_in_a_lane_of_a_node_that_was_added_breaks_nobody() -> None:
    """We have connected before, and do not know where that node is."""
    me = SubscriberAlone()
    me.join(A, last=1)
    lane = LaneName(A, len(STAMPERS), 2)
    me.stamps(OWN_A, 2, Opened(450, len(STAMPERS)))
    me.event(lane, 2, 600, Q, request=2)
    me.claim(OWN_A, 2, 900)
    me.claim(lane, 2, 900)
    me.say(Fired("tick"))
    assert not [m for _, m in me.sent if isinstance(m, FetchEntries)]
    me.say(Fired("tick"), after=CONFIG.hole_wait_us)
    assert [gap.reason for gap in me.notices(Gap)] == ["entries of a node that was added were lost"]
    assert me.heard == ["q:2"]


def test_k09_who_cannot_ask_a_node_that_was_added_where_its_lane_stands_is_told_to_connect_again() -> None:
    me = SubscriberAlone()
    me.join(A, lanes=((len(STAMPERS), 1),), last=1)
    (refused,) = me.notices(Refused)
    assert "connect again" in refused.reason


def test_k24_what_its_stamper_has_forgotten_is_not_waited_for() -> None:
    me = SubscriberAlone()
    me.join(A, lanes=((2, 1),), last=1)
    lane = LaneName(A, 2, 1)
    me.base(lane, 0, 100)
    me.event(lane, 2, 600, Q, request=2)
    me.claim(OWN_A, 1, 900)
    me.claim(lane, 2, 900)
    me.say(Gone(lane, 1))
    assert len(me.notices(Gap)) == 1
    assert me.heard == ["q:2"]


def test_k03b_a_hole_in_a_keepers_lane_is_never_given_up_but_joined_anew() -> None:
    """What was lost may have been the opening of a lane that everybody else waits for."""
    me = SubscriberAlone()
    me.join(A)
    me.event(OWN_A, 2, 600)
    beats(me, 890, for_us=CONFIG.hole_wait_us)
    assert me.heard == []
    assert len(me.notices(Stalled)) == 1
    me.token += 1
    me.say(Lanes(A, me.token, 2, 900, ((2, 1),)))
    me.base(LaneName(A, 2, 1), 0, 800)
    assert [(g.topic, g.last) for g in me.notices(Gap)] == [(A, before(900))]
    me.event(OWN_A, 3, 1_000, request=3)
    assert me.heard == []  # the lane is waited for now
    me.claim(LaneName(A, 2, 1), 0, 1_000)
    assert me.heard == ["p:3"]


def test_k35_who_misses_what_its_keeper_has_forgotten_goes_on_where_the_keeper_does() -> None:
    """Not where it stands when it is asked: what it has stamped since it began again is there."""
    me, life = SubscriberAlone(), 7 << 22
    me.join(A)
    me.event(OWN_A, 1, 500)
    me.claim(OWN_A, 3, 900)
    me.event(OWN_A, life + 2, 3_000, Q, 2)
    me.say(Fired("tick"))
    me.say(Gone(OWN_A, life))
    me.token += 1
    me.say(Lanes(A, me.token, life + 3, 3_500, ((2, life + 3),), begun=life, above=2_000))
    me.say(Fired("tick"))
    assert ("n0", FetchEntries("me", OWN_A, life + 1, life + 3)) in me.sent
    me.event(OWN_A, life + 1, 2_500, P, 2)
    me.event(OWN_A, life + 2, 3_000, Q, 2)
    me.stamps(OWN_A, life + 3, Opened(3_400, 2))
    assert me.heard == ["p:1", "p:2", "q:2"]
    (gap,) = me.notices(Gap)
    assert gap.settled == before(2_000)
    assert gap.last == before(3_500), "lanes that it has granted and forgotten may go on for a moment"
    me.event(OWN_A, life + 4, 4_000, P, 3)
    assert me.heard[3:] == [], "the lane that it has opened since is waited for"


def test_k35_who_joins_anew_a_keeper_that_has_forgotten_nothing_since_goes_on_where_it_stands() -> None:
    me, life = SubscriberAlone(), 7 << 22
    me.join(A, last=life + 1)
    me.event(OWN_A, life + 3, 600)
    me.say(Gone(OWN_A, life + 3))
    me.token += 1
    me.say(Lanes(A, me.token, life + 9, 3_500, (), begun=life, above=50))
    me.event(OWN_A, life + 10, 4_000)
    assert me.heard == ["p:1"]
    assert [(gap.first, gap.last) for gap in me.notices(Gap)] == [(before(100) + 1, before(3_500))]


def forgotten(me: SubscriberAlone, life: int, above: int) -> None:
    """The keeper of A says that it has forgotten everything up to its new life."""
    me.event(OWN_A, life + 1, above + 500, P, 9)
    me.say(Fired("tick"))
    me.say(Gone(OWN_A, life))


def test_k37_what_was_held_when_a_topic_is_joined_anew_comes_and_only_the_rest_is_a_gap() -> None:
    """Others stamped on it while its keeper was away, and everybody has heard of that."""
    me, life, lane = SubscriberAlone(), 7 << 22, LaneName(A, 2, 1)
    me.join(A, last=1, lanes=((2, 1),))
    me.base(lane, 0, 100)
    me.event(lane, 1, 600, Q, 1)
    me.event(lane, 2, 700, Q, 2)
    assert me.heard == [], "nobody knows what the keeper has stamped before that"
    forgotten(me, life, 2_000)
    me.token += 1
    me.say(Lanes(A, me.token, life + 1, 2_500, (), begun=life, above=2_000))
    me.event(OWN_A, life + 1, 2_500, P, 9)
    assert me.heard == ["q:1", "q:2", "p:9"]
    first, then = me.notices(Gap)
    assert (first.first, first.last, first.settled) == (before(100) + 1, before(700), before(100))
    assert (then.first, then.last) == (before(700) + 1, before(2_500))
    assert then.settled == before(100), "whoever goes on from there is owed what comes after it"
    told = [item for item in me.delivered if isinstance(item, Gap | Heard)]
    assert told[:2] == [first, then], "they are told before what lies in them"
    assert me.machine.passed(A) == before(2_500)


def test_k37_what_is_kept_of_a_topic_comes_in_its_place_among_the_others() -> None:
    me, life, lane = SubscriberAlone(), 7 << 22, LaneName(A, 2, 1)
    me.join(A, last=1, lanes=((2, 1),))
    me.base(lane, 0, 100)
    me.join(B)
    me.event(lane, 1, 600, Q, 1)
    me.event(lane, 2, 2_400, Q, 2)
    me.event(OWN_B, 1, 650, P, 1)
    forgotten(me, life, 2_000)
    assert me.heard == ["q:1", "p:1"]
    me.token = 3
    me.say(Lanes(A, me.token, life + 1, 2_200, (), begun=life, above=2_000))
    assert me.machine.passed(A) == before(650), "one that is kept is still to come"
    me.claim(OWN_B, 1, 9_000)
    me.event(OWN_A, life + 1, 2_500, P, 9)
    assert me.heard == ["q:1", "p:1", "q:2", "p:9"]


def beats(me: SubscriberAlone, clock: int, for_us: int) -> None:
    """The keeper of A is there, has said that it has two entries, and does not answer what it is asked."""
    me.say(Fired("tick"))
    for _ in range(for_us // CONFIG.idle_beat_us):
        clock += 1
        me.now += CONFIG.idle_beat_us
        me.claim(OWN_A, 2, clock)
        me.say(Fired("tick"))


def asked(me: SubscriberAlone) -> int:
    return sum(isinstance(message, FetchEntries) for _, message in me.sent)


def test_k32_a_hole_in_a_keepers_lane_is_waited_for_while_the_keeper_is_away() -> None:
    """It has what is missing, and says so when it is back: nothing is a gap then."""
    me = SubscriberAlone()
    me.join(A)
    second = me.event(OWN_A, 2, 600, request=2)
    beats(me, 890, for_us=2 * SECOND)  # then it dies
    for _ in range(300):
        me.say(Fired("tick"), after=CONFIG.resend_us)
    assert asked(me) > 300, "it is asked all the time"
    me.claim(OWN_A, 2, 5_000)
    me.say(Fired("tick"))
    assert me.notices(Gap) == me.notices(Stalled) == []
    first = me.event(OWN_A, 1, 500)
    assert me.heard == [first, second]


def test_k32_a_keeper_that_is_back_and_still_has_not_what_is_missing_is_not_waited_for() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.event(OWN_A, 2, 600)
    me.say(Fired("tick"))
    me.say(Fired("tick"), after=60 * SECOND)
    beats(me, 890, for_us=CONFIG.hole_wait_us - CONFIG.idle_beat_us)
    assert me.notices(Stalled) == []
    beats(me, 900, for_us=CONFIG.idle_beat_us)
    assert len(me.notices(Stalled)) == 1


def test_k32_who_waits_shortly_still_waits_for_a_keeper_that_is_away() -> None:
    """Deadlines may be shorter than the time in which a keeper that is there is heard."""
    me = SubscriberAlone(structs.replace(CONFIG, hole_wait_us=Micros(50_000)))
    me.join(A)
    me.claim(OWN_A, 0, 200)
    me.event(OWN_A, 2, 600)
    for _ in range(100):
        me.say(Fired("tick"), after=50_000)
    assert me.notices(Stalled) == []
    beats(me, 890, for_us=CONFIG.idle_beat_us)
    assert len(me.notices(Stalled)) == 1


def test_k04b_a_lost_tail_is_noticed_by_the_claim_of_its_place() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.claim(OWN_A, 1, 700, stamp=650)
    me.say(Fired("tick"))
    assert ("n0", FetchEntries("me", OWN_A, 1, 1)) in me.sent


def test_k16_a_claim_is_worth_at_least_the_stamp_of_its_last_entry() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.join(B)
    me.event(OWN_A, 1, 500, P)
    me.event(OWN_B, 1, 700, Q)
    assert me.heard == ["p:1"]
    me.claim(OWN_A, 1, 300, stamp=700)
    assert me.heard == ["p:1", "q:1"]


def test_k25_an_event_without_its_payload_holds_up_what_is_later_and_ends_in_a_gap() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.stamps(OWN_A, 1, Stamped(300, Q, 1), Stamped(310, Q, 2))
    me.event(OWN_A, 3, 500)
    me.claim(OWN_A, 3, 900)
    assert me.heard == []
    me.say(Fired("tick"), after=CONFIG.payload_wait_us)
    assert [g.first for g in me.notices(Gap)] == [number_of(300, 0), number_of(310, 0)], "given up together"
    assert me.heard == ["p:1"]


def test_k25_a_payload_that_is_lost_costs_a_busy_subscriber_no_other_event() -> None:
    """A hundred events come in the time for which a payload is waited for, and ten have room."""
    me = SubscriberAlone(structs.replace(CONFIG, held_max=10))
    me.join(A)
    me.stamps(OWN_A, 1, Stamped(300, P, 1))
    for request in range(2, 301):
        me.event(OWN_A, request, 300 + 10 * request, P, request)
        me.claim(OWN_A, request, 300 + 10 * request)
        me.say(Fired("tick"), after=CONFIG.payload_wait_us // 100)
    assert [gap.first for gap in me.notices(Gap)] == [number_of(300, 0)]
    assert me.heard == [f"p:{request}" for request in range(2, 301)]


def test_k25_what_its_own_reader_has_no_room_for_is_not_given_up_however_long_that_takes() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.say(Paused(True))
    me.stamps(OWN_A, 1, Stamped(300, Q, 1))
    me.claim(OWN_A, 1, 900)
    for message in (Fired("tick"), Missed(A), Fired("tick"), Paused(False)):
        me.say(message, after=10 * CONFIG.payload_wait_us)
    assert (me.say(Fired("tick"), after=CONFIG.payload_wait_us - 1), me.notices(Gap))[1] == []
    me.say(Fired("tick"), after=1)
    assert [gap.first for gap in me.notices(Gap)] == [number_of(300, 0)]


def test_k25_a_payload_that_comes_again_is_heard_once() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.event(OWN_A, 1, 300)
    me.event(OWN_A, 1, 300)
    me.claim(OWN_A, 1, 900)
    assert me.heard == ["p:1"]


def test_k29_a_payload_is_waited_for_though_a_later_request_on_another_topic_was_told() -> None:
    """Without causal order keys count up with the requests of a topic, not with all of a publisher."""
    me = SubscriberAlone()
    me.join(A)
    me.join(B)
    me.stamps(OWN_B, 1, Stamped(500, P, 1))
    me.event(OWN_A, 1, 300, P, 2)
    me.claim(OWN_A, 1, 900)
    me.claim(OWN_B, 1, 900)
    assert me.heard == ["p:2"]
    me.say(Heard(B, Payloads(P, 1, (Event("p", 1, "b"),))))
    assert me.heard == ["p:2", "p:1"]


def test_k26_waiting_long_for_a_clock_is_told_once_and_goes_on() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.join(B)
    me.event(OWN_A, 1, 500)
    me.say(Fired("tick"), after=CONFIG.stall_us)
    me.say(Fired("tick"), after=CONFIG.stall_us)
    assert [notice.topic for notice in me.notices(Stalled)] == [B]
    me.claim(OWN_B, 0, 500)
    assert me.heard == ["p:1"]


def test_k26_a_topic_that_is_left_is_not_waited_for() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.join(B)
    me.event(OWN_A, 1, 500)
    me.say(Unsubscribe((B,)))
    assert me.heard == ["p:1"]


def test_k22_a_client_asks_one_stamper_only_whatever_the_topic() -> None:
    me = SubscriberAlone()
    for i, topic in enumerate((A, B, A)):
        me.say(Publish(topic, Event("me", i + 1, "t"), request=i + 1))
    me.say(Fired("tick"), after=CONFIG.accept_us)
    assert {to for to, message in me.sent if isinstance(message, Create)} == {"n0"}


def test_k23_a_publisher_says_the_latest_stamp_that_it_was_told_of() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.event(OWN_A, 1, 5_000)
    assert me.heard == ["p:1"]
    me.say(Publish(B, Event("me", 1, "t"), request=1))
    assert [m.after for _, m in me.sent if isinstance(m, Create)] == [5_000]


def test_k17_stamps_that_nobody_asked_for_change_nothing() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.say(Heard(B, LaneStamps(OWN_B, 1, (Stamped(500, P, 1),)), control=True))
    me.say(LaneStamps(LaneName(A, 1, 0), 1, (Stamped(500, P, 1),)))  # stamper 1 does not keep A
    me.claim(OWN_A, 0, 900)
    assert me.heard == []
    assert [notice.base for notice in me.notices(Joined)] == [0]


def test_k10_a_topic_that_nobody_has_stamped_on_begins_at_its_beginning_and_others_at_the_cut() -> None:
    """Nothing is missing between the beginning of a new topic and now: an archive of it has no hole."""
    for last, base in ((0, 0), (3, before(100))):
        me = SubscriberAlone()
        me.join(A, last=last)
        me.claim(OWN_A, last, 900)
        assert [notice.base for notice in me.notices(Joined)] == [base]


REALTIME = structs.replace(CONFIG, tolerance_us=Micros(10_000), is_realtime=True)


def tide(client: SubscriberAlone, error: int, clock: int = 1_000) -> None:
    client.say(Tide((Reading(0, clock, (LaneClaim(A, 0, 0, 0, 0),), error),)))


def test_k30_a_subscription_is_in_force_when_the_clocks_of_its_lanes_are_near_enough() -> None:
    client = SubscriberAlone(REALTIME)
    client.join(A)
    tide(client, 5_001)
    assert client.notices(Joined) == []
    tide(client, 5_000)
    assert len(client.notices(Joined)) == 1


def test_k30_a_subscription_whose_clocks_stay_too_far_off_is_refused() -> None:
    client = SubscriberAlone(REALTIME)
    client.join(A)
    tide(client, 8_000)
    client.say(Fired("tick"), after=CONFIG.warm_up_us)
    assert client.notices(Refused) == []
    client.say(Fired("tick"), after=CONFIG.ceiling_us + 1)
    (refused,) = client.notices(Refused)
    assert "n0 may be 8 ms off, and real-time order allows 5 ms" in refused.reason


def test_k30_whoever_waits_for_a_clock_to_be_right_is_told_so_once() -> None:
    client = SubscriberAlone(REALTIME)
    client.join(A)
    tide(client, 0)
    for error in (7_000, -1, 7_000):
        tide(client, error)
    assert len(client.notices(Stalled)) == 1
    tide(client, 0)
    tide(client, 7_000)
    assert len(client.notices(Stalled)) == 2


def test_k26_a_topic_that_stalls_is_left_if_asked_so_and_comes_back_with_a_gap() -> None:
    me = SubscriberAlone(structs.replace(CONFIG, leaves_stalled=True))
    me.join(A, last=3)
    me.join(B, last=3)
    me.claim(OWN_A, 3, 1_000)
    me.claim(OWN_B, 3, 1_000)
    first = me.event(OWN_A, 4, 2_000)
    me.claim(OWN_A, 4, 900_000)  # and B says nothing
    assert me.heard == []
    me.say(Fired("tick"), after=CONFIG.stall_us + 1)
    (stalled,) = me.notices(Stalled)
    assert (stalled.topic, "is left until it has" in stalled.reason) == (B, True)
    assert me.heard == [first]
    me.say(Lanes(B, 3, 9, 50_000, ()))
    me.claim(OWN_B, 9, 900_000)
    (gap,) = me.notices(Gap)
    assert (gap.topic, gap.first, gap.last) == (B, before(100) + 1, before(50_000)), "B is known to 100 alone"
    assert len(me.notices(Joined)) == 2, "it is in force all the time, but for the gap"


def payloads(me: SubscriberAlone, publisher: Address, first: int, count: int) -> None:
    events = tuple(Event(publisher, request, "t") for request in range(first, first + count))
    me.say(Heard(A, Payloads(publisher, first, events)))


def test_k01_entries_in_a_row_are_told_as_far_as_nothing_can_come_between_them() -> None:
    """Two rows whose stamps overlap are told in the order of keys, and only up to the watermark."""
    me = SubscriberAlone()
    me.join(A, last=3, lanes=((1, 2),))
    other = LaneName(A, 1, 2)
    me.base(other, 0, 100)
    payloads(me, P, 1, 10)
    payloads(me, Q, 1, 10)
    me.stamps(OWN_A, 4, Stamped(1_000, P, 1, 10))
    me.stamps(other, 1, Stamped(1_005, Q, 1, 10))
    told = [(item.number // STAMPERS_MAX, item.message.publisher) for item in me.each_heard()]
    both = [(stamp, who) for stamp in range(1_005, 1_010) for who in (P, Q)]
    assert told == [*((stamp, P) for stamp in range(1_000, 1_005)), *both]
    me.claim(other, 10, 2_000)
    me.claim(OWN_A, 13, 2_000)
    numbers = [item.number for item in me.each_heard()]
    assert numbers == sorted(numbers)
    assert len(numbers) == 20


def test_k25_one_payload_of_many_that_is_missing_ends_in_a_gap_of_its_own() -> None:
    me = SubscriberAlone()
    me.join(A, last=3)
    payloads(me, P, 1, 2)
    payloads(me, P, 4, 2)
    me.stamps(OWN_A, 4, Stamped(1_000, P, 1, 5))
    me.claim(OWN_A, 8, 2_000)
    assert [item.message.sequence for item in me.each_heard()] == [1, 2]
    me.say(Fired("tick"), after=CONFIG.payload_wait_us + 1)
    (gap,) = me.notices(Gap)
    assert (gap.first, gap.last) == (number_of(1_002, 0), number_of(1_002, 0))
    assert [item.message.sequence for item in me.each_heard()] == [1, 2, 4, 5]


def test_k10_of_entries_in_a_row_those_before_the_cut_are_past() -> None:
    me = SubscriberAlone()
    me.ask(A)
    payloads(me, P, 1, 5)
    me.stamps(OWN_A, 4, Stamped(1_000, P, 1, 5))
    me.say(Lanes(A, me.token, 5, 1_001, ()))  # the keeper answered in the middle of what it was sending
    me.claim(OWN_A, 8, 2_000)
    assert [item.message.sequence for item in me.each_heard()] == [3, 4, 5]
    after = me.event(OWN_A, 9, 3_000, Q)
    assert me.heard[-1] == after, "places after the row are where they are"


def test_k25_what_the_broker_says_it_has_lost_is_not_waited_for_beyond_its_deadline() -> None:
    me = SubscriberAlone(structs.replace(CONFIG, payload_wait_us=Micros(500_000)))
    me.join(A, last=3)
    me.stamps(OWN_A, 4, Stamped(1_000, P, 1))
    me.claim(OWN_A, 4, 2_000)
    me.now += 400_000
    me.say(Missed(A))
    me.say(Fired("tick"), after=100_000)
    assert len(me.notices(Gap)) == 1


def test_k25_what_the_broker_says_it_has_lost_is_not_waited_for_as_long_as_what_it_keeps() -> None:
    """Reliable subscriptions wait long for a payload; but not for one that will not be brought again."""
    me = SubscriberAlone(structs.replace(CONFIG, payload_wait_us=Micros(60 * SECOND)))
    me.join(A, last=3)
    me.stamps(OWN_A, 4, Stamped(1_000, P, 1))
    me.claim(OWN_A, 4, 2_000)
    me.say(Fired("tick"), after=10 * SECOND)
    assert me.notices(Gap) == []
    me.say(Missed(A))
    me.say(Fired("tick"), after=CONFIG.missed_wait_us - 1)
    assert me.notices(Gap) == []
    me.say(Fired("tick"), after=1)
    assert len(me.notices(Gap)) == 1
    me.now += 30 * SECOND
    me.stamps(OWN_A, 5, Stamped(me.now, P, 2))
    me.claim(OWN_A, 5, me.now)
    me.say(Fired("tick"), after=10 * SECOND)
    assert len(me.notices(Gap)) == 1, "what comes long afterwards was not lost then"
