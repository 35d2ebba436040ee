"""Stampers: keys that are never given twice, promises that hold through crashes, leans and clocks that are wrong."""

import pytest
from msgspec import structs

from tests.papers.clock.parts import (
    CONFIG,
    HOMES,
    SECOND,
    STAMPERS,
    A,
    B,
    P,
    Q,
    StamperAlone,
    SubscriberAlone,
    kept,
    promised,
    sent,
    stamped,
)
from unisono.machine import PERSIST, Effect, Fired, Publish, Refuse, Restarted, SetTimer
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.clock.messages import (
    AskBeat,
    AskLanes,
    Beat,
    ClockBound,
    Closed,
    CloseLane,
    Create,
    FetchEntries,
    Gone,
    Granted,
    KeyRules,
    LaneClaim,
    LaneEnded,
    LaneName,
    Lanes,
    LaneStamps,
    Leased,
    Listen,
    Nearest,
    NotKept,
    OpenLane,
    RenewLease,
    SetLean,
    StampDenied,
    StampTaken,
    Tide,
)
from unisono.protocols.clock.stamper import StamperMachine
from unisono.structures.hosting import HostTopic
from unisono.structures.sessions import PeerReborn, Reborn


def test_k05_nothing_is_stamped_before_its_keeper_has_granted_a_lane() -> None:
    node = StamperAlone()
    effects = node.create(B)
    assert stamped(effects) == []
    assert [type(m) for _, m in sent(effects)] == [OpenLane]
    granted = node.grant(B, after=node.now + 500)
    assert [entry.stamp > node.now + 500 for entry in stamped(granted)] == [True]


def test_k06_no_stamp_is_later_than_the_lease_however_long_the_stamper_was_paused() -> None:
    node = StamperAlone()
    node.grant(B, lease=node.now + SECOND)
    node.now += 60 * SECOND
    assert stamped(node.create(B)) == []
    leased = node.say(Leased(1, node.now + SECOND))
    assert len(stamped(leased)) == 1


def test_k07_a_restart_begins_above_everything_that_was_promised() -> None:
    node = StamperAlone()
    before = promised(node.beat(), A)
    node.crash(at=node.now - 3600 * SECOND)  # its wall clock was set back
    for other in (1, 2):
        node.say(Beat(STAMPERS[other], 2, 1, node.now, 0, (), True))
    entry = stamped(node.create(A))[0]
    assert entry.stamp > before


def test_k07_nothing_is_promised_above_the_ceiling_that_is_written_down() -> None:
    node = StamperAlone()
    node.now += 10 * CONFIG.ceiling_us  # no timer has raised it meanwhile
    before = promised(node.beat(), A)
    node.crash(at=node.now - 3600 * SECOND)
    for other in (1, 2):
        node.say(Beat(STAMPERS[other], 2, 1, node.now, 0, (), True))
    assert stamped(node.create(A))[0].stamp > before


def test_k08_a_lean_that_shrinks_leaves_the_watermark_where_it_is() -> None:
    node = StamperAlone()
    node.say(SetLean(A, 50_000))
    before = promised(node.beat(), A)
    node.say(SetLean(A, -50_000))
    assert stamped(node.create(A))[0].stamp > before


def test_k18_a_restart_after_a_change_of_lean_keeps_the_watermark() -> None:
    node = StamperAlone()
    node.say(SetLean(A, 5 * SECOND))
    before = promised(node.beat(), A)
    node.say(SetLean(A, 0))
    node.crash(at=node.now + 1)
    node.say(Fired("warm"), after=CONFIG.warm_up_us)
    assert stamped(node.create(A))[0].stamp > before


def test_k11_a_request_that_is_repeated_after_a_crash_has_the_key_it_had() -> None:
    node = StamperAlone()
    first = stamped(node.create(A))[0]
    node.crash(at=node.now + 10)
    node.say(Fired("warm"), after=CONFIG.warm_up_us)
    again = node.create(A)
    assert stamped(again) == []
    assert sent(again) == [(P, StampTaken(1, first.stamp))]


