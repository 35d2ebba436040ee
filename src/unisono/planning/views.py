"""What the root knows of a deployment: the last `DemandView` of every node, and how far regions are from each other."""

from collections.abc import Iterator, Mapping
from itertools import combinations

from unisono.model.ids import Address, Topic
from unisono.model.region import LatencyTable
from unisono.model.time import MILLISECOND, Micros
from unisono.planning.demand import DemandView

UNKNOWN_US = 50 * MILLISECOND
"""One way between two regions of which nobody has measured or configured anything."""
NEAR_US = 100
"""One way inside a region."""
FRESH_PERIODS = 3
"""A view that is older says nothing."""


class DemandViews:
    """Kept by node. `round_trips_us` is what the deployment says of pairs of regions, a first guess."""

    def __init__(
        self, regions: Mapping[Address, str], round_trips_us: Mapping[tuple[str, str], int], period_us: Micros
    ) -> None:
        self._nodes, self._regions, self._period_us = list(regions), regions, period_us
        self._guessed = {frozenset(pair): span for pair, span in round_trips_us.items()}
        self._views: dict[Address, tuple[Micros, DemandView]] = {}

    def hear(self, view: DemandView, now: Micros) -> None:
        """A node's view has come in."""
        if view.node in self._regions:
            self._views[view.node] = (now, view)

    def where(self) -> dict[Topic, Address]:
        """The homes, as far as nodes have told."""
        return {Topic(topic): node for node, (_, view) in self._views.items() for topic in view.hosted}

    def is_heard(self, now: Micros) -> bool:
        """Whether at least half of the regions have spoken lately."""
        fresh = {self._regions[view.node] for view in self.fresh(now)}
        return 2 * len(fresh) >= len(set(self._regions.values())) and bool(fresh)

    def fresh(self, now: Micros) -> Iterator[DemandView]:
        for at, view in self._views.values():
            if now - at <= FRESH_PERIODS * self._period_us:
                yield view

    def pairs_unknown(self) -> list[tuple[str, str]]:
        """Regions of nodes between which nobody has measured or configured a distance."""
        spans = self._spans()
        regions = dict.fromkeys(self._regions[node] for node in self._nodes)
        return [pair for pair in combinations(regions, 2) if frozenset(pair) not in spans]

    def table(self) -> LatencyTable:
        """One way between nodes, by what was measured, else by what was configured."""
        spans = self._spans()
        rows = [[0 if a == b else self._one_way(spans, a, b) for b in self._nodes] for a in self._nodes]
        return LatencyTable(tuple(self._nodes), tuple(map(tuple, rows)))

    def _spans(self) -> dict[frozenset[str], int]:
        spans: dict[frozenset[str], int] = {}
        for _, view in self._views.values():
            for region, measured in view.round_trips_us.items():
                for other, span in measured.items():
                    pair = frozenset((region, other))
                    spans[pair] = min(span, spans.get(pair, span))
        return self._guessed | spans

    def _one_way(self, spans: Mapping[frozenset[str], int], a: Address, b: Address) -> int:
        if self._regions[a] == self._regions[b]:
            return NEAR_US
        return max(spans.get(frozenset((self._regions[a], self._regions[b])), 2 * UNKNOWN_US) // 2, NEAR_US)
