"""Boxes and events as arrays of numbers, for the compiled kernels.

Every attribute has two neighbouring columns: its number, and the code of anything else. Strings that subscriptions name
get codes; a string nobody names gets UNKNOWN. Every prefix length in use is a column of its own, holding the code of
that many letters. Absent is NaN, for which every comparison is false, as the language wants it.

Events come as two rows, `low` and `high`, which differ only for integers that a float cannot hold: those lie between
two neighbouring floats. What the numbers cannot decide (such integers, ranges of strings) is decided once more by the
box itself: the arrays may say yes too often, never too rarely.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.model.predicate import Box, Values
from unisono.model.predicate.values import ABSENT, FALSE, NULL, OTHER, PRESENT_KINDS, TRUE, Number

INSIDE, OUTSIDE, MISSING_ATTRIBUTE = 0, 1, 2
OR_NEXT, LAST = 4, 8
UNKNOWN = float(2**40)
FIRST_STRING = 16.0
ALWAYS = 0  # a column every event has, for the box that asks for nothing
_KIND_CODES = ((FALSE, 0.0), (TRUE, 1.0), (NULL, 2.0), (OTHER, 3.0))
_EXACT = 2**53

Floats = npt.NDArray[np.float64]
ATOM = np.dtype([("low", "f8"), ("high", "f8"), ("column", "i4"), ("kind", "i4")])
Atom = tuple[float, float, int, int]


class Codes:
    """The strings of one column that rows name, each with a code; one that nobody names any more gives it back."""

    __slots__ = ("_free", "_of", "_uses")

    def __init__(self) -> None:
        self._of: dict[str, float] = {}
        self._uses: dict[str, int] = {}
        self._free: list[float] = []

    def __len__(self) -> int:
        return len(self._of)

    def get(self, text: str) -> float:
        return self._of.get(text, UNKNOWN)

    def take(self, text: str) -> float:
        if text not in self._of:
            self._of[text] = self._free.pop() if self._free else FIRST_STRING + len(self._of)
        self._uses[text] = self._uses.get(text, 0) + 1
        return self._of[text]

    def give_back(self, text: str) -> None:
        self._uses[text] -= 1
        if not self._uses[text]:
            del self._uses[text]
            self._free.append(self._of.pop(text))


class Columns:
    """Which attribute is which column, and which string which code; what no row asks for is given to the next."""

    def __init__(self) -> None:
        self.count = 1
        self.coded: list[bool] = [True]
        self._of: dict[str, int] = {}
        self._uses: dict[str, int] = {}
        self._codes: dict[str, Codes] = {}
        self._prefixes: dict[str, dict[int, tuple[int, Codes]]] = {}
        self._free: list[int] = []  # pairs of columns, by the first
        self._free_prefixes: list[int] = []

    @property
    def codes(self) -> int:
        """How many strings have a code."""
        prefixes = (codes for lengths in self._prefixes.values() for _, codes in lengths.values())
        return sum(map(len, self._codes.values())) + sum(map(len, prefixes))

    def of(self, name: str) -> int:
        """The attribute's number column; its code column is the next one."""
        column = self._of.get(name)
        if column is None:
            column = self._of[name] = self._free.pop() if self._free else self._new_columns(False, True)
            self._codes[name] = Codes()
        return column

    def _new_columns(self, *coded: bool) -> int:
        first = self.count
        self.count += len(coded)
        self.coded += coded
        return first

    def prefix(self, name: str, text: str) -> tuple[int, float]:
        """The column of prefixes as long as `text`, and its code there."""
        lengths = self._prefixes.setdefault(name, {})
        if len(text) not in lengths:
            column = self._free_prefixes.pop() if self._free_prefixes else self._new_columns(True)
            lengths[len(text)] = (column, Codes())
        column, codes = lengths[len(text)]
        return column, codes.take(text)

    def forget(self, box: Box) -> None:
        """A row of this box is gone, and what it took."""
        for name, values in box.sides:
            for text, is_prefix in _named(values):
                if is_prefix:
                    self._forget_prefix(name, text)
                else:
                    self._codes[name].give_back(text)
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._uses[name], self._codes[name]
                self._free.append(self._of.pop(name))

    def _forget_prefix(self, name: str, text: str) -> None:
        lengths = self._prefixes[name]
        column, codes = lengths[len(text)]
        codes.give_back(text)
        if not codes:
            del lengths[len(text)]
            self._free_prefixes.append(column)
            if not lengths:
                del self._prefixes[name]

    def encode(self, event: Mapping[str, object], row: Floats) -> list[tuple[int, float]]:
        """Fills a row of NaN; returns the columns whose integer lies between the value written and the one given."""
        between: list[tuple[int, float]] = []
        for name, value in event.items():
            column = self._of.get(name)
            if column is None:
                continue
            if isinstance(value, float):
                row[column] = value
            elif isinstance(value, str):
                row[column + 1] = self._codes[name].get(value)
                for length, (prefix_column, codes) in self._prefixes.get(name, _NO_PREFIXES).items():
                    row[prefix_column] = codes.get(value[:length]) if len(value) >= length else UNKNOWN
            elif value is None:
                row[column + 1] = 2.0
            elif isinstance(value, bool):
                row[column + 1] = float(value)
            elif isinstance(value, int):
                if -_EXACT <= value <= _EXACT:
                    row[column] = value
                else:
                    low, high = around(value)
                    row[column] = low
                    if high != low:
                        between.append((column, high))
            else:
                row[column + 1] = 3.0
        return between

    def atoms(self, box: Box) -> tuple[list[Atom], bool]:
        """The box as groups of alternatives, one group per side; and whether they decide exactly."""
        atoms: list[Atom] = []
        exact = True
        for name, values in box.sides:
            column = self.of(name)
            self._uses[name] = self._uses.get(name, 0) + 1
            group, group_exact = self._group(name, column, values)
            atoms += [(low, high, col, kind | OR_NEXT) for low, high, col, kind in group[:-1]]
            atoms.append(group[-1])
            exact = exact and group_exact
        if not atoms:
            return [(-math.inf, math.inf, ALWAYS, INSIDE | LAST)], True
        low, high, col, kind = atoms[-1]
        atoms[-1] = (low, high, col, kind | LAST)
        return atoms, exact

    def _group(self, name: str, column: int, values: Values) -> tuple[list[Atom], bool]:
        exact = True
        group: list[Atom] = []
        cuts = values.numbers
        if len(cuts) == 3 and cuts[0] == (-math.inf, 0):  # everything but one hole
            hole, whole = _closed(cuts[1], cuts[2])
            if whole:
                group.append((*hole, column, OUTSIDE))
            else:
                group.append((-math.inf, math.inf, column, INSIDE))
                exact = False
        else:
            for start, end in zip(cuts[::2], (*cuts[1::2], (math.inf, 1))):
                interval, whole = _closed(start, end)
                group.append((*interval, column, INSIDE))
                exact = exact and whole
        texts, texts_exact = self._texts(name, column + 1, values)
        group += texts
        if values.kinds & ABSENT:
            group.append((0.0, 0.0, column, MISSING_ATTRIBUTE))
        return group, exact and texts_exact

    def _texts(self, name: str, column: int, values: Values) -> tuple[list[Atom], bool]:
        cuts, kinds = values.strings, values.kinds & PRESENT_KINDS
        if kinds == PRESENT_KINDS:
            if cuts == ("",):
                return [(-math.inf, math.inf, column, INSIDE)], True
            if _is_all_but_one(cuts):
                code = self._codes[name].take(cuts[1])
                return [(code, code, column, OUTSIDE)], True
        group: list[Atom] = [(code, code, column, INSIDE) for bit, code in _KIND_CODES if kinds & bit]
        exact = True
        for start, end in zip(cuts[::2], (*cuts[1::2], None)):
            if start == "" and end is None:
                group.append((FIRST_STRING, math.inf, column, INSIDE))
            elif end == start + "\0":
                code = self._codes[name].take(start)
                group.append((code, code, column, INSIDE))
            elif _is_prefix(start, end):
                prefix_column, code = self.prefix(name, start)
                group.append((code, code, prefix_column, INSIDE))
            else:
                group.append((FIRST_STRING, math.inf, column, INSIDE))
                exact = False
        return group, exact


