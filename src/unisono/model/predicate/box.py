"""Boxes: conjunctions over attributes, and their exact algebra (specs of covering, intersection and merging).

A box constrains some attributes; every other attribute may hold anything or be absent. A box is never empty: functions
that could produce an empty one return None. An attribute that may hold everything is not mentioned. So equal boxes
are equal objects.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from unisono.model.predicate.values import EVERYTHING, MISSING, Values

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


def reduced(boxes: list[Box]) -> list[Box]:
    """The same union in fewer boxes: perfect merges and absorption, in an order that depends on the set alone."""
    while True:
        merged = _absorbed(_merged(boxes))
        if len(merged) == len(boxes):
            return merged
        boxes = merged


def sort_key(box: Box) -> str:
    return repr(box)


def _merged(boxes: list[Box]) -> list[Box]:
    """Unites boxes that differ in one attribute, found by hashing all the others; linear in the number of boxes."""
    current = sorted(set(boxes), key=sort_key)
    for name in sorted({name for box in current for name, _ in box.sides}):
        groups: dict[tuple[tuple[str, Values], ...], Values] = {}
        for box in current:
            rest = tuple(side for side in box.sides if side[0] != name)
            values = next((values for side, values in box.sides if side == name), EVERYTHING)
            groups[rest] = groups[rest] | values if rest in groups else values
        united = (make_box({**dict(rest), name: values}) for rest, values in groups.items())
        current = [box for box in united if box is not None]
    return current


def _absorbed(boxes: list[Box]) -> list[Box]:
    kept: list[Box] = []
    for box in boxes:
        if not any(other.covers(box) for other in kept):
            kept = [other for other in kept if not box.covers(other)]
            kept.append(box)
    return sorted(kept, key=sort_key)
