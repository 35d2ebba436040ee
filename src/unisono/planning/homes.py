"""Which homes should move now: what a running deployment is asked for, priced as `placement` prices a plan.

The root hears a `DemandView` of every node once a period. A change is proposed when all of this holds: it saves at
least `gain_min` of what events take on average, and `gain_us_min`; the same home was best for the topic in `agreeing`
periods in a row; the topic has not moved for `dwell_us`. At most `moves_max` topics move in a period. While views of
fewer than half of the regions are fresh nothing moves: those that are not heard may be where everything is used. Among
the nodes of one region, topics that are heard together are at one (`sharing`), by the same hysteresis.

Moves never endanger order, so a plan may be wrong: it costs time, not correctness.
"""

from collections.abc import Mapping
from itertools import chain

from msgspec import Struct

from unisono.model.ids import Address, Topic
from unisono.model.time import MILLISECOND, SECOND, Micros
from unisono.planning.demand import DemandView
from unisono.planning.leaning import LeansConfig
from unisono.planning.placement import Demand, Interest, PlacementTree, expected_us, improve, stars
from unisono.planning.sharing import share_out
from unisono.planning.views import DemandViews

WEIGHT_MAX = 50
"""Subscribers of one kind in one region that count; more of them say no more."""


class HomesConfig(Struct, frozen=True):
    """When homes move; the defaults settle about three periods after a change of demand."""

    period_us: Micros = Micros(5 * SECOND)
    """Views are sent and plans are made so often. Price: a message per node, and a plan of some milliseconds."""
    agreeing: int = 2
    """Periods in a row that have to say the same of a topic; never less than two."""
    dwell_us: Micros = Micros(30 * SECOND)
    """A topic that has moved stays for so long."""
    gain_min: float = 0.1
    """Share of the mean latency that has to be saved."""
    gain_us_min: Micros = Micros(MILLISECOND)
    """And so much of it."""
    moves_max: int = 50
    """Topics that move in one period; those that gain most go first."""
    topics_max: int = 64
    """The busiest topics are planned for, with those that are heard with them; the others stay. A plan takes up to half
    a second of a thread if all of so many are heard together."""
    requests_min: int = 3
    """Requests in a period below which a topic is too quiet to be moved."""
    root_periods: int = 24
    """Every so many periods the root looks whether another node should stand in its place, which costs as much as a
    plan for each of them."""
    leans: LeansConfig = LeansConfig()
    """By clock topics stay where they are, and lanes lean."""


class ProposedMove(Struct, frozen=True):
    """A topic would be better at home there."""

    topic: Topic
    at: Address
    to: Address
    path: tuple[Address, ...]
    """The nodes on the way, the last is `to`."""
    reason: str


class BetterRoot(Struct, frozen=True):
    """With this node at the root, and all others right below it, events would take less time."""

    node: Address
    expected_us: float
    """The mean on the tree as it is, with the best homes there."""
    possible_us: float


