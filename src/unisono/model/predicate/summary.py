"""What a broker tells a neighbour about the interests behind it: few boxes that hold at least everything.

A wider summary costs traffic, a narrower one loses messages: every lossy step widens. The summary depends on the set
of interests alone, not on the order in which they came, so equal sets have equal summaries and equal digests.
"""

import hashlib
import sys
from collections.abc import Hashable

import msgspec

from unisono.model.predicate.box import Box, reduced, sort_key
from unisono.model.predicate.cost import Steps
from unisono.model.predicate.filter import BOXES_MAX, Filter, spread

_NEIGHBOURS = 8  # how far the search for a cheap pair looks along the sorted boxes


class Summary:
    """Interests by key, and the filter of at most `boxes_max` boxes that covers them all."""

    def __init__(self, boxes_max: int = BOXES_MAX) -> None:
        self._boxes_max = boxes_max
        self._interests: dict[Hashable, Filter] = {}
        self._uses: dict[Box, int] = {}
        self._roots: list[Box] = []  # the boxes no other box covers
        self.filter = Filter(())
        self.version = 0

    def add(self, key: Hashable, interest: Filter) -> bool:
        """Returns whether the summary changed and must be told before the interest may be called active."""
        known = self._interests.get(key)
        if known is not None:
            self._forget(known)
        self._interests[key] = interest
        for box in interest.boxes:
            self._uses[box] = self._uses.get(box, 0) + 1
        return self._refresh()

    def remove(self, key: Hashable) -> bool:
        """Returns whether the summary shrank; telling so may wait."""
        self._forget(self._interests.pop(key))
        return self._refresh()

    @property
    def digest(self) -> str:
        """Equal for equal sets of interests, on every broker."""
        return hashlib.blake2b(msgspec.msgpack.encode(self.filter), digest_size=8).hexdigest()

    def _forget(self, interest: Filter) -> None:
        for box in interest.boxes:
            self._uses[box] -= 1
            if not self._uses[box]:
                del self._uses[box]

    def _refresh(self) -> bool:
        roots = _maximal(self._roots, self._uses)
        if roots == self._roots:
            return False
        self._roots = roots
        filter = Filter(tuple(_widened(reduced(roots, Steps(sys.maxsize)), self._boxes_max)))
        if filter == self.filter:
            return False
        self.filter = filter
        self.version += 1
        return True


def _maximal(known: list[Box], uses: dict[Box, int]) -> list[Box]:
    """The boxes in use that no other one covers, sorted; the known ones first, since most newcomers fall into them."""
    roots = [box for box in known if box in uses]
    for box in uses:
        if not any(root.covers(box) for root in roots):
            roots = [root for root in roots if not box.covers(root)]
            roots.append(box)
    return sorted(roots, key=sort_key)


def _widened(boxes: list[Box], boxes_max: int) -> list[Box]:
    """Replaces the pair that wastes least by its hull, until few enough are left."""
    while len(boxes) > boxes_max:
        pairs = list(_candidates(boxes, same_attributes=True)) or list(_candidates(boxes, same_attributes=False))
        _, _, a, b = min((_waste(boxes[i], boxes[j]), sort_key(boxes[i]), i, j) for i, j in pairs)
        hull = boxes[a].hull(boxes[b])
        boxes = reduced([*(box for k, box in enumerate(boxes) if k not in (a, b)), hull], Steps(sys.maxsize))
    return boxes


def _candidates(boxes: list[Box], same_attributes: bool) -> list[tuple[int, int]]:
    order = sorted(range(len(boxes)), key=lambda k: ([name for name, _ in boxes[k].sides], sort_key(boxes[k])))
    names = [tuple(name for name, _ in box.sides) for box in boxes]
    return [
        (i, j)
        for place, i in enumerate(order)
        for j in order[place + 1 : place + 1 + _NEIGHBOURS]
        if not same_attributes or names[i] == names[j]
    ]


def _waste(a: Box, b: Box) -> float:
    common = a.intersect(b)
    both = common.measure(spread) if common is not None else 0.0
    return a.hull(b).measure(spread) - a.measure(spread) - b.measure(spread) + both
