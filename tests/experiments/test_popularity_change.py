"""A sudden change of popularity: the home follows, latency comes back, and order never suffers."""

from functools import cache

import pytest

from unisono.audit import judge
from unisono.experiments.sequencer.popularity_change import FROM, RANKINGS, TO, PopularityChangeOptions, play, run
from unisono.experiments.sequencer.sites import find_sites
from unisono.model.journal import Header, Journal

SMALL = PopularityChangeOptions(seconds=6, change=2, subscribers=2, rate=60)


@cache
def ratios() -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for row in run(SMALL):
        found.setdefault(str(row.setting["ranking"]), {})[int(row.setting["second"])] = row.ours["ratio"]
    return found


def test_latency_comes_back_only_where_the_home_follows() -> None:
    stays, follows = ratios()["none"], ratios()["climb cost"]
    assert stays[1] == follows[1] == 1, "everybody hears topics of their own site"
    assert follows[5] == 1
    assert stays[5] > 5


@pytest.mark.parametrize("ranking", RANKINGS)
def test_order_holds_whatever_moves(ranking: str) -> None:
    journal = Journal(Header(), play(SMALL, RANKINGS[ranking]).records)
    verdicts = judge(journal, ("pairwise-order", "exactly-once", "complete"))
    assert [verdict.judge for verdict in verdicts if not verdict.holds] == []


def test_the_home_moves_over_the_hub_to_where_its_audience_is() -> None:
    world, sites = play(SMALL, RANKINGS["climb cost"]), find_sites("B5")
    hub = sites.names[sites.hub]
    moves = [(record.who, record.peer) for record in world.records if record.kind == "move"]
    assert moves == [(f"n-{FROM}", f"n-{hub}"), (f"n-{hub}", f"n-{TO}")]
