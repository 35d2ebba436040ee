"""Who is kept awake, what a tick is worth, and whom it is told: an event waits for one way though it is alone."""

from tests.papers.clock.parts import CONFIG, STAMPERS, A, B, P, Q, StamperAlone, SubscriberAlone, sent, stamped
from unisono.machine import Fired, Refuse, SetTimer
from unisono.model.time import Micros
from unisono.protocols.clock.messages import (
    AskBeat,
    Beat,
    CloseLane,
    LaneClaim,
    LaneName,
    Listen,
    SetLean,
    Tick,
    Tide,
    Wake,
)


def listened(*lanes: LaneClaim) -> StamperAlone:
    """Node 0 with a listener for both topics; n1 keeps B, and n2 has no lane."""
    node = StamperAlone()
    node.beat()
    node.say(Beat(STAMPERS[1], 1, 2, node.now, node.now, (LaneClaim(B, 0, 0, 0, 0), *lanes)))
    node.say(Listen(P, (A, B)))
    return node


def test_k36_who_hears_of_an_event_keeps_those_awake_that_its_listeners_have_to_wait_for() -> None:
    node = listened()
    node.create(A)
    assert sent(node.say(Fired("beat")), Wake) == [(STAMPERS[1], Wake(STAMPERS[0]))]
    node.create(A, first=2, settled=1)
    assert sent(node.say(Fired("beat"), after=1), Wake) == [], "it is awake for a while"
    node.create(A, first=3, settled=2)
    assert sent(node.say(Fired("beat"), after=CONFIG.awake_us // 2), Wake) != []


def test_k36_who_is_told_again_of_an_event_wakes_nobody_for_it() -> None:
    """A whole beat lists all lanes again; where every one of them woke somebody, ticks that overtake a beat would have
    it asked for again, and nobody would ever rest."""
    node = listened()
    lanes = (LaneClaim(A, 4, 0, 0, 0), LaneClaim(B, 0, 1, node.now, 0))
    node.say(Beat(STAMPERS[2], 1, 1, node.now, node.now, lanes[1:], whole=True))
    node.say(Beat(STAMPERS[1], 1, 3, node.now, node.now, lanes[:1]))
    node.now += CONFIG.awake_us
    again = node.say(Beat(STAMPERS[2], 1, 2, node.now, node.now, lanes[1:], whole=True))
    assert sent(again, Wake) == []
    new = LaneClaim(B, 0, 2, node.now, 0)
    heard = node.say(Beat(STAMPERS[2], 1, 3, node.now, node.now, (new,), whole=True))
    assert sent(heard, Wake) != []


def test_k36_nobody_is_kept_awake_by_events_that_wait_for_nobody() -> None:
    node = StamperAlone()
    node.beat()
    node.say(Beat(STAMPERS[1], 1, 2, node.now, node.now, (LaneClaim(B, 0, 0, 0, 0),)))
    node.say(Listen(P, (A,)))
    node.create(A)
    assert sent(node.say(Fired("beat")), Wake) == []
    node.say(Listen(Q, (B,)))
    heard = Beat(STAMPERS[1], 1, 3, node.now, node.now, (LaneClaim(B, 0, 1, node.now, 0),))
    assert sent(node.say(heard), Wake) == []


def test_k36_a_lane_that_leans_less_than_that_of_the_event_is_waited_for_though_its_stamper_is_the_same() -> None:
    node = listened()
    ahead = LaneClaim(A, 4, 1, node.now + 90_000, 90_000)
    assert sent(node.say(Beat(STAMPERS[1], 1, 3, node.now, node.now, (ahead,))), Wake) == [
        (STAMPERS[1], Wake(STAMPERS[0]))
    ]


def test_k36_a_stamper_that_is_kept_awake_ticks_to_those_alone_and_only_for_a_while() -> None:
    node = StamperAlone()
    beat = node.beat()
    (timer,) = node.say(Wake(STAMPERS[2]))
    assert timer == SetTimer("tick", Micros(node.now + CONFIG.beat_us))
    effects = node.say(Fired("tick"), after=CONFIG.beat_us)
    assert sent(effects) == [(STAMPERS[2], Tick(STAMPERS[0], 1, beat.number, node.now - 1))]
    assert [effect for effect in effects if isinstance(effect, SetTimer)] != []
    assert node.say(Fired("tick"), after=CONFIG.awake_us) == []
    assert [type(effect) for effect in node.say(Wake(P)) + node.say(Tick(P, 1, 1, 1))] == [Refuse, Refuse]


def test_k36_who_ticks_beats_once_where_it_beat_again_and_again() -> None:
    """Lanes that lean back are told of for long after an event; nobody but those who wait for them has to hear that."""
    node = StamperAlone()
    node.say(SetLean(A, -200_000))
    node.grant(B)
    node.create(B)
    node.say(Wake(STAMPERS[1]))
    (timer,) = [e for e in node.say(Fired("beat")) if isinstance(e, SetTimer)]
    assert CONFIG.beat_us < timer.at - node.now <= 200_001 + CONFIG.beat_us
    node.now = timer.at
    (timer,) = [e for e in node.say(Fired("beat")) if isinstance(e, SetTimer)]
    assert timer.at - node.now == CONFIG.idle_beat_us, "nobody waits any more"


def test_k36_a_change_is_told_at_once_though_others_are_heard_meanwhile() -> None:
    """Ticks say nothing until it is."""
    node = StamperAlone()
    node.say(SetLean(A, -200_000))
    node.create(A)
    node.beat()
    node.say(Wake(STAMPERS[1]))
    node.say(SetLean(A, -300_000), after=CONFIG.beat_us)
    heard = node.say(Beat(STAMPERS[1], 1, 2, node.now, node.now, ()))
    assert [e.at - node.now for e in heard if isinstance(e, SetTimer)] == [0]


def test_k36_a_tick_says_nothing_of_what_no_beat_has_listed() -> None:
    """Whoever holds what the last beat has listed would believe that nothing came before this tick."""
    node = StamperAlone()
    node.beat()
    node.say(Wake(STAMPERS[1]))
    entry = stamped(node.create(A))[0]
    assert sent(node.say(Fired("tick"), after=CONFIG.beat_us), Tick) == []
    beat = node.beat()
    ((_, tick),) = sent(node.say(Fired("tick"), after=CONFIG.beat_us), Tick)
    assert tick.number == beat.number
    assert tick.clock > entry.stamp


def test_k36_a_tick_is_worth_nothing_without_the_beat_before_it() -> None:
    node = listened()
    node.now += 1_000
    node.create(A)
    node.say(Fired("beat"))
    assert sent(node.say(Tick(STAMPERS[1], 1, 3, node.now))) == [(STAMPERS[1], AskBeat(STAMPERS[0]))]
    assert sent(node.say(Tick(STAMPERS[1], 1, 1, node.now))) == []
    assert sent(node.say(Tick(STAMPERS[1], 1, 2, node.now)), Tide) != []


def test_k36_a_listener_is_told_of_the_ticks_that_let_it_go_on_and_of_no_others() -> None:
    node = listened()
    node.now += 1_000
    stamp = stamped(node.create(A))[0].stamp
    node.say(Fired("beat"))
    assert sent(node.say(Tick(STAMPERS[1], 1, 2, stamp - 1)), Tide) == []
    tides = sent(node.say(Tick(STAMPERS[1], 1, 2, stamp)), Tide)
    assert [(to, tide.readings[0].clock) for to, tide in tides] == [(P, stamp)]
    assert sent(node.say(Tick(STAMPERS[1], 1, 2, stamp + 1)), Tide) == []


def test_k36_a_tick_that_came_before_the_event_was_heard_of_is_told_with_it() -> None:
    node = listened(LaneClaim(A, 4, 0, 0, 0))
    node.say(Beat(STAMPERS[2], 1, 2, node.now, node.now, (LaneClaim(A, 5, 0, 0, 0),)))
    assert sent(node.say(Tick(STAMPERS[1], 1, 2, node.now + 500)), Tide) == []
    heard = node.say(Beat(STAMPERS[2], 1, 3, node.now, node.now, (LaneClaim(A, 5, 1, node.now + 400, 0),)))
    clocks = {reading.stamper: reading.clock for _, tide in sent(heard, Tide) for reading in tide.readings}
    assert clocks == {2: node.now, 1: node.now + 500}


def test_k36_who_joins_wakes_those_whose_clocks_it_waits_for() -> None:
    node = listened()
    effects = node.say(Listen(P, (A, B), waits=node.now + 300))
    assert sent(effects, Wake) == [(STAMPERS[1], Wake(STAMPERS[0]))]
    assert len(sent(node.say(Tick(STAMPERS[1], 1, 2, node.now + 300)), Tide)) == 1
    client = SubscriberAlone()
    client.join(A, watermark=100, last=4, lanes=((1, 4),))
    client.base(LaneName(A, 1, 4), 0, 700)
    assert [message.waits for _, message in client.sent if isinstance(message, Listen)] == [0, 700]


def test_k36_nobody_keeps_stampers_awake_with_a_stamp_that_no_clock_has_come_near() -> None:
    node = listened()
    before = node.say(Fired("beat"))
    effects = node.say(Listen(P, (A, B), waits=2**51))
    assert sent(effects, Wake) == []
    assert [e.at - node.now for e in before if isinstance(e, SetTimer)] == [CONFIG.idle_beat_us]
    assert [e.at - node.now for e in node.say(Fired("beat")) if isinstance(e, SetTimer)] == [CONFIG.idle_beat_us]


def test_k36_a_lane_that_has_ended_is_spoken_for_until_its_keeper_has_closed_it() -> None:
    """Else those who listen here would wait for the keeper's word, with all that they hear."""
    node = StamperAlone()
    node.say(Listen(P, (A, B)))
    node.grant(B, epoch=4)
    node.create(B)
    node.beat()
    ended = node.say(Fired("renew"), after=CONFIG.idle_lane_us + 1)
    assert len(sent(ended, CloseLane)) == 1
    ((_, tide),) = sent(node.say(Fired("beat")), Tide)
    assert {claim.topic for reading in tide.readings for claim in reading.lanes} == {A, B}
    node.now += CONFIG.lease_us
    assert node.beat().ended == (B,)
    assert node.beat().ended == ()


def test_k36_a_lane_that_is_spoken_for_no_more_wakes_nobody() -> None:
    node = listened()
    node.say(Beat(STAMPERS[1], 1, 3, node.now, node.now, (), ended=(B,)))
    node.create(A)
    assert sent(node.say(Fired("beat")), Wake) == []
