"""What no safe protocol can beat, for the very people and publications of a crowd.

Let l(a, T, p) be the latency at which p hears of events published at site a on topic T, and d that of the direct path.
If p and q both subscribe to T and X, l(a, T, p) + l(b, X, q) >= d(b, p) + d(a, q): else two events, from a on T and
from b on X, can be timed so that p is notified of the one before it can know of the other, and q the other way round.
The least mean under these constraints is a linear programme; whatever its dual allows is a bound. Here pairs of such
latencies are matched greedily, those first that must together be furthest from their direct paths, and each latency is
used as often as there are events: that is feasible, so no protocol is below it; the best matching may be above it.
"""

from itertools import permutations, product

from unisono.experiments.sequencer.sites import Crowd, Sites

Latency = tuple[int, int, int]
"""Site of publication, topic, subscriber."""


def direct_and_bound_us(sites: Sites, crowd: Crowd) -> tuple[float, float]:
    """The mean latency of the direct path, and the least one of any safe protocol, over the deliveries of the crowd."""
    published: dict[tuple[int, int], int] = {}
    for publication in crowd.publications:
        key = (publication.site, publication.topic)
        published[key] = published.get(key, 0) + 1
    left: dict[Latency, int] = {}
    direct = deliveries = 0
    for (site, topic), count in published.items():
        for p, subscriber in enumerate(crowd.subscribers):
            if topic in subscriber.topics:
                left[site, topic, p] = count
                direct += count * sites.path_us(site, subscriber.site)
                deliveries += count
    extra = 0
    sharing = _sharing(crowd)
    for gain, a, b, near_a, near_b in _gains(sites):
        for t, x in _pairs(sharing, published, a, b):
            there = sharing[min(t, x), max(t, x)]
            if near_a in there and near_b in there:
                extra += gain * _match(left, [(a, t, p) for p in there[near_a]], [(b, x, q) for q in there[near_b]])
    return direct / deliveries, (direct + extra) / deliveries


def _gains(sites: Sites) -> list[tuple[int, int, int, int, int]]:
    """By how much two latencies together must exceed their direct paths: from a to p and from b to q, most first."""
    places = range(len(sites.names))
    found = []
    for (a, b), (p, q) in product(permutations(places, 2), permutations(places, 2)):
        together = sites.path_us(b, p) + sites.path_us(a, q)
        gain = together - sites.path_us(a, p) - sites.path_us(b, q)
        if gain > 0:
            found.append((gain, a, b, p, q))
    return sorted(found, reverse=True)


def _sharing(crowd: Crowd) -> dict[tuple[int, int], dict[int, list[int]]]:
    """Who subscribes to both topics of a pair, by site."""
    found: dict[tuple[int, int], dict[int, list[int]]] = {}
    for p, subscriber in enumerate(crowd.subscribers):
        for pair in permutations(subscriber.topics, 2):
            if pair[0] < pair[1]:
                found.setdefault(pair, {}).setdefault(subscriber.site, []).append(p)
    return {pair: there for pair, there in found.items() if len(there) > 1}


def _pairs(
    sharing: dict[tuple[int, int], dict[int, list[int]]], published: dict[tuple[int, int], int], a: int, b: int
) -> list[tuple[int, int]]:
    """Pairs of topics of which the first is published at a and the second at b."""
    both = [pair for lower, higher in sharing for pair in ((lower, higher), (higher, lower))]
    return [(t, x) for t, x in both if (a, t) in published and (b, x) in published]


def _match(left: dict[Latency, int], some: list[Latency], others: list[Latency]) -> int:
    """Uses up both sides as far as they go; returns how many pairs that makes."""
    pairs = 0
    i = j = 0
    while i < len(some) and j < len(others):
        taken = min(left[some[i]], left[others[j]])
        pairs += taken
        left[some[i]] -= taken
        left[others[j]] -= taken
        if not left[some[i]]:
            i += 1
        else:
            j += 1
    return pairs
