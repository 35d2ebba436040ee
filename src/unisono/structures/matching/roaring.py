"""The bitmap index: for every attribute and every bucket of its values, the rows that cannot match there.

An event takes one union of such bitmaps away from all rows; what is left is asked itself. Less memory than the pair
index and better above some 200 000 rows. Numbers fall into buckets between quantiles of the subscriptions' own bounds;
strings and constants that rows ask for by name have a bitmap each.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap

from unisono.model.predicate import MISSING, Box, Values

if TYPE_CHECKING:
    from unisono.structures.matching.kernels import Kernels
    from unisono.structures.matching.packed import AtomStore

_BUCKETS = 64
_BOUNDS_SAMPLED = 20_000


class _Attribute:
    """The bitmaps of one attribute, over the rows that constrain it."""

    __slots__ = ("absent_fails", "borders", "named", "names", "number_fails", "other_fails", "rows")

    def __init__(self, borders: list[float]) -> None:
        self.borders = borders
        self.number_fails: list[Any] = [BitMap() for _ in range(len(borders) + 1)]
        self.absent_fails: Any = BitMap()
        self.other_fails: Any = BitMap()  # neither a string nor a constant will do
        self.names: Any = BitMap()  # only the values of `named` will do
        self.named: dict[object, Any] = {}
        self.rows = 0


class RoaringEngine:
    """Rows of boxes as bitmaps of failures; candidates are verified by compiled kernels if there are any."""

    def __init__(self, boxes: Sequence[Box | None], kernels: "Kernels | None") -> None:
        self._boxes = boxes
        self._store: AtomStore | None = None
        if kernels is not None:
            from unisono.structures.matching import packed

            self._store, self._kernels = packed.AtomStore(), kernels
        self._rows: Any = BitMap()
        self._attributes: dict[str, _Attribute] = {}

    def add(self, row: int, box: Box) -> None:
        self._rows.add(row)
        if self._store is not None:
            self._store.add(row, box)
        for name, values in box.sides:
            attribute = self._attributes.get(name)
            if attribute is None:
                attribute = self._attributes[name] = _Attribute(_borders([values]))
            attribute.rows += 1
            for bitmap in _bitmaps(attribute, values):
                bitmap.add(row)

    def add_all(self, boxes: Sequence[tuple[int, Box]]) -> None:
        """Many at once into an empty index; borders come from their bounds."""
        sides: dict[str, list[Values]] = {}
        for _, box in boxes[:: 1 + len(boxes) // _BOUNDS_SAMPLED]:
            for name, values in box.sides:
                sides.setdefault(name, []).append(values)
        for name, seen in sides.items():
            if name not in self._attributes:
                self._attributes[name] = _Attribute(_borders(seen))
        if self._store is not None:
            for row, box in boxes:
                self._store.add(row, box)
        collected: dict[int, tuple[Any, list[int]]] = {}
        # A row fails in most buckets of its attribute: which few it meets is collected, the rest is the complement.
        constrained: dict[str, list[int]] = {}
        met: dict[tuple[str, int], list[int]] = {}
        for row, box in boxes:
            for name, values in box.sides:
                attribute = self._attributes.get(name)
                if attribute is None:
                    attribute = self._attributes[name] = _Attribute(_borders([values]))
                attribute.rows += 1
                constrained.setdefault(name, []).append(row)
                for bucket in _buckets_met(attribute.borders, values):
                    met.setdefault((name, bucket), []).append(row)
                for bitmap in _other_bitmaps(attribute, values):
                    collected.setdefault(id(bitmap), (bitmap, []))[1].append(row)
        for bitmap, rows in collected.values():
            bitmap.update(rows)
        for name, rows in constrained.items():
            everybody = BitMap(rows)
            for bucket, fails in enumerate(self._attributes[name].number_fails):
                fails |= everybody - BitMap(met.get((name, bucket), ()))
        self._rows.update([row for row, _ in boxes])

    def remove(self, row: int, box: Box) -> None:
        self._rows.discard(row)
        if self._store is not None:
            self._store.remove(row, box)
        for name, values in box.sides:
            attribute = self._attributes[name]
            for bitmap in _bitmaps(attribute, values):
                bitmap.discard(row)
            for named in _names(values):
                if not attribute.named[named]:
                    del attribute.named[named]
            attribute.rows -= 1
            if not attribute.rows:
                del self._attributes[name]

    def match(self, event: Mapping[str, object]) -> list[int]:
        failing: list[Any] = []
        for name, attribute in self._attributes.items():
            value: Any = event.get(name, MISSING)
            kind = type(value)
            if kind is float or kind is int:
                failing.append(attribute.number_fails[bisect_right(attribute.borders, value)])
            elif value is MISSING:
                failing.append(attribute.absent_fails)
            else:
                failing.append(attribute.other_fails)
                if attribute.names:
                    named = attribute.named.get(_name(value))
                    failing.append(attribute.names if named is None else attribute.names - named)
        candidates = self._rows - BitMap.union(*failing) if failing else self._rows
        if self._store is None:
            return [row for row in candidates if self._holds(row, event)]
        return self._verified(self._store, candidates, event)

    def _holds(self, row: int, event: Mapping[str, object]) -> bool:
        box = self._boxes[row]
        return box is not None and box.matches(event)

    def _verified(self, store: "AtomStore", candidates: Any, event: Mapping[str, object]) -> list[int]:
        import numpy as np

        low, high, exact = store.encode(event)
        rows = np.frombuffer(candidates.to_array(), np.uint32)
        out = np.empty(len(rows), np.int32)
        count = self._kernels.verify(store.atoms, store.start, rows, low, high, out)
        found: list[int] = out[:count].tolist()
        if exact and not store.inexact:
            return found
        return [row for row in found if (exact and row not in store.inexact) or self._holds(row, event)]

    @property
    def codes(self) -> int:
        stored = self._store.columns.codes if self._store is not None else 0
        return stored + sum(len(attribute.named) for attribute in self._attributes.values())

    @property
    def bytes(self) -> int:
        total = len(self._rows.serialize()) + (self._store.bytes if self._store is not None else 0)
        for attribute in self._attributes.values():
            bitmaps = [*attribute.number_fails, *attribute.named.values(), attribute.absent_fails]
            total += sum(len(b.serialize()) for b in [*bitmaps, attribute.other_fails, attribute.names])
        return total


def _name(value: object) -> object:
    """A key that keeps strings, constants and everything else apart."""
    if isinstance(value, str) or value is None:
        return value
    return (value,) if isinstance(value, bool) else ()


def _bitmaps(attribute: _Attribute, values: Values) -> list[Any]:
    """The bitmaps a row with this side belongs to; the same ones when it is removed."""
    met = _buckets_met(attribute.borders, values)
    fails = [attribute.number_fails[b] for b in range(len(attribute.number_fails)) if b not in met]
    return fails + _other_bitmaps(attribute, values)


def _other_bitmaps(attribute: _Attribute, values: Values) -> list[Any]:
    """Those of values that are no numbers."""
    bitmaps: list[Any] = []
    if not values.contains(MISSING):
        bitmaps.append(attribute.absent_fails)
    names = _names(values)
    if names:
        bitmaps.append(attribute.names)
    elif not values.contains([]) and not values.strings:
        bitmaps.append(attribute.other_fails)
    return bitmaps + [attribute.named.setdefault(name, BitMap()) for name in names]


def _names(values: Values) -> list[object]:
    """What is neither a number nor absent, if only few single values will do; empty if none will, or others too."""
    if values.contains([]):
        return []
    names: list[object] = [_name(value) for value in (False, True, None) if values.contains(value)]
    for start, end in zip(values.strings[::2], (*values.strings[1::2], None)):
        if end != start + "\0":
            return []  # a range: any string may do
        names.append(start)
    return names


def _buckets_met(borders: list[float], values: Values) -> set[int]:
    met: set[int] = set()
    cuts = values.numbers
    for start, end in zip(cuts[::2], (*cuts[1::2], None)):
        last = len(borders) if end is None else bisect_right(borders, end[0])
        met.update(range(bisect_right(borders, start[0]), last + 1))
    return met


def _borders(sides: list[Values]) -> list[float]:
    bounds = sorted({float(value) for values in sides for value, _ in values.numbers if abs(value) < 1e300})
    step = max(1, len(bounds) // _BUCKETS)
    return bounds[step::step][: _BUCKETS - 1]
