"""Which lanes should lean now: what a running deployment is asked for, priced as `leans` prices a plan.

The root hears a `DemandView` of every stamper once a period, and smooths what it hears. Leans are changed when all of
this holds: the change saves at least `gain_min` of what events take on average, and `gain_us_min`; that was so in
`agreeing` periods in a row; the last change was `dwell_us` ago. While views of fewer than half of the regions are
fresh nothing is changed. Leans never endanger order, so a plan may be wrong: it costs time, not correctness.
"""

from collections.abc import Mapping

from msgspec import Struct

from unisono.model.ids import Address, Topic
from unisono.model.time import MILLISECOND, SECOND, Micros
from unisono.planning.demand import DemandView
from unisono.planning.leans import LaneOfRegion, LeanDemand, LeanProgramme
from unisono.planning.views import DemandViews

RATE_MIN = 0.01
"""Events in a period below which a lane is silent."""
LeanOrders = dict[Address, tuple[tuple[Topic, int], ...]]
"""What each node is told: by how many microseconds its lanes of these topics lean from now on."""


class LeansConfig(Struct, frozen=True):
    """When leans change; the defaults settle about three periods after a change of demand."""

    period_us: Micros = Micros(5 * SECOND)
    """Views are sent and plans are made so often. Price: a message per node, and a linear programme in a thread."""
    agreeing: int = 2
    """Periods in a row that have to say that a change is worth it."""
    dwell_us: Micros = Micros(10 * SECOND)
    """Leans that have changed stay for so long. Price of a change: who waits for a lane that leans back waits for as
    much longer, once."""
    gain_min: float = 0.03
    """Share of the mean latency that has to be saved. Price of less: changes for what is only chance; of more: leans
    stay that far from the best ones."""
    gain_us_min: Micros = Micros(MILLISECOND // 2)
    """And so much of it."""
    change_us_min: Micros = Micros(500)
    """A lane whose lean is that near to the new one keeps it."""
    newest: float = 0.3
    """Weight of the newest period in what is planned for: events that are rare are counted over several."""
    topics_max: int = 64
    """The busiest topics are planned for, with all who hear them; lanes of the others do not lean."""
    kinds_max: int = 300
    """Kinds of subscribers (a node, and topics) that are planned for, those with most to hear. A plan for so many takes
    about a second of a thread."""


class LeanPlanner:
    """What the root knows of the demand, and what should follow from it. `beat_us` is what clocks are told late by."""

    def __init__(
        self,
        regions: Mapping[Address, str],
        round_trips_us: Mapping[tuple[str, str], int],
        beat_us: int,
        config: LeansConfig = LeansConfig(),
    ) -> None:
        self._beat_us, self._config = beat_us, config
        self._views = DemandViews(regions, round_trips_us, config.period_us)
        self._rates: dict[tuple[Topic, Address], float] = {}
        self._agreed = 0
        self._changed_at: Micros | None = None
        self.expected_us: tuple[float, float] | None = None
        """Of the last plan: the mean as leans are, and as they could be."""

    def hear(self, view: DemandView, now: Micros) -> None:
        """A node's view has come in."""
        self._views.hear(view, now)

    def plan(self, now: Micros) -> LeanOrders:
        """The changes to make now. Raises PlanError where there is no solver."""
        self._smooth(now)
        changes = self._better(now) if self._views.is_heard(now) else {}
        self._agreed = self._agreed + 1 if changes else 0
        rests = self._changed_at is not None and now - self._changed_at < self._config.dwell_us
        if not changes or self._agreed < self._config.agreeing or rests:
            return {}
        self._agreed, self._changed_at = 0, now
        return changes

    def _smooth(self, now: Micros) -> None:
        newest = self._config.newest
        counts = {
            (Topic(asked.topic), view.node): asked.count for view in self._views.fresh(now) for asked in view.asked
        }
        for lane in {**self._rates, **counts}:
            rate = (1 - newest) * self._rates.get(lane, counts.get(lane, 0)) + newest * counts.get(lane, 0)
            if rate > RATE_MIN:
                self._rates[lane] = rate
            else:
                self._rates.pop(lane, None)

    def _demand(self, now: Micros) -> LeanDemand:
        """With nodes in the place of regions."""
        busy: dict[Topic, float] = {}
        for (topic, _), rate in self._rates.items():
            busy[topic] = busy.get(topic, 0.0) + rate
        kept = set(sorted(busy, key=lambda topic: (-busy[topic], topic))[: self._config.topics_max])
        hearers: dict[tuple[str, tuple[str, ...]], int] = {}
        worth: dict[tuple[str, tuple[str, ...]], float] = {}
        where = self._views.where()
        for view in self._views.fresh(now):
            for each in view.audiences:
                topics = [Topic(topic) for topic in each.topics if topic in kept or topic in where]
                who = (str(view.node), tuple(str(topic) for topic in topics))
                weight = sum(busy.get(topic, 0.0) for topic in topics)
                if weight:
                    hearers[who] = hearers.get(who, 0) + each.count
                    worth[who] = worth.get(who, 0.0) + weight * each.count
        most = sorted(hearers, key=lambda who: (-worth[who], who))[: self._config.kinds_max]
        rates: dict[str, dict[str, float]] = {}
        for (topic, node), rate in self._rates.items():
            if topic in kept:
                rates.setdefault(str(topic), {})[str(node)] = rate
        return LeanDemand({who: hearers[who] for who in most}, rates)

    def _better(self, now: Micros) -> LeanOrders:
        """What would have to change, if that is worth it."""
        self.expected_us = None
        demand, leaning = self._demand(now), self._leaning(now)
        if not demand.rates or not demand.hearers:
            return {}
        keepers = {str(topic): str(node) for topic, node in self._views.where().items()}
        heard = {topic for _, topics in demand.hearers for topic in topics} | demand.rates.keys()
        kept = {topic: node for topic, node in keepers.items() if topic in heard}
        programme = LeanProgramme(demand, self._views.table(), kept, self._beat_us)
        before_us, direct_us = programme.expected_us(leaning), programme.mean_us(None)
        self.expected_us = (before_us, before_us)
        worth_us = max(self._config.gain_us_min, self._config.gain_min * before_us)
        if before_us - direct_us < worth_us:
            return {}  # nothing could be better by so much
        leans = programme.solve().leans_us
        # All that counts is how lanes lean from each other. None leans ahead: what is opened later holds up nobody.
        highest = max(leans.values())
        wanted = {lane: lean - highest for lane, lean in leans.items()}
        after_us = programme.expected_us(wanted)
        if before_us - after_us < worth_us:
            return {}
        self.expected_us = (before_us, after_us)
        return self._orders(wanted, leaning)

    def _leaning(self, now: Micros) -> dict[LaneOfRegion, int]:
        return {
            (str(topic), str(view.node)): lean for view in self._views.fresh(now) for topic, lean in view.leans if lean
        }

    def _orders(self, wanted: Mapping[LaneOfRegion, int], leaning: Mapping[LaneOfRegion, int]) -> LeanOrders:
        found: dict[Address, list[tuple[Topic, int]]] = {}
        for topic, node in {**wanted, **leaning}:
            lean, was = wanted.get((topic, node), 0), leaning.get((topic, node), 0)
            if abs(lean - was) >= self._config.change_us_min:
                found.setdefault(Address(node), []).append((Topic(int(topic)), lean))
        return {node: tuple(leans) for node, leans in found.items()}
