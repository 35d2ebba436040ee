"""The inner loops of matching, written once: interpreted as they stand, or compiled by numba when it is there.

Nothing is compiled at import: see `COMPILED`. Both forms give the same results; tests run both.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from unisono.structures.matching.packed import INSIDE, LAST, OR_NEXT, OUTSIDE
from unisono.structures.warming import Kernel

POSTING = np.dtype([("row", "i4"), ("low1", "f4"), ("high1", "f4"), ("low2", "f4"), ("high2", "f4")])
CELL = np.dtype([("at", "i8"), ("length", "i4"), ("capacity", "i4")])
PAIR = np.dtype([("a", "i4"), ("b", "i4"), ("cell", "i4")])
BUCKETS_MAX = 64

FILE_AS_CHOSEN, CHOOSE_AND_FILE, TAKE_OUT = 0, 1, 2
POOL_MISSING, CELLS_MISSING = 1, 2
# counters: what a kernel tells its caller besides its result
POOL_USED, MISSING, NEEDED, COLUMN_A, COLUMN_B, SCANNED, COUNTERS = 0, 1, 2, 3, 4, 5, 6
_SECOND_SHARE_MAX = 0.6  # a second access predicate must exclude at least this much
_FIRST_SHARE_MAX = 0.9
_CELLS_PER_ROW_MAX = 64
_KIND_MASK = 3
_SHORT_MAX = 3e38


class Kernels(NamedTuple):
    """The functions of one form."""

    match: Callable[..., int]
    verify: Callable[..., int]
    file: Callable[..., int]
    match_batch: Callable[..., int]


def holds(atoms: Any, at: int, low: Any, high: Any) -> bool:
    """Every group of alternatives has one that holds."""
    while True:
        found = False
        kind = OR_NEXT
        while kind & OR_NEXT:
            kind = atoms[at]["kind"]
            if not found:
                column = atoms[at]["column"]
                what = kind & _KIND_MASK
                if what == INSIDE:
                    found = atoms[at]["low"] <= high[column] and low[column] <= atoms[at]["high"]
                elif what == OUTSIDE:
                    found = low[column] < atoms[at]["low"] or high[column] > atoms[at]["high"]
                else:
                    found = np.isnan(low[column]) and np.isnan(low[column + 1])
            at += 1
        if not found:
            return False
        if kind & LAST:
            return True


def verify(atoms: Any, start: Any, rows: Any, low: Any, high: Any, out: Any) -> int:
    count = 0
    for i in range(len(rows)):
        if holds(atoms, start[rows[i]], low, high):
            out[count] = rows[i]
            count += 1
    return count


def bucket_of(borders: Any, buckets: Any, coded: Any, column: int, value: float) -> Any:
    if coded[column]:
        return int(value) % buckets[column]
    left, right = 0, buckets[column] - 1
    while left < right:
        middle = (left + right) // 2
        if borders[column, middle] <= value:
            left = middle + 1
        else:
            right = middle
    return left


def group_at(atoms: Any, at: int, borders: Any, buckets: Any, coded: Any, chosen: Any) -> Any:
    """Marks the buckets a group meets; returns (column or -1, lowest, highest, end of group, last?)."""
    column = atoms[at]["column"]
    low, high = atoms[at]["low"], atoms[at]["high"]
    usable = True
    chosen[:] = 0
    while True:
        atom = atoms[at]
        if atom["kind"] & _KIND_MASK != INSIDE or atom["column"] != column:
            usable = False
        else:
            low, high = min(low, atom["low"]), max(high, atom["high"])
            if coded[column]:
                if atom["high"] - atom["low"] >= buckets[column]:
                    chosen[: buckets[column]] = 1
                else:
                    for code in range(int(atom["low"]), int(atom["high"]) + 1):
                        chosen[code % buckets[column]] = 1
            else:
                first = bucket_of(borders, buckets, coded, column, atom["low"])
                # An event between two floats is filed under the lower one: it may lie one bucket below.
                while first > 0 and borders[column, first - 1] == atom["low"]:
                    first -= 1
                for b in range(first, bucket_of(borders, buckets, coded, column, atom["high"]) + 1):
                    chosen[b] = 1
        at += 1
        if not atom["kind"] & OR_NEXT:
            return (column if usable else -1), low, high, at, atom["kind"] & LAST


def share_of(
    column: int, low: float, high: float, chosen: Any, borders: Any, buckets: Any, coded: Any, weights: Any
) -> float:
    """The share of events a group lets through, from the weights of its buckets."""
    total = 0.0
    for b in range(buckets[column]):
        if chosen[b]:
            weight = weights[column, b]
            if not coded[column] and 0 < b < buckets[column] - 1:
                start, end = borders[column, b - 1], borders[column, b]
                if end > start:
                    weight *= max(0.0, min(high, end) - max(low, start)) / (end - start)
            total += weight
    return total


def choose(
    row: int, atoms: Any, start: Any, choice: Any, pair_columns: int, borders: Any, buckets: Any, coded: Any,
    weights: Any, chosen: Any,
) -> None:  # fmt: skip
    """Writes the offsets of the two most selective groups; -1 for none."""
    at = start[row]
    first, second = -1, -1
    first_share, second_share = _FIRST_SHARE_MAX, _SECOND_SHARE_MAX
    last = 0
    while not last:
        column, low, high, end, last = group_at(atoms, at, borders, buckets, coded, chosen)
        if 0 <= column < pair_columns:
            share = share_of(column, low, high, chosen, borders, buckets, coded, weights)
            if share < first_share:
                if first >= 0 and first_share <= _SECOND_SHARE_MAX:
                    second, second_share = first, first_share
                first, first_share = at - start[row], share
            elif share < second_share:
                second, second_share = at - start[row], share
        at = end
    choice[row, 0], choice[row, 1] = first, second


def downwards(value: float) -> Any:
    """The value as a short float, or the next one below; bounds in postings may be too wide, never too narrow."""
    if value < -_SHORT_MAX:
        return np.float32(-np.inf)
    return np.nextafter(np.float32(min(value, _SHORT_MAX)), np.float32(-np.inf))


def post(row: int, cell: int, bounds: Any, cells: Any, pool: Any, counters: Any) -> None:
    length = cells[cell]["length"]
    if length == cells[cell]["capacity"]:
        at, room = counters[POOL_USED], max(4, 2 * length)
        for i in range(length):
            pool[at + i] = pool[cells[cell]["at"] + i]
        cells[cell]["at"] = at
        cells[cell]["capacity"] = room
        counters[POOL_USED] = at + room
    at = cells[cell]["at"] + length
    pool[at]["row"] = row
    pool[at]["low1"], pool[at]["high1"] = bounds[0, 0], bounds[0, 1]
    pool[at]["low2"], pool[at]["high2"] = bounds[1, 0], bounds[1, 1]
    cells[cell]["length"] = length + 1


def take_out(row: int, cell: int, cells: Any, pool: Any) -> None:
    at, length = cells[cell]["at"], cells[cell]["length"]
    for k in range(at, at + length):
        if pool[k]["row"] == row:
            pool[k] = pool[at + length - 1]
            cells[cell]["length"] = length - 1
            return


def file(
    first_row: int, end_row: int, task: int, atoms: Any, start: Any, choice: Any, borders: Any, buckets: Any,
    coded: Any, weights: Any, single: Any, pair_of: Any, pairs: Any, cells: Any, pool: Any, counters: Any,
) -> int:  # fmt: skip
    """Files rows in the cells of their two chosen groups, or takes them out of the very same cells.

    Stops at the first row for which something is missing, and says in the counters what: that row is not filed.
    """
    chosen = np.zeros((2, BUCKETS_MAX), np.uint8)
    bounds = np.zeros((2, 2), np.float32)
    column = np.zeros(2, np.int64)
    for row in range(first_row, end_row):
        if start[row] < 0:
            continue
        if task == CHOOSE_AND_FILE:
            choose(row, atoms, start, choice, len(pair_of), borders, buckets, coded, weights, chosen[0])
        for k in range(2):
            column[k] = -1
            if choice[row, k] >= 0:
                column[k], low, high, _, _ = group_at(
                    atoms, start[row] + choice[row, k], borders, buckets, coded, chosen[k]
                )
                bounds[k, 0], bounds[k, 1] = downwards(low), -downwards(-high)
        # Too many cells: better one coarse access predicate than hundreds of postings.
        if column[1] >= 0 and chosen[0].sum() * chosen[1].sum() > _CELLS_PER_ROW_MAX:
            choice[row, 1] = column[1] = -1
        base, height, x, y = 0, 1, 0, 1
        if column[1] >= 0:
            if column[0] > column[1]:
                x, y = 1, 0
                for k in range(2):
                    bounds[0, k], bounds[1, k] = bounds[1, k], bounds[0, k]
            pair = pair_of[column[x], column[y]]
            if pair < 0:
                counters[MISSING] = CELLS_MISSING
                counters[COLUMN_A], counters[COLUMN_B] = column[x], column[y]
                return row
            base, height = pairs[pair]["cell"], buckets[column[y]]
        elif column[0] >= 0:
            base = single[column[0]]
            if base < 0:
                counters[MISSING] = CELLS_MISSING
                counters[COLUMN_A], counters[COLUMN_B] = column[0], -1
                return row
        needed = 0
        for phase in range(2):
            for i in range(BUCKETS_MAX if column[0] >= 0 else 1):
                if column[0] >= 0 and not chosen[x, i]:
                    continue
                for j in range(height):
                    if column[1] >= 0 and not chosen[y, j]:
                        continue
                    cell = base + i * height + j
                    if task == TAKE_OUT:
                        if phase:
                            take_out(row, cell, cells, pool)
                    elif phase:
                        post(row, cell, bounds, cells, pool, counters)
                    elif cells[cell]["length"] == cells[cell]["capacity"]:
                        needed += max(4, 2 * cells[cell]["length"])
            if counters[POOL_USED] + needed > len(pool) and not phase:
                counters[MISSING], counters[NEEDED] = POOL_MISSING, needed
                return row
    return end_row


def match(
    atoms: Any, start: Any, borders: Any, buckets: Any, coded: Any, single: Any, pairs: Any, pair_count: int,
    cells: Any, pool: Any, counters: Any, low: Any, high: Any, bucket: Any, out: Any, at: Any,
) -> int:  # fmt: skip
    """Rows that hold for the event, each once: one cell per pair of columns is looked into.

    Candidates are gathered before any of them is asked: their places in memory are then fetched side by side, where
    asking each at once would wait for one after the other.
    """
    count = 0
    scanned = cells[0]["length"]
    for k in range(cells[0]["at"], cells[0]["at"] + cells[0]["length"]):
        out[count] = pool[k]["row"]
        count += 1
    for column in range(len(low)):
        if np.isnan(low[column]):
            bucket[column] = -1
            continue
        bucket[column] = bucket_of(borders, buckets, coded, column, low[column])
        if column < len(single) and single[column] >= 0:
            cell = cells[single[column] + bucket[column]]
            scanned += cell["length"]
            for k in range(cell["at"], cell["at"] + cell["length"]):
                if pool[k]["low1"] <= high[column] and low[column] <= pool[k]["high1"]:
                    out[count] = pool[k]["row"]
                    count += 1
    for p in range(pair_count):
        a, b = pairs[p]["a"], pairs[p]["b"]
        if bucket[a] < 0 or bucket[b] < 0:
            continue
        cell = cells[pairs[p]["cell"] + bucket[a] * buckets[b] + bucket[b]]
        scanned += cell["length"]
        low_a, high_a, low_b, high_b = low[a], high[a], low[b], high[b]
        for k in range(cell["at"], cell["at"] + cell["length"]):
            if (
                pool[k]["low1"] <= high_a
                and low_a <= pool[k]["high1"]
                and pool[k]["low2"] <= high_b
                and low_b <= pool[k]["high2"]
            ):
                out[count] = pool[k]["row"]
                count += 1
    counters[SCANNED] += scanned
    for i in range(count):
        at[i] = start[out[i]]
    found = 0
    for i in range(count):
        if holds(atoms, at[i], low, high):
            out[found] = out[i]
            found += 1
    return found


def match_batch(
    atoms: Any,
    start: Any,
    rows: int,
    events: int,
    values: Any,
    masks: Any,
    filled: Any,
    out_event: Any,
    out_row: Any,
) -> int:
    """Up to 64 events against every row: per column the sorted values and the running union of their events.

    Returns how many (event, row) there are, written or not: with too little room the caller asks again.
    """
    count = 0
    for row in range(rows):
        at = start[row]
        if at < 0:
            continue
        everyone = np.uint64(0xFFFFFFFFFFFFFFFF)
        last = 0
        while not last and everyone:
            group = np.uint64(0)
            kind = OR_NEXT
            while kind & OR_NEXT:
                kind = atoms[at]["kind"]
                column = atoms[at]["column"]
                present = masks[column, filled[column]]
                what = kind & _KIND_MASK
                if what <= OUTSIDE:
                    n = filled[column]
                    upto = np.searchsorted(values[column, :n], atoms[at]["high"], "right")
                    behind = np.searchsorted(values[column, :n], atoms[at]["low"], "left")
                    inside = masks[column, upto] & ~masks[column, behind]
                    group |= inside if what == INSIDE else present & ~inside
                else:
                    group |= ~(present | masks[column + 1, filled[column + 1]])
                at += 1
            last = kind & LAST
            everyone &= group
        event = 0
        while everyone and event < events:
            if everyone & np.uint64(1):
                if count < len(out_row):
                    out_event[count] = event
                    out_row[count] = row
                count += 1
            everyone >>= np.uint64(1)
            event += 1
    return count


INTERPRETED = Kernels(match, verify, file, match_batch)
_HELPERS = (holds, bucket_of, group_at, share_of, choose, downwards, post, take_out)


def _compile() -> Kernels | None:
    try:
        import numba
    except ImportError:
        return None
    from unisono.structures.matching.pairs import exercise

    # The same code over a second set of globals, in which the helpers are the compiled ones.
    names: dict[str, Any] = dict(globals())
    for function in (*_HELPERS, *INTERPRETED):
        again = FunctionType(function.__code__, names, function.__name__)
        names[function.__name__] = numba.njit(again, nogil=True, cache=True)
    kernels = Kernels(*(names[name] for name in Kernels._fields))
    exercise(kernels)
    return kernels


COMPILED = Kernel("matching", _compile)
