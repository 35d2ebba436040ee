"""Latency between sites: the distances are right, the bound is a bound, and order costs nothing within a site."""

from itertools import permutations, product

import pytest

from unisono.experiments.sequencer.bound import direct_and_bound_us
from unisono.experiments.sequencer.schemes import DIRECT, SCHEMES, play
from unisono.experiments.sequencer.sites import (
    Crowd,
    CrowdSubscriber,
    Habits,
    Publication,
    Sites,
    draw_crowd,
    find_sites,
)
from unisono.experiments.sequencer.wan_latency import (
    MODELLED,
    SWEEP,
    SWEPT,
    WanLatencyOptions,
    latencies,
    measure,
    modelled,
    parts,
    run,
)
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


def test_k36_clocks_take_one_way_though_there_is_silence_between_events() -> None:
    """Thirty events a second over five regions: every one of them is alone on its way."""
    sites = find_sites("B5")
    crowd = draw_crowd(5, Habits(0.8, 0.349, 2, 3, 3, events=30, rate_per_s=30.0), 0)
    direct = latencies(play(DIRECT, sites, crowd, 0), crowd.publications[0].at_us)
    for scheme, at_best in zip(("clock, leans", "clock, no leans"), MODELLED):
        taken = latencies(play(scheme, sites, crowd, 0), crowd.publications[0].at_us)
        ratio = measure(crowd, taken, direct)["ratio"]
        assert ratio < 1.1 * modelled(at_best, sites, crowd)["ratio"], scheme


def everybody(sites: int, topics: int) -> Crowd:
    """Somebody at each site who hears everything; each site publishes once on every topic."""
    all_topics = tuple(range(topics))
    return Crowd(
        topics,
        topics,
        tuple(CrowdSubscriber(f"c{site}", site, all_topics) for site in range(sites)),
        tuple(Publication(0, site, topic) for site in range(sites) for topic in all_topics),
    )


def test_the_bound_of_equal_interest_is_the_worst_matching_of_sites() -> None:
    """There the linear programme has a known end: the matching of sites with sites whose mean distance is largest."""
    one_way = ((0, 30, 70), (30, 0, 50), (70, 50, 0))
    sites = Sites(LatencyTable(("a", "b", "c"), one_way), access_us=1)
    worst = max(sum(2 + one_way[a][b] for a, b in enumerate(m)) for m in permutations(range(3))) / 3
    direct, bound = direct_and_bound_us(sites, everybody(3, 4))
    assert direct == pytest.approx(2 + (30 + 70 + 50) * 2 / 9)
    assert direct < 0.95 * worst <= bound <= worst


def test_two_who_share_two_topics_make_a_round_trip_together() -> None:
    sites = Sites(LatencyTable(("a", "b"), ((0, 50), (50, 0))), access_us=1)
    hears = (CrowdSubscriber("p", 0, (0, 1)), CrowdSubscriber("q", 1, (0, 1)))
    said = (Publication(0, 0, 0), Publication(0, 1, 1))
    assert direct_and_bound_us(sites, Crowd(2, 1, hears, said)) == (27, 52)
    apart = (CrowdSubscriber("p", 0, (0,)), CrowdSubscriber("q", 1, (0, 1)))
    assert direct_and_bound_us(sites, Crowd(2, 1, apart, said)) == pytest.approx((2 + 50 / 3, 2 + 50 / 3))


def test_no_safe_scheme_is_below_the_bound_and_the_direct_path_is() -> None:
    for row in run(WanLatencyOptions("B5", "spray", **SMALL)):
        assert row.ours["bound"] > 1.1
        if row.setting["scheme"] not in (DIRECT, "per-topic order only") and not row.ours["stuck"]:
            assert row.ours["ratio"] >= row.ours["bound"]


def test_parts_are_the_whole() -> None:
    whole = WanLatencyOptions("B5", "both", **(SMALL | {"events": 4}))
    assert [part.workload for part in parts(whole)] == ["geo", "spray"]
    assert [row for part in parts(whole) for row in run(part)] == run(whole)
    assert [(part.sites, part.workload) for part in parts(WanLatencyOptions())][-2:] == [
        ("B10", "spray"),
        ("B5", "sweep"),
    ]


def test_order_is_free_where_nobody_looks_beyond_the_site() -> None:
    rows = [row for row in run(WanLatencyOptions("B5", "geo", **SMALL)) if row.setting["scheme"] != DIRECT]
    early = {row.setting["scheme"]: row.ours["one_site_ratio"] for row in rows if "one_site_ratio" in row.ours}
    assert early["star, early"] <= 1.1
    assert early["star, early, placed"] <= 1.1
    assert early["one central sequencer"] > 5


def test_where_interest_is_everywhere_placement_pays_and_the_bound_holds() -> None:
    rows = {
        row.setting["scheme"]: row.ours for row in run(WanLatencyOptions("B5", "spray", **(SMALL | {"events": 200})))
    }
    assert list(rows) == [*SCHEMES, *MODELLED]
    placed = rows["star, early, placed"]
    assert placed["ratio"] < rows["star, early"]["ratio"] < rows["line, stamp"]["ratio"] < rows["line, ticket"]["ratio"]
    assert 1.1 < placed["bound"] <= placed["ratio"]
    assert rows[DIRECT]["ratio"] == 1
    with_leans, without = (rows[name] for name in MODELLED)
    assert placed["bound"] <= with_leans["ratio"] < without["ratio"]
    assert with_leans["ratio"] <= rows["clock, leans"]["ratio"], "who waits for a clock waits for a beat as well"
    assert [name for name, ours in rows.items() if ours["stuck"] and not name.startswith("chain")] == []


def test_the_sweep_goes_from_none_to_all() -> None:
    rows = run(WanLatencyOptions("B5", "sweep", **(SMALL | {"events": 10, "subscribers": 1})))
    swept, worst = rows[: -len(SWEPT)], rows[-len(SWEPT) :]
    assert [(row.setting["remote"], row.setting["scheme"]) for row in swept] == list(product(SWEEP, SWEPT))
    for row in worst:
        ratios = {r.setting["remote"]: r.ours["ratio"] for r in swept if r.setting["scheme"] == row.setting["scheme"]}
        assert ratios[row.ours["at_remote"]] == row.ours["ratio"] == max(ratios.values())
