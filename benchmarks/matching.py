"""Matching one event against many subscriptions: the index against a naive loop and against counting in numpy.

Twenty attributes (14 real, 6 categorical with 1000 Zipf values), attribute popularity Zipf(1), 2 to 5 predicates each,
events carry each attribute with probability 0.9; each row tells how many subscriptions match. One core, CPU time.
UNISONO_BENCH_SUBSCRIPTIONS=1000000 adds a size.
"""

import os
import random
import time
import tracemalloc
from typing import Any

import numpy as np

from unisono.model.predicate import Filter, parse
from unisono.structures.matching import MatchingIndex
from unisono.structures.matching.kernels import compiled

REALS = [f"r{i}" for i in range(14)]
NAMES = [f"c{i}" for i in range(6)]
ZIPF = [1 / (k + 1) for k in range(1000)]
ATTRIBUTES = [*REALS, *NAMES]


def subscriptions(dice: random.Random, count: int) -> list[Filter]:
    order = ATTRIBUTES[:]
    random.Random(1).shuffle(order)
    popularity = [1 / (k + 1) for k in range(len(order))]
    found: list[Filter] = []
    while len(found) < count:
        chosen = set(dice.choices(order, popularity, k=dice.randint(2, 5)))
        if len(chosen) < 2:
            continue
        parts = []
        for name in sorted(chosen):
            if name[0] == "r":
                low, width = dice.random(), 0.02 + 0.05 * dice.random()
                one_sided = dice.random() < 0.2
                low = 0.7 + 0.3 * low if one_sided else low
                parts.append(f"{name} > {low:.6f}" if one_sided else f"{name} between {low:.6f} and {low + width:.6f}")
            else:
                values = [f"'v{k}'" for k in dice.choices(range(1000), ZIPF, k=4)]
                kind = dice.random()
                if kind < 0.7:
                    parts.append(f"{name} = {values[0]}")
                elif kind < 0.9:
                    parts.append(f"{name} in ({', '.join(values)})")
                else:
                    parts.append(f"{name} != {values[0]}")
        found.append(parse(" and ".join(parts)))
    return found


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
    compiled()
    sizes = [10_000, 100_000]
    if extra := os.environ.get("UNISONO_BENCH_SUBSCRIPTIONS"):
        sizes.append(int(extra))
    return [row for size in sizes for row in measure(size)]


def measure(size: int) -> list[dict[str, Any]]:
    dice = random.Random(7)
    tracemalloc.start()
    some = subscriptions(dice, 2_000)
    filter_bytes = tracemalloc.get_traced_memory()[0] / len(some)
    tracemalloc.stop()
    filters = [*some, *subscriptions(dice, size - len(some))]
    sample = events(dice, 200)
    check = [[i for i, f in enumerate(filters) if f.matches(e)] for e in sample[:3]]
    naive_rate = rate(lambda e: [i for i, f in enumerate(filters) if f.matches(e)], sample, 1.5)
    counting = Counting(filters)
    assert [counting.match(e) for e in sample[:3]] == check
    base = {"subscriptions": size, "filter_bytes_per_subscription": round(filter_bytes)}
    rows: list[dict[str, Any]] = [
        {"case": f"naive loop, {size}", **base, "events_per_second": round(naive_rate, 1)},
        {"case": f"numpy counting, {size}", **base, "events_per_second": round(rate(counting.match, sample, 1.5), 1)},
    ]
    del counting
    for engine in ("pairs", "roaring"):
        index = MatchingIndex[int](engine)  # type: ignore[arg-type]
        started = time.process_time()
        index.add_all(list(enumerate(filters)))
        built = time.process_time() - started
        assert [index.match(e) for e in sample[:3]] == check
        for e in sample:
            index.match(e)
        speed = rate(index.match, sample, 2)
        matched = sum(len(index.match(e)) for e in sample) / len(sample)
        batch = min(_timed(lambda index=index: index.match_batch(sample)) for _ in range(3)) / len(sample)
        add_us, remove_us = churn(index, subscriptions(dice, 500))
        rows.append(
            {
                "case": f"{engine}, {size}",
                **base,
                "events_per_second": round(speed, 1),
                "times_naive": round(speed / naive_rate, 1),
                "batch_events_per_second": round(1 / batch, 1),
                "matches_per_event": round(matched, 1),
                "build_seconds": round(built, 2),
                "index_bytes_per_subscription": round(index.bytes / size),
                "add_us": round(add_us, 1),
                "remove_us": round(remove_us, 1),
            }
        )
        del index
    return rows


def churn(index: MatchingIndex[int], more: list[Filter]) -> tuple[float, float]:
    started = time.process_time()
    for i, f in enumerate(more):
        index.add(-1 - i, f)
    added = time.process_time()
    for i in range(len(more)):
        index.remove(-1 - i)
    return (added - started) / len(more) * 1e6, (time.process_time() - added) / len(more) * 1e6


def _timed(action: Any) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started
