"""A stamper's clock and its lanes: what makes keys unique, ever increasing, and the same again after a crash.

A restarted stamper handles its logged inputs again and must come to the same keys. So stamps depend on the moment of an
input and on durable state alone. What a stamper promises in beats is not logged, and need not be: promises stay below
the clock, the moments a driver gives never go back, whatever changes the clock otherwise raises a floor first, and
nothing is promised above a ceiling that is written down ahead.
"""

from bisect import bisect_right

from msgspec import Struct, field

from unisono.model.ids import Topic
from unisono.model.time import Micros
from unisono.protocols.clock.messages import Entry, LaneClaim, Stamped


class StampClock(Struct):
    """Follows the driver's moments, never goes back, and is put right by the median of all stampers' clocks."""

    term: int = 0
    offset: int = 0
    """What is added to the driver's moments."""
    floor: int = 1
    """The clock is never below."""
    ceiling: int = 0
    """Nothing from here on is promised in a beat."""
    others: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Stamper -> its clock as last written down, and our moment then."""

    def read(self, now: int) -> int:
        return max(self.floor, now + self.offset)

    def reading(self, now: int) -> int:
        """What others compare their clocks with."""
        return max(0, now + self.offset)

    def promise(self, now: int) -> int:
        """Whatever is stamped from now on is later, but for leans."""
        return max(0, min(self.read(now), self.ceiling) - 1)

    def stamped(self, stamp: int, lean: int, now: int, count: int = 1) -> None:
        """Nothing later shares a stamp with these, on any lane, so that the next promise covers them. Stamps that are
        ahead of the clock, for what their publisher has heard of, do not drag it along."""
        self.floor = max(self.floor, min(stamp - lean, self.read(now)) + count)

    def raise_ceiling(self, now: int, by: int) -> None:
        self.ceiling = max(self.ceiling, self.read(now) + by)

    def restart(self) -> None:
        """What the last term promised lies below the ceiling. Whatever it knew of other clocks may be old."""
        self.term += 1
        self.floor = max(self.floor, self.ceiling)
        self.others.clear()

    def differs(self, stamper: int, clock: int, now: int, tolerance: int) -> bool:
        """Whether a reading of another clock says something that is not written down yet."""
        known = self.others.get(stamper)
        return known is None or abs(known[0] + now - known[1] - clock) > tolerance

    def _clocks(self, now: int) -> list[int]:
        """Ours, and all that are known, in order."""
        return sorted([now + self.offset, *(clock + now - then for clock, then in self.others.values())])

    def is_sure(self, now: int, skew_max: int, stampers: int) -> bool:
        """Whether what is known of the clocks of all says which time it is: those of more than half of them, and no
        draw between clocks that are far from each other."""
        clocks = self._clocks(now)
        is_draw = len(clocks) % 2 == 0 and clocks[len(clocks) // 2] - clocks[len(clocks) // 2 - 1] > skew_max
        return len(clocks) == stampers or (2 * len(clocks) > stampers and not is_draw)

    def correct(self, now: int, skew_max: int, has_promised: bool) -> None:
        """Forward by a jump, backward by standing still until the moment has come again. Of two clocks the later one
        is right: nobody has to wait for it. But who has promised nothing yet goes by the earlier one: if that is wrong,
        a jump repairs it, and a start that is too late keeps everybody waiting."""
        mine, clocks = now + self.offset, self._clocks(now)
        middle = len(clocks) // 2
        if not has_promised and len(clocks) % 2 == 0 and mine >= clocks[middle]:
            middle -= 1
        median = clocks[middle]
        if abs(mine - median) > skew_max:
            if has_promised:
                self.floor = self.read(now)
            self.offset += median - mine


class Lane(Struct):
    """A lane as its stamper has it."""

    epoch: int = 0
    last: int = 0
    stamp: int = 0
    """Of the last entry."""
    floor: int = 0
    """Later entries are later than this, whatever the clock says."""
    lean: int = 0
    used_at: int = 0
    kept: list[tuple[int, Entry]] = field(default_factory=list)
    """The newest entries with their places, for those who missed them."""
    begun: int = 0
    """The place after which we began again when we had forgotten; 0: we never had."""
    above: int = 0
    """Entries after that place are later than this."""

    def next_stamp(self, clock: int, after: int = 0) -> int:
        return max(clock + self.lean, self.floor + 1, self.stamp + 1, after + 1)

    def append(self, entry: Entry, now: Micros, kept_max: int) -> int:
        """Returns its place; that of the first, of several in a row."""
        place, count = self.last + 1, entry.count if isinstance(entry, Stamped) else 1
        self.last += count
        self.stamp = entry.stamp + count - 1
        self.used_at = now
        self.kept.append((place, entry))
        if len(self.kept) > 2 * kept_max:
            del self.kept[:-kept_max]
        return place

    def watermark(self, promise: int) -> int:
        return max(self.stamp, self.floor, promise + self.lean)

    def begin_again(self, promise: int) -> None:
        """Whatever we have forgotten lies below."""
        self.floor = self.watermark(promise)
        self.begun, self.above = self.last, self.floor

    @property
    def has_all_since(self) -> bool:
        """Whether all entries of this life are kept."""
        return (self.kept[0][0] - 1 if self.kept else self.last) == self.begun

    def set_lean(self, lean: int, promise: int) -> None:
        """What was promised with the old one holds."""
        self.floor = max(self.floor, promise + self.lean)
        self.lean = lean

    def entries(self, first: int, last: int) -> tuple[int, tuple[Entry, ...]]:
        """Those asked for that are kept, and the place of the first of them: what is in a row stays together."""
        begin = max(0, bisect_right(self.kept, first, key=_place) - 1)
        found = self.kept[begin : bisect_right(self.kept, last, key=_place)]
        oldest = self.kept[0][0] if self.kept else self.last + 1
        return (found[0][0] if found else oldest), tuple(entry for _, entry in found)

    def claim(self, topic: Topic) -> LaneClaim:
        return LaneClaim(topic, self.epoch, self.last, self.stamp, self.lean)


def _place(kept: tuple[int, Entry]) -> int:
    return kept[0]
