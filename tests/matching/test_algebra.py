"""The algebra of filters, checked by enumeration over a domain of witnesses (specs: matching, section 6)."""

import random

import msgspec
import pytest

from tests.matching.worlds import VALUES, conjunction, event, expression
from unisono.errors import FormatError, MisuseError
from unisono.model.predicate import Box, Filter, Summary, Values, parse, spread, to_text

# One attribute value per class that the constants of `worlds` can tell apart would be enough; this is all of them, and
# some in between, for two attributes.
BETWEEN: list[object] = [
    0.5,
    1.25,
    1.75,
    2.5,
    100,
    2**53 + 2,
    2**54,
    1e301,
    3.5,
    -0.5,
    -2,
    "aa",
    "abb",
    "ad",
    "c",
    "\1",
]
DOMAIN = [*VALUES, *BETWEEN]
PAIRS = [event(a=a, b=b) for a in DOMAIN for b in DOMAIN]


def extent(filter: Filter) -> frozenset[int]:
    return frozenset(i for i, e in enumerate(PAIRS) if filter.matches(e))


def boxes_of(dice: random.Random, count: int) -> list[Box]:
    boxes: list[Box] = []
    while len(boxes) < count:
        boxes += parse(conjunction(dice, "ab")).boxes
    return boxes[:count]


@pytest.mark.parametrize("seed", range(3))
def test_box_algebra_agrees_with_enumeration(seed: int) -> None:
    boxes = boxes_of(random.Random(seed), 6)
    extents = {box: extent(Filter((box,))) for box in boxes}
    for x in boxes:
        for y in boxes:
            here, there = extents[x], extents[y]
            assert x.covers(y) == (there <= here)
            assert x.overlaps(y) == bool(here & there)
            met = x.intersect(y)
            assert extent(Filter((met,) if met else ())) == here & there
            pieces = x.minus(y)
            assert extent(Filter(tuple(pieces))) == here - there
            assert sum(len(extent(Filter((piece,)))) for piece in pieces) == len(here - there)
            merged = x.merge(y)
            assert merged is None or extent(Filter((merged,))) == here | there
            assert extent(Filter((x.hull(y),))) >= here | there


@pytest.mark.parametrize("seed", range(24))
def test_union_algebra_agrees_with_enumeration(seed: int) -> None:
    dice = random.Random(seed)
    x, y = parse(expression(dice, "ab", 2)[0]), parse(expression(dice, "ab", 2)[0])
    here, there = extent(x), extent(y)
    assert extent(x & y) == here & there
    assert extent(x | y) == here | there
    assert extent(x.minus(y)) == here - there
    assert extent(~x) == frozenset(range(len(PAIRS))) - here
    assert x.covers(y) == (there <= here)
    assert x.overlaps(y) == bool(here & there)
    assert (x | y).covers(x)
    assert (x & ~x).is_empty


@pytest.mark.parametrize(
    ("x", "y", "covered"),
    [
        ("a > 1 and b > 1", "a > 2", False),  # comparing only the common attributes says yes
        ("a != 1", "a = 's'", True),
        ("a > 5", "a between 2 and 1", True),
        ("a prefix 'ab'", "a = 'abc'", True),
        ("a >= 'ab' and a < 'ac'", "a prefix 'ab'", True),
        ("a prefix 'ab'", "a >= 'ab' and a < 'ac'", True),
        ("exists a", "a != null", True),
        ("a < 3 or a > 2", "a between -9 and 9", True),  # by the union only
        ("a < 3", "not a >= 3", False),  # absent
        ("a = 1", "a = 1.0", True),
        ("a = 0", "a = -0.0", True),
    ],
)
def test_shortcuts_that_are_wrong_are_not_taken(x: str, y: str, covered: bool) -> None:
    assert parse(x).covers(parse(y)) == covered


