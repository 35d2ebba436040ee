"""Matching one event against many subscriptions: the engines against a naive loop and against counting in numpy.

Twenty attributes (14 real, 6 categorical with 1000 Zipf values), attribute popularity Zipf(1), 2 to 5 predicates each,
events carry each attribute with probability 0.9; each row tells how many subscriptions match. One core, CPU time.

The naive loop is the best plain Python we know: every subscription is one Python function of its own predicates (a
chain of `low <= get(name, nan) <= high and get(name) == text and ...`, compiled once per shape, its constants bound),
and an event is given to all of them in one list comprehension. It is ten times as fast as asking `Filter.matches`.
UNISONO_BENCH_SUBSCRIPTIONS=100000 leaves out larger sizes.
"""

import math
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from unisono.model.predicate import Filter, Values, make_box, parse
from unisono.model.predicate.values import PRESENT, above, between, point
from unisono.structures.matching import MatchingIndex
from unisono.structures.matching.kernels import COMPILED

REALS = [f"r{i}" for i in range(14)]
NAMES = [f"c{i}" for i in range(6)]
ZIPF = [1 / (k + 1) for k in range(1000)]
ATTRIBUTES = [*REALS, *NAMES]
SIZES = (10_000, 100_000, 1_000_000)

Predicate = tuple[str, str, tuple[Any, ...]]
"""Attribute, kind, constants."""
Naive = Callable[[Callable[..., Any]], bool]


def subscriptions(dice: random.Random, count: int) -> list[list[Predicate]]:
    order = ATTRIBUTES[:]
    random.Random(1).shuffle(order)
    popularity = [1 / (k + 1) for k in range(len(order))]
    found: list[list[Predicate]] = []
    while len(found) < count:
        chosen = set(dice.choices(order, popularity, k=dice.randint(2, 5)))
        if len(chosen) >= 2:
            found.append([predicate(dice, name) for name in sorted(chosen)])
    return found


def predicate(dice: random.Random, name: str) -> Predicate:
    if name[0] == "r":
        low = round(dice.random(), 6)
        if dice.random() < 0.2:
            return name, "above", (0.7 + 0.3 * low,)
        return name, "between", (low, low + round(0.02 + 0.05 * dice.random(), 6))
    values = tuple(f"v{k}" for k in dice.choices(range(1000), ZIPF, k=4))
    kind = dice.random()
    if kind < 0.7:
        return name, "equal", values[:1]
    return (name, "among", (frozenset(values),)) if kind < 0.9 else (name, "differs", values[:1])


def filter_of(predicates: list[Predicate]) -> Filter:
    """What `parse` makes of the text, without the text: a million texts take minutes."""
    box = make_box({name: _values(kind, constants) for name, kind, constants in predicates})
    assert box is not None
    return Filter((box,))


def _values(kind: str, constants: tuple[Any, ...]) -> Values:
    match kind:
        case "above":
            return above(constants[0], inclusive=False)
        case "between":
            return between(*constants)
        case "equal":
            return point(constants[0])
        case "differs":
            return PRESENT.minus(point(constants[0]))
        case _:
            members = [point(text) for text in sorted(constants[0])]
            union = members[0]
            for member in members[1:]:
                union = union | member
            return union


def text_of(predicates: list[Predicate]) -> str:
    texts = {
        "above": "{0} > {1!r}",
        "between": "{0} between {1!r} and {2!r}",
        "equal": "{0} = {1!r}",
        "differs": "{0} != {1!r}",
    }
    return " and ".join(
        f"{name} in ({', '.join(map(repr, constants[0]))})" if kind == "among" else texts[kind].format(name, *constants)
        for name, kind, constants in predicates
    )


_SPELT = {
    "above": "{0}[0] < get({0}n, nan)",
    "between": "{0}[0] <= get({0}n, nan) <= {0}[1]",
    "equal": "get({0}n) == {0}[0]",
    "among": "get({0}n) in {0}[0]",
    "differs": "get({0}n, {0}[0]) != {0}[0]",
}
_shapes: dict[tuple[str, ...], Callable[..., Naive]] = {}


def naive_of(predicates: list[Predicate]) -> Naive:
    """One function per subscription: constants are its own cells, the code is shared by all of one shape."""
    shape = tuple(kind for _, kind, _ in predicates)
    if shape not in _shapes:
        names, tests = [], []
        for i, kind in enumerate(shape):
            test = _SPELT[kind].format(f"p{i}").replace(f"p{i}[0]", f"p{i}a").replace(f"p{i}[1]", f"p{i}b")
            names += [f"p{i}n", f"p{i}a", *([f"p{i}b"] if kind == "between" else [])]
            tests.append(test)
        code = f"lambda {', '.join(names)}: lambda get: {' and '.join(tests)}"
        _shapes[shape] = eval(code, {"nan": math.nan})  # of kinds listed above, nothing else
    return _shapes[shape](*(part for name, _, constants in predicates for part in (name, *constants)))


def events(dice: random.Random, count: int) -> list[dict[str, object]]:
    return [
        {
            name: dice.random() if name[0] == "r" else f"v{dice.choices(range(1000), ZIPF)[0]}"
            for name in ATTRIBUTES
            if dice.random() < 0.9
        }
        for _ in range(count)
    ]


