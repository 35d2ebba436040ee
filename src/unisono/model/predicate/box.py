"""Boxes: conjunctions over attributes, and their exact algebra (specs of covering, intersection and merging).

A box constrains some attributes; every other attribute may hold anything or be absent. A box is never empty: functions
that could produce an empty one return None. An attribute that may hold everything is not mentioned. So equal boxes
are equal objects.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from unisono.model.predicate.cost import Steps
from unisono.model.predicate.values import EVERYTHING, MISSING, Values, intersect_all, union_all

Measure = Callable[[str, Values], float]
"""The share of events whose attribute lies in a set: additive over disjoint sets, 1 for everything."""


class Box(Struct, frozen=True):
    """Attributes, sorted by name, and what each may hold."""

    sides: tuple[tuple[str, Values], ...] = ()

    def matches(self, event: Mapping[str, object]) -> bool:
        # A plain loop, not all(): this is the hot path of every engine without kernels.
        for name, values in self.sides:  # noqa: SIM110
            if not values.contains(event.get(name, MISSING)):
                return False
        return True

    def covers(self, other: "Box") -> bool:
        """Whether everything in `other` lies in this box. An attribute `other` does not mention may hold anything."""
        theirs = dict(other.sides)
        return all(name in theirs and values.covers(theirs[name]) for name, values in self.sides)

    def overlaps(self, other: "Box") -> bool:
        theirs = dict(other.sides)
        return all(name not in theirs or values.overlaps(theirs[name]) for name, values in self.sides)

    @property
    def weight(self) -> int:
        """What looking at all of it costs, in steps."""
        return 1 + sum(values.weight for _, values in self.sides)

    def intersect(self, other: "Box") -> "Box | None":
        if not self.sides or self == other:
            return other
        if not other.sides:
            return self
        sides = dict(self.sides)
        for name, values in other.sides:
            sides[name] = sides[name] & values if name in sides else values
        return make_box(sides)

    def minus(self, other: "Box") -> "list[Box]":
        """Disjoint boxes that together hold what is here and not there; at most one per attribute of `other`."""
        if not self.overlaps(other):
            return [self]
        pieces: list[Box] = []
        sides = dict(self.sides)
        for name, values in other.sides:
            mine = sides.get(name, EVERYTHING)
            outside = make_box({**sides, name: mine.minus(values)})
            if outside is not None:
                pieces.append(outside)
            sides[name] = mine & values
        return pieces

    def merge(self, other: "Box") -> "Box | None":
        """The union, if it is a box: one covers the other, or they differ in exactly one attribute."""
        if self.covers(other):
            return self
        if other.covers(self):
            return other
        mine, theirs = dict(self.sides), dict(other.sides)
        if mine.keys() != theirs.keys():
            return None
        differing = [name for name in mine if mine[name] != theirs[name]]
        if len(differing) != 1:
            return None
        mine[differing[0]] = mine[differing[0]] | theirs[differing[0]]
        return make_box(mine)

    def hull(self, other: "Box") -> "Box":
        """The smallest box around both."""
        theirs = dict(other.sides)
        around = make_box({name: values | theirs[name] for name, values in self.sides if name in theirs})
        assert around is not None  # a union with a non-empty set is not empty
        return around

    def measure(self, share: Measure) -> float:
        product = 1.0
        for name, values in self.sides:
            product *= share(name, values)
        return product


ANYTHING = Box()


def make_box(sides: Mapping[str, Values]) -> Box | None:
    """The box of these sides, or None if one of them is empty."""
    kept = []
    for name in sorted(sides):
        values = sides[name]
        if values.is_empty:
            return None
        if values != EVERYTHING:
            kept.append((name, values))
    return Box(tuple(kept))


def meet_of(boxes: Sequence[Box], steps: Steps) -> Box | None:
    """What lies in all of the boxes; the sides of one attribute are met together."""
    sides: dict[str, list[Values]] = {}
    for box in boxes:
        for name, values in box.sides:
            steps.take(values.weight)
            sides.setdefault(name, []).append(values)
    return make_box({name: intersect_all(found) for name, found in sides.items()})


def reduced(boxes: Iterable[Box], steps: Steps) -> list[Box]:
    """The same union in fewer boxes: perfect merges and absorption, in an order that depends on the set alone."""
    known = list(dict.fromkeys(boxes))
    while len(known) > 1:
        merged = _absorbed(_merged(known, steps), steps)
        if len(merged) == len(known):
            return merged
        known = merged
    return known


def sort_key(box: Box) -> str:
    return repr(box)


_Sides = tuple[int, ...]


class _Table:
    """Boxes as tuples of the numbers of their sides, so that a long set of values is hashed once."""

    def __init__(self, boxes: list[Box], steps: Steps) -> None:
        self._sides: list[tuple[str, Values]] = []
        self._numbers: dict[tuple[str, Values], int] = {}
        self._steps = steps
        self.boxes: dict[_Sides, None] = {}
        self._holders: dict[str, dict[_Sides, int]] = {}
        for box in boxes:
            for _, values in box.sides:
                steps.take(values.weight)
            self._add(tuple(self._number(side) for side in box.sides))

    def _number(self, side: tuple[str, Values]) -> int:
        number = self._numbers.setdefault(side, len(self._sides))
        if number == len(self._sides):
            self._sides.append(side)
        return number

    def _add(self, box: _Sides) -> None:
        self.boxes[box] = None
        for number in box:
            self._holders.setdefault(self._sides[number][0], {})[box] = number

    def unite(self, name: str) -> None:
        """Boxes that differ in this attribute only become one; one that does not mention it takes in the others."""
        groups: dict[_Sides, list[tuple[_Sides, int]]] = {}
        for box, number in self._holders[name].items():
            if box in self.boxes:
                self._steps.take(len(box))
                groups.setdefault(tuple(side for side in box if side != number), []).append((box, number))
        for rest, found in groups.items():
            is_wider = rest in self.boxes
            if len(found) == 1 and not is_wider:
                continue
            for box, _ in found:
                del self.boxes[box]
            if not is_wider:
                self._add(self._united(name, rest, [self._sides[number][1] for _, number in found]))

    def _united(self, name: str, rest: _Sides, found: list[Values]) -> _Sides:
        self._steps.take(sum(values.weight for values in found))
        values = union_all(found)
        if values == EVERYTHING:
            return rest
        return tuple(sorted((*rest, self._number((name, values))), key=lambda number: self._sides[number][0]))

    def names(self) -> list[str]:
        return sorted(self._holders)

    def result(self) -> list[Box]:
        return [Box(tuple(self._sides[number] for number in box)) for box in self.boxes]


def _merged(boxes: list[Box], steps: Steps) -> list[Box]:
    """Unites boxes that differ in one attribute, found by hashing all the others; linear in the number of boxes."""
    table = _Table(boxes, steps)
    for name in table.names():
        table.unite(name)
    return table.result()


def _absorbed(boxes: list[Box], steps: Steps) -> list[Box]:
    kept: dict[Box, dict[str, Values]] = {}
    for box in boxes:
        sides = dict(box.sides)
        steps.take(sum(values.weight for values in sides.values()))
        if not any(_covers(other, sides, steps) for other in kept.values()):
            for covered in [other for other, theirs in kept.items() if _covers(sides, theirs, steps)]:
                del kept[covered]
            kept[box] = sides
    return sorted(kept, key=sort_key)


def _covers(mine: dict[str, Values], theirs: dict[str, Values], steps: Steps) -> bool:
    steps.take()
    if len(mine) > len(theirs):
        return False
    for name, values in mine.items():
        other = theirs.get(name)
        if other is None or not values.may_cover(other):
            return False
        steps.take(values.weight + other.weight)
        if not values.covers(other):
            return False
    return True
