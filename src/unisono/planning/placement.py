"""Where the homes of topics should live, and which tree of nodes should stand over the regions.

An event of T published in region p reaches a subscriber in region q when its payload is there, and with it the parts
of its timestamp that this subscriber waits for: request p -> home, climb from the home to the node where the paths of
T and X meet (for each topic X that the subscriber also has and that belongs to the group of T), stamp -> q. The
expected latency is the mean of that over all deliveries (ordering spec, sections 15 and 16). It counts co-subscribed
topics: sending every topic to the site of its majority is not enough and can hurt.

The search is a descent: every topic moves to its best home, given all others, until none moves. It is run for every
star and for two-level trees grown from clusters of near regions; the best tree wins.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.model.deployment import DEPLOYMENT_VERSION, Deployment
from unisono.model.region import LatencyTable
from unisono.model.settings import NodeSpec, Region, TopicSpec
from unisono.planning.groups import pair_counts

ROUNDS_MAX = 20


class Interest(Struct, frozen=True):
    """One subscriber: where it is and what it hears."""

    region: str
    topics: tuple[str, ...]


class Demand(Struct, frozen=True):
    """Who hears what where, and how much is published where: `rates[topic][region]` in events per second."""

    interests: tuple[Interest, ...]
    rates: dict[str, dict[str, float]]


class PlacementTree(Struct, frozen=True):
    """A node per region; `parents[i]` is the region above region i, -1 at the root."""

    name: str
    parents: tuple[int, ...]


class Placement(Struct, frozen=True):
    """A tree, a home per topic, and the mean latency to expect."""

    tree: PlacementTree
    homes: dict[str, str]
    latency_us: float
    direct_us: float
    """The mean latency of the payloads alone: what no order at all would cost."""


class Costs:
    """Latencies on one tree: direct, and by way of a meeting point."""

    def __init__(self, table: LatencyTable, tree: PlacementTree) -> None:
        self.direct = table.one_way_us
        sites = range(len(table.regions))
        paths = []
        for site in sites:
            path, at = [], site
            while at >= 0:
                path.append(at)
                at = tree.parents[at]
            paths.append(path)
        self.meeting = [[next(node for node in paths[a] if node in paths[b]) for b in sites] for a in sites]
        self.climb = [
            {path[i]: sum(self.direct[path[j]][path[j + 1]] for j in range(i)) for i in range(len(path))}
            for path in paths
        ]

    def stamp_us(self, publisher: int, home: int, top: int, subscriber: int) -> int:
        """When the part of the timestamp that `top` decides is at the subscriber."""
        return self.direct[publisher][home] + self.climb[home][top] + self.direct[top][subscriber]


class _Problem:
    """A demand with everything as integers, and equal subscribers counted instead of repeated."""

    def __init__(self, demand: Demand, table: LatencyTable) -> None:
        site = {name: i for i, name in enumerate(table.regions)}
        self.topics = sorted({topic for interest in demand.interests for topic in interest.topics} | set(demand.rates))
        number = {name: i for i, name in enumerate(self.topics)}
        for name in [interest.region for interest in demand.interests] + [r for t in demand.rates.values() for r in t]:
            if name not in site:
                raise MisuseError(f"region {name!r} is not in the latency table, which has {', '.join(table.regions)}")
        self.rates: list[list[tuple[int, float]]] = [
            [(site[region], rate) for region, rate in demand.rates.get(name, {}).items() if rate > 0]
            for name in self.topics
        ]
        shared = pair_counts(interest.topics for interest in demand.interests)
        grouped = {(number[a], number[b]) for (a, b), count in shared.items() if count >= 2}
        self.audience: list[dict[tuple[int, tuple[int, ...]], int]] = [{} for _ in self.topics]
        """Per topic: (region, topics it must be ordered against there) -> how many subscribers are like that."""
        for interest in demand.interests:
            own = sorted({number[name] for name in interest.topics})
            for topic in own:
                against = tuple(x for x in own if (min(x, topic), max(x, topic)) in grouped)
                key = (site[interest.region], against)
                self.audience[topic][key] = self.audience[topic].get(key, 0) + 1
        self.neighbours: list[list[int]] = [
            sorted({x for _, against in heard for x in against}) for heard in self.audience
        ]

    def cost(self, topic: int, home: int, homes: Sequence[int], costs: Costs) -> float:
        """Sum over the deliveries of one topic, per second, of their latency."""
        total = 0.0
        for (subscriber, against), count in self.audience[topic].items():
            tops = {home, *(costs.meeting[home][homes[x]] for x in against if x != topic)}
            for publisher, rate in self.rates[topic]:
                arrival = max(costs.stamp_us(publisher, home, top, subscriber) for top in tops)
                total += rate * count * max(arrival, costs.direct[publisher][subscriber])
        return total

    def deliveries(self) -> float:
        return sum(
            sum(heard.values()) * sum(rate for _, rate in rates) for heard, rates in zip(self.audience, self.rates)
        )

    def direct(self, costs: Costs) -> float:
        return sum(
            rate * count * costs.direct[publisher][subscriber]
            for heard, rates in zip(self.audience, self.rates)
            for (subscriber, _), count in heard.items()
            for publisher, rate in rates
        )


def stars(table: LatencyTable) -> list[PlacementTree]:
    """Every region as the hub of all others."""
    sites = range(len(table.regions))
    return [
        PlacementTree(f"star at {table.regions[hub]}", tuple(-1 if i == hub else hub for i in sites)) for hub in sites
    ]


def two_levels(table: LatencyTable, clusters: int) -> list[PlacementTree]:
    """Trees whose root has `clusters` heads (itself one of them) with the regions nearest to each below it."""
    sites, direct = range(len(table.regions)), table.one_way_us
    heads = min(combinations(sites, clusters), key=lambda some: sum(min(direct[s][h] for h in some) for s in sites))
    trees = []
    for root in heads:
        parents = [min(heads, key=lambda head: direct[site][head]) for site in sites]
        for head in heads:
            parents[head] = root
        parents[root] = -1
        trees.append(PlacementTree(f"two levels under {table.regions[root]}", tuple(parents)))
    return trees


def place(demand: Demand, table: LatencyTable, trees: Iterable[PlacementTree] | None = None) -> Placement:
    """The best placement over the candidate trees (all stars and, from four regions on, two-level trees)."""
    problem = _Problem(demand, table)
    if trees is None:
        trees = stars(table)
        for clusters in (2, 3):
            if len(table.regions) > clusters + 1:
                trees += two_levels(table, clusters)
    return min((_descend(problem, table, tree) for tree in trees), key=lambda found: found.latency_us)


def improve(
    demand: Demand, table: LatencyTable, tree: PlacementTree, homes: Mapping[str, str], fixed: frozenset[str]
) -> Placement:
    """The best homes on this tree for all topics but the fixed ones. Of two that are equally good, as it is now."""
    problem = _Problem(demand, table)
    at = [table.regions.index(homes[name]) if name in homes else None for name in problem.topics]
    still = [name in fixed for name in problem.topics]
    as_is = [0 if site is None else site for site in at]
    found = [_descend(problem, table, tree, as_is, still), _descend(problem, table, tree, None, still, as_is)]
    return min(found, key=lambda placement: placement.latency_us)


def expected_us(
    demand: Demand, table: LatencyTable, tree: PlacementTree, homes: Mapping[str, str]
) -> tuple[float, float]:
    """The mean latency with these homes, and that of the payloads alone."""
    problem = _Problem(demand, table)
    at = [table.regions.index(homes[name]) if name in homes else 0 for name in problem.topics]
    found = _judge(problem, table, tree, Costs(table, tree), at)
    return found.latency_us, found.direct_us


def _descend(
    problem: _Problem,
    table: LatencyTable,
    tree: PlacementTree,
    start: Sequence[int] | None = None,
    still: Sequence[bool] = (),
    kept: Sequence[int] = (),
) -> Placement:
    """From `start` on, or as if every topic were alone: the descent then pays for what is shared. Topics that stand
    `still` stay at `start`, or at `kept`."""
    costs = Costs(table, tree)
    sites = range(len(table.regions))
    every = range(len(problem.topics))
    homes = [
        start[t]
        if start is not None
        else kept[t]
        if still and still[t]
        else min(sites, key=lambda h: problem.cost(t, h, [h] * len(problem.topics), costs))
        for t in every
    ]
    for _ in range(ROUNDS_MAX):
        moved = False
        for topic in [t for t in every if not (still and still[t])]:
            concerned = [topic, *(x for x in problem.neighbours[topic] if x != topic)]

            def total(home: int, topic: int = topic, concerned: list[int] = concerned) -> float:
                trial = [home if i == topic else h for i, h in enumerate(homes)]
                return sum(problem.cost(x, trial[x], trial, costs) for x in concerned)

            best = min(sites, key=lambda h: (total(h), h != homes[topic]))
            if best != homes[topic]:
                homes[topic] = best
                moved = True
        if not moved:
            break
    return _judge(problem, table, tree, costs, homes)


def _judge(problem: _Problem, table: LatencyTable, tree: PlacementTree, costs: Costs, homes: list[int]) -> Placement:
    total = sum(problem.cost(topic, homes[topic], homes, costs) for topic in range(len(problem.topics)))
    deliveries = problem.deliveries() or 1.0
    named = {name: table.regions[homes[i]] for i, name in enumerate(problem.topics)}
    return Placement(tree, named, total / deliveries, problem.direct(costs) / deliveries)


def to_deployment(placement: Placement, table: LatencyTable, name: str = "planned") -> Deployment:
    """A deployment file's content: a node per region on the tree, every topic at its home."""
    regions = table.regions
    round_trips = {
        f"{regions[a]} {regions[b]}": table.one_way_us[a][b] / 500 for a, b in combinations(range(len(regions)), 2)
    }
    nodes = tuple(
        NodeSpec(region, region, f"127.0.0.1:{7474 + i}", None if above < 0 else regions[above])
        for i, (region, above) in enumerate(zip(regions, placement.tree.parents))
    )
    topics = tuple(TopicSpec(topic, home) for topic, home in placement.homes.items())
    return Deployment(DEPLOYMENT_VERSION, name, tuple(Region(r) for r in regions), round_trips, nodes, topics)


def demand_from_rows(
    subscriptions: Iterable[tuple[str, str]], regions: Mapping[str, str], rates: dict[str, dict[str, float]]
) -> Demand:
    """A demand from `(subscriber, topic)` rows and the region of every subscriber."""
    interests: dict[str, list[str]] = {}
    for subscriber, topic in subscriptions:
        if subscriber not in regions:
            raise MisuseError(f"subscriber {subscriber!r} has no region")
        interests.setdefault(subscriber, []).append(topic)
    return Demand(tuple(Interest(regions[who], tuple(topics)) for who, topics in interests.items()), rates)
