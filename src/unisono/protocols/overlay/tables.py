"""Routing tables of one broker: who advertises and who subscribes behind which hop, and which of them overlap.

A hop is a neighbouring broker's address, or `pub:`/`sub:` and a client's. Overlap is kept as one bitmap over
advertisements per subscription (the paper's pubs(h, s) and nhs(a) in one), as Python integers.
"""

from collections.abc import Iterator, Mapping

from unisono.model.predicate import Filter
from unisono.structures.matching import MatchingIndex

Hop = str


class Ad:
    """An advertisement as this broker knows it."""

    __slots__ = ("bit", "filter", "hop", "last", "publisher")

    def __init__(self, hop: Hop, publisher: str, filter: Filter, bit: int) -> None:
        self.hop = hop
        self.publisher = publisher
        self.filter = filter
        self.bit = bit
        self.last = 0  # sequence of the publisher's last event that passed here


class Subscription:
    """A subscription as this broker knows it; `ads` has the bits of the advertisements it overlaps."""

    __slots__ = ("ads", "client", "filter", "hop")

    def __init__(self, hop: Hop, client: str, filter: Filter) -> None:
        self.hop = hop
        self.client = client
        self.filter = filter
        self.ads = 0


class Tables:
    """Advertisements, subscriptions and their overlap."""

    def __init__(self, covering: bool = False) -> None:
        self.covering = covering
        """Neighbours leave out subscriptions that others of theirs cover, so not all of a client's are known here."""
        self.ads: dict[str, Ad] = {}
        self.subs: dict[str, Subscription] = {}
        self.hop_ads: dict[Hop, int] = {}
        self.clients: dict[str, dict[str, None]] = {}  # client -> its subscriptions known here
        self._index: MatchingIndex[str] = MatchingIndex()
        self._free_bits: list[int] = []

    def add_ad(self, ad: str, hop: Hop, publisher: str, filter: Filter) -> None:
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self.ads)
        self.ads[ad] = Ad(hop, publisher, filter, bit)
        self.hop_ads[hop] = self.hop_ads.get(hop, 0) | bit
        for sub in self.subs.values():
            if sub.filter.overlaps(filter):
                sub.ads |= bit

    def remove_ad(self, ad: str) -> Ad:
        gone = self.ads.pop(ad)
        self._free_bits.append(gone.bit)
        self.hop_ads[gone.hop] &= ~gone.bit
        if not self.hop_ads[gone.hop]:
            del self.hop_ads[gone.hop]
        for sub in self.subs.values():
            sub.ads &= ~gone.bit
        return gone

    def add_sub(self, sub: str, hop: Hop, client: str, filter: Filter) -> Subscription:
        new = self.subs[sub] = Subscription(hop, client, filter)
        for ad in self.ads.values():
            if ad.filter.overlaps(filter):
                new.ads |= ad.bit
        self.clients.setdefault(client, {})[sub] = None
        self._index.add(sub, filter)
        return new

    def remove_sub(self, sub: str) -> Subscription:
        gone = self.subs.pop(sub)
        del self.clients[gone.client][sub]
        if not self.clients[gone.client]:
            del self.clients[gone.client]
        self._index.remove(sub)
        return gone

    def matching(self, event: Mapping[str, object]) -> list[str]:
        """Subscriptions that match, in the order in which this broker learnt of them."""
        return self._index.match(event)

    def from_hop(self, hop: Hop | None) -> int:
        """Bits of the advertisements behind a hop."""
        return self.hop_ads.get(hop, 0) if hop is not None else 0

    def subs_of_hop(self, hop: Hop) -> Iterator[tuple[str, Subscription]]:
        return ((name, sub) for name, sub in self.subs.items() if sub.hop == hop)