def test_k11_keys_are_the_same_when_the_log_is_handled_again() -> None:
    """Beats and questions between logged inputs leave no trace in later stamps."""
    node = StamperAlone()
    made = []
    for i in range(20):
        made += stamped(node.create(A, first=i + 1))
        node.beat()  # in the same microsecond: what it promised must not move the next stamp
    copy = StamperAlone(warm=False)
    again = [entry for then, message in node.log[1:] for entry in stamped(copy.machine.handle(message, then))]
    assert again == made


def test_k15_a_stamper_that_starts_an_hour_ahead_hears_the_others_first() -> None:
    node = StamperAlone(warm=False)
    real = node.now - 3600 * SECOND
    assert stamped(node.create(A)) == []
    effects = [effect for other in (1, 2) for effect in node.say(Beat(STAMPERS[other], 1, 1, real, real - 1, (), True))]
    assert abs(stamped(effects)[0].stamp - real) < SECOND


def test_k15_one_that_finds_out_later_stands_still_and_promises_nothing_less() -> None:
    node = StamperAlone()
    before = promised(node.beat(), A)
    real = node.now - 3600 * SECOND
    for other in (1, 2):
        node.say(Beat(STAMPERS[other], 1, 2, real, real - 1, ()))
    first, second = stamped(node.create(A, A))
    assert before < first.stamp < before + 1_000
    assert second.stamp == first.stamp + 1


def test_k15_one_that_is_far_too_late_jumps_forward() -> None:
    node = StamperAlone()
    real = node.now + 3600 * SECOND
    for other in (1, 2):
        node.say(Beat(STAMPERS[other], 1, 2, real, real - 1, ()))
    assert stamped(node.create(A))[0].stamp >= real


DAY = 86_400 * SECOND


def hear(node: StamperAlone, other: int, reading: int) -> list[Effect]:
    return node.say(Beat(STAMPERS[other], 7, 1, reading, reading - 1, (), True))


def test_k33_a_log_whose_moments_are_a_day_ahead_does_no_harm_though_the_others_are_heard_late() -> None:
    """The last life had a wrong clock, moments never go back, and links take a while until they are there."""
    node = StamperAlone()
    real = node.now
    node.crash(at=real + DAY)
    assert node.create(A) == [PERSIST]
    assert not stamped(node.say(Fired("sure"), after=CONFIG.warm_up_us))
    entries = [entry for other in (1, 2) for entry in stamped(hear(node, other, real + 2 * SECOND))]
    assert [entry.stamp < real + CONFIG.skew_max_us for entry in entries] == [True]


def test_k33_of_two_clocks_that_are_far_apart_none_is_believed_before_a_third_is_heard() -> None:
    """One of the others is away at first, and the one that is heard is a day ahead."""
    node = StamperAlone(warm=False)
    real = node.now
    node.create(A)
    assert not stamped(hear(node, 1, real + DAY))
    assert not stamped(node.say(Fired("sure"), after=CONFIG.warm_up_us))
    (entry,) = stamped(hear(node, 2, node.now))
    assert entry.stamp < real + CONFIG.skew_max_us


def test_k33_who_starts_goes_by_one_that_runs_if_no_more_are_heard() -> None:
    node = StamperAlone(warm=False)
    real = node.now - 3600 * SECOND
    node.create(A)
    assert not stamped(hear(node, 1, real))
    (entry,) = stamped(node.say(Fired("warm"), after=CONFIG.alone_us))
    assert entry.stamp < real + 2 * CONFIG.alone_us


def test_k33_who_hears_most_of_the_others_does_not_wait_for_the_rest() -> None:
    node = StamperAlone(warm=False)
    node.create(A)
    assert not stamped(hear(node, 1, node.now)), "the rest has a moment"
    assert len(stamped(node.say(Fired("sure"), after=CONFIG.warm_up_us))) == 1
    late = StamperAlone(warm=False)
    late.create(A)
    assert not stamped(late.say(Fired("sure"), after=CONFIG.warm_up_us)), "it knows no clock but its own"
    assert len(stamped(hear(late, 1, late.now))) == 1


