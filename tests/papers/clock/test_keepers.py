"""Keepers: lanes open and close by entries of the keeper's own lane, and nobody is asked."""

from tests.papers.clock.parts import CONFIG, SECOND, STAMPERS, A, P, StamperAlone, promised, sent, stamped
from unisono.machine import Fired
from unisono.protocols.clock.messages import (
    AskLanes,
    Beat,
    Closed,
    CloseLane,
    Granted,
    LaneEnded,
    Lanes,
    Leased,
    Opened,
    OpenLane,
    RenewLease,
    SetLean,
)


def granted(node: StamperAlone, stamper: int = 1, clock: int | None = None) -> Granted:
    effects = node.say(OpenLane(stamper, A, node.now if clock is None else clock))
    return next(m for _, m in sent(effects, Granted))


def test_k04_a_lane_is_opened_above_everything_that_its_keeper_has_promised() -> None:
    node = StamperAlone()
    before = promised(node.beat(), A)
    grant = granted(node)
    assert grant.after > before
    assert grant.lease > grant.after


def test_k06b_a_lane_is_closed_above_every_stamp_of_its_epoch() -> None:
    node = StamperAlone()
    grant = granted(node, clock=node.now + 3 * SECOND)
    late = node.now + 4 * SECOND
    assert stamped(node.say(CloseLane(1, A, grant.epoch, 7, late))) == []
    closed = stamped(node.say(Fired("renew"), after=4 * SECOND + 10))
    assert [(type(e), e.last, e.stamp > late) for e in closed] == [(Closed, 7, True)]  # type: ignore[union-attr]


def test_k06b_a_lane_that_is_opened_again_at_once_is_closed_first() -> None:
    node = StamperAlone()
    grant = granted(node, clock=node.now + 3 * SECOND)
    late = node.now + 4 * SECOND
    node.say(CloseLane(1, A, grant.epoch, 7, late))
    entries = stamped(node.say(OpenLane(1, A, node.now)))
    assert [type(entry) for entry in entries] == [Closed, Opened]
    assert late < entries[0].stamp < entries[1].stamp


def test_k06_a_lease_runs_out_in_stamps_and_not_in_time() -> None:
    node = StamperAlone()
    grant = granted(node)
    assert stamped(node.say(Fired("renew"), after=grant.lease - node.now - 10)) == []
    effects = node.say(Fired("renew"), after=20)
    assert [(e.last, e.upto, e.stamp > grant.lease) for e in stamped(effects)] == [(-1, grant.lease, True)]  # type: ignore[union-attr]
    assert [m.epoch for _, m in sent(effects, LaneEnded)] == [grant.epoch]


def test_k06_a_lane_is_closed_when_the_next_stamp_has_passed_its_lease_though_the_clock_did_long_before() -> None:
    """Else a keeper whose lane leans back would have to stamp ahead of its lean, and keep everybody waiting."""
    node = StamperAlone()
    node.say(SetLean(A, -300_000))
    grant = granted(node)
    assert stamped(node.say(Fired("renew"), after=grant.lease - node.now + 1)) == []
    assert [e.upto for e in stamped(node.say(Fired("renew"), after=300_000))] == [grant.lease]  # type: ignore[union-attr]


def test_k06_a_close_of_an_epoch_that_is_over_says_nothing() -> None:
    node = StamperAlone()
    grant = granted(node)
    node.say(Fired("renew"), after=10 * SECOND)
    assert stamped(node.say(CloseLane(1, A, grant.epoch, 3, node.now))) == []


def test_k12_a_renewed_lease_is_written_down_before_it_is_told() -> None:
    node = StamperAlone()
    granted(node)
    node.now += SECOND
    lease = next(m.lease for _, m in sent(node.say(RenewLease(1, node.now)), Leased))
    node.crash(at=node.now + 1)
    node.say(Fired("warm"), after=CONFIG.warm_up_us)
    node.now += lease - node.now + SECOND
    closed = stamped(node.say(Fired("renew")))
    assert [e.upto for e in closed] == [lease]  # type: ignore[union-attr]


def test_k15_a_stamper_far_ahead_gets_no_lease_that_far() -> None:
    node = StamperAlone()
    grant = granted(node, clock=node.now + 3600 * SECOND)
    assert grant.lease <= node.now + CONFIG.lease_us + CONFIG.skew_max_us + 10


def test_k04_a_keeper_that_has_just_started_opens_nothing_until_its_clock_is_right() -> None:
    node = StamperAlone(warm=False)
    assert sent(node.say(OpenLane(1, A, node.now)), Granted) == []
    assert len(sent(node.say(Fired("warm"), after=CONFIG.warm_up_us), Granted)) == 1


def test_k13_a_keeper_that_is_taken_over_while_a_lane_opens_has_granted_it_once() -> None:
    """Whoever goes on from the same log has the same lane open, under the same epoch, and does not stamp below it."""
    keeper = StamperAlone()
    opened = keeper.say(OpenLane(1, A, keeper.now))
    (grant,) = [m for _, m in sent(opened) if isinstance(m, Granted)]
    (entry,) = stamped(opened)
    keeper.crash(at=keeper.now + 1)
    for other in (1, 2):
        keeper.say(Beat(STAMPERS[other], 2, 1, keeper.now, 0, (), True))
    (lanes,) = [m for _, m in sent(keeper.say(AskLanes(P, A, 1))) if isinstance(m, Lanes)]
    assert lanes.lanes == ((1, grant.epoch),)
    assert lanes.watermark >= entry.stamp
    assert all(later.stamp > entry.stamp for later in stamped(keeper.create(A)))
    late = keeper.say(CloseLane(1, A, grant.epoch, 0, entry.stamp))
    assert [type(each) for each in stamped(late)] == [Closed], "it is closed under the epoch that was granted"
