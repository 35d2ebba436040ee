"""How many extras: from the losses that receivers see on the publisher's path (specs: coded gossip, 5.6).

Plain rows leave in an order that follows from the event's name, so a receiver knows which losses were neighbours
without an order number in the packet. Receivers send their two averages with every question and advert they make.
"""

from math import ceil
from random import Random

from unisono.model.ids import Address
from unisono.protocols.coded.channel import Channel, redundancy_for
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import EventKey, Observed

GAIN = 0.02
REPORTS_MAX = 1024


def sending_order(event: EventKey, generation: int, n: int) -> list[int]:
    """The order in which the plain rows leave: a burst does not hit neighbours of the event only."""
    order = list(range(n))
    Random(f"{event.publisher}/{event.sequence}/{generation}").shuffle(order)
    return order


class Estimator:
    """A receiver's averages over the events of one topic."""

    def __init__(self) -> None:
        self._events = 0
        self._loss = self._runs = 0.0

    def learn(self, order: list[int], arrived: dict[int, None]) -> None:
        """The plain rows of an event that came by the publisher's own path."""
        lost = [index not in arrived for index in order]
        runs = sum(now and not before for before, now in zip([False, *lost], lost, strict=False))
        self._events += 1
        gain = max(GAIN, 1 / self._events)  # a plain mean at first: one bad event is no channel
        self._loss += gain * (sum(lost) / len(lost) - self._loss)
        self._runs += gain * (runs / len(lost) - self._runs)

    @property
    def observed(self) -> Observed:
        return Observed(self._loss, self._runs)


def channel_of(observed: Observed) -> Channel:
    """Rounded up, so that few different channels exist: loss to .01 in [.01, .5], burst to .5 in [1.5, 6] or 1.1."""
    loss = min(0.5, max(0.01, ceil(observed.loss * 100 - 1e-9) / 100))
    burst = observed.loss / observed.runs if observed.runs else 1.1
    burst = 1.1 if burst <= 1.1 else min(6.0, ceil(burst * 2 - 1e-9) / 2)
    return Channel(loss, max(burst, loss / (1 - loss)))


class Reports:
    """A publisher's last report of each receiver, bounded; the oldest goes first."""

    def __init__(self) -> None:
        self._last: dict[Address, Observed] = {}

    def learn(self, source: Address, observed: Observed) -> None:
        self._last.pop(source, None)
        self._last[source] = observed
        if len(self._last) > REPORTS_MAX:
            del self._last[next(iter(self._last))]

    def redundancy(self, n: int, config: CodedConfig) -> int:
        """Extras for a generation of n rows: as configured, or enough for all but the worst of the receivers."""
        if not config.adaptive or not self._last:
            return config.redundancy
        channels = (channel_of(observed) for observed in self._last.values())
        wanted = sorted(redundancy_for(channel, n, config.miss, config.redundancy_max) for channel in channels)
        return max(config.redundancy, wanted[min(len(wanted) - 1, int(config.percentile * len(wanted)))])
