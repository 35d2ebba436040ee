"""Routing tables of one broker: who advertises and who subscribes behind which hop, and which of them overlap.

A hop is a neighbouring broker's address, or `pub:`/`sub:` and a client's. Overlap is kept as one bitmap over
advertisements per subscription (the paper's pubs(h, s) and nhs(a) in one), as Python integers, and as counts per hop,
client and subscription: what a publication asks must not grow with the number of advertisements.
"""

from collections.abc import Iterable, Mapping

from unisono.model.predicate import Filter
from unisono.structures.matching import MatchingIndex

Hop = str


class PublisherProgress:
    """How far a publisher has come, as this broker knows; it outlives each of its advertisements but the last."""

    __slots__ = ("ads", "last")

    def __init__(self) -> None:
        self.ads: dict[str, None] = {}
        self.last = 0  # sequence of its last event that passed here


class Ad:
    """An advertisement as this broker knows it."""

    __slots__ = ("bit", "filter", "hop", "progress", "publisher")

    def __init__(self, hop: Hop, publisher: str, filter: Filter, bit: int, progress: PublisherProgress) -> None:
        self.hop = hop
        self.publisher = publisher
        self.filter = filter
        self.bit = bit
        self.progress = progress


class Met:
    """How many advertisements behind each hop a subscription meets, or all those of a client, or of a hop."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Hop, int] = {}

    def add(self, hop: Hop, count: int) -> None:
        total = self._counts.get(hop, 0) + count
        if total:
            self._counts[hop] = total
        else:
            self._counts.pop(hop, None)

    def any_from(self, hop: Hop | None) -> bool:
        return hop in self._counts

    def items(self) -> Iterable[tuple[Hop, int]]:
        return self._counts.items()


class Subscription:
    """A subscription as this broker knows it; `ads` has the bits of the advertisements it overlaps."""

    __slots__ = ("ads", "client", "filter", "hop", "met", "since")

    def __init__(self, hop: Hop, client: str, filter: Filter) -> None:
        self.hop = hop
        self.client = client
        self.filter = filter
        self.ads = 0
        self.met = Met()
        self.since = 0  # how many cuts its client had been told of


class SubscriptionGroup:
    """The subscriptions of a client, or of a hop, and what they meet together."""

    __slots__ = ("met", "subs")

    def __init__(self) -> None:
        self.subs: dict[str, None] = {}
        self.met = Met()


_NOBODY = SubscriptionGroup()


class Tables:
    """Advertisements, subscriptions and their overlap."""

    def __init__(self, covering: bool = False) -> None:
        self.covering = covering
        """Neighbours leave out subscriptions that others of theirs cover, so not all of a client's are known here."""
        self.ads: dict[str, Ad] = {}
        self.subs: dict[str, Subscription] = {}
        self._publishers: dict[str, PublisherProgress] = {}
        self._hop_bits: dict[Hop, int] = {}
        self._hop_ads: dict[Hop, dict[str, None]] = {}
        self._hop_subs: dict[Hop, SubscriptionGroup] = {}
        self._clients: dict[str, SubscriptionGroup] = {}
        self._index: MatchingIndex[str] = MatchingIndex()
        self._free_bits: list[int] = []

    def add_ad(self, ad: str, hop: Hop, publisher: str, filter: Filter, last: int = 0) -> None:
        """`last` says how far a publisher came before it was known here."""
        progress = self._publishers.get(publisher)
        if progress is None:
            progress = self._publishers[publisher] = PublisherProgress()
            progress.last = last
        progress.ads[ad] = None
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self.ads)
        self.ads[ad] = Ad(hop, publisher, filter, bit, progress)
        self._hop_bits[hop] = self._hop_bits.get(hop, 0) | bit
        self._hop_ads.setdefault(hop, {})[ad] = None
        for sub in self.subs.values():
            if sub.filter.overlaps(filter):
                sub.ads |= bit
                self._meet(sub, hop, 1)

    def remove_ad(self, ad: str) -> Ad:
        gone = self.ads.pop(ad)
        del gone.progress.ads[ad]
        if not gone.progress.ads:
            del self._publishers[gone.publisher]
        self._free_bits.append(gone.bit)
        self._hop_bits[gone.hop] &= ~gone.bit
        del self._hop_ads[gone.hop][ad]
        if not self._hop_ads[gone.hop]:
            del self._hop_bits[gone.hop], self._hop_ads[gone.hop]
        for sub in self.subs.values():
            if sub.ads & gone.bit:
                sub.ads &= ~gone.bit
                self._meet(sub, gone.hop, -1)
        return gone

    def add_sub(self, sub: str, hop: Hop, client: str, filter: Filter) -> Subscription:
        new = self.subs[sub] = Subscription(hop, client, filter)
        self._clients.setdefault(client, SubscriptionGroup()).subs[sub] = None
        self._hop_subs.setdefault(hop, SubscriptionGroup()).subs[sub] = None
        for ad in self.ads.values():
            if ad.filter.overlaps(filter):
                new.ads |= ad.bit
                self._meet(new, ad.hop, 1)
        self._index.add(sub, filter)
        return new

    def remove_sub(self, sub: str) -> Subscription:
        gone = self.subs.pop(sub)
        for hop, count in list(gone.met.items()):
            self._meet(gone, hop, -count)
        for groups, key in ((self._clients, gone.client), (self._hop_subs, gone.hop)):
            del groups[key].subs[sub]
            if not groups[key].subs:
                del groups[key]
        self._index.remove(sub)
        return gone

    def _meet(self, sub: Subscription, hop: Hop, count: int) -> None:
        for met in (sub.met, self._clients[sub.client].met, self._hop_subs[sub.hop].met):
            met.add(hop, count)

    def matching(self, event: Mapping[str, object]) -> list[str]:
        """Subscriptions that match, in the order in which this broker learnt of them."""
        return self._index.match(event)

    def passed(self, publisher: str, sequence: int) -> None:
        """An event of a publisher has been here."""
        progress = self._publishers.get(publisher)
        if progress is not None:
            progress.last = max(progress.last, sequence)

    def from_hop(self, hop: Hop | None) -> int:
        """Bits of the advertisements behind a hop."""
        return self._hop_bits.get(hop, 0) if hop is not None else 0

    def ads_of_hop(self, hop: Hop) -> Mapping[str, None]:
        return self._hop_ads.get(hop, {})

    def subs_of_hop(self, hop: Hop) -> Mapping[str, None]:
        return self._hop_subs.get(hop, _NOBODY).subs

    def hop_meets(self, hop: Hop, other: Hop | None) -> bool:
        """Whether a subscription of one hop overlaps an advertisement behind another."""
        return self._hop_subs.get(hop, _NOBODY).met.any_from(other)

    def client_meets(self, client: str, other: Hop | None) -> bool:
        """The same of a client's subscriptions, wherever they are."""
        return self._clients.get(client, _NOBODY).met.any_from(other)

    def local_clients(self) -> Iterable[tuple[str, Iterable[str]]]:
        """Our own clients that subscribe, each with the names of its subscriptions."""
        for hop, group in self._hop_subs.items():
            if hop.startswith("sub:"):
                yield hop.removeprefix("sub:"), group.subs