def test_k33_who_runs_does_not_go_by_one_that_starts() -> None:
    """Of two clocks the later one is right, but not before it promises anything."""
    machine = StamperMachine(0, STAMPERS[:2], lambda topic: 0, (A,), CONFIG)
    now = 10_000 * SECOND
    machine.handle(Restarted(), Micros(now))
    machine.handle(Beat(STAMPERS[1], 1, 1, now, now - 1, (), True), Micros(now))
    machine.handle(Beat(STAMPERS[1], 2, 1, now + DAY, 0, (), True), Micros(now))
    (entry,) = stamped(machine.handle(Create(P, STAMPERS[0], 1, ((A, 1),), 0, 0), Micros(now)))
    assert entry.stamp < now + CONFIG.skew_max_us
    assert all(beat.clock == 0 for _, beat in sent(StamperAlone(warm=False).say(Fired("beat")), Beat))


def test_k33_nothing_gets_a_stamp_before_the_clock_can_be_trusted_lanes_that_end_neither() -> None:
    """What others have sent meanwhile comes before their beats do."""
    keeper = StamperAlone()
    granted = [m for other in (1, 2) for _, m in sent(keeper.say(OpenLane(other, A, keeper.now)), Granted)]
    real = keeper.now
    keeper.crash(at=real + DAY)
    ended = CloseLane(1, A, granted[0].epoch, 0, real)
    assert stamped([*keeper.say(ended), *keeper.say(PeerReborn(STAMPERS[2]))]) == []
    assert sent(keeper.say(RenewLease(1, real)), Leased) == []
    closed = [entry for other in (1, 2) for entry in stamped(hear(keeper, other, real + SECOND))]
    assert {(entry.stamper, entry.epoch) for entry in closed if isinstance(entry, Closed)} == {
        (other, each.epoch) for other, each in zip((1, 2), granted, strict=True)
    }
    assert all(entry.stamp < real + 2 * CONFIG.skew_max_us for entry in closed)


def test_k33_who_has_forgotten_begins_above_it_by_a_clock_that_can_be_trusted() -> None:
    node = StamperAlone(warm=False, at=10_000 * SECOND + DAY)
    real = node.now - DAY
    node.say(Reborn(50_000_000))
    node.create(A)
    (entry,) = [entry for other in (1, 2) for entry in stamped(hear(node, other, real))]
    assert real + CONFIG.ceiling_us <= entry.stamp < real + 2 * CONFIG.ceiling_us


def test_k16_a_beat_after_a_stamp_promises_at_least_that_stamp_for_every_lane() -> None:
    node = StamperAlone()
    node.grant(B)
    entry = stamped(node.create(A))[0]
    beat = node.beat()
    assert promised(beat, A) >= entry.stamp
    assert promised(beat, B) >= entry.stamp


def test_k16_a_stamp_that_is_ahead_of_the_clock_is_told_with_the_claim() -> None:
    node = StamperAlone()
    entry = stamped(node.create(A, after=node.now + 2 * SECOND))[0]
    assert entry.stamp > node.now + 2 * SECOND
    assert promised(node.beat(), A) == entry.stamp


def test_k03_a_missed_beat_is_asked_for_and_what_follows_is_not_believed() -> None:
    node = StamperAlone()
    node.say(Listen(P, (B,)))
    node.say(Beat(STAMPERS[1], 1, 2, node.now, node.now, (LaneClaim(B, 0, 1, node.now, 0),)))
    missed = node.say(Beat(STAMPERS[1], 1, 4, node.now + 10, node.now + 10, ()))
    assert [type(m) for _, m in sent(missed)] == [AskBeat]
    assert sent(node.say(Beat(STAMPERS[1], 1, 5, node.now + 20, node.now + 20, ())), Tide) == []
    whole = Beat(STAMPERS[1], 1, 5, node.now + 20, node.now + 20, (LaneClaim(B, 0, 3, node.now + 5, 0),), True)
    readings = [tide.readings for to, tide in sent(node.say(whole), Tide) if to == P]
    assert [(r.clock, r.lanes[0].last) for (r,) in readings] == [(node.now + 20, 3)]