_NO_PREFIXES: dict[int, tuple[int, Codes]] = {}


def _named(values: Values) -> Iterator[tuple[str, bool]]:
    """The strings that have codes for a side of these values, each with whether it is a prefix."""
    cuts = values.strings
    if values.kinds & PRESENT_KINDS == PRESENT_KINDS:
        if cuts == ("",):
            return
        if _is_all_but_one(cuts):
            yield cuts[1], False
            return
    for start, end in zip(cuts[::2], (*cuts[1::2], None)):
        if end == start + "\0":
            yield start, False
        elif _is_prefix(start, end):
            yield start, True


def _is_all_but_one(cuts: tuple[str, ...]) -> bool:
    return len(cuts) == 3 and cuts[0] == "" and cuts[2] == cuts[1] + "\0"


def _is_prefix(start: str, end: str | None) -> bool:
    return bool(start) and end is not None and end[:-1] == start[:-1] and _follows(start[-1], end[-1])


def _follows(letter: str, next_letter: str) -> bool:
    return ord(next_letter) == (0xE000 if letter == "\ud7ff" else ord(letter) + 1)


def around(value: Number) -> tuple[float, float]:
    """The floats next to a number, below and above; equal if a float holds it."""
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    if near == value:
        return near, near
    return (near, math.nextafter(near, math.inf)) if near < value else (math.nextafter(near, -math.inf), near)


