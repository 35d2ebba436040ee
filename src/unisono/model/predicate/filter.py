"""Filters: unions of boxes, closed under and, or, not; what `where=` and advertisements mean.

A filter of more than BOXES_MAX boxes is refused with the count: every box costs each matching and each comparison.
Bringing a union into its one spelling is counted in steps (`cost`), and so is covering by a union, which is co-NP
complete in general: beyond its budget the answer is the safe "no".
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.model.predicate.box import ANYTHING, Box, Measure, make_box, meet_of, reduced
from unisono.model.predicate.cost import FILTER_COST_MAX, CostError, Steps
from unisono.model.predicate.values import ALL_KINDS, MISSING, Values, check_string

BOXES_MAX = 64
_PIECES_MAX = 2_000
_Cut = TypeVar("_Cut")


class Filter(Struct, frozen=True):
    """A set of events: those that lie in at least one of the boxes."""

    boxes: tuple[Box, ...] = (ANYTHING,)

    def matches(self, event: Mapping[str, object]) -> bool:
        """`parse("px > 100").matches({"px": 101.2})`; nested events go through `flatten` first."""
        for box in self.boxes:  # noqa: SIM110
            if box.matches(event):
                return True
        return False

    def __and__(self, other: "Filter") -> "Filter":
        return conjunction((self, other), Steps())

    def __or__(self, other: "Filter") -> "Filter":
        return union_of((*self.boxes, *other.boxes))

    def __invert__(self) -> "Filter":
        return negation(self, Steps())

    def minus(self, other: "Filter") -> "Filter":
        pieces: list[Box] = []
        for box in self.boxes:
            rest = _subtract(box, other.boxes)
            if rest is None:
                raise MisuseError(f"the difference needs more than {_PIECES_MAX} boxes, or too many steps")
            pieces += rest
        return union_of(pieces)

    def covers(self, other: "Filter") -> bool:
        """Whether every event of `other` is one of ours; a "no" may be wrong when the question is very large."""
        return all(self._covers_box(box) for box in other.boxes)

    def _covers_box(self, box: Box) -> bool:
        if any(mine.covers(box) for mine in self.boxes):
            return True
        return _subtract(box, self.boxes) == []

    def overlaps(self, other: "Filter") -> bool:
        """Whether some event could match both."""
        return any(mine.overlaps(theirs) for mine in self.boxes for theirs in other.boxes)

    def sample(self) -> dict[str, object] | None:
        """Some event that matches, if one is easily found."""
        for box in self.boxes:
            try:
                event = {name: values.sample() for name, values in box.sides}
            except LookupError:
                continue
            return {name: value for name, value in event.items() if value is not MISSING}
        return None

    def measure(self, share: Measure) -> float:
        """The share of events matched, counting nothing twice; an upper bound when the union is very tangled."""
        total = 0.0
        for i, box in enumerate(self.boxes):
            pieces = _subtract(box, self.boxes[:i])
            total += sum(piece.measure(share) for piece in ([box] if pieces is None else pieces))
        return total

    @property
    def is_empty(self) -> bool:
        """No event can ever match: a contradiction, worth a word to whoever wrote it."""
        return not self.boxes

    @property
    def is_everything(self) -> bool:
        return self.boxes == (ANYTHING,)

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that decide, sorted."""
        return tuple(sorted({name for box in self.boxes for name, _ in box.sides}))


EVERY_EVENT = Filter()
NO_EVENT = Filter(())


def union_of(boxes: Iterable[Box], steps: Steps | None = None) -> Filter:
    """A filter of these boxes, reduced; raises MisuseError when more than BOXES_MAX remain, or at too many steps."""
    kept = reduced(boxes, steps or Steps())
    _check_count(len(kept))
    return Filter(tuple(kept))


def conjunction(filters: Sequence[Filter], steps: Steps) -> Filter:
    """What all of them let pass; those of one box are met at once, so many plain conditions cost their number."""
    met = meet_of([filter.boxes[0] for filter in filters if len(filter.boxes) == 1], steps)
    found = NO_EVENT if met is None else Filter((met,))
    for filter in filters:
        if len(filter.boxes) != 1:
            for box in found.boxes:
                steps.take(sum(box.weight + theirs.weight for theirs in filter.boxes))
            pairs = (mine.intersect(theirs) for mine in found.boxes for theirs in filter.boxes)
            found = union_of((box for box in pairs if box is not None), steps)
    return found