def test_k07b_a_beat_speaks_for_no_lane_that_was_not_listed() -> None:
    node = StamperAlone()
    node.say(Listen(P, (A, B)))
    assert sent(node.say(Beat(STAMPERS[1], 1, 2, node.now, node.now, ())), Tide) == []


def test_k04b_a_listener_is_told_once_a_last_entry_has_changed_though_nobody_waits() -> None:
    node = StamperAlone()
    node.say(Listen(Q, (A,)))
    node.create(A)
    tides = sent(node.say(Fired("beat")), Tide)
    assert [(to, tide.readings[0].lanes[0].last) for to, tide in tides] == [(Q, 1)]


def test_k23_stamps_of_a_publisher_count_up_with_its_requests_on_whatever_topics() -> None:
    node = StamperAlone()
    node.grant(B)
    node.say(SetLean(A, 30_000))
    entries = sorted((e.request, e.stamp) for e in stamped(node.create(A, B, A, B)))
    assert [stamp for _, stamp in entries] == sorted({stamp for _, stamp in entries})


def test_k23_a_request_that_was_overtaken_waits_for_the_one_before() -> None:
    node = StamperAlone()
    assert node.create(A, first=2) == []
    assert len(stamped(node.create(A, A))) == 2


def test_k23_a_request_far_ahead_of_all_clocks_is_denied_and_the_next_is_not() -> None:
    node = StamperAlone()
    denied = node.create(A, after=node.now + 3600 * SECOND)
    assert [(to, m.request) for to, m in sent(denied, StampDenied)] == [(P, 1)]
    assert [e.request for e in stamped(node.create(A, first=2, settled=1))] == [2]


def test_k06_lanes_of_a_stamper_that_was_taken_out_of_the_file_end_with_their_leases() -> None:
    node = StamperAlone()
    assert all(node.say(each) for each in (OpenLane(2, A, node.now), RenewLease(2, node.now), OpenLane(2, B, 1)))
    node.machine = StamperMachine(0, STAMPERS[:2], HOMES.get, kept(0), CONFIG)
    for then, logged in [each for each in node.log if not isinstance(each[1], Beat)]:
        node.machine.handle(logged, Micros(then))
    node.say(Restarted())
    node.say(Beat(STAMPERS[1], 2, 1, node.now, 0, (), True))
    closed = stamped(node.say(Fired("renew"), after=3 * CONFIG.lease_us))
    assert [(entry.stamper, entry.last) for entry in closed if isinstance(entry, Closed)] == [(2, -1)]
    assert sent(node.create(A), StampTaken) != []


def test_k06_a_lane_that_its_keeper_has_ended_is_asked_for_again() -> None:
    node = StamperAlone()
    node.grant(B, epoch=4)
    node.say(LaneEnded(B, 4))
    effects = node.create(B)
    assert stamped(effects) == []
    assert [type(m) for _, m in sent(effects)] == [OpenLane]


def test_k06_leases_are_renewed_while_a_lane_is_used_and_an_idle_lane_is_closed() -> None:
    node = StamperAlone()
    node.grant(B)
    assert [m.stamper for _, m in sent(node.say(Fired("renew"), after=SECOND), RenewLease)] == [0]
    idle = node.say(Fired("renew"), after=CONFIG.idle_lane_us)
    assert [(m.topic, m.last) for _, m in sent(idle) if not isinstance(m, RenewLease)] == [(B, 0)]


def test_k03_beats_of_nobody_are_refused() -> None:
    node = StamperAlone()
    for stranger in (STAMPERS[0], P):
        effects = node.say(Beat(stranger, 1, 1, 5, 5, ()))
        assert [type(effect) for effect in effects] == [Refuse]
    assert [type(e) for e in node.say(AskBeat(P))] == [Refuse]
    assert sent(node.create(A, client=Address("x")), StampTaken) != []