class HomePlanner:
    """What the root knows of the demand, and what should follow from it."""

    def __init__(
        self,
        parents: Mapping[Address, Address | None],
        regions: Mapping[Address, str],
        round_trips_us: Mapping[tuple[str, str], int],
        config: HomesConfig = HomesConfig(),
    ) -> None:
        """`round_trips_us` is what the deployment says of pairs of regions, a first guess."""
        self._nodes = list(parents)
        self._parents, self._regions, self._config = parents, regions, config
        self._views = DemandViews(regions, round_trips_us, config.period_us)
        self.where, self.table, self.pairs_unknown = self._views.where, self._views.table, self._views.pairs_unknown
        self._wanted: dict[Topic, tuple[Address, int]] = {}  # the home that was best lately, and how often in a row
        self._moved: dict[Topic, Micros] = {}
        self.expected_us: tuple[float, float] | None = None
        """Of the last plan: the mean as homes are, and as they could be."""

    def hear(self, view: DemandView, now: Micros) -> None:
        self._views.hear(view, now)

    def plan(
        self, now: Micros, at_once: bool = False, pinned: frozenset[Topic] = frozenset(), keep: bool = True
    ) -> list[ProposedMove]:
        """The moves to make now; `at_once`: whatever earlier periods said, for a person who asks for it. Unless `keep`
        they are only looked at."""
        if not self._views.is_heard(now):
            self._wanted.clear()
            return []
        homes = self._views.where()
        demand, counts = self._demand(now, homes)
        movable = {topic: count for topic, count in counts.items() if topic in homes and topic not in pinned}
        better = self._shared_out(now, homes, self._better(demand, homes, movable), pinned)
        self._wanted = {
            topic: (to, self._wanted[topic][1] + 1 if self._wanted.get(topic, ("", 0))[0] == to else 1)
            for topic, to in better.items()
        }
        moves: list[ProposedMove] = []
        for topic in sorted(better, key=lambda topic: (-movable.get(topic, 0), topic)):
            to, times = self._wanted[topic]
            rests = now - self._moved[topic] < self._config.dwell_us if topic in self._moved else False
            if not at_once and (times < max(2, self._config.agreeing) or rests):
                continue
            moves.append(self._move(topic, homes[topic], to))
            if keep:
                self._moved[topic] = now
            if len(moves) == self._config.moves_max:
                break
        self._moved = {topic: at for topic, at in self._moved.items() if now - at < self._config.dwell_us}
        return moves

    def better_root(self, now: Micros, pinned: frozenset[Topic] = frozenset()) -> BetterRoot | None:
        """Whose star would serve this demand best, with the best homes on either tree, if it saves what moves have to.

        Nobody says so while a distance is only guessed."""
        if not self._views.is_heard(now) or self.pairs_unknown():
            return None
        homes = self.where()
        demand, counts = self._demand(now, homes)
        if not demand.rates or not demand.interests:
            return None
        table, tree = self.table(), self._tree()
        named = {name: str(homes[Topic(int(name))]) for name in _topics(demand) if Topic(int(name)) in homes}
        fixed = frozenset(name for name in named if Topic(int(name)) in pinned or Topic(int(name)) not in counts)
        here = improve(demand, table, tree, named, fixed)
        worth_us = max(self._config.gain_us_min, self._config.gain_min * here.latency_us)
        if here.latency_us - here.direct_us < worth_us:
            return None
        others = [star for star in stars(table) if star.parents != tree.parents]
        found = {star.parents.index(-1): improve(demand, table, star, named, fixed).latency_us for star in others}
        best = min(found, key=lambda root: found[root], default=None)
        if best is None or here.latency_us - found[best] < worth_us:
            return None
        return BetterRoot(self._nodes[best], here.latency_us, found[best])

    def as_asked(self, topic: Topic, at: Address, to: Address, now: Micros) -> ProposedMove:
        """What a person wants. It stays there for a while, whatever plans say."""
        self._moved[topic] = now
        return ProposedMove(topic, at, to, self.path(at, to), "a person asked for it")

    def path(self, at: Address, to: Address) -> tuple[Address, ...]:
        """The nodes after `at` on the way through the tree."""
        ups, downs = self._above(at), self._above(to)
        meet = next(node for node in ups if node in downs)
        return (*ups[1 : ups.index(meet) + 1], *reversed(downs[: downs.index(meet)]))

    def _tree(self) -> PlacementTree:
        index = {node: place for place, node in enumerate(self._nodes)}
        parents = tuple(-1 if (up := self._parents[node]) is None else index[up] for node in self._nodes)
        return PlacementTree("as it is", parents)

    def _above(self, node: Address) -> list[Address]:
        found = [node]
        while (parent := self._parents[found[-1]]) is not None:
            found.append(parent)
        return found

    def _demand(self, now: Micros, homes: Mapping[Topic, Address]) -> tuple[Demand, dict[Topic, int]]:
        """Who publishes how much where and who hears what, with nodes in the place of regions."""
        node_in = {self._regions[node]: node for node in reversed(self._nodes)}
        rates: dict[str, dict[str, float]] = {}
        counts: dict[Topic, int] = {}
        audiences: list[tuple[str, tuple[int, ...], int]] = []
        for view in self._views.fresh(now):
            for asked in view.asked:
                if asked.region in node_in:
                    own = rates.setdefault(str(asked.topic), {})
                    where = node_in[asked.region]
                    own[where] = own.get(where, 0.0) + asked.count
                    counts[Topic(asked.topic)] = counts.get(Topic(asked.topic), 0) + asked.count
            audiences += [(each.region, each.topics, each.count) for each in view.audiences]
        busy = sorted((t for t in counts if counts[t] >= self._config.requests_min), key=lambda t: -counts[t])
        kept = dict.fromkeys(busy[: self._config.topics_max])
        for _, topics, _ in audiences:  # a quiet topic that is heard with a busy one holds it up all the same
            if len(kept) < self._config.topics_max and any(topic in kept for topic in topics):
                kept |= dict.fromkeys(map(Topic, topics))
        interests: list[Interest] = []
        for region, topics, count in audiences:
            heard = tuple(str(topic) for topic in topics if topic in kept and topic in homes)
            if heard and region in node_in:
                interests += [Interest(node_in[region], heard)] * min(count, WEIGHT_MAX)
        wanted = {str(topic): rates[str(topic)] for topic in kept if topic in homes and topic in counts}
        return Demand(tuple(interests), wanted), {topic: counts.get(topic, 0) for topic in kept}

    def _better(
        self, demand: Demand, homes: Mapping[Topic, Address], movable: Mapping[Topic, int]
    ) -> dict[Topic, Address]:
        """Topics that another home is best for, if the whole change is worth it."""
        self.expected_us = None
        if not demand.rates or not demand.interests:
            return {}
        tree, table = self._tree(), self._views.table()
        named = {name: str(homes[Topic(int(name))]) for name in _topics(demand) if Topic(int(name)) in homes}
        fixed = frozenset(name for name in named if Topic(int(name)) not in movable)
        before_us, direct_us = expected_us(demand, table, tree, named)
        self.expected_us = (before_us, before_us)
        worth_us = max(self._config.gain_us_min, self._config.gain_min * before_us)
        if before_us - direct_us < worth_us:
            return {}  # nothing could be better by so much
        found = improve(demand, table, tree, named, fixed)
        if before_us - found.latency_us < worth_us:
            return {}
        self.expected_us = (before_us, found.latency_us)
        return {
            Topic(int(name)): Address(found.homes[name])
            for name, home in named.items()
            if found.homes[name] != home and Topic(int(name)) in movable
        }

    def _shared_out(
        self, now: Micros, homes: Mapping[Topic, Address], better: Mapping[Topic, Address], pinned: frozenset[Topic]
    ) -> dict[Topic, Address]:
        """The same, with what is heard together at one of a region's nodes."""
        views = list(self._views.fresh(now))
        asked: dict[Topic, int] = {}
        for each in chain.from_iterable(view.asked for view in views):
            asked[Topic(each.topic)] = asked.get(Topic(each.topic), 0) + each.count
        heard = [each.topics for view in views for each in view.audiences]
        return share_out(homes, better, asked, heard, self._regions, self._config.requests_min, pinned)

    def _move(self, topic: Topic, at: Address, to: Address) -> ProposedMove:
        if self._regions[at] == self._regions[to]:
            reason = "so that topics that are heard together are at one node of their region"
            return ProposedMove(topic, at, to, self.path(at, to), reason)
        assert self.expected_us is not None
        before, after = self.expected_us
        reason = f"events take {before / 1000:.1f} ms on average, {after / 1000:.1f} ms with better homes"
        return ProposedMove(topic, at, to, self.path(at, to), reason)


def _topics(demand: Demand) -> list[str]:
    heard = {name: None for interest in demand.interests for name in interest.topics}
    return list(dict.fromkeys([*heard, *demand.rates]))