def _closed(start: tuple[Number, int], end: tuple[Number, int]) -> tuple[tuple[float, float], bool]:
    """Cuts as a closed interval of floats, never narrower; and whether it is the same set."""
    low, low_above = around(start[0])
    high_below, high = around(end[0])
    exact = low == low_above and high == high_below
    if low == low_above and start[1]:
        low = math.nextafter(low, math.inf)
    if high == high_below and not end[1]:
        high = math.nextafter(high, -math.inf)
    return (low, high), exact


class AtomStore:
    """The atoms of all rows in one array, in the order of arrival, with holes where rows were removed."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.atoms: npt.NDArray[Any] = np.zeros(64, ATOM)
        self.start = np.full(64, -1, np.int32)
        self.inexact: dict[int, None] = {}  # rows whose atoms say yes too often
        self.used = 0
        self.live = 0
        self.rows = 0  # one more than the largest row ever in use
        self.count = 0

    def add(self, row: int, box: Box) -> None:
        atoms, exact = self.columns.atoms(box)
        if not exact:
            self.inexact[row] = None
        if self.used + len(atoms) > len(self.atoms):
            self._make_room(len(atoms))
        if row >= len(self.start):
            grown = np.full(max(row + 1, 2 * len(self.start)), -1, np.int32)
            grown[: len(self.start)] = self.start
            self.start = grown
        self.atoms[self.used : self.used + len(atoms)] = atoms
        self.start[row] = self.used
        self.used += len(atoms)
        self.live += len(atoms)
        self.count += 1
        self.rows = max(self.rows, row + 1)

    def remove(self, row: int, box: Box) -> None:
        self.columns.forget(box)
        self.inexact.pop(row, None)
        at = int(self.start[row])
        end = at
        while not self.atoms["kind"][end] & LAST:
            end += 1
        self.live -= end + 1 - at
        self.count -= 1
        self.start[row] = -1

    def _make_room(self, needed: int) -> None:
        """Closes the holes if they are half of the array, else doubles it."""
        if self.live * 2 <= self.used:
            rows = np.flatnonzero(self.start >= 0)
            rows = rows[np.argsort(self.start[rows])]
            starts = self.start[rows]
            ends = np.flatnonzero(self.atoms["kind"][: self.used] & LAST)
            lengths = ends[np.searchsorted(ends, starts)] + 1 - starts
            new_starts = np.cumsum(lengths) - lengths
            self.atoms[: self.live] = self.atoms[
                np.repeat(starts - new_starts, lengths) + np.arange(self.live, dtype=np.int64)
            ]
            self.start[rows] = new_starts
            self.used = self.live
        if self.used + needed > len(self.atoms):
            grown = np.zeros(max(2 * len(self.atoms), self.used + needed), ATOM)
            grown[: self.used] = self.atoms[: self.used]
            self.atoms = grown

    @property
    def bytes(self) -> int:
        return self.atoms.nbytes + self.start.nbytes

    def blank(self) -> Floats:
        row = np.full(self.columns.count, np.nan)
        row[ALWAYS] = 0.0
        return row

    def encode(self, event: Mapping[str, object]) -> tuple[Floats, Floats, bool]:
        """The two rows of an event, and whether they hold it exactly."""
        low = self.blank()
        between = self.columns.encode(event, low)
        if not between:
            return low, low, True
        high = low.copy()
        for column, value in between:
            high[column] = value
        return low, high, False
