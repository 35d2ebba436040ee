"""What a publisher is told of whom it could serve directly, and which of them it chooses (specs: entourage, 3 and 5).

A report is a forest: a node that serves its subscribers itself is a leaf, one with children could be replaced by them.
The choice is a *frontier*: all nodes of one depth and the leaves above it, so that nobody is left out whatever depth is
chosen. (The paper's rows of one level leave out leaves above, its bound by log K assumes a binary tree: T13, T14.)
"""

from collections.abc import Iterable, Mapping, Sequence
from math import floor

from msgspec import Struct, structs

from unisono.model.ids import Address
from unisono.protocols.regions.messages import GraphEntry, GraphReport

NOBODY = GraphReport()
REFUSED = GraphReport(is_refused=True)


def combine(me: Address, reports: Iterable[GraphReport]) -> GraphReport:
    """What a broker reports whose children have all answered: nothing, the one answer, or itself above several."""
    below = [entry for report in reports for entry in report.entries]
    entries = [structs.replace(entry, hops=entry.hops + 1) for entry in sorted(below, key=lambda entry: entry.node)]
    return GraphReport((over(me, tuple(entries)),)) if len(entries) > 1 else GraphReport(tuple(entries))


def over(me: Address, children: tuple[GraphEntry, ...]) -> GraphEntry:
    return GraphEntry(
        me,
        0,
        sum(child.subscribers for child in children),
        sum(child.distance + child.hops * child.subscribers for child in children),
        1 + sum(child.brokers for child in children),
        children,
    )


def leaf(entry: GraphEntry) -> GraphEntry:
    return structs.replace(entry, children=())


def truncate(report: GraphReport, entries_max: int) -> GraphReport:
    """At most so many entries: the deepest nodes with children become leaves one by one, so siblings go together."""
    entries = report.entries
    while sum(size(entry) for entry in entries) > entries_max:
        deepest = max(((d, e.node) for d, e in _walk(entries) if e.children), default=None)
        if deepest is None:
            break
        entries = tuple(_without(entry, deepest[1]) for entry in entries)
    return GraphReport(entries, report.is_refused)


def size(entry: GraphEntry) -> int:
    return 1 + sum(size(child) for child in entry.children)


def height(entries: Sequence[GraphEntry]) -> int:
    return max((1 + height(entry.children) for entry in entries), default=0)


def _walk(entries: Iterable[GraphEntry], depth: int = 0) -> Iterable[tuple[int, GraphEntry]]:
    for entry in entries:
        yield depth, entry
        yield from _walk(entry.children, depth + 1)


def _without(entry: GraphEntry, node: Address) -> GraphEntry:
    if entry.node == node:
        return leaf(entry)
    return structs.replace(entry, children=tuple(_without(child, node) for child in entry.children))


class Frontier(Struct, frozen=True):
    """Nodes of one depth and leaves above it, and what speaks for it."""

    depth: int
    nodes: tuple[Address, ...]
    score: float


def frontier(entries: Sequence[GraphEntry], depth: int) -> list[GraphEntry]:
    """Everybody who is interested is below exactly one of these."""
    found: list[GraphEntry] = []
    for entry in entries:
        found += [entry] if depth == 0 or not entry.children else frontier(entry.children, depth - 1)
    return found


def frontiers(entries: Sequence[GraphEntry], changes_per_s: float, brokers: int) -> list[Frontier]:
    """Of every depth one."""
    found: list[Frontier] = []
    for depth in range(max(1, height(entries))):
        nodes = frontier(entries, depth)
        subscribers = sum(node.subscribers for node in nodes)
        distance = sum(node.distance for node in nodes) / max(1, subscribers)
        covered = min(1.0, sum(node.brokers for node in nodes) / max(1, brokers))
        score = (covered * changes_per_s + 1) / (distance + 1)
        found.append(Frontier(depth, tuple(sorted(node.node for node in nodes)), score))
    return found


def best_frontier(entries: Sequence[GraphEntry], most: int, changes_per_s: float, brokers: int) -> Frontier | None:
    """The best of those that are small enough; of several trees that are too many, the largest ones alone."""
    able = [each for each in frontiers(entries, changes_per_s, brokers) if 0 < len(each.nodes) <= most]
    if able:
        return max(able, key=lambda each: (each.score, -len(each.nodes)))
    if most > 0 and len(entries) > 1:
        largest = sorted(entries, key=lambda entry: (-entry.subscribers, entry.node))[:most]
        return Frontier(0, tuple(sorted(entry.node for entry in largest)), 0.0)
    return None


def split(most: int, sizes: Mapping[Address, int], leaves: Mapping[Address, int]) -> dict[Address, int]:
    """Connections by region: one for each that has anybody, the largest first; the rest by largest remainder.

    No region gets more than it has leaves; what is left over goes round again. Never more than `most` together.
    """
    order = sorted((r for r in sizes if sizes[r] and leaves[r]), key=lambda r: (-sizes[r], r))
    given = dict.fromkeys(sizes, 0)
    for region in order[:most]:
        given[region] = 1
    left = most - sum(given.values())
    while left > 0:
        open_to = [r for r in order if given[r] < leaves[r]]
        if not open_to:
            break
        total = sum(sizes[r] for r in open_to)
        shares = {r: left * sizes[r] / total for r in open_to}
        whole = {r: min(floor(shares[r]), leaves[r] - given[r]) for r in open_to}
        for region, count in whole.items():
            given[region] += count
        left -= sum(whole.values())
        if not sum(whole.values()):
            for region in sorted(open_to, key=lambda r: (-(shares[r] - floor(shares[r])), r))[:left]:
                given[region] += 1
                left -= 1
    return given


def leaves(entries: Sequence[GraphEntry]) -> int:
    return sum(leaves(entry.children) if entry.children else 1 for entry in entries)
