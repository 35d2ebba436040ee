"""The papers' figures of merit, on streams small enough to count by hand."""

from bisect import bisect_right, insort
from random import Random

import pytest

from unisono.audit import Trace, measure
from unisono.audit.inversions import BLOCK_EVENTS, count_inversions
from unisono.audit.metrics import YEAR_US
from unisono.model.journal import Header, Journal, Record


def metrics(*records: Record) -> dict[str, float]:
    return measure(Trace(Journal(Header(), list(records))))


def stream(subscriber: str, events: str) -> list[Record]:
    return [Record(subscriber=subscriber, event=event, position=i) for i, event in enumerate(events)]


def test_agreeing_streams_have_ordering_degree_one() -> None:  # paper 001, section V
    found = metrics(*stream("s", "abcd"), *stream("t", "bd"))
    assert (found["ordering_degree"], found["inverted_share"], found["events"]) == (1, 0, 4)


def test_displaced_events_lower_the_ordering_degree() -> None:  # paper 001, section V
    found = metrics(*stream("s", "abcd"), *stream("t", "abcd"), *stream("u", "bacd"))
    # u has two events displaced by one: (2 * (4 - 0) + 2 * (4 - 1)) / 16; the others are in order
    assert found["ordering_degree"] == pytest.approx((1 + 1 + 14 / 16) / 3, abs=1e-6)
    assert found["inverted_share"] == 0.5


def test_tags_gaps_and_latencies_are_counted() -> None:
    found = metrics(
        Record(subscriber="s", event="a", position=1, published_us=0, delivered_us=1_000_000),
        Record(subscriber="s", event="b", position=2, published_us=0, delivered_us=1_000_001),
        Record(kind="tag", subscriber="s", event="c", position=3, published_us=0, delivered_us=10),
        Record(kind="gap", subscriber="s", topic="T", number=1),
    )
    assert found["tagged_share"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["gaps"] == 1
    assert found["notified_within_1s"] == pytest.approx(2 / 3, abs=1e-6)
    assert (found["latency_p50_us"], found["latency_p99_us"]) == (1_000_000, 1_000_001)


def test_moments_of_mixed_units_are_told() -> None:
    now = 1_700_000_000_000_000
    moments = [(now, now + 5), (now, now // 1000), (now * 1000, now), (0, YEAR_US), (YEAR_US, -1)]
    found = metrics(
        *(
            Record(subscriber="s", event=str(i), position=i, published_us=published, delivered_us=delivered)
            for i, (published, delivered) in enumerate(moments)
        )
    )
    assert found["latencies_beyond_a_year"] == 3
    assert "latencies_beyond_a_year" not in metrics(Record(subscriber="s", event="a", position=1, published_us=now))


def test_latency_is_known_from_publish_records_too() -> None:
    found = metrics(Record(kind="publish", at_us=5, event="a"), Record(at_us=25, subscriber="s", event="a", position=1))
    assert found["latency_p50_us"] == 20
    assert "latency_p50_us" not in metrics(*stream("s", "a"))


def test_inversions_are_exact_across_block_borders() -> None:
    size = 2 * BLOCK_EVENTS + 100
    dice = Random(1)
    near = sorted(range(size), key=lambda i: i + dice.uniform(0, 6))
    for _ in range(20):  # a few events go far away, over several blocks
        near.insert(dice.randrange(size), near.pop(dice.randrange(size)))
    seen: list[int] = []
    expected = 0
    inverted = [False] * size
    for event in near:
        expected += len(seen) - bisect_right(seen, event)
        insort(seen, event)
    top, bottom = -1, size
    for event in near:
        inverted[event] |= top > event
        top = max(top, event)
    for event in reversed(near):
        inverted[event] |= bottom < event
        bottom = min(bottom, event)
    for reference in (list(range(size)), near, sorted(range(size), key=lambda i: i * 7919 % size)):
        found = count_inversions(reference, [list(range(size)), near])
        assert found.pairs == expected
        assert sorted(found.events) == [event for event in range(size) if inverted[event]]
        assert found.example is not None