def negation(filter: Filter, steps: Steps) -> Filter:
    """What it does not let pass."""
    parts = []
    for box in filter.boxes:
        _check_count(len(box.sides))  # one box per side, and no two of them merge
        steps.take(box.weight * (1 + len(box.sides)))
        parts.append(union_of(ANYTHING.minus(box), steps))
    return conjunction(parts, steps)


def _check_count(boxes: int) -> None:
    if boxes > BOXES_MAX:
        raise MisuseError(f"the filter needs a union of {boxes} boxes, {BOXES_MAX} is the most: split it up")


def canonical(filter: Filter, cost_max: int = FILTER_COST_MAX) -> Filter:
    """The same filter as this room would have written it; raises MisuseError if it is none at all.

    For filters that strangers send: an algebra on sets that are not in their one spelling answers nonsense.
    """
    if len(filter.boxes) > BOXES_MAX:
        raise MisuseError(f"a filter of {len(filter.boxes)} boxes is too large, {BOXES_MAX} is the most")
    steps = Steps(cost_max)
    boxes = []
    for box in filter.boxes:
        steps.take(box.weight)
        for _, values in box.sides:
            values.check()
        made = make_box(dict(box.sides))
        if made is not None:
            boxes.append(made)
    return union_of(boxes, steps)


def only(attribute: str, values: Values) -> Filter:
    """The events whose attribute lies in this set."""
    box = make_box({attribute: values})
    return NO_EVENT if box is None else Filter((box,))


def flatten(event: Mapping[str, object]) -> dict[str, object]:
    """Nested objects as dotted paths, as filters see them; NaN and broken strings are refused.

    `flatten({"order": {"px": 3}})` is `{"order": {...}, "order.px": 3}`: the object itself still counts as present.
    """
    flat: dict[str, object] = {}
    _flatten_into(flat, "", event)
    return flat


def _flatten_into(flat: dict[str, object], path: str, event: Mapping[str, object]) -> None:
    for key, value in event.items():
        name = path + key
        flat[name] = value
        if isinstance(value, str):
            check_string(value)
        elif isinstance(value, float):
            if value != value:
                raise MisuseError(f"attribute {name!r} is NaN, which equals nothing, itself included")
        elif not isinstance(value, int) and isinstance(value, Mapping):
            _flatten_into(flat, name + ".", value)


def spread(attribute: str, values: Values) -> float:
    """A measure for when nothing is known: numbers squashed around zero, strings by their first letters."""
    numbers = sum(_squash(high[0]) - _squash(low[0]) for low, high in _intervals(values.numbers, (math.inf, 1)))
    strings = sum(_depth(high) - _depth(low) for low, high in _intervals(values.strings, "\U0010ffff" * 4))
    return 0.5 * numbers + 0.25 * strings + 0.05 * (values.kinds & ALL_KINDS).bit_count()


def _intervals(cuts: tuple[_Cut, ...], top: _Cut) -> list[tuple[_Cut, _Cut]]:
    return list(zip(cuts[::2], (*cuts[1::2], top)))


def _squash(number: float) -> float:
    return 0.5 + math.atan(number) / math.pi


def _depth(text: str) -> float:
    share, scale = 0.0, 1.0
    for letter in text[:4]:
        scale /= 0x110000
        share += ord(letter) * scale
    return min(share, 1.0)


def _subtract(box: Box, others: Iterable[Box]) -> list[Box] | None:
    """`box` without the others, in disjoint pieces; None if that takes too many pieces or steps."""
    pieces, steps = [box], Steps()
    try:
        for other in others:
            cost = other.weight
            rest: list[Box] = []
            for piece in pieces:
                steps.take(cost)
                if piece.overlaps(other):
                    steps.take(len(other.sides) * (piece.weight + cost))
                    rest += piece.minus(other)
                else:
                    rest.append(piece)
            pieces = rest
            if len(pieces) > _PIECES_MAX:
                return None
    except CostError:
        return None
    return pieces