def test_two_unions_of_the_same_events_have_one_spelling_where_merging_is_perfect() -> None:
    assert parse("a < 3 and b = 1 or a >= 3 and b = 1") == parse("b = 1 and (a <= 2 or a > 2)") & parse(
        "a < 1 or a >= 1"
    )
    assert parse("a = 'x' or a > 'x' and a < 'y'") == parse("a >= 'x' and a < 'y'")


def test_a_measure_counts_nothing_twice() -> None:
    def share(name: str, values: Values) -> float:
        return sum(values.contains(v) for v in range(10)) / 10

    assert parse("a < 5 or b < 5").measure(share) == pytest.approx(0.75)
    assert parse("a < 5 and b < 5").measure(share) == pytest.approx(0.25)
    assert parse("true").measure(share) == 1
    assert parse("a < 3 or b = 1 or a > 7 and b > 3").measure(share) == pytest.approx(extent_share())


def extent_share() -> float:
    return sum(a < 3 or b == 1 or (a > 7 and b > 3) for a in range(10) for b in range(10)) / 100


@pytest.mark.parametrize("seed", range(10))
def test_the_default_measure_is_additive(seed: int) -> None:
    dice = random.Random(seed)
    for box in boxes_of(dice, 10):
        for name, values in box.sides:
            assert spread(name, values) + spread(name, ~values) == pytest.approx(1)


def test_a_difference_that_is_too_tangled_is_refused_not_guessed() -> None:
    tangled = Filter(tuple(parse(f"a{i} = 1 and b{i} = 1").boxes[0] for i in range(20)))
    with pytest.raises(MisuseError, match="more than"):
        parse("true").minus(tangled)
    assert not tangled.covers(parse("true"))


@pytest.mark.parametrize("seed", range(20))
def test_a_sample_of_a_filter_matches_it(seed: int) -> None:
    dice = random.Random(seed)
    found = 0
    for _ in range(50):
        text, _ = expression(dice, "ab", 3)
        filter = parse(text)
        event = filter.sample()
        if event is not None:
            found += 1
            assert filter.matches(event), text
        else:
            assert filter.is_empty or "<" in text or ">" in text, text
    assert found > 25
    assert parse("x > 1 and x < 2").sample() is not None


def test_filters_travel() -> None:
    filter = parse("a in (1, 2.5, 'x', null) and not b prefix 'q' or c >= 9007199254740993")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(filter), type=Filter) == filter
    assert parse(to_text(filter)) == filter


@pytest.mark.parametrize("seed", range(8))
def test_a_summary_holds_everything_and_forgets_nobody(seed: int) -> None:
    dice = random.Random(seed)
    summary = Summary(boxes_max=4)
    interests: dict[int, Filter] = {}
    for key in range(30):
        if interests and dice.random() < 0.3:
            gone = dice.choice(sorted(interests))
            del interests[gone]
            summary.remove(gone)
        try:
            interests[key] = parse(expression(dice, "abc", 1)[0])
        except FormatError:
            continue
        changed, before = summary.add(key, interests[key]), summary.version
        assert changed or before == summary.version
        assert len(summary.filter.boxes) <= 4
        assert all(summary.filter.covers(interest) for interest in interests.values())


@pytest.mark.parametrize("seed", range(8))
def test_equal_sets_of_interests_have_equal_summaries(seed: int) -> None:
    dice = random.Random(seed)
    interests = {i: parse(conjunction(dice, "abc")) for i in range(20)}
    digests = []
    for _ in range(3):
        keys = list(interests)
        dice.shuffle(keys)
        summary = Summary(boxes_max=5)
        summary.add("passing by", parse("a = 77"))
        for key in keys:
            summary.add(key, interests[key])
        summary.remove("passing by")
        digests.append(summary.digest)
    assert len(set(digests)) == 1


def test_a_covered_interest_changes_nothing() -> None:
    summary = Summary()
    assert summary.add("wide", parse("px > 0"))
    assert not summary.add("narrow", parse("px > 5 and sym = 'IBM'"))
    assert not summary.remove("narrow")
    assert summary.remove("wide")
