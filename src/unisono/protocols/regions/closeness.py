"""The interest match of a publisher and whoever wants something: the share of its events that are wanted.

Where an advertisement has a measure, events are taken to be spread evenly over it; where it has none (free texts, open
ends), the share of a sample of what was published is taken. Both are monotone: who wants more matches more, so a broker
never matches less than anybody below it. The paper divides by the subscriber's range, which is neither (section 3.2;
specs: entourage, section 2, T10 and T11).
"""

import math
from itertools import pairwise

from unisono.model.predicate import Box, Filter
from unisono.model.predicate.values import ALL_KINDS, OTHER, Values
from unisono.protocols.regions.messages import CountRound


def closeness(wanted: Filter, asked: CountRound) -> float:
    """Between 0 and 1; 0 if they have nothing in common."""
    if wanted.is_empty or not wanted.overlaps(asked.advertised):
        return 0.0
    whole = _Shares(asked.advertised)
    if whole.total is not None and whole.total > 0:
        common = [m for a in asked.advertised.boxes for b in wanted.boxes if (m := a.intersect(b)) is not None]
        return min(1.0, Filter(tuple(common)).measure(whole.share) / whole.total)
    if asked.samples:
        return sum(wanted.matches(sample) for sample in asked.samples) / len(asked.samples)
    return 1.0 if wanted.covers(asked.advertised) else 0.0


class _Shares:
    """Even spread over what is advertised; `total` is its measure, None if some attribute has no finite one."""

    def __init__(self, advertised: Filter) -> None:
        sides: dict[str, list[Values]] = {}
        for box in advertised.boxes:
            for name, values in box.sides:
                sides.setdefault(name, []).append(values)
        self._whole = dict.fromkeys(sides, False)
        for name, several in sides.items():
            self._whole[name] = all(_is_whole(values) for values in several)
        self._points = {name: all(_is_points(values) for values in several) for name, several in sides.items()}
        sizes = [self._box(box) for box in advertised.boxes]
        is_even = all(len(box.sides) == len(sides) for box in advertised.boxes)
        self.total: float | None = None
        if sides and is_even and all(size is not None and math.isfinite(size) for size in sizes):
            self.total = advertised.measure(self.share)

    def share(self, name: str, values: Values) -> float:
        if name not in self._whole:
            return 1.0
        return self._size(name, values)

    def _box(self, box: Box) -> float:
        product = 1.0
        for name, values in box.sides:
            product *= self._size(name, values)
        return product

    def _size(self, name: str, values: Values) -> float:
        if values.strings and not _is_points(values):
            return math.inf
        kinds = (values.kinds & ALL_KINDS & ~OTHER).bit_count() + (math.inf if values.kinds & OTHER else 0)
        texts = len(values.strings) / 2
        if self._whole[name]:
            values = values.on_integers()
        numbers = values.numbers
        if len(numbers) & 1:
            return math.inf
        if self._points[name]:
            return kinds + texts + len(numbers) / 2
        if kinds or texts:
            return math.inf  # points and intervals together have no common measure
        return sum(high[0] - low[0] for low, high in zip(numbers[::2], numbers[1::2], strict=True))


def _is_whole(values: Values) -> bool:
    """Whole bounds advertise whole numbers."""
    return bool(values.numbers) and all(isinstance(value, int) for value, _ in values.numbers)


def _is_points(values: Values) -> bool:
    numbers = zip(values.numbers[::2], values.numbers[1::2], strict=False)
    texts = list(pairwise(values.strings))[::2]
    even = not len(values.numbers) & 1 and not len(values.strings) & 1
    return even and all(low[0] == high[0] for low, high in numbers) and all(b == a + "\0" for a, b in texts)


def has_measure(advertised: Filter) -> bool:
    """Whether a sample is not needed."""
    total = _Shares(advertised).total
    return total is not None and total > 0
