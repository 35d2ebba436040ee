"""The clock order under reordering, churn, losses, crashes and clocks that are an hour wrong.

The default suite plays a few seeds of each scenario, `make campaign` twenty thousand.
"""

import pytest

from unisono.audit import judge
from unisono.model.journal import Journal
from unisono.sim.scenario import load, play, with_options

SCENARIOS = ("static", "churn", "lossy", "crash", "skew", "realtime", "leans")
CAMPAIGN_SEEDS = {**dict.fromkeys(SCENARIOS, 2_800), "hour": 200, "outage": 200}
"""A seed of `hour` takes as long as twelve of the others."""


def broken(name: str, seeds: range) -> list[str]:
    """What was broken, with the command that shows it again."""
    found = load(f"clock/{name}")
    return [
        f"{verdict.judge}: {verdict.witness}\n  unisono simulate clock/{name} --seeds {seed}"
        for seed in seeds
        for verdict in judge(play(found, seed), found.promised)
        if not verdict.holds
    ]


@pytest.mark.parametrize("name", SCENARIOS)
def test_one_global_order_nothing_twice_nothing_lost_untold(name: str) -> None:
    assert broken(name, range(4)) == []


@pytest.mark.campaign
@pytest.mark.parametrize("name", CAMPAIGN_SEEDS)
def test_campaign(name: str) -> None:
    assert broken(name, range(1000, 1000 + CAMPAIGN_SEEDS[name])) == []


def kinds(journal: Journal, kind: str) -> int:
    return sum(record.kind == kind for record in journal.records)


def test_the_scenarios_do_what_their_names_say() -> None:
    """A campaign in which nothing ever happens would pass as well."""
    static, churn, lossy, crash, skew, realtime, leans = (play(load(f"clock/{name}"), 3) for name in SCENARIOS)
    assert kinds(static, "deliver") > 100
    assert kinds(static, "gap") == kinds(static, "stalled") == 0
    assert kinds(churn, "unsubscribe") > 10
    assert kinds(lossy, "gap") > 0
    assert kinds(realtime, "deliver") > 100
    assert kinds(leans, "deliver") > 100
    assert kinds(leans, "gap") == 0, "payloads are there, whatever came before them"
    assert kinds(crash, "crash") == kinds(crash, "restart") > 3
    assert sum(record.note is not None and "clock off by" in record.note for record in skew.records) > 0


def test_clocks_that_are_wrong_cost_latency_at_first_and_never_order() -> None:
    """An hour wrong from the start, and corrected before anything is stamped: nobody waits for an hour."""
    journal = play(load("clock/skew"), 5)
    waits = [r.delivered_us - r.published_us for r in journal.records if r.kind == "deliver"]  # type: ignore[operator]
    assert max(waits) < 60_000_000


def test_clocks_that_are_an_hour_wrong_for_a_minute_lose_nothing_and_latency_returns() -> None:
    """Stampers come back with such clocks one after the other, hear the others before they promise anything, and a
    minute later come back with right ones."""
    found = load("clock/hour")
    journal = play(found, 3)
    assert [verdict for verdict in judge(journal, found.promised) if not verdict.holds] == []
    assert sum(record.note is not None and "clock off by" in record.note for record in journal.records) > 5
    assert kinds(journal, "gap") == 0
    heard = [r for r in journal.records if r.kind == "deliver"]
    late = [r.delivered_us - r.published_us for r in heard if r.published_us > 75_000_000]  # type: ignore[operator]
    assert len(late) > 20
    assert max(late) < 5_000_000, "the last of them restarted seconds ago"


def test_k38_a_keeper_that_is_away_holds_up_for_seconds_what_its_publishers_say_elsewhere() -> None:
    assert broken("outage", range(3)) == []
    journal = play(load("clock/outage"), 3)
    gone, back = (next(r.at_us for r in journal.records if r.kind == kind) for kind in ("crash", "restart"))
    heard = [r for r in journal.records if r.kind == "deliver" and (r.subscriber, r.topic) == ("near-1", "near")]
    here = [r for r in heard if r.event is not None and r.event.startswith("p0:")]  # through the node that is there
    waits = [
        r.delivered_us - r.published_us  # type: ignore[operator]
        for r in here
        if r.published_us is not None and gone + 10_000_000 < r.published_us < back
    ]
    assert len(waits) > 20
    assert max(waits) < 2_000_000
    outcomes = {r.note for r in journal.records if r.kind == "outcome" and r.who == "p0"}
    assert outcomes == {"accepted ordered", "refused"}


def test_leans_change_latency_and_not_what_is_heard() -> None:
    plain, leaning = (
        play(with_options(load("clock/static"), {"options.leans_per_s": rate}), 7) for rate in (0.0, 20.0)
    )
    heard = [sorted((r.subscriber, r.event) for r in j.records if r.kind == "deliver") for j in (plain, leaning)]
    assert heard[0] == heard[1]
    times = [[r.delivered_us for r in j.records if r.kind == "deliver"] for j in (plain, leaning)]
    assert times[0] != times[1]
