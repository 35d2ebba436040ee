"""A publisher's entourage: who is counted, how many connections it can afford, and to whom it connects.

Every round asks all regions; the newest answer of each root counts. K_p is what CPU time and bandwidth allow, measured
while it sends. Each region gets a share of K_p and of each region's graph the frontier that serves its subscribers best
(specs: entourage, section 5). Whatever comes of it, the overlay brings everything: an error here costs time only.
"""

from collections.abc import Mapping
from random import Random

from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import NO_EVENT, Box, Filter, make_box
from unisono.model.predicate.values import Values, above, below, point, union_all
from unisono.protocols.regions.closeness import has_measure
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.graph import Frontier, best_frontier, frontiers, leaves, size, split
from unisono.protocols.regions.interests import together
from unisono.protocols.regions.messages import (
    REASON_CHARS_MAX,
    CountEntourage,
    CountReply,
    CountRound,
    EntourageTold,
    GraphReport,
    Tally,
)
from unisono.protocols.regions.neighbours import RegionOutbox
from unisono.protocols.regions.publisher import RegionPublisher
from unisono.structures.content import flat

COUNT = "count"
_WIDER = 0.1
_POINTS_MAX = 50
_ADVERTISE_US = 5_000_000
_FORGET_US = 600_000_000
_HOUR_S = 3600
_SMOOTH = 0.3
"""How much of what was measured last counts."""


class _Seen:
    """What one attribute has held lately."""

    __slots__ = ("high", "is_whole", "low", "points")

    def __init__(self) -> None:
        self.low: float | None = None
        self.high: float | None = None
        self.is_whole = True
        self.points: dict[str | bool, None] = {}

    def add(self, value: str | int | float | bool) -> None:
        if isinstance(value, str | bool):
            self.points[value] = None
            return
        self.is_whole = self.is_whole and isinstance(value, int)
        self.low = value if self.low is None else min(self.low, value)
        self.high = value if self.high is None else max(self.high, value)

    def values(self) -> Values | None:
        """A little wider than what was seen; None if it could be anything."""
        if len(self.points) > _POINTS_MAX:
            return None
        parts = [point(value) for value in self.points]
        if self.low is not None and self.high is not None:
            margin = (self.high - self.low) * _WIDER
            extra = int(margin) if self.is_whole else margin
            low, high = (self.low - extra, self.high + extra) if extra else (self.low, self.high)
            parts.append(above(low, inclusive=True) & below(high, inclusive=True))
        return union_all(parts) if parts else None


