"""Where the default puts homes, without processes and so without load: the people of `wan`, priced period by period.

Topics are born where their first subscriber is, as in `wan`; every 5 s each node tells the planner what it was asked
for, and what it orders is done. After a minute everybody's demand becomes that of the region before. `mean_ms` is what
the homes after a minute are worth, `planned_ms` those of `plan placement` for the whole demand on the same tree, and
`periods` after how many the mean is within 1.1 of that and stays there; `periods_after_change` the same of the change.
What real processes add to these means is `wan`'s.
"""

import json
import sys
from typing import Any

import wan

from unisono.experiments.sequencer.bound import direct_and_bound_us
from unisono.experiments.sequencer.sites import Sites
from unisono.model.ids import Address, Topic
from unisono.model.region import LatencyTable, public_cloud
from unisono.model.time import SECOND, Micros
from unisono.planning.demand import Asked, Audience, DemandView
from unisono.planning.homes import HomePlanner
from unisono.planning.placement import expected_us, place, stars

PERIOD_S, PERIODS = 5.0, 12
NEAR = 1.1
"""So near to the plan a mean is as good."""
SLACK_US = 500.0
"""Where a plan costs nothing, nothing is 1.1 times as much."""


class Placed:
    """A deployment of one node per region, and the homes of its topics."""

    def __init__(self, people: wan.People, table: LatencyTable) -> None:
        self.table, self.regions, hub = table, table.regions, Sites(table, 0).hub
        self.tree = next(tree for tree in stars(table) if tree.parents[hub] < 0)
        nodes = [Address(region) for region in self.regions]
        trips = {
            (a, b): 2 * table.one_way_us[i][j]
            for i, a in enumerate(self.regions)
            for j, b in enumerate(self.regions[:i])
        }
        parents = {node: None if at == hub else nodes[hub] for at, node in enumerate(nodes)}
        self.planner = HomePlanner(parents, dict(zip(nodes, self.regions)), trips)
        self.numbers = {name: Topic(number) for number, name in enumerate(people.topics, 1)}
        self.names = {number: name for name, number in self.numbers.items()}
        self.homes: dict[str, str] = {}
        for site, own in people.subscribers:
            self.homes |= {name: self.regions[site] for name in own if name not in self.homes}
        for event in people.events:
            self.homes.setdefault(event.topic, self.regions[event.site])
        self.now, self.moves = Micros(0), 0

    def period(self, people: wan.People, events: list[wan.Event]) -> None:
        """Every node tells what it has seen, and the root decides."""
        self.now = Micros(self.now + round(PERIOD_S * SECOND))
        for region in self.regions:
            hosted = tuple(self.numbers[name] for name, home in self.homes.items() if home == region)
            asked: dict[tuple[Topic, str], int] = {}
            for event in events:
                if self.homes[event.topic] == region:
                    key = self.numbers[event.topic], self.regions[event.site]
                    asked[key] = asked.get(key, 0) + 1
            heard = tuple(
                Audience(self.regions[site], tuple(self.numbers[name] for name in own), 1)
                for site, own in people.subscribers
                if self.homes[own[0]] == region
            )
            told = tuple(Asked(topic, at, count) for (topic, at), count in asked.items())
            self.planner.hear(DemandView(Address(region), hosted, told, heard), self.now)
        for move in self.planner.plan(self.now):
            self.homes[self.names[move.topic]] = str(move.to)
            self.moves += 1

    def mean_us(self, people: wan.People) -> float:
        return expected_us(people.demand(self.regions), self.table, self.tree, self.homes)[0]


def settle(placed: Placed, people: wan.People, planned_us: float) -> tuple[int, float]:
    """A minute of this demand: after how many periods the mean was as good as planned for the rest of it, one more than
    there are if it never was; and what it is in the end."""
    good_us = NEAR * planned_us + SLACK_US
    settled = 0 if placed.mean_us(people) <= good_us else 1
    for number in range(PERIODS):
        since = number * PERIOD_S
        placed.period(people, [event for event in people.events if since <= event.at_s < since + PERIOD_S])
        if placed.mean_us(people) > good_us:
            settled = number + 2
    return settled, placed.mean_us(people)


def measure(count: int, workload: str) -> dict[str, Any]:
    people, table = wan.draw(count, workload, PERIODS * PERIOD_S), public_cloud().among(wan.REGIONS[count])
    placed, row = Placed(people, table), {"case": f"{count} regions, {workload}"}
    direct_us, bound_us = direct_and_bound_us(Sites(table, 0), people.crowd())
    planned_us = place(people.demand(table.regions), table, [placed.tree]).latency_us
    born_us = placed.mean_us(people)
    periods, mean_us = settle(placed, people, planned_us)
    means = {"born": born_us, "mean": mean_us, "planned": planned_us, "direct": direct_us, "bound": bound_us}
    other = wan.shifted(people, count)
    changed_us = placed.mean_us(other)
    back, again_us = settle(placed, other, place(other.demand(table.regions), table, [placed.tree]).latency_us)
    means |= {"changed": changed_us, "settled_again": again_us}
    return {
        **row,
        **{f"{name}_ms": round(us / 1000, 1) for name, us in means.items()},
        "times_planned": round(mean_us / planned_us, 2) if planned_us > 1000 else None,
        "times_bound": round(mean_us / bound_us, 2) if bound_us > 1000 else None,
        "periods": periods,
        "periods_after_change": back,
        "moves": placed.moves,
    }


def run() -> list[dict[str, Any]]:
    return [measure(count, workload) for count in wan.REGIONS for workload in wan.WORKLOADS]


if __name__ == "__main__":
    for one in run():
        sys.stdout.write(json.dumps(one) + "\n")
