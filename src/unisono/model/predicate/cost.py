"""What working on a filter may cost: steps are counted where they are taken, and too many of them end the work.

A step is one comparison of two sides, or one bound of a set of values that is looked at: well below a microsecond each.
Strangers send filters, and normalising some of them is exponential; the counter is what bounds it, not the clock.
"""

from unisono.errors import MisuseError

FILTER_COST_MAX = 200_000
"""Steps to normalise one filter, at most some 0.1 s; a filter as people write it takes a few hundred."""


class CostError(MisuseError):
    """A filter costs more steps than it may."""


class Steps:
    """Counts the steps of one piece of work, and ends it when there are too many."""

    __slots__ = ("most", "taken")

    def __init__(self, most: int = FILTER_COST_MAX) -> None:
        self.most = most
        self.taken = 0

    def take(self, count: int = 1) -> None:
        self.taken += count
        if self.taken > self.most:
            raise CostError(f"the filter costs more than {self.most} steps (filter_cost_max): split it up")
