"""Order judges: what they must say no to, and that they agree with naive oracles on random traces."""

import re
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.audit import Verdict, judge
from unisono.model.journal import Header, Journal, Record


def journal(**streams: str) -> Journal:
    """`journal(s1="ab", s2="ba")`: every letter is an event, positions count from 1."""
    records = [
        Record(subscriber=name, event=event, position=i + 1)
        for name, events in streams.items()
        for i, event in enumerate(events)
    ]
    return Journal(Header(), records)


def verdict(name: str, given: Journal) -> Verdict:
    (only,) = judge(given, [name])
    return only


def test_opposite_orders_are_named_with_both_events_and_why() -> None:
    found = verdict("pairwise-order", journal(s1="xyAB", s2="BA"))
    assert not found.holds
    assert found.violations == 1
    assert found.witness == (
        "A before B at s1 because position 3 < 4; B before A at s2 because position 1 < 2"
    ) or found.witness == ("B before A at s2 because position 1 < 2; A before B at s1 because position 3 < 4")


def test_a_cycle_over_three_subscribers_is_pairwise_consistent_and_still_a_cycle() -> None:  # specs: spark.md 4 D
    given = journal(p="ab", q="bc", r="ca")
    assert verdict("pairwise-order", given).holds
    assert verdict("local-order", given).holds
    found = verdict("acyclic", given)
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness.count(" because ") == 3
    assert all(name in found.witness for name in ("at p", "at q", "at r"))


def test_local_order_ignores_pairs_whose_subscribers_differ() -> None:  # paper 001, section II, figure 1
    given = journal(s1="ab", s2="ba", s3="a")
    assert not verdict("pairwise-order", given).holds
    assert verdict("local-order", given).holds


def test_local_order_refuses_opposite_orders_in_one_group() -> None:
    found = verdict("local-order", journal(s1="ab", s2="ba", s3="c"))
    assert (found.holds, found.violations) == (False, 1)


def test_the_witness_of_a_cycle_has_the_fewest_subscribers() -> None:
    found = verdict("acyclic", journal(p="abcd", q="dea", r="ce", t="ec"))
    assert found.witness.count(" because ") == 2


def test_rows_may_come_in_any_order() -> None:
    agreeing = journal(s1="abc", s2="abc")
    agreeing.records[3:] = agreeing.records[:2:-1]
    assert verdict("pairwise-order", agreeing).holds
    opposite = journal(s1="abc", s2="cba")
    opposite.records[3:] = opposite.records[:2:-1]
    assert verdict("pairwise-order", opposite).violations == 3


def test_tagged_notifications_are_in_no_order() -> None:
    given = journal(s1="ab", s2="b")
    given.records.append(Record(kind="tag", subscriber="s2", event="a", position=2))
    assert verdict("pairwise-order", given).holds


def inverted_pairs(streams: list[list[int]]) -> set[tuple[int, int]]:
    before = {(a, b) for stream in streams for a, b in combinations(stream, 2)}
    return {(a, b) for a, b in before if a < b and (b, a) in before}


def has_cycle(streams: list[list[int]]) -> bool:
    before = {(a, b) for stream in streams for a, b in combinations(stream, 2)}
    while True:
        longer = {(a, d) for a, b in before for c, d in before if b == c} - before
        if not longer:
            return any(a == b for a, b in before)
        before |= longer


def locally_inverted(streams: list[list[int]]) -> set[tuple[int, int]]:
    receivers = {event: [event in stream for stream in streams] for stream in streams for event in stream}
    return {(a, b) for a, b in inverted_pairs(streams) if receivers[a] == receivers[b]}


def shortest_cycle(streams: list[list[int]]) -> int:
    before = {(a, b) for stream in streams for a, b in combinations(stream, 2)}
    paths, hops = before, 1
    while not any(a == b for a, b in paths):
        paths, hops = {(a, d) for a, b in paths for c, d in before if b == c}, hops + 1
    return hops


def claims(found: Verdict) -> list[tuple[str, str, str]]:
    return re.findall(r"(\S+) before (\S+) at (\S+) because", found.witness)


traces = st.lists(st.lists(st.integers(0, 7), unique=True, max_size=8), max_size=5)


@settings(max_examples=200, deadline=None)
@given(traces)
def test_order_judges_agree_with_naive_oracles(streams: list[list[int]]) -> None:
    records = [
        Record(subscriber=f"s{s}", event=str(event), position=i)
        for s, stream in enumerate(streams)
        for i, event in enumerate(stream)
    ]
    pairwise, local, acyclic = judge(Journal(Header(), records), ["pairwise-order", "local-order", "acyclic"])
    if not records:
        assert not any(found.judged or found.holds for found in (pairwise, local, acyclic))
        return
    assert pairwise.violations == len(inverted_pairs(streams))
    assert local.violations == len(locally_inverted(streams))
    assert acyclic.holds == (not has_cycle(streams))
    for found in (pairwise, local, acyclic):
        assert found.holds == (found.violations == 0) == (found.witness == "")
    for found in (pairwise, local):
        assert found.holds or len(claims(found)) == 2
    for found in (pairwise, local, acyclic):
        hops = claims(found)
        for first, second, subscriber in hops:
            stream = streams[int(subscriber[1:])]
            assert stream.index(int(first)) < stream.index(int(second))
        assert [second for _, second, _ in hops] == [first for first, _, _ in hops[1:] + hops[:1]], "it comes back"
    if acyclic.violations == 1:
        assert len(claims(acyclic)) == shortest_cycle(streams)
