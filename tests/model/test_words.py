"""The small words: spans, topic names and patterns, latency tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import MisuseError
from unisono.model.event import Event
from unisono.model.interest import check_interest, check_topic_name, covers
from unisono.model.region import parse_round_trips, public_cloud
from unisono.model.time import Micros, format_span, parse_span


@given(st.integers(0, 10**13))
def test_a_span_is_read_back_as_written(span: int) -> None:
    assert parse_span(format_span(Micros(span))) == span


@pytest.mark.parametrize("text", ["", "5", "ms", "-1s", "5 days", "1e3s"])
def test_what_is_not_a_span_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(MisuseError, match="'500ms'"):
        parse_span(text)


@pytest.mark.parametrize(
    ("pattern", "name", "holds"),
    [
        ("trades", "trades", True),
        ("trades.*", "trades.ibm", True),
        ("trades.*", "trades.ibm.n", False),
        ("trades.>", "trades.ibm.n", True),
        ("trades.>", "trades", False),
        ("*.ibm", "trades.ibm", True),
        ("trades.*", "quotes.ibm", False),
        ("a.b", "axb", False),
    ],
)
def test_a_pattern_covers_what_it_says(pattern: str, name: str, holds: bool) -> None:
    assert covers(pattern, name) is holds


@pytest.mark.parametrize("name", ["", "a b", "a..b", ".", "a.*", "x" * 201, "trades\n"])
def test_what_is_not_a_topic_name_is_refused(name: str) -> None:
    with pytest.raises(MisuseError):
        check_topic_name(name)


@pytest.mark.parametrize("text", ["a.>.b", "a b.*", "a.**"])
def test_what_is_not_a_pattern_is_refused(text: str) -> None:
    with pytest.raises(MisuseError):
        check_interest(text)


def test_round_trips_become_one_way_times() -> None:
    table = parse_round_trips("region,a,b\na,0,80.5\nb,80.5,0\n")
    assert table.between("a", "b") == 40_250
    with pytest.raises(MisuseError, match="known regions are a, b"):
        table.between("a", "mars")
    assert len(public_cloud().regions) == 10
    with pytest.raises(MisuseError, match="square"):
        parse_round_trips("region,a,b\na,0\n")


def test_an_event_is_named_by_its_publisher_and_sequence() -> None:
    assert Event("alice", 7, "trades").id == "alice:7"