class Counting:
    """Per attribute the bounds as arrays; a subscription matches when all its sides were counted. Simple boxes only."""

    def __init__(self, filters: list[Filter]) -> None:
        self._sides = np.array([len(f.boxes[0].sides) for f in filters])
        columns: dict[str, list[tuple[int, Any]]] = {name: [] for name in ATTRIBUTES}
        for row, f in enumerate(filters):
            for name, values in f.boxes[0].sides:
                columns[name].append((row, values))
        self._numbers: dict[str, tuple[Any, Any, Any]] = {}
        self._texts: dict[str, tuple[dict[str, list[int]], dict[str, list[int]], Any]] = {}
        for name, sides in columns.items():
            if name[0] == "r":
                rows = np.array([row for row, _ in sides])
                low = np.array([v.numbers[0][0] for _, v in sides], float)
                high = np.array([v.numbers[1][0] if len(v.numbers) > 1 else np.inf for _, v in sides], float)
                self._numbers[name] = (rows, low, high)
                continue
            named: dict[str, list[int]] = {}
            barred: dict[str, list[int]] = {}
            negative = [row for row, v in sides if v.contains([])]
            for row, v in sides:
                starts = v.strings[1:2] if v.contains([]) else v.strings[::2]
                for text in starts:
                    (barred if v.contains([]) else named).setdefault(text, []).append(row)
            self._texts[name] = (named, barred, np.array(negative, int))

    def match(self, event: dict[str, object]) -> list[int]:
        hits = []
        for name, value in event.items():
            if name in self._numbers:
                rows, low, high = self._numbers[name]
                hits.append(rows[(low <= value) & (value <= high)])
            else:
                named, barred, negative = self._texts[name]
                hits.append(np.array(named.get(str(value), []), int))
                hits.append(np.setdiff1d(negative, barred.get(str(value), [])))
        counts = np.bincount(np.concatenate(hits), minlength=len(self._sides))
        found: list[int] = np.flatnonzero(counts == self._sides).tolist()
        return found


def rate(match: Any, sample: list[dict[str, object]], seconds: float) -> float:
    """Events per CPU second: best of three windows."""
    best = 0.0
    for _ in range(3):
        started, done = time.process_time(), 0
        while time.process_time() - started < seconds / 3 or not done:
            match(sample[done % len(sample)])
            done += 1
        best = max(best, done / (time.process_time() - started))
    return best


def run() -> list[dict[str, Any]]:
    COMPILED.wait()
    largest = int(os.environ.get("UNISONO_BENCH_SUBSCRIPTIONS", SIZES[-1]))
    return [row for size in SIZES if size <= largest for row in measure(size)]


def measure(size: int) -> list[dict[str, Any]]:
    dice = random.Random(7)
    wanted = subscriptions(dice, size)
    assert all(filter_of(some) == parse(text_of(some)) for some in wanted[:200])
    tracemalloc.start()
    filters = [filter_of(some) for some in wanted[:2_000]]
    filter_bytes = tracemalloc.get_traced_memory()[0] / len(filters)
    tracemalloc.stop()
    filters += [filter_of(some) for some in wanted[2_000:]]
    functions = [naive_of(some) for some in wanted]
    del wanted
    sample = events(dice, 200)

    def naive(event: dict[str, object]) -> list[int]:
        get = event.get
        return [i for i, holds in enumerate(functions) if holds(get)]

    check = [naive(e) for e in sample[:3]]
    assert [[i for i, f in enumerate(filters[:10_000]) if f.matches(e)] for e in sample[:3]] == [
        [i for i in found if i < 10_000] for found in check
    ]
    naive_rate = rate(naive, sample, 1.5)
    counting = Counting(filters)
    assert [counting.match(e) for e in sample[:3]] == check
    base = {"subscriptions": size, "filter_bytes_per_subscription": round(filter_bytes)}
    counted = rate(counting.match, sample, 1.5)
    rows: list[dict[str, Any]] = [
        {"case": f"naive loop, {size}", **base, "events_per_second": round(naive_rate, 1)},
        {
            "case": f"numpy counting, {size}",
            **base,
            "events_per_second": round(counted, 1),
            "times_naive": round(counted / naive_rate, 1),
        },
    ]
    del counting
    functions.clear()
    more = [filter_of(some) for some in subscriptions(dice, 500)]
    for engine in ("pairs", "roaring"):
        rows.append({"case": f"{engine}, {size}", **base, **measure_engine(engine, filters, sample, check, more)})
        rows[-1]["times_naive"] = round(rows[-1]["events_per_second"] / naive_rate, 1)
    return rows


def measure_engine(
    engine: Any, filters: list[Filter], sample: list[dict[str, object]], check: list[list[int]], more: list[Filter]
) -> dict[str, Any]:
    index = MatchingIndex[int](engine)
    started = time.process_time()
    index.add_all(list(enumerate(filters)))
    built = time.process_time() - started
    for e in sample:
        index.match(e)
    assert [index.match(e) for e in sample[:3]] == check
    speed = rate(index.match, sample, 3)
    batch = min(_timed(lambda: index.match_batch(sample)) for _ in range(3)) / len(sample)
    add_us, remove_us = churn(index, more)
    return {
        "events_per_second": round(speed, 1),
        "batch_events_per_second": round(1 / batch, 1),
        "matches_per_event": round(sum(len(index.match(e)) for e in sample) / len(sample), 1),
        "build_seconds": round(built, 2),
        "index_bytes_per_subscription": round(index.bytes / len(filters)),
        "add_us": round(add_us, 1),
        "remove_us": round(remove_us, 1),
    }


def churn(index: MatchingIndex[int], more: list[Filter]) -> tuple[float, float]:
    """Microseconds per addition and removal: best of three rounds, so that a rebuild that falls due is not in it."""
    adding, removing = [], []
    for _ in range(3):
        started = time.process_time()
        for i, f in enumerate(more):
            index.add(-1 - i, f)
        added = time.process_time()
        for i in range(len(more)):
            index.remove(-1 - i)
        adding.append(added - started)
        removing.append(time.process_time() - added)
    return min(adding) / len(more) * 1e6, min(removing) / len(more) * 1e6


def _timed(action: Callable[[], Any]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started