def test_k27_lanes_of_one_request_are_opened_side_by_side() -> None:
    homes = {A: 0, B: 1, Topic(2): 2, Topic(3): 1}
    machine = StamperMachine(0, STAMPERS, homes.get, (A,), CONFIG)
    for other in (1, 2):
        machine.handle(Beat(STAMPERS[other], 1, 1, 10 * SECOND, 10 * SECOND - 1, (), True), Micros(10 * SECOND))
    effects = machine.handle(
        Create(P, STAMPERS[0], 1, ((B, 1), (Topic(3), 1), (B, 1), (Topic(2), 1)), 0, 0), Micros(10 * SECOND)
    )
    assert [message.topic for _, message in sent(effects, OpenLane)] == [B, Topic(3), Topic(2)]
    assert sent(machine.handle(Create(Q, STAMPERS[0], 1, ((Topic(2), 1),), 0, 0), Micros(10 * SECOND)), OpenLane) == []


def test_k27_what_is_asked_for_while_a_lane_is_opened_waits_there_and_its_lanes_are_opened_meanwhile() -> None:
    """Else it would be stamped when it is asked for again, and its own lane opened after that."""
    homes = {A: 0, B: 1, Topic(2): 2}
    node = StamperAlone()
    node.machine = StamperMachine(0, STAMPERS, homes.get, (A,), structs.replace(CONFIG, window=4))
    for other in (1, 2):
        node.say(Beat(STAMPERS[other], 1, 1, node.now, node.now - 1, (), True))
    node.create(B)
    opened = node.create(Topic(2), first=2)
    assert [message.topic for _, message in sent(opened, OpenLane)] == [Topic(2)]
    assert stamped(node.create(A, first=3)) == [], "its stamps count up with its requests"
    node.grant(Topic(2))
    assert [entry.request for entry in stamped(node.grant(B))] == [1, 2, 3]  # type: ignore[union-attr]
    node.create(Topic(2), first=4)
    node.say(LaneEnded(B, 1))
    node.create(B, first=5)
    node.create(A, A, A, A, first=6)
    assert node.machine.seen(A) == (1, 0), "more than its window does not wait"


def test_k28_while_lanes_lean_differently_each_of_them_is_told_of_as_soon_as_it_may_end_a_wait() -> None:
    """What leans far ahead could answer long before the clock of the lane that leans least has come so far."""
    node = StamperAlone()
    node.say(SetLean(A, 200_000))
    node.grant(B)
    node.create(A)
    node.beat()
    timers = [effect for effect in node.say(Fired("beat")) if isinstance(effect, SetTimer)]
    assert [timer.at for timer in timers] == [node.now + CONFIG.beat_us]
    node.now += 300_000
    timers = [effect for effect in node.say(Fired("beat")) if isinstance(effect, SetTimer)]
    assert [timer.at for timer in timers] == [node.now + CONFIG.idle_beat_us], "nobody waits any more"


def test_k29_without_causal_order_a_lane_that_leans_ahead_takes_no_other_with_it() -> None:
    stamps = {}
    for causal in (True, False):
        node = StamperAlone(config=structs.replace(CONFIG, causal=causal))
        node.say(SetLean(A, 200_000))
        node.grant(B)
        ahead, local = stamped(node.create(A, B))
        again = stamped(node.create(A, first=3))[0]
        assert again.stamp > ahead.stamp, "each publisher's order within a topic is kept"
        stamps[causal] = local.stamp - ahead.stamp
    assert stamps[True] > 0 > stamps[False]


def test_k29_a_publisher_that_comes_from_another_stamper_goes_on_above_what_it_had() -> None:
    """There its lane leaned ahead; here none does. Its later events on a topic come after its earlier ones."""
    node = StamperAlone(config=structs.replace(CONFIG, causal=False))
    node.grant(B)
    had = node.now + 300_000
    assert stamped(node.create(B, first=8, after=had, settled=7))[0].stamp > had
    assert stamped(node.create(A, first=9, settled=8))[0].stamp > had, "whichever topic it had that key on"


