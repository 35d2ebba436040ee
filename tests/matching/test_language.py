"""The filter language: what a text means, and what a wrong text is told (specs: matching, sections 1 and 2)."""

import random

import pytest

from tests.matching.worlds import VALUES, event, expression, random_event
from unisono.errors import FormatError, MisuseError
from unisono.model.predicate import (
    EVERY_EVENT,
    NO_EVENT,
    Box,
    CostError,
    Filter,
    canonical,
    flatten,
    parse,
    to_text,
)
from unisono.model.predicate.values import point


@pytest.mark.parametrize("seed", range(40))
def test_a_filter_means_what_its_text_says(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(10):
        text, means = expression(dice, "ab", depth=3)
        filter = parse(text)
        events = [event(a=a, b=dice.choice(VALUES)) for a in VALUES] + [event(b=b) for b in VALUES]
        assert [filter.matches(e) for e in events] == [means(e) for e in events], text


@pytest.mark.parametrize("seed", range(40))
def test_a_filter_reads_back_what_it_writes(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(10):
        text, _ = expression(dice, "ab", depth=2)
        filter = parse(text)
        assert parse(to_text(filter)) == filter


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("", 1, "expected an attribute"),
        ("px >", 5, "expected a number, a string"),
        ("px > and", 6, "found 'and'"),
        ("(a = 1", 7, "expected 'and', 'or' or ')'"),
        ("a = IBM", 5, "a string goes in quotes: 'IBM'"),
        ("5 < px", 1, "the attribute comes first"),
        ("a not in (1)", 3, "not (a in (...))"),
        ("a between 1", 12, "'and' between the two ends"),
        ("a between 1 and 'x'", 17, "two numbers or two strings"),
        ("a = 'open", 5, "never closed"),
        ("a = 1 b = 2", 7, "expected 'and', 'or' or the end"),
        ("a @ 3", 3, "no meaning"),
        ("a < true", 5, "no order"),
        ("a between null and 3", 11, "no order"),
        ("a = '\\q'", 6, "not an escape"),
        ("a = '\\ud800'", 5, "surrogate"),
        ("a prefix 3", 10, "expected a string"),
        ("a in (1", 8, "expected ',' or ')'"),
        ("or = 1", 1, "backquotes"),
        ("1a = 2", 1, "a number ends where a letter begins"),
        ("a = 99999999999999999999", 5, "64 bits"),
        ("exists", 7, "expected an attribute after 'exists'"),
        ("not " * 100 + "a = 1", 257, "nested deeper"),
    ],
)
def test_a_wrong_text_is_told_where_and_what_was_expected(text: str, column: int, expected: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(text)
    assert caught.value.where == f"column {column}"
    assert expected in caught.value.problem


def test_nothing_is_ever_evaluated() -> None:
    with pytest.raises(FormatError):
        parse("__import__('os').system('true')")


def test_too_many_boxes_are_refused_with_the_count() -> None:
    with pytest.raises(FormatError, match="a union of 128 boxes, 64 is the most"):
        parse(" and ".join(f"(a{i} = 1 or b{i} = 1)" for i in range(7)))


def test_a_long_text_is_refused() -> None:
    with pytest.raises(FormatError, match="at most 65536"):
        parse("a = 1 or " * 10_000 + "a = 1")


@pytest.mark.parametrize(
    "text",
    [
        " and ".join(f"a{i} = {i}" for i in range(3_500)),
        " and ".join(f"a != {i}" for i in range(4_000)),
        " or ".join(f"a = {i}" for i in range(4_000)),
        "a in (" + ", ".join(map(str, range(9_000))) + ")",
        "a in (" + ", ".join(f"'{i}'" for i in range(6_000)) + ")",
    ],
)
def test_long_filters_cost_steps_in_proportion_to_their_length(text: str) -> None:
    assert parse(text, cost_max=2 * len(text)) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        " or ".join(f"a{i} = {i}" for i in range(4_000)),
        " or ".join(f"a{i} = 1 and b = {i}" for i in range(2_000)),
        " and ".join(f"a{i} = 1" for i in range(2_000)) + " or " + " and ".join(f"a{i} = 2" for i in range(2_000)),
        " or ".join(f"(a in (0, {', '.join(map(str, range(i, i + 99)))}) and b{i} = 1)" for i in range(1, 120)),
        "not " * 60 + "(" + " or ".join(f"a{i} = 1 and b{i} = 1" for i in range(6)) + ")",
        " and ".join("(" + " or ".join(f"a{i}{j} = 1" for j in range(60)) + ")" for i in range(60)),
    ],
)
def test_a_filter_that_costs_too_many_steps_is_refused_with_the_setting(text: str) -> None:
    with pytest.raises(FormatError, match="filter_cost_max"):
        parse(text)


def test_what_a_stranger_sends_is_brought_into_its_spelling_within_as_many_steps() -> None:
    wide = Filter(tuple(Box(tuple((f"a{k:04}", point(i)) for k in range(1_000))) for i in range(60)))
    with pytest.raises(CostError, match="filter_cost_max"):
        canonical(wide)
    assert canonical(parse("a = 1 or b = 2"), cost_max=50) == parse("a = 1 or b = 2")


def test_covering_answers_no_when_the_question_costs_too_many_steps() -> None:
    many = Filter(tuple(parse(" and ".join(f"a{k} != {i}" for k in range(100))).boxes[0] for i in range(60)))
    assert not many.covers(parse("b = 1"))


def test_a_contradiction_is_known_to_match_nothing() -> None:
    assert parse("a > 1 and a < 1") == NO_EVENT
    assert parse("a between 2 and 1").is_empty
    assert parse("a = 1 and a = 'x'").is_empty
    assert parse("a > 1 or a <= 1 or not a <= 0") == EVERY_EVENT


def test_words_are_understood_in_any_case_and_odd_names_in_backquotes() -> None:
    assert parse("A > 1 AND NOT `and` = TRUE").matches({"A": 2, "and": False})
    assert parse("`a``b c` = null").matches({"a`b c": None})


def test_true_is_no_number() -> None:
    assert not parse("a = 1").matches({"a": True})
    assert not parse("a = true").matches({"a": 1})
    assert parse("a != 1").matches({"a": True})


def test_a_declared_integer_has_no_values_in_between() -> None:
    declared = frozenset({"n"})
    assert parse("n > 1", declared) == parse("n >= 2", declared)
    assert parse("n > 1 and n < 2", declared).is_empty
    assert parse("n between 1 and 2 or n between 3 and 4", declared) == parse("n between 1 and 4", declared)
    assert parse("n > 1") != parse("n >= 2")


def test_nested_objects_are_reached_by_dotted_paths() -> None:
    flat = flatten({"order": {"px": 3, "legs": [1, 2]}, "x": None})
    assert parse("order.px = 3 and exists order and exists order.legs and x = null").matches(flat)
    assert not parse("order.legs = 1").matches(flat)


def test_nan_and_broken_text_are_refused() -> None:
    with pytest.raises(MisuseError, match=r"'order\.px' is NaN"):
        flatten({"order": {"px": float("nan")}})
    with pytest.raises(MisuseError, match="surrogate"):
        flatten({"s": "\ud800"})


def test_random_events_are_not_all_alike() -> None:
    dice = random.Random(1)
    seen = [parse("a > 0 and exists b").matches(random_event(dice, "ab")) for _ in range(100)]
    assert {True, False} == set(seen)
