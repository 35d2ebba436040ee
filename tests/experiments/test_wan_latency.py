"""Latency between sites: the distances are right, the bound is a bound, and order costs nothing within a site."""

from itertools import permutations, product

import pytest

from unisono.experiments.sequencer_schemes import DIRECT, SCHEMES, play
from unisono.experiments.sequencer_sites import Habits, Sites, draw_crowd, find_sites
from unisono.experiments.sequencer_wan_latency import SWEEP, SWEPT, Options, latencies, run
from unisono.model.region import LatencyTable

SMALL = {"events": 60, "subscribers": 3, "topics": 3, "per_client": 3}


def test_the_direct_path_is_access_distance_access() -> None:
    sites, habits = find_sites("A"), Habits(0.5, 0.349, subscribers=2, topics=2, per_client=2, events=50)
    crowd = draw_crowd(5, habits, 0)
    site_of = {subscriber.name: sites.names[subscriber.site] for subscriber in crowd.subscribers}
    found = latencies(play(DIRECT, sites, crowd, 0))
    local = {key: us for key, us in found.items() if key[1].startswith(f"p-{site_of[key[0]]}:")}
    assert {*local.values()} == {20_000}
    assert {us for key, us in found.items() if key not in local} == {120_000}


def test_the_remote_share_is_what_was_asked_for() -> None:
    crowd = draw_crowd(5, Habits(0.3, 0.901, subscribers=100, events=1_000), 0)
    slots = [(s.site, topic) for s in crowd.subscribers for topic in s.topics]
    away = sum(crowd.site_of(topic) != site for site, topic in slots)
    assert away / len(slots) == pytest.approx(0.3, abs=0.03)
    published_away = sum(crowd.site_of(p.topic) != p.site for p in crowd.publications)
    assert published_away / len(crowd.publications) == pytest.approx(0.3, abs=0.05)
    assert all(len({*s.topics}) == len(s.topics) for s in crowd.subscribers)


def test_the_bound_is_the_worst_matching_of_sites() -> None:
    one_way = ((0, 30, 70), (30, 0, 50), (70, 50, 0))
    sites = Sites(LatencyTable(("a", "b", "c"), one_way), access_us=1)
    worst = max(sum(2 + one_way[a][b] for a, b in enumerate(m)) for m in permutations(range(3)))
    assert sites.bound_us() == pytest.approx(worst / 3)


def test_a_star_that_meets_the_constraints_reaches_the_bound() -> None:
    """Three sites around a hub: whoever orders at the hub pays what nobody can save."""
    reach = (10, 20, 40)
    one_way = tuple(tuple(0 if a == b else reach[a] + reach[b] for b in range(3)) for a in range(3))
    sites = Sites(LatencyTable(("a", "b", "c"), one_way), access_us=0)
    through_hub = sum(reach[a] + reach[b] for a, b in product(range(3), repeat=2)) / 9
    assert sites.bound_us() <= through_hub
    assert sites.bound_us() > sites.direct_us()


def test_order_is_free_where_nobody_looks_beyond_the_site() -> None:
    rows = [row for row in run(Options("B5", "geo", **SMALL)) if row.setting["scheme"] != DIRECT]
    early = {row.setting["scheme"]: row.ours["one_site_ratio"] for row in rows}
    assert early["star, early"] <= 1.1
    assert early["star, early, placed"] <= 1.1
    assert early["one central sequencer"] > 5


def test_where_interest_is_everywhere_placement_pays_and_the_bound_holds() -> None:
    rows = {row.setting["scheme"]: row.ours for row in run(Options("B5", "spray", **(SMALL | {"events": 200})))}
    assert list(rows) == list(SCHEMES)
    placed = rows["star, early, placed"]
    assert placed["ratio"] < rows["star, early"]["ratio"] < rows["line, stamp"]["ratio"] < rows["line, ticket"]["ratio"]
    assert placed["bound"] == pytest.approx(1.441)
    assert rows[DIRECT]["ratio"] == 1
    assert [name for name, ours in rows.items() if ours["stuck"] and not name.startswith("chain")] == []


def test_the_sweep_goes_from_none_to_all() -> None:
    rows = run(Options("B5", "sweep", **(SMALL | {"events": 10, "subscribers": 1})))
    swept, worst = rows[: -len(SWEPT)], rows[-len(SWEPT) :]
    assert [(row.setting["remote"], row.setting["scheme"]) for row in swept] == list(product(SWEEP, SWEPT))
    for row in worst:
        ratios = {r.setting["remote"]: r.ours["ratio"] for r in swept if r.setting["scheme"] == row.setting["scheme"]}
        assert ratios[row.ours["at_remote"]] == row.ours["ratio"] == max(ratios.values())