def test_k29_a_publisher_is_told_the_latest_of_its_stamps() -> None:
    """It says so to whomever it publishes through next."""
    node = StamperAlone(config=structs.replace(CONFIG, causal=False))
    node.say(SetLean(A, 200_000))
    node.grant(B)
    effects = node.create(A, B)
    ahead, local = stamped(effects)
    (taken,) = (message for _, message in sent(effects, StampTaken))
    assert taken.stamp == ahead.stamp > local.stamp


def test_k22_requests_that_were_sent_to_another_stamper_get_no_second_key_here() -> None:
    node = StamperAlone()
    effects = node.say(Create(P, STAMPERS[1], 1, ((A, 1),), 0, 0))
    assert [type(effect) for effect in effects] == [Refuse]
    assert len(stamped(node.create(A))) == 1


def test_k22_what_a_publisher_has_under_way_stays_with_its_stamper_when_another_is_nearer() -> None:
    client = SubscriberAlone()
    client.say(Publish(A, Event("p", 1, "t"), 1))
    client.say(Nearest(STAMPERS[1]))
    client.say(Publish(A, Event("p", 2, "t"), 2))
    client.say(Fired("tick"), after=SECOND)
    assert {to for to, message in client.sent if isinstance(message, Create)} == {STAMPERS[0]}
    client.say(StampTaken(2, client.now))
    client.say(Publish(A, Event("p", 3, "t"), 3))
    assert [(to, m.first, m.settled) for to, m in client.sent if isinstance(m, Create)][-1] == (STAMPERS[1], 3, 2)


def test_k27_a_topic_that_nobody_keeps_is_denied_and_blocks_nobody_else() -> None:
    node = StamperAlone()
    node.create(B)
    denied = node.say(NotKept(B))
    assert [(to, m.request) for to, m in sent(denied, StampDenied)] == [(P, 1)]
    keeper = StamperAlone(1)
    asked = keeper.say(OpenLane(0, Topic(77), keeper.now))
    assert sent(asked) == [(STAMPERS[0], NotKept(Topic(77)))]


def test_k31_what_was_denied_gets_no_key_though_it_is_asked_for_again() -> None:
    """The question that was repeated before the answer came arrives when the topic is there."""
    node, born = StamperAlone(), Topic(9)
    HOMES[born] = 0
    try:
        (denied,) = (message for _, message in sent(node.create(born), StampDenied))
        assert denied.request == 1
        node.say(HostTopic(born))
        again = node.create(born)
        assert stamped(again) == []
        assert [message.request for _, message in sent(again, StampDenied)] == [1]
        assert [entry.request for entry in stamped(node.create(born, first=2, settled=1))] == [2]
    finally:
        del HOMES[born]


def test_k31_what_is_asked_for_before_a_topic_of_nobody_is_stamped_and_that_alone_is_denied() -> None:
    node, nowhere = StamperAlone(), Topic(9)
    effects = node.create(A, nowhere, A)
    assert [entry.request for entry in stamped(effects)] == [1]
    assert [message.request for _, message in sent(effects, StampDenied)] == [2]
    assert [entry.request for entry in stamped(node.create(A, first=3, settled=2))] == [3]


def test_k23_many_in_a_row_have_stamps_and_places_in_a_row_and_are_one_entry() -> None:
    node = StamperAlone()
    (entry,) = stamped(node.say(Create(P, STAMPERS[0], 1, ((A, 500),), 0, 0)))
    assert (entry.request, entry.count) == (1, 500)  # type: ignore[union-attr]
    (after,) = stamped(node.create(A, first=501))
    assert after.stamp >= entry.stamp + 500
    (lane,) = [m for _, m in sent(node.say(FetchEntries(Q, LaneName(A, 0, 0), 3, 7)), LaneStamps)]
    assert (lane.first, lane.entries) == (1, (entry,)), "what is in a row stays together"
    assert promised(node.beat(), A) >= after.stamp
    (ahead,) = stamped(node.say(Create(P, STAMPERS[0], 502, ((A, 10),), node.now + 2 * SECOND, 501)))
    (other,) = stamped(node.create(A, client=Q))
    assert other.stamp > ahead.stamp + 9, "also where stamps are ahead of the clock"


