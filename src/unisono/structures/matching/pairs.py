"""The pair index: every row is filed under its two most selective sides, by bucket.

An event looks into one cell per pair of columns it carries, compares four bounds inline, and asks the row itself for
the rest. Which two sides are most selective is estimated from the values of recent events, or from the subscriptions'
own bounds until events have been seen; the choice is stored with the row, so that a later estimate cannot lose it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unisono.model.predicate import Box, parse
from unisono.structures.matching.kernels import (
    BUCKETS_MAX,
    CELL,
    CELLS_MISSING,
    CHOOSE_AND_FILE,
    COLUMN_A,
    COLUMN_B,
    COUNTERS,
    FILE_AS_CHOSEN,
    MISSING,
    NEEDED,
    PAIR,
    POOL_USED,
    POSTING,
    SCANNED,
    TAKE_OUT,
    Kernels,
)
from unisono.structures.matching.packed import INSIDE, AtomStore, Floats

_NUMBER_BUCKETS = 16
_SAMPLE = 256  # events remembered for the estimates
_SAMPLE_EVERY = 16
_SAMPLE_MIN = 64
_ACCESS_COLUMNS_MAX = 512
_CELLS_MAX = 4_000_000  # 64 MB of cells; further pairs of columns share coarser cells
_BATCH = 64
# One posting costs about as much as this many rows of the batch scan.
_POSTING_COST = 35


class PairEngine:
    """Rows of boxes in cells; needs numpy, and is fast with compiled kernels."""

    def __init__(self, kernels: Kernels, boxes: Sequence[Box | None]) -> None:
        """`boxes` holds the box of every row, kept by the owner: it decides what arrays cannot."""
        self._kernels = kernels
        self._boxes = boxes
        self.store = AtomStore()
        self._choice = np.full((64, 2), -1, np.int32)
        self._sample = np.full((_SAMPLE, 1), np.nan)
        self._seen = 0
        self._out = np.empty(64, np.int32)
        self._at = np.empty(64, np.int32)
        self._built_rows = 0
        self._built_with_events = False
        self._matched = 0
        self._layout()

    def add(self, row: int, box: Box) -> None:
        self.store.add(row, box)
        if row >= len(self._choice):
            grown = np.full((len(self.store.start), 2), -1, np.int32)
            grown[: len(self._choice)] = self._choice
            self._choice = grown
        self._know_columns()
        if self.store.columns.count > len(self._coded) or self.store.count > 2 * self._built_rows + 64:
            self._rebuild()
        else:
            self._file(row, row + 1, CHOOSE_AND_FILE)

    def add_all(self, boxes: Sequence[tuple[int, Box]]) -> None:
        """Many at once: filed in one go."""
        for row, box in boxes:
            self.store.add(row, box)
        if len(self._choice) < len(self.store.start):
            self._choice = np.full((len(self.store.start), 2), -1, np.int32)
        self._rebuild()

    def remove(self, row: int, box: Box) -> None:
        self._file(row, row + 1, TAKE_OUT)
        self.store.remove(row, box)

    def match(self, event: Mapping[str, object]) -> list[int]:
        low, high, exact = self.store.encode(event)
        self._remember(low)
        found = self._match(low, high)
        if exact and not self.store.inexact:
            return found
        return [row for row in found if self._agrees(row, event, exact)]

    def candidates_per_event(self) -> float:
        """Postings looked at per event so far; what the choice between index and batch goes by."""
        return int(self._counters[SCANNED]) / max(1, self._matched)

    def match_batch(self, events: Sequence[Mapping[str, object]]) -> list[list[int]]:
        """The same answers as `match` one by one; when many rows match, one pass over all rows is cheaper."""
        found: list[list[int]] = []
        for first in range(0, len(events), _BATCH):
            batch = events[first : first + _BATCH]
            if self._matched < _SAMPLE_MIN or self.candidates_per_event() * _POSTING_COST < self.store.rows:
                found += [self.match(event) for event in batch]
            else:
                found += self.scan_batch(batch)
        return found

    def scan_batch(self, events: Sequence[Mapping[str, object]]) -> list[list[int]]:
        """Up to 64 events against every row, as bits of one word."""
        encoded = [self.store.encode(event) for event in events]
        found: list[list[int]] = [[] for _ in events]
        exact = [i for i, (_, _, is_exact) in enumerate(encoded) if is_exact]
        if exact:
            for place, row in self._scan(np.stack([encoded[i][0] for i in exact])):
                i = exact[place]
                if self._agrees(row, events[i], True):
                    found[i].append(row)
        for i, (low, high, is_exact) in enumerate(encoded):
            if not is_exact:
                found[i] = [row for row in self._match(low, high) if self._agrees(row, events[i], False)]
        return found

    @property
    def codes(self) -> int:
        return self.store.columns.codes

    @property
    def bytes(self) -> int:
        arrays = (self._choice, self._borders, self._weights, self._pair_of, self._pairs, self._cells, self._pool)
        return self.store.bytes + sum(array.nbytes for array in arrays)

    def _agrees(self, row: int, event: Mapping[str, object], event_exact: bool) -> bool:
        if event_exact and row not in self.store.inexact:
            return True
        box = self._boxes[row]
        return box is not None and box.matches(event)

    def _match(self, low: Floats, high: Floats) -> list[int]:
        s = self.store
        if len(self._out) < s.rows:
            self._out = np.empty(2 * s.rows, np.int32)
            self._at = np.empty(2 * s.rows, np.int32)
        self._matched += 1
        count = self._kernels.match(
            s.atoms, s.start, self._borders, self._buckets, self._coded, self._single, self._pairs, self._pair_count,
            self._cells, self._pool, self._counters, low, high, self._bucket, self._out, self._at,
        )  # fmt: skip
        found: list[int] = self._out[:count].tolist()
        return found

    def _scan(self, table: Floats) -> list[tuple[int, int]]:
        events, columns = table.shape
        filled = np.sum(~np.isnan(table), axis=0)
        order = np.argsort(table, axis=0, kind="stable").T  # NaN sorts to the end
        values = np.ascontiguousarray(np.take_along_axis(table.T, order, axis=1))
        bits = np.where(np.isnan(values), np.uint64(0), np.uint64(1) << order.astype(np.uint64))
        masks = np.zeros((columns, events + 1), np.uint64)
        masks[:, 1:] = np.bitwise_or.accumulate(bits, axis=1)
        room = 4096
        while True:
            out_event, out_row = np.empty(room, np.int32), np.empty(room, np.int32)
            s = self.store
            count = self._kernels.match_batch(
                s.atoms, s.start, s.rows, events, values, masks, filled, out_event, out_row
            )
            if count <= room:
                return list(zip(out_event[:count].tolist(), out_row[:count].tolist()))
            room = count

    def _remember(self, low: Floats) -> None:
        self._seen += 1
        if self._seen > _SAMPLE_MIN and self._seen % _SAMPLE_EVERY:
            return
        if self._sample.shape[1] < len(low):
            grown = np.full((_SAMPLE, len(low)), np.nan)
            grown[:, : self._sample.shape[1]] = self._sample
            self._sample = grown
        slot = self._seen if self._seen <= _SAMPLE_MIN else _SAMPLE_MIN + self._seen // _SAMPLE_EVERY
        self._sample[slot % _SAMPLE, : len(low)] = low
        if self._seen == _SAMPLE_MIN and not self._built_with_events and self.store.count:
            self._rebuild()

    def _layout(self) -> None:
        """Empty cells, with borders and weights from what is known now."""
        columns = max(8, 2 * self.store.columns.count)
        coded = self.store.columns.coded
        self._laid_out = len(coded)
        self._coded = np.zeros(columns, np.bool_)
        self._coded[: len(coded)] = coded
        self._buckets = np.where(self._coded, BUCKETS_MAX, _NUMBER_BUCKETS).astype(np.int64)
        self._borders = np.full((columns, BUCKETS_MAX), np.inf)
        self._weights = np.zeros((columns, BUCKETS_MAX))
        self._estimate()
        access = min(columns, _ACCESS_COLUMNS_MAX)
        self._single = np.full(access, -1, np.int32)
        self._pair_of = np.full((access, access), -1, np.int32)
        self._pairs: Any = np.zeros(64, PAIR)
        self._pair_count = 0
        self._cells: Any = np.zeros(1024, CELL)
        self._cell_count = 1  # cell 0 holds the rows without an access predicate
        self._pool: Any = np.zeros(max(1024, 8 * self.store.count), POSTING)
        self._counters = np.zeros(COUNTERS, np.int64)
        self._matched = 0
        self._bucket = np.zeros(columns, np.int32)

    def _know_columns(self) -> None:
        """Columns that came after the layout: nothing is filed under them yet, so their kind can still be set."""
        coded = self.store.columns.coded
        for column in range(self._laid_out, min(len(coded), len(self._coded))):
            self._coded[column] = coded[column]
            self._buckets[column] = BUCKETS_MAX if coded[column] else _NUMBER_BUCKETS
            self._weights[column] = 1 / self._buckets[column]
        self._laid_out = len(coded)

    def _estimate(self) -> None:
        sample = self._sample[: min(self._seen, _SAMPLE)]
        self._built_with_events = len(sample) >= _SAMPLE_MIN
        atoms = self.store.atoms[: self.store.used]
        inside = atoms[(atoms["kind"] & 3) == INSIDE]
        for column in range(self.store.columns.count):
            seen = sample[:, column] if self._built_with_events and column < sample.shape[1] else np.empty(0)
            seen = seen[~np.isnan(seen)]
            buckets = int(self._buckets[column])
            presence = len(seen) / len(sample) if self._built_with_events else 1.0
            if self._coded[column]:
                counts = np.bincount(seen.astype(np.int64) % buckets, minlength=buckets) + 0.5
            else:
                known = seen
                if len(known) < _NUMBER_BUCKETS:
                    bounds = inside[inside["column"] == column]
                    known = np.concatenate([bounds["low"], bounds["high"]])
                known = known[np.isfinite(known)]
                if len(known):
                    steps = np.arange(1, buckets) / buckets
                    self._borders[column, : buckets - 1] = np.quantile(known, steps, method="lower")
                counts = np.ones(buckets)
            self._weights[column, :buckets] = presence * counts / counts.sum()

    def _rebuild(self) -> None:
        self._layout()
        self._built_rows = self.store.count
        self._file(0, self.store.rows, CHOOSE_AND_FILE)

    def _file(self, first_row: int, end_row: int, task: int) -> None:
        """Runs the kernel to its end, giving it room where it asks for some."""
        s, row = self.store, first_row
        while True:
            row = self._kernels.file(
                row, end_row, task, s.atoms, s.start, self._choice, self._borders, self._buckets, self._coded,
                self._weights, self._single, self._pair_of, self._pairs, self._cells, self._pool, self._counters,
            )  # fmt: skip
            if row == end_row:
                return
            if self._counters[MISSING] == CELLS_MISSING:
                if not self._grow_cells(int(self._counters[COLUMN_A]), int(self._counters[COLUMN_B])):
                    self._file_coarsely(row)
                    row += 1
            elif first_row + 1 == end_row and self._shrinks():
                self._rebuild()
                return
            else:
                self._grow_pool(int(self._counters[NEEDED]))

    def _file_coarsely(self, row: int) -> None:
        """At the bound on cells: without the second side, or without any."""
        self._choice[row, 1 if self._choice[row, 1] >= 0 else 0] = -1
        self._file(row, row + 1, FILE_AS_CHOSEN)

    def _shrinks(self) -> bool:
        """Whether more than half of a large pool is dead, so that filing everything anew is worth it."""
        if len(self._pool) < 1 << 20:
            return False
        live = int(self._cells["length"][: self._cell_count].sum())
        return 4 * live < int(self._counters[POOL_USED])

    def _grow_pool(self, needed: int) -> None:
        grown = np.zeros(2 * len(self._pool) + needed, POSTING)
        grown[: len(self._pool)] = self._pool
        self._pool = grown

    def _grow_cells(self, a: int, b: int) -> bool:
        """Makes the cells of a pair of columns, or of a single one; returns whether there was room."""
        count = int(self._buckets[a]) * (int(self._buckets[b]) if b >= 0 else 1)
        if self._cell_count + count > _CELLS_MAX:
            return False
        while self._cell_count + count > len(self._cells):
            self._cells = np.concatenate([self._cells, np.zeros(len(self._cells), CELL)])
        if b >= 0:
            if self._pair_count == len(self._pairs):
                self._pairs = np.concatenate([self._pairs, np.zeros(len(self._pairs), PAIR)])
            self._pairs[self._pair_count] = (a, b, self._cell_count)
            self._pair_of[a, b] = self._pair_count
            self._pair_count += 1
        else:
            self._single[a] = self._cell_count
        self._cell_count += count
        return True


def exercise(kernels: Kernels) -> None:
    """Calls every kernel with the types it will see, so that compiling happens here and not under an event."""
    box = parse("a = 1 and b = 'x' and not c > 2 and d prefix 'y'").boxes[0]
    engine = PairEngine(kernels, [box] * 3)
    engine.add(0, box)
    engine.add_all([(row, box) for row in range(1, 3)])
    engine.match({"a": 1, "b": "x", "d": "yes"})
    engine.scan_batch([{"a": 1}])
    low = engine.store.blank()
    kernels.verify(engine.store.atoms, engine.store.start, np.zeros(1, np.uint32), low, low, np.empty(1, np.int32))
    engine.remove(0, box)
