"""How far ahead or behind each lane of the clock order should lean, so that expected latency is lowest.

An event stamped on topic T at site a is notified at p, who subscribes to S, when it is there and every lane (X, b) of S
has promised not to go below its stamp:

    l = max(d(a, p), max over X in S, b of lanes(X): d(b, p) + beat + lean(T, a) - lean(X, b))

The sum of l over all deliveries is least under linear constraints, so this is a linear programme (HiGHS). A busy local
topic leans back, a rare remote one ahead; where interest is everywhere, all lean as if they sat at the hub. Leans
change latency and nothing else: the order is right with any. Assumes demand as it was; subscribers of one site
with the same topics are one.
"""

from collections.abc import Mapping
from importlib.util import find_spec

from msgspec import Struct

from unisono.errors import MisuseError, PlanError
from unisono.model.region import LatencyTable
from unisono.planning.placement import Demand

LEAN_MAX_WAYS = 2
"""In longest ways and beats. A silent lane could lean ahead for ever, and its first event would be as late."""

LaneOfRegion = tuple[str, str]
"""A topic and the region whose stamper stamps it."""


class LeanPlan(Struct, frozen=True):
    """A lean per lane, and the mean latencies to expect with them, with all leans 0, and without any order."""

    leans_us: dict[LaneOfRegion, int]
    latency_us: float
    unplanned_us: float
    direct_us: float


def can_plan() -> bool:
    return find_spec("scipy") is not None


class LeanDemand(Struct, frozen=True):
    """Who hears what where, alike ones counted together, and how much is stamped on which lane, by topic and region."""

    hearers: dict[tuple[str, tuple[str, ...]], int]
    """Region and topics -> how many."""
    rates: dict[str, dict[str, float]]

    @staticmethod
    def of(demand: Demand) -> "LeanDemand":
        hearers: dict[tuple[str, tuple[str, ...]], int] = {}
        for interest in demand.interests:
            who = (interest.region, tuple(sorted(set(interest.topics))))
            hearers[who] = hearers.get(who, 0) + 1
        return LeanDemand(hearers, demand.rates)


class _Hearers(Struct, frozen=True):
    """Subscribers of one site with the same topics."""

    site: int
    topics: tuple[str, ...]


def plan_leans(
    demand: Demand | LeanDemand, table: LatencyTable, keepers: Mapping[str, str] | None = None, beat_us: int = 0
) -> LeanPlan:
    """Raises PlanError without scipy, MisuseError for regions that the table does not have.

    The lane of a topic's keeper is open whether it stamps or not, also where nothing is published; `keepers` names its
    region, else it is where most is published.
    """
    return LeanProgramme(demand, table, keepers or {}, beat_us).solve()


