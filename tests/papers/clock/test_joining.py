"""Joining is the subscriber's own business: where it begins, and that nothing published afterwards lies before that."""

from tests.papers.clock.parts import OWN_A, OWN_B, A, B, P, Q, SubscriberAlone
from unisono.machine import Fired, Joined
from unisono.protocols.clock.messages import AskBase, AskLanes, Closed, LaneName, Lanes, Opened, before

LANE = LaneName(A, 2, 1)


def joined(me: SubscriberAlone) -> list[int]:
    return [notice.base for notice in me.notices(Joined)]


def test_k09_a_lane_begins_with_its_stampers_own_answer_not_with_a_beat() -> None:
    """A beat sent before the join may come after it."""
    me = SubscriberAlone()
    me.join(A, lanes=((2, 1),), last=1, watermark=500)
    me.claim(LANE, 3, 400)
    assert joined(me) == []
    me.base(LANE, 5, 600)
    assert joined(me) == []  # the keeper has not reached the cut yet
    me.claim(OWN_A, 1, 600)
    assert joined(me) == [before(600)]


def test_k10_the_cut_is_never_below_what_was_notified() -> None:
    me = SubscriberAlone()
    me.join(A)
    me.event(OWN_A, 1, 5_000)
    assert me.heard == ["p:1"]
    me.join(B, watermark=300)
    me.event(OWN_B, 1, 4_000, Q)  # published before, stamped below: past for us
    me.claim(OWN_B, 1, 5_000)
    me.claim(OWN_A, 1, 6_000)
    assert me.heard == ["p:1"]
    assert joined(me)[-1] == before(5_000)


def test_k17_entries_after_the_keepers_answer_act_on_the_lanes_it_named() -> None:
    me = SubscriberAlone()
    me.ask(A)
    me.stamps(OWN_A, 2, Opened(450, 1))  # heard before the answer that does not know it yet
    me.say(Lanes(A, me.token, 1, 400, ()))
    me.event(OWN_A, 3, 500)
    me.claim(OWN_A, 3, 900)
    assert me.heard == []
    me.claim(LaneName(A, 1, 2), 0, 500)
    assert me.heard == ["p:1"]


def test_k17_lanes_that_ended_before_the_answer_are_past() -> None:
    me = SubscriberAlone()
    me.ask(A)
    me.event(LaneName(A, 2, 1), 4, 350, Q)
    me.say(Lanes(A, me.token, 7, 400, ()))
    me.event(OWN_A, 8, 500)
    assert me.heard == ["p:1"]


def test_k19_subscribe_returns_when_every_lane_has_passed_the_cut() -> None:
    me = SubscriberAlone()
    me.join(A, lanes=((2, 1),), last=1, watermark=100)
    me.base(LANE, 0, 900)
    assert joined(me) == []
    me.claim(OWN_A, 1, 899)
    assert joined(me) == []
    me.claim(OWN_A, 1, 900)
    assert joined(me) == [before(900)]


def test_k21_what_is_claimed_during_a_join_counts_after_it() -> None:
    me = SubscriberAlone()
    me.ask(A)
    me.claim(LANE, 2, 2_000)
    me.say(Lanes(A, me.token, 1, 500, ((2, 1),)))
    me.base(LANE, 1, 600)
    me.say(Fired("tick"))
    assert [m.first for _, m in me.sent if type(m).__name__ == "FetchEntries"] == [2], "its only entry was lost"


def test_k21_entries_heard_during_a_join_are_kept() -> None:
    me = SubscriberAlone()
    me.ask(A)
    me.event(LANE, 2, 700, Q)
    me.say(Lanes(A, me.token, 1, 500, ((2, 1),)))
    me.base(LANE, 1, 600)
    me.claim(OWN_A, 1, 700)
    assert me.heard == ["q:1"]


def test_k09_a_lane_that_is_closed_before_its_stamper_answers_is_left_out() -> None:
    me = SubscriberAlone()
    me.join(A, lanes=((2, 1),), last=1, watermark=500)
    me.stamps(OWN_A, 2, Closed(800, 2, 1, -1, 700))
    assert joined(me) == [before(800)]


def test_k09_questions_are_asked_again_until_they_are_answered() -> None:
    me = SubscriberAlone()
    me.ask(A)
    me.say(Fired("tick"))
    assert [type(m) for to, m in me.sent if to == "n0" and isinstance(m, AskLanes)] == [AskLanes, AskLanes]
    me.say(Lanes(A, me.token, 1, 500, ((2, 1),)))
    me.say(Fired("tick"))
    assert [to for to, m in me.sent if isinstance(m, AskBase)] == ["n2", "n2"]


def test_k09_an_answer_to_an_older_question_does_not_count() -> None:
    me = SubscriberAlone()
    me.join(A, lanes=((2, 1),), last=1)
    me.token -= 1
    me.base(LANE, 9, 900)
    me.token += 1
    me.base(LANE, 0, 150)
    me.claim(OWN_A, 1, 150)
    assert joined(me) == [before(150)]
    me.event(LANE, 1, 300, P)
    me.claim(OWN_A, 1, 300)
    assert me.heard == ["p:1"]
