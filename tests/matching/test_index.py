"""Every engine gives the answers of a plain loop, for every edge value (specs: matching, sections 5 and 8)."""

import random
from collections.abc import Callable, Iterator

import pytest

from tests.matching.worlds import (
    NUMBERS,
    SCALARS,
    STRINGS,
    VALUES,
    Event,
    conjunction,
    event,
    expression,
    literal,
    random_event,
)
from unisono.errors import FormatError, MisuseError
from unisono.model.predicate import MISSING, Box, Filter, parse
from unisono.structures.matching import MatchingIndex
from unisono.structures.matching.kernels import COMPILED, INTERPRETED
from unisono.structures.matching.loop import LoopEngine
from unisono.structures.matching.pairs import PairEngine
from unisono.structures.matching.roaring import RoaringEngine

NAMES = "abcd"


def indexes(compiled: bool) -> Iterator[tuple[str, MatchingIndex[int]]]:
    kernels = COMPILED.wait() if compiled else INTERPRETED
    yield "loop", MatchingIndex[int]("loop")
    yield "pairs", MatchingIndex[int]("pairs", kernels)
    yield "roaring, verified by kernels", MatchingIndex[int]("roaring", kernels)


def filters(dice: random.Random, count: int) -> list[Filter]:
    found: list[Filter] = []
    while len(found) < count:
        try:
            filter = parse(conjunction(dice, NAMES) if dice.random() < 0.7 else expression(dice, NAMES, 2)[0])
        except FormatError:
            continue
        if not filter.is_empty:
            found.append(filter)
    return found


def naive(live: dict[int, Filter], event: dict[str, object]) -> list[int]:
    return [key for key, filter in live.items() if filter.matches(event)]


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("seed", range(3))
def test_every_engine_agrees_with_the_loop_while_filters_come_and_go(seed: int, compiled: bool) -> None:
    pool = filters(random.Random(seed), 120)
    for name, index in indexes(compiled):
        dice = random.Random(seed)
        live: dict[int, Filter] = {}
        for step in range(160):
            if live and dice.random() < 0.4:
                gone = dice.choice(list(live))
                del live[gone]
                index.remove(gone)
            live[step] = dice.choice(pool)
            index.add(step, live[step])
            seen = random_event(dice, NAMES)
            assert index.match(seen) == naive(live, seen), (name, seen)


def test_what_many_want_alike_is_tried_once_and_forgotten_with_the_last_of_them() -> None:
    engine = LoopEngine()
    boxes = [parse(text).boxes[0] for text in ("a = 1 and b > 2", "b > 2")]
    for row in range(10):
        engine.add(row, boxes[row % 2])
    assert [len(tried) for tried in (*engine._behind.values(), engine._others)] == [1, 1]
    for row in range(10):
        assert sorted(engine.match({"a": 1, "b": 3})) == list(range(row, 10))
        engine.remove(row, boxes[row % 2])
    assert (engine._behind, engine._others) == ({}, {})


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_many_at_once_and_batches_agree_with_one_by_one(compiled: bool) -> None:
    dice = random.Random(7)
    live = dict(enumerate(filters(dice, 150)))
    events = [random_event(dice, NAMES) for _ in range(90)]
    for name, index in indexes(compiled):
        index.add_all(list(live.items()))
        assert index.match_batch(events) == [naive(live, e) for e in events], name
        assert index.match_batch(events) == [naive(live, e) for e in events], name


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_the_batch_scan_agrees_for_every_size_of_batch(compiled: bool) -> None:
    dice = random.Random(8)
    live = dict(enumerate(filters(dice, 100)))
    boxes = [(i, f.boxes[0]) for i, f in live.items()]
    engine = PairEngine(COMPILED.wait() if compiled else INTERPRETED, [box for _, box in boxes])
    engine.add_all(boxes)
    for size in (1, 2, 63, 64):
        events = [random_event(dice, NAMES) for _ in range(size)]
        expected = [[row for row, box in boxes if box.matches(e)] for e in events]
        assert [sorted(rows) for rows in engine.scan_batch(events)] == expected


def predicates() -> list[str]:
    """Every operator with every edge value, alone and negated; sets with members named twice; absence."""
    texts = [f"a {op} {literal(value)}" for op in ("=", "!=") for value in SCALARS]
    texts += [f"a {op} {literal(value)}" for op in ("<", "<=", ">", ">=") for value in (*NUMBERS, *STRINGS)]
    texts += [f"a prefix {literal(start)}" for start in STRINGS]
    for pool in (NUMBERS, STRINGS):
        ordered: list[object] = sorted(pool)  # type: ignore[type-var]
        for low, high in zip(ordered, ordered[2:], strict=False):
            texts.append(f"a between {literal(low)} and {literal(high)}")
            texts.append(f"a in ({literal(low)}, {literal(high)}, {literal(low)}, null)")
    texts += [f"not ({text})" for text in texts[::3]]
    return [*texts, "exists a", "not exists a", "a != 1 and a != 'a' and exists b", "true"]