class LeanProgramme:
    """The variables are a lean per lane, a wait m per hearers, and a latency l per lane and hearers."""

    def __init__(
        self, demand: Demand | LeanDemand, table: LatencyTable, keepers: Mapping[str, str], beat_us: int
    ) -> None:
        demand = demand if isinstance(demand, LeanDemand) else LeanDemand.of(demand)
        places = {name: i for i, name in enumerate(table.regions)}
        named = {region for region, _ in demand.hearers} | {r for of_topic in demand.rates.values() for r in of_topic}
        if unknown := sorted((named | set(keepers.values())) - places.keys()):
            raise MisuseError(f"no distances for {', '.join(unknown)}; known are {', '.join(table.regions)}")
        self.table, self.beat_us = table, beat_us
        self.lanes: dict[str, list[int]] = {}
        for topic in dict.fromkeys([*demand.rates, *(topic for _, topics in demand.hearers for topic in topics)]):
            rates = demand.rates.get(topic, {})
            keeper = keepers.get(topic) or max(rates, key=rates.__getitem__, default=None)
            if keeper is not None:
                self.lanes[topic] = sorted({places[region] for region in (*rates, keeper)})
        self.rates = {(t, places[r]): rate for t, of_topic in demand.rates.items() for r, rate in of_topic.items()}
        self.hearers: dict[_Hearers, int] = {}
        for (region, heard), count in demand.hearers.items():
            topics = tuple(sorted({topic for topic in heard if topic in self.lanes}))
            if topics:
                one = _Hearers(places[region], topics)
                self.hearers[one] = self.hearers.get(one, 0) + count
        self.lane_numbers = {lane: i for i, lane in enumerate((t, b) for t, at in self.lanes.items() for b in at)}

    def expected_us(self, leans_us: Mapping[LaneOfRegion, int]) -> float:
        """The mean with these leans; lanes that are not named have none."""
        places = {name: i for i, name in enumerate(self.table.regions)}
        return self.mean_us({(topic, places[region]): lean for (topic, region), lean in leans_us.items()})

    def waits_us(self, who: _Hearers, leans: Mapping[tuple[str, int], float]) -> float:
        """How long after its stamp an event without a lean may be notified there."""
        return max(self.way_us(b, who.site) - leans.get((x, b), 0) for x in who.topics for b in self.lanes[x])

    def way_us(self, a: int, b: int) -> int:
        """What a promise takes; the stamper of one's own site tells its turns as they end."""
        return self.table.one_way_us[a][b] + (self.beat_us if a != b else 0)

    def mean_us(self, leans: Mapping[tuple[str, int], float] | None) -> float:
        """Over all deliveries; None: without any order."""
        spent = deliveries = 0.0
        for who, people in self.hearers.items():
            wait = self.waits_us(who, leans) if leans is not None else float("-inf")
            for topic in who.topics:
                for a in self.lanes[topic]:
                    weight = self.rates.get((topic, a), 0) * people
                    lean = leans.get((topic, a), 0) if leans is not None else 0
                    spent += weight * max(self.table.one_way_us[a][who.site], lean + wait)
                    deliveries += weight
        return spent / deliveries if deliveries else 0.0

    def solve(self) -> LeanPlan:
        """Raises PlanError without scipy."""
        if not can_plan():
            raise PlanError("planning leans needs scipy: pip install 'unisono[plan]'; without a plan all leans are 0")
        import numpy as np
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        furthest = LEAN_MAX_WAYS * (max(max(row) for row in self.table.one_way_us) + self.beat_us)
        costs = [0.0] * len(self.lane_numbers)
        bounds: list[tuple[float | None, float | None]] = [(-furthest, furthest)] * len(costs)
        rows: list[int] = []
        columns: list[int] = []
        signs: list[float] = []
        limits: list[float] = []

        def constrain(limit: float, *terms: tuple[int, float]) -> None:
            rows.extend([len(limits)] * len(terms))
            columns.extend(column for column, _ in terms)
            signs.extend(sign for _, sign in terms)
            limits.append(limit)

        def variable(cost: float, lowest: float | None) -> int:
            costs.append(cost)
            bounds.append((lowest, None))
            return len(costs) - 1

        for who, people in self.hearers.items():
            wait = variable(0.0, None)
            for topic in who.topics:
                for b in self.lanes[topic]:  # wait >= way - lean
                    constrain(-self.way_us(b, who.site), (self.lane_numbers[topic, b], -1.0), (wait, -1.0))
                    if weight := self.rates.get((topic, b), 0) * people:  # latency >= lean + wait
                        latency = variable(weight, self.table.one_way_us[b][who.site])
                        constrain(0.0, (self.lane_numbers[topic, b], 1.0), (wait, 1.0), (latency, -1.0))
        if not limits:
            return LeanPlan({}, 0.0, 0.0, 0.0)
        matrix = csr_array((signs, (rows, columns)), shape=(len(limits), len(costs)))
        found = linprog(np.array(costs), A_ub=matrix, b_ub=np.array(limits), bounds=bounds, method="highs")
        if not found.success:
            raise PlanError(f"no plan of leans was found: {found.message}")
        leans = {lane: round(found.x[i]) for lane, i in self.lane_numbers.items()}
        names = {(t, self.table.regions[b]): lean for (t, b), lean in leans.items()}
        return LeanPlan(names, self.mean_us(leans), self.mean_us({}), self.mean_us(None))