def test_k06_a_run_ends_where_the_lease_does_and_goes_on_when_it_is_renewed() -> None:
    node = StamperAlone()
    node.grant(B, lease=node.now + 10)
    first = stamped(node.say(Create(P, STAMPERS[0], 1, ((B, 500),), 0, 0)))
    assert [entry.stamp + entry.count - 1 for entry in first] == [node.now + 10]  # type: ignore[union-attr]
    rest = stamped(node.say(Leased(1, node.now + SECOND)))
    assert sum(entry.count for entry in first + rest) == 500  # type: ignore[union-attr]


def test_k07_a_stamper_that_has_forgotten_gives_no_place_twice_and_the_others_ask_again() -> None:
    keeper = StamperAlone()
    keeper.create(A, A, A)
    reborn = StamperAlone()
    reborn.say(Reborn(50_000_000))
    reborn.create(A)
    assert reborn.beat().term > 50_000_000
    (gone,) = [m for _, m in sent(reborn.say(FetchEntries(P, LaneName(A, 0, 0), 1, 3)), Gone)]
    assert gone.upto >= 3
    other = StamperAlone(1)
    other.grant(A, epoch=9)
    assert len(stamped(other.create(A))) == 1
    other.say(PeerReborn(STAMPERS[0]))
    again = other.create(A, first=2)
    assert stamped(again) == []
    assert [type(m) for _, m in sent(again)] == [OpenLane]


def lanes_of(node: StamperAlone, topic: Topic = A) -> Lanes:
    ((_, lanes),) = sent(node.say(AskLanes(P, topic, 1)), Lanes)
    return lanes


def test_k35_who_has_forgotten_says_where_it_began_again_as_long_as_it_has_all_since() -> None:
    node = StamperAlone(config=structs.replace(CONFIG, kept_max=3))
    assert lanes_of(node).begun == 0
    node.create(A, A)
    promise = promised(node.beat(), A)
    node.say(Reborn(50_000_000))
    assert lanes_of(node).begun == lanes_of(node).last
    entries = stamped(node.create(A))
    lanes = lanes_of(node)
    assert lanes.begun == lanes.last - 1
    assert promise < lanes.above < entries[0].stamp
    for request in range(2, 10):
        node.create(A, first=request)
    assert lanes_of(node).begun == 0


def test_k06_lanes_of_a_stamper_that_has_forgotten_them_are_closed_above_its_lease() -> None:
    keeper = StamperAlone()
    (granted,) = [m for _, m in sent(keeper.say(OpenLane(1, A, keeper.now)), Granted)]
    (closed,) = stamped(keeper.say(PeerReborn(STAMPERS[1])))
    assert isinstance(closed, Closed)
    assert closed.stamp > closed.upto >= granted.lease


REALTIME = structs.replace(CONFIG, tolerance_us=Micros(10_000))


def test_k30_a_stamper_that_does_not_know_how_wrong_its_clock_is_stamps_nothing() -> None:
    node = StamperAlone(config=REALTIME)
    assert stamped(node.create(A)) == []
    assert stamped(node.say(ClockBound(5_001))) == []
    entries = stamped(node.say(ClockBound(1_000)))
    assert [entry.request for entry in entries] == [1]  # type: ignore[union-attr]


def test_k30_a_bound_that_is_not_told_again_is_not_believed_for_long() -> None:
    node = StamperAlone(config=structs.replace(REALTIME, tolerance_us=Micros(SECOND)))
    node.say(ClockBound(0))
    assert len(stamped(node.create(A))) == 1
    node.now += 6 * SECOND
    assert stamped(node.create(A, first=2)) == []