class Inference:
    """The advertisement that what is published amounts to."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, _Seen]] = {}
        self._counts: dict[str, int] = {}
        self.filter: Filter = NO_EVENT
        self._begun_at = 0
        self._made_at = -_ADVERTISE_US
        self._is_outside = False

    def add(self, event: Event, attributes: Mapping[str, object], now: int) -> None:
        seen = self._topics.setdefault(event.topic, {})
        count = self._counts[event.topic] = self._counts.get(event.topic, 0) + 1
        if count > 1:
            for name in [name for name in seen if name not in event.attributes]:
                del seen[name]  # not in every event: it could be absent
        for name, value in event.attributes.items():
            if count == 1 or name in seen:
                seen.setdefault(name, _Seen()).add(value)
        if not self.filter.matches(attributes):
            self._is_outside = True

    def renew(self, now: int) -> bool:
        """Whether the advertisement has changed; not often, and what is long ago is forgotten."""
        if now - self._made_at < _ADVERTISE_US or not self._topics:
            return False
        is_old = now - self._begun_at > _FORGET_US
        if not self._is_outside and not is_old:
            return False
        boxes: list[Box] = []
        for topic, seen in self._topics.items():
            sides = {name: values for name, each in seen.items() if (values := each.values()) is not None}
            box = make_box({"$topic": point(topic), **sides})
            if box is not None:
                boxes.append(box)
        before, self.filter = self.filter, together([Filter((box,)) for box in boxes])
        self._made_at, self._is_outside = now, False
        if is_old:
            self._topics, self._counts, self._begun_at = {}, {}, now
        return self.filter != before


class _Region:
    """What one root has answered last."""

    __slots__ = ("frontier", "moved_at", "report", "tally")

    def __init__(self) -> None:
        self.report = GraphReport()
        self.tally = Tally()
        self.frontier: Frontier | None = None
        self.moved_at: int | None = None


class Entourage:
    """Counting and choosing, for one publisher."""

    def __init__(self, me: Address, config: RegionsConfig, publisher: RegionPublisher, out: RegionOutbox) -> None:
        self._me, self._config, self._publisher, self._out = me, config, publisher, out
        self._dice = Random(str(me))  # for the sample alone
        self._round = 0
        self._asked_at: int | None = None
        self._is_planned = False
        self._regions: dict[Address, _Region] = {}
        self._advertised: dict[tuple[str, str], Filter] = {}  # explicitly, by topic and publisher
        self._inferred = Inference()
        self._samples: list[dict[str, str | int | float | bool]] = []
        self._seen = 0
        self._avoid: dict[Address, int] = {}  # targets that refused lately, and until when they are left alone
        self.copy_us = config.copy_us
        """CPU time of one copy, averaged over what was measured."""
        self._told: tuple[Address | None, int, str] | None = None  # to which broker we have said what
        self.most = 0
        """K_p, as it was last worked out."""
        self.reason = "nothing counted yet"
        """Why there are the direct connections there are."""

    @property
    def advertised(self) -> Filter:
        """What it says it will publish: its own words, else what it has published."""
        if self._advertised:
            return together(list(self._advertised.values()))
        return self._inferred.filter

    def advertise(self, topic: str, publisher: str, where: Filter) -> None:
        if self._advertised.get((topic, publisher)) != where:
            self._advertised[topic, publisher] = where
            self.count_soon()

    def published(self, event: Event) -> None:
        attributes = flat(event)
        self._sample(attributes)
        if not self._advertised:
            self._inferred.add(event, attributes, self._out.now)
            if self._inferred.renew(self._out.now):
                self.count_soon()

    def _sample(self, attributes: dict[str, object]) -> None:
        """Each event with the same chance."""
        kept = {name: v for name, v in attributes.items() if isinstance(v, str | int | float)}
        self._seen += 1
        if len(self._samples) < self._config.samples_max:
            self._samples.append(kept)
        else:
            place = self._dice.randrange(self._seen)
            if place < self._config.samples_max:
                self._samples[place] = kept

    def measured(self, copy_us: float) -> None:
        """K_p is worked out anew, and the connections follow: more while copies are cheap, fewer when they are not."""
        self.copy_us += _SMOOTH * (copy_us - self.copy_us)
        if self._most() != self.most:
            self._choose()

    # -- rounds

    def count_soon(self) -> None:
        if self._config.discovery_us and not self._is_planned:
            self._is_planned = True
            self._out.wake(COUNT, self._wait())

    def _wait(self) -> int:
        if self._asked_at is None:
            return 0
        return max(0, self._asked_at + self._config.count_gap_us - self._out.now)

    def fired(self) -> None:
        """Time for a round."""
        self._is_planned = False
        self._choose()
        broker, advertised = self._publisher.broker, self.advertised
        if broker is not None and self._publisher.last and not advertised.is_empty:
            self._round += 1
            self._asked_at = self._out.now
            samples = () if has_measure(advertised) else tuple(self._samples)
            asked = CountRound(self._round, advertised, self._config.closeness, samples)
            self._out.send(broker, CountEntourage(self._me, self._me, asked, self._config.budget_us, is_climbing=True))
        if self._config.discovery_us:
            self._is_planned = True
            self._out.wake_about(COUNT, self._config.discovery_us)

    def on_reply(self, m: CountReply) -> None:
        if m.root is None or m.number != self._round:
            return
        found = self._regions.setdefault(m.root, _Region())
        found.report, found.tally = m.report, m.tally
        self._choose()

    def stirred(self) -> None:
        self._is_planned = False
        self.count_soon()

    def lost_broker(self) -> None:
        """Roots may have changed; what is direct stays direct."""
        self._regions = {}

    # -- choosing

    def _most(self) -> int:
        """K_p: connections that CPU time and bandwidth allow, at what was measured and no more than is wanted."""
        per_s, size_bytes = self._publisher.rate(self._out.now, 10_000_000)
        most = self._config.connections_max
        if per_s:
            by_cpu = self._config.cpu_share_max * 1_000_000 / (per_s * self.copy_us) if self.copy_us else most
            quota = self._config.bandwidth_bytes_per_s
            by_bandwidth = quota / (per_s * size_bytes) if quota is not None else most
            most = int(min(most, by_cpu, by_bandwidth))
        return max(0, most)

    def _choose(self) -> None:
        self._note_refusals()
        self.most = most = self._most()
        graphs = {root: found.report.entries for root, found in self._regions.items()}
        sizes = {root: sum(size(entry) for entry in entries) for root, entries in graphs.items()}
        given = split(most, sizes, {root: leaves(entries) for root, entries in graphs.items()})
        wanted: dict[Address, None] = {}
        for root, found in self._regions.items():
            self._move(found, given[root])
            if found.frontier is not None:
                wanted |= dict.fromkeys(found.frontier.nodes)
        self.reason = self._why(graphs, wanted)
        self.tell(len(wanted))
        for target in list(self._publisher.sessions):
            if target not in wanted:
                self._publisher.disconnect(target)
        now = self._out.now
        for target in wanted:
            is_free = target not in self._publisher.sessions and self._avoid.get(target, 0) <= now
            if is_free and len(self._publisher.sessions) < most:
                self._publisher.connect(target)

    def tell(self, connections: int) -> None:
        """The broker is told what has changed, so that people who look there see it."""
        told = (self._publisher.broker, connections, self.reason[:REASON_CHARS_MAX])
        if told != self._told and told[0] is not None and self._publisher.last:
            self._told = told
            self._out.send(told[0], EntourageTold(self._me, self._me, connections, told[2]))

    def _move(self, found: _Region, most: int) -> None:
        """To a better frontier, but not to and fro; at once, where the one we have is none any more, or too dear."""
        now, entries, known = self._out.now, found.report.entries, found.frontier
        changes, brokers = found.tally.changes / _HOUR_S, found.tally.brokers
        best = best_frontier(entries, most, changes, brokers)
        if best is not None and known is not None and len(known.nodes) <= most:
            again = next((each for each in frontiers(entries, changes, brokers) if each.nodes == known.nodes), None)
            is_settled = found.moved_at is None or now - found.moved_at >= self._config.hold_us
            is_worth_it = again is None or (is_settled and best.score >= again.score * (1 + self._config.gain))
            if best.nodes == known.nodes or not is_worth_it:
                return
        found.frontier, found.moved_at = best, now

    def _why(self, graphs: Mapping[Address, tuple[object, ...]], wanted: Mapping[Address, None]) -> str:
        if not self._config.discovery_us:
            return "discovery is off: entourage.discovery_s = 0"
        if not graphs:
            return "no root has answered yet"
        if not any(graphs.values()):
            return f"nobody wants {self._config.closeness:g} of what it publishes (entourage.psi)"
        if not self.most:
            return "one copy is more than its CPU time or bandwidth allow (entourage.bandwidth_bytes_per_s)"
        if not wanted:
            return f"{self.most} connections are too few for any level of the graphs (entourage.connections_max)"
        return f"{len(wanted)} of at most {self.most} connections serve everybody who is close"

    def _note_refusals(self) -> None:
        for target, _ in self._publisher.refused:
            self._avoid[target] = self._out.now + self._config.connect_us
        self._publisher.refused.clear()
        self._avoid = {target: until for target, until in self._avoid.items() if until > self._out.now}
