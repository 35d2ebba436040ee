"""Where a client is: in the region it names, else in that of the node with the least measured round trip.

Topics are created near who uses them first, so this has to be known before the first of them is opened. All nodes are
dialed at once, and the nearest one answers first: the others are given a few of its round trips more.
"""

import asyncio

from unisono.model.deployment import Deployment
from unisono.model.homes import sequencers
from unisono.model.ids import Address
from unisono.runtime.links.links import Links

NOBODY_S = 2.0
"""When no node of the region is connected by then, a topic is created at one that is."""
OTHERS_S_MIN = 0.05
OTHERS_FACTOR = 3
"""How many round trips of the nearest node so far the others have to answer: one who is not nearer need not."""


class ClientRegion:
    """The region of one client."""

    def __init__(self, deployment: Deployment, links: Links, told: str | None) -> None:
        self._links = links
        self._regions = {node: deployment.node(node).region for node in sequencers(deployment)}
        able = set(self._regions.values())
        self._known = next(iter(able)) if len(able) == 1 else None
        if told is not None and self._known is None:
            self._known = told if told in able else _nearest(deployment, told, able)
        self._near = [node for node, region in self._regions.items() if self._known in (None, region)]
        self._news = asyncio.Event()

    def heard(self) -> None:
        """Another node is connected."""
        self._news.set()

    async def region(self) -> str | None:
        """Waits for the nodes that could be the nearest; None: none is there to tell."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while True:
            self._news.clear()
            spans = {node: span for node in self._near if (span := self._links.round_trip_s(node)) is not None}
            nearest_s = min(spans.values(), default=None)
            patience_s = NOBODY_S if nearest_s is None else max(OTHERS_S_MIN, OTHERS_FACTOR * nearest_s)
            left_s = begin + patience_s - loop.time()
            if len(spans) == len(self._near) or left_s <= 0 or nearest_s == 0:
                return self._known or self._of_nearest(spans)
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                continue

    def node(self) -> Address | None:
        """The one that answers soonest of those in our region, or, if none is there, of all; None: nobody is there."""
        spans = {node: span for node in self._regions if (span := self._links.round_trip_s(node)) is not None}
        near = {node: span for node, span in spans.items() if node in self._near} or spans
        return min(near, key=lambda node: near[node], default=None)

    def round_trips_us(self) -> dict[str, int]:
        """The least that was measured, per region of nodes."""
        least: dict[str, int] = {}
        for node, region in self._regions.items():
            span = self._links.round_trip_s(node)
            if span is not None:
                measured = max(1, round(span * 1e6))
                least[region] = min(measured, least.get(region, measured))
        return least

    def _of_nearest(self, spans: dict[Address, float]) -> str | None:
        return self._regions[min(spans, key=lambda node: spans[node])] if spans else None


def _nearest(deployment: Deployment, told: str, able: set[str]) -> str | None:
    """Of the regions with a node that which is nearest to one without, by the distances of the deployment."""
    spans: dict[str, float] = {}
    for pair, milliseconds in deployment.round_trip_ms.items():
        one, other = pair.split()
        if told in (one, other):
            spans[other if one == told else one] = milliseconds
    return min((name for name in spans if name in able), key=lambda name: spans[name], default=None)
