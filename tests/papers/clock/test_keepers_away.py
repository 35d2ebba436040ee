"""Stampers that do not answer: what waits for a keeper is refused after a while; who has forgotten says so."""

from tests.papers.clock.parts import (
    CONFIG,
    ME,
    OWN_A,
    SECOND,
    A,
    B,
    StamperAlone,
    SubscriberAlone,
    sent,
    stamped,
)
from unisono.machine import Effect, Fired, Gap
from unisono.model.time import Micros
from unisono.protocols.clock.messages import AskBase, Closed, LaneEnded, LaneName, Opened, OpenLane, StampDenied, before


def looks(node: StamperAlone, seconds: float) -> list[Effect]:
    """What a stamper does that looks after its lanes for so long, and is asked for nothing."""
    return [e for _ in range(round(2 * seconds)) for e in node.say(Fired("renew"), after=SECOND // 2)]


def denied_in(effects: list[Effect]) -> list[int]:
    return [message.request for _, message in sent(effects, StampDenied)]


def test_k38_what_waits_for_a_keeper_that_does_not_answer_is_refused_after_a_while_and_the_rest_goes_on() -> None:
    node, wait_s = StamperAlone(), CONFIG.keeper_wait_us / SECOND
    node.create(B, A)
    assert denied_in(looks(node, wait_s - 1)) == []
    assert denied_in(looks(node, 2)) == [1]
    assert [entry.request for entry in stamped(node.create(A, first=2, settled=1))] == [2]  # type: ignore[union-attr]
    effects = node.create(A, B, A, first=3, settled=1)
    assert denied_in(effects) == [4], "it need not be waited for again"
    assert [entry.request for entry in stamped(effects)] == [3]  # type: ignore[union-attr]


def test_k38_what_has_an_open_lane_waits_as_long_for_a_lease_and_no_longer() -> None:
    node, wait_s = StamperAlone(), CONFIG.keeper_wait_us / SECOND
    node.grant(B)
    looks(node, 3)
    node.create(B, A)
    assert denied_in(looks(node, wait_s)) == [1]
    assert [entry.request for entry in stamped(node.create(A, first=2, settled=1))] == [2]  # type: ignore[union-attr]


def test_k38_a_keeper_that_answers_again_is_waited_for_again() -> None:
    node, wait_s = StamperAlone(), CONFIG.keeper_wait_us / SECOND
    node.create(B)
    assert denied_in(looks(node, wait_s + 1)) == [1]
    node.grant(B)
    assert [entry.request for entry in stamped(node.create(B, first=2, settled=1))] == [2]  # type: ignore[union-attr]
    node.say(LaneEnded(B, 1))
    effects = node.create(B, first=3, settled=2)
    assert denied_in(effects) == []
    assert [message.topic for _, message in sent(effects, OpenLane)] == [B]


def test_k38_what_was_refused_stays_refused_when_the_log_is_handled_again() -> None:
    node = StamperAlone()
    node.create(B)
    assert denied_in(looks(node, CONFIG.keeper_wait_us / SECOND + 1)) == [1]
    copy = StamperAlone(warm=False)
    again = [request for at, message in node.log[1:] for request in denied_in(copy.machine.handle(message, Micros(at)))]
    assert again == [1]


def test_k38_who_was_away_itself_does_not_blame_the_others() -> None:
    node = StamperAlone()
    node.create(B)
    looks(node, 1)
    node.crash(at=node.now + 60 * SECOND)
    assert denied_in(node.say(Fired("warm"), after=CONFIG.alone_us)) == []
    assert denied_in(looks(node, 1)) == []


def test_k12_a_stamper_that_has_forgotten_its_lane_is_not_waited_for() -> None:
    lane, me, node = LaneName(A, 2, 1), SubscriberAlone(), StamperAlone(2)
    (answer,) = (message for _, message in sent(node.say(AskBase(ME, lane, 1))))
    me.join(A)
    me.stamps(OWN_A, 1, Opened(400, 2))
    me.stamps(OWN_A, 2, Closed(800, 2, 1, -1, 700))
    me.event(OWN_A, 3, 900)
    me.claim(OWN_A, 3, 950)
    assert me.heard == []
    me.say(answer)
    assert [(g.topic, g.last) for g in me.notices(Gap)] == [(A, before(700))]
    assert me.heard == ["p:1"]