def engines(boxes: list[Box], compiled: bool) -> Iterator[tuple[str, Callable[[list[Event]], list[list[int]]]]]:
    """Every way to an answer, from rows of boxes to the rows that hold for each event."""
    kernels = COMPILED.wait() if compiled else INTERPRETED
    assert kernels is not None
    rows = list(enumerate(boxes))
    single: dict[str, LoopEngine | PairEngine | RoaringEngine] = {
        "loop": LoopEngine(),
        "pairs": PairEngine(kernels, boxes),
        "roaring, verified by kernels": RoaringEngine(boxes, kernels),
        "roaring, verified by boxes": RoaringEngine(boxes, None),
    }
    for name, engine in single.items():
        if isinstance(engine, LoopEngine):
            for row, box in rows:
                engine.add(row, box)
        else:
            engine.add_all(rows)
        yield name, lambda events, engine=engine: [sorted(engine.match(e)) for e in events]  # type: ignore[misc]
    one_by_one = RoaringEngine(boxes, None)
    pairs = PairEngine(kernels, boxes)
    for row, box in rows:
        one_by_one.add(row, box)
        pairs.add(row, box)
    yield "roaring, added one by one", lambda events: [sorted(one_by_one.match(e)) for e in events]
    yield "pairs, added one by one", lambda events: [sorted(pairs.match(e)) for e in events]
    yield (
        "batch bitset",
        lambda events: [
            sorted(found) for i in range(0, len(events), 64) for found in pairs.scan_batch(events[i : i + 64])
        ],
    )


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_every_edge_value_against_every_predicate_in_every_engine(compiled: bool) -> None:
    """Specs: matching, section 8. Two attributes, so that pairs have something to pair."""
    parsed = [parse(text) for text in predicates()[:: 1 if compiled else 5]]  # interpreted kernels are slow
    boxes = [box for filter in parsed for box in filter.boxes]
    boxes += [box for i, filter in enumerate(parsed[::4]) for box in (filter & parse(f"b < {i % 7}")).boxes]
    events = [event(a=value, b=3 if i % 3 else MISSING) for i, value in enumerate(VALUES)]
    expected = [[row for row, box in enumerate(boxes) if box.matches(e)] for e in events]
    assert sum(map(len, expected)) > 1_000
    for name, answer in engines(boxes, compiled):
        for given, right, found in zip(events, expected, answer(events), strict=True):
            assert found == right, (name, given)


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_a_key_comes_back_with_another_filter_while_everything_grows(compiled: bool) -> None:
    """The same key after its removal; cells, pools and columns that grow within one addition."""
    for name, index in indexes(compiled):
        live: dict[int, Filter] = {}
        for step in range(300):
            key = step % 40
            if key in live:
                index.remove(key)
                del live[key]
            # Wide intervals go into many cells; the attribute's name brings a new column every few steps.
            live[key] = parse(f"a between {step % 5} and {step} and n{step // 12} != {step}")
            index.add(key, live[key])
        for step in range(300):
            seen = event(a=step, **{f"n{step // 12}": step % 3})
            assert sorted(index.match(seen)) == sorted(naive(live, seen)), (name, seen)
            assert [sorted(keys) for keys in index.match_batch([seen])] == [sorted(naive(live, seen))]


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_integers_no_float_can_hold_are_matched_exactly(compiled: bool) -> None:
    edges = [2**53 + d for d in range(-3, 4)] + [2**60 + 1, -(2**53) - 1, 10**400]
    texts = [f"a {op} {v}" for op in ("=", "<", "<=", ">", ">=", "!=") for v in edges[:-1]] + ["a > 1e300", "a = inf"]
    live = {i: parse(text) for i, text in enumerate(texts)}
    for name, index in indexes(compiled):
        index.add_all(list(live.items()))
        for value in [*edges, float(2**53), 2**53 + 0.0, float("inf")]:
            assert index.match({"a": value}) == naive(live, {"a": value}), (name, value)


def test_estimates_may_change_between_add_and_remove() -> None:
    dice = random.Random(9)
    live = dict(enumerate(filters(dice, 60)))
    index = MatchingIndex[int]("pairs", INTERPRETED)
    index.add_all(list(live.items()))
    for i in range(200):  # events enough to estimate anew, from other values than the filters'
        index.match(event(a=i, b=float(i), c="x"))
    for key in list(live)[::2]:
        index.remove(key)
        del live[key]
    for _ in range(50):
        seen = random_event(dice, NAMES)
        assert index.match(seen) == naive(live, seen)