def test_k30_stamps_in_a_row_do_not_run_ahead_of_the_clock() -> None:
    """Many at once have a microsecond each: those beyond half of the tolerance wait for theirs."""
    node = StamperAlone(config=REALTIME)
    node.say(ClockBound(1_000))
    begun = node.now
    many = stamped(node.say(Create(P, STAMPERS[0], 1, ((A, 9_000),), 0, 0)))
    last = max(entry.stamp + entry.count - 1 for entry in many)  # type: ignore[union-attr]
    assert last <= begun + 4_000
    more = stamped(node.say(Fired("clock"), after=2_000))
    assert max(entry.stamp + entry.count - 1 for entry in more) <= node.now + 4_000  # type: ignore[union-attr]


def test_k30_a_stamper_that_restarts_waits_until_its_clock_has_reached_the_ceiling() -> None:
    node = StamperAlone(config=REALTIME)
    node.say(ClockBound(0))
    back = node.now + 1_000
    node.crash(at=back)
    for other in (1, 2):
        node.say(Beat(STAMPERS[other], 2, 1, node.now, 0, (), True))
    node.say(ClockBound(0))
    assert stamped(node.create(A)) == []
    assert node.beat().error > REALTIME.tolerance_us // 2
    node.now = back + REALTIME.ceiling_us
    assert len(stamped(node.say(ClockBound(0)))) == 1


def test_k30_keys_are_the_same_when_the_log_is_handled_again() -> None:
    node = StamperAlone(config=REALTIME)
    made = []
    for i in range(20):
        made += stamped(node.say(ClockBound(i % 3 * 3_000), after=500))
        made += stamped(node.create(A, A, first=2 * i + 1))
    copy = StamperAlone(warm=False, config=REALTIME)
    again = [entry for then, message in node.log[1:] for entry in stamped(copy.machine.handle(message, then))]
    assert again == made


def test_k30_no_lane_leans() -> None:
    node = StamperAlone(config=REALTIME)
    assert [type(effect) for effect in node.say(SetLean(A, 1_000))] == [Refuse]


@pytest.mark.parametrize("rules", [KeyRules(True, 0), KeyRules(False, 10_000)], ids=["causal", "realtime"])
def test_k30_lanes_that_leaned_lean_no_more_where_the_deployment_now_promises_what_leans_would_break(
    rules: KeyRules,
) -> None:
    node = StamperAlone(config=structs.replace(CONFIG, causal=False))
    node.say(SetLean(A, -100_000))
    node.say(rules, after=SECOND)
    node.say(ClockBound(0))
    (entry,) = stamped(node.create(A))
    assert entry.stamp >= node.now


def test_k11_what_was_stamped_under_other_rules_gets_the_same_keys_again() -> None:
    """The deployment's file was changed between a crash and the start."""
    node = StamperAlone()
    node.say(KeyRules(causal=True, tolerance_us=0))
    node.say(SetLean(A, 200_000))
    node.grant(B)
    made = stamped(node.create(A, B))
    node.config = structs.replace(CONFIG, causal=False)
    node.crash(node.now + SECOND)
    node.say(KeyRules(causal=False, tolerance_us=0))
    asked = [node.say(FetchEntries(Q, LaneName(topic, 0, epoch), 1, 1)) for topic, epoch in ((A, 0), (B, 1))]
    assert [entry for effects in asked for _, found in sent(effects, LaneStamps) for entry in found.entries] == made


def test_k10_a_topic_that_is_born_after_a_loss_does_not_look_as_if_it_were_new() -> None:
    """A topic of that name may have had events: what lies before a cut is past, and nobody is owed it."""
    for incarnation, is_new in ((0, True), (50_000_000, False)):
        machine = StamperMachine(0, STAMPERS[:1], lambda topic: 0)
        machine.handle(Restarted(), Micros(10 * SECOND))
        if incarnation:
            machine.handle(Reborn(incarnation), Micros(10 * SECOND))
        machine.handle(HostTopic(Topic(5)), Micros(10 * SECOND))
        ((_, lanes),) = sent(machine.handle(AskLanes(P, Topic(5), 1), Micros(11 * SECOND)))
        assert (lanes.last == 0) == is_new