def test_removed_rows_leave_nothing_behind() -> None:
    index = MatchingIndex[int]("pairs", INTERPRETED)
    assert index.match(event(a=1)) == []
    assert index.engine == "pairs"
    for key in range(50):
        index.add(key, parse("a = 1"))
        index.remove(key)
    index.add(99, parse("b = 1"))
    assert index.match(event(a=1, b=1)) == [99]
    assert len(index) == 1


def test_an_all_negative_filter_still_demands_presence() -> None:
    for name, index in indexes(compiled=False):
        index.add(1, parse("a != 5 and exists b"))
        assert index.match(event(a=4)) == [], name
        assert index.match(event(a="x", b=[])) == [1], name
        assert index.match(event(a=5, b=1)) == [], name


def test_a_filter_nothing_can_match_is_refused() -> None:
    index = MatchingIndex[str]()
    with pytest.raises(MisuseError, match="contradicts itself"):
        index.add("x", parse("a = 1 and a = 2"))
    assert "x" not in index
    index.add("x", parse("a = 1"))
    with pytest.raises(MisuseError, match="already there"):
        index.add("x", parse("a = 2"))
    with pytest.raises(MisuseError, match="no subscription"):
        index.remove("y")


def test_the_engine_follows_the_number_of_filters() -> None:
    index = MatchingIndex[int](kernels=INTERPRETED)
    seen = []
    for key in range(700):
        index.add(key, parse(f"a = {key % 7} and b > {key}"))
        if key in (10, 300, 699):
            assert index.match(event(a=key % 7, b=10**6)) == [k for k in range(key + 1) if k % 7 == key % 7]
            seen.append(index.engine)
    for key in range(5, 700):
        index.remove(key)
        if key in (600, 699):
            assert index.match(event(a=4, b=10**6)) == [4, *(k for k in range(key + 1, 700) if k % 7 == 4)]
            seen.append(index.engine)
    assert seen == ["loop", "pairs", "pairs", "pairs", "loop"]


def test_an_index_takes_to_the_kernels_when_they_are_ready() -> None:
    import subprocess
    import sys

    code = (
        "from unisono.structures.matching import INDEX_FROM, MatchingIndex, warm_up\n"
        "from unisono.model.predicate import parse\nindex = MatchingIndex()\n"
        "for k in range(INDEX_FROM): index.add(k, parse(f'a = {k}'))\n"
        "assert index.match({'a': 7}) == [7] and index.engine != 'pairs'\n"
        "warm_up().join()\nassert index.match({'a': 7}) == [7]\nprint(index.engine)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "pairs\n"


def test_nothing_is_compiled_by_using_an_index() -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom unisono.structures.matching import MatchingIndex\nfrom unisono.model.predicate import parse\n"
        "index = MatchingIndex()\nfor k in range(300): index.add(k, parse(f'a = {k}'))\n"
        "assert index.match({'a': 7}) == [7]\nassert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert COMPILED.ready() is None or COMPILED.ready() is COMPILED.wait()


@pytest.mark.parametrize(
    "texts",
    ["a = '{0}'", "a != '{0}'", "a prefix '{0}x'", "a prefix '{1}'", "a in ('{0}', 'y{0}')", "`a{0}` = 'z{0}'"],
)
def test_strings_and_attributes_nobody_asks_for_any_more_take_no_room(texts: str) -> None:
    """Ten filters at a time, hundreds in all: codes and columns are those of the ten, and answers stay right."""
    for name, index in indexes(compiled=False):
        live: dict[int, Filter] = {}
        index.match({})
        for i in range(400):
            live[i] = parse(texts.format(i, "x" * (1 + i % 60)))
            index.add(i, live[i])
            if i >= 10:
                index.remove(i - 10)
                del live[i - 10]
        assert index.codes <= 2 * 2 * len(live), name
        columns = getattr(getattr(index._engine, "store", None), "columns", None)
        assert columns is None or columns.count <= 1 + 3 * (len(live) + 1), name
        for i in (385, 390, 395, 399, 400):
            seen: dict[str, object] = {"a": str(i), f"a{i}": f"z{i}"}
            assert index.match(seen) == naive(live, seen), name
            assert index.match({"a": f"{i}xyz"}) == naive(live, {"a": f"{i}xyz"}), name
        for key in live:
            index.remove(key)
        assert index.codes == 0, name


def test_strings_and_attributes_nobody_asks_for_any_more_take_no_room_unless_others_do() -> None:
    for name, index in indexes(compiled=False):
        index.match({})
        for key in range(3):
            index.add(key, parse("a in ('x', 'y') and b prefix 'pq'"))
        index.remove(0)
        index.add(3, parse("a = 'z' and b prefix 'rs'"))
        assert index.match({"a": "x", "b": "pqr"}) == [1, 2], name
        assert index.match({"a": "z", "b": "rst"}) == [3], name
