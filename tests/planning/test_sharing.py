"""Several nodes in a region: what is heard together is at home at one of them, and they share the rest."""

from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.planning.demand import Asked, Audience, DemandView
from unisono.planning.homes import HomePlanner, HomesConfig

HERE, BESIDE, FAR = Address("n0"), Address("n1"), Address("far")
PARENTS = {HERE: None, BESIDE: HERE, FAR: HERE}
REGIONS = {HERE: "here", BESIDE: "here", FAR: "there"}
CONFIG = HomesConfig()
GROUPS = tuple(tuple(Topic(10 * group + i) for i in range(4)) for group in range(1, 5))


class Region:
    """Homes that obey the planner, and what is asked for and heard in a period."""

    def __init__(self, homes: dict[Topic, Address], requests: int = 100) -> None:
        self.planner = HomePlanner(PARENTS, REGIONS, {("here", "there"): 80_000}, CONFIG)
        self.homes, self.requests, self.now = dict(homes), requests, Micros(0)
        self.heard: tuple[tuple[Topic, ...], ...] = GROUPS

    def period(self, pinned: frozenset[Topic] = frozenset()) -> int:
        """Returns how many topics move."""
        self.now = Micros(self.now + CONFIG.period_us)
        for node in PARENTS:
            own = tuple(topic for topic, home in self.homes.items() if home == node)
            asked = tuple(Asked(topic, "here", self.requests) for topic in own)
            told = tuple(Audience("here", topics, 2) for topics in self.heard if topics[0] in own)
            self.planner.hear(DemandView(node, own, asked, told), self.now)
        moves = self.planner.plan(self.now, pinned=pinned)
        for move in moves:
            assert move.path[-1] == move.to
            self.homes[move.topic] = move.to
        return len(moves)

    def at(self, group: tuple[Topic, ...]) -> set[Address]:
        return {self.homes[topic] for topic in group}


def split() -> dict[Topic, Address]:
    """Every group lies at both nodes, three quarters of it at the first."""
    return {topic: BESIDE if i == 3 else HERE for group in GROUPS for i, topic in enumerate(group)}


def test_topics_heard_together_come_together_at_one_node_of_their_region() -> None:
    region = Region(split())
    assert region.period() == 0, "on one period's word"
    assert region.period() > 0
    assert [len(region.at(group)) for group in GROUPS] == [1] * 4
    assert [region.period() for _ in range(20)] == [0] * 20


def test_groups_are_spread_over_the_nodes_of_their_region() -> None:
    region = Region(split())
    while not region.period():
        pass
    assert sorted(region.homes[group[0]] for group in GROUPS) == [HERE, HERE, BESIDE, BESIDE]


def test_a_group_that_is_at_one_node_stays_there() -> None:
    region = Region({topic: HERE for group in GROUPS for topic in group})
    assert [region.period() for _ in range(5)] == [0] * 5


def test_a_group_from_another_region_goes_to_one_node_and_the_next_to_the_other() -> None:
    region = Region({topic: FAR for group in GROUPS for topic in group})
    while not region.period():
        pass
    assert [len(region.at(group)) for group in GROUPS] == [1] * 4
    assert sorted(region.homes[group[0]] for group in GROUPS) == [HERE, HERE, BESIDE, BESIDE]


def test_quiet_and_pinned_topics_stay_where_they_are() -> None:
    quiet = Region(split(), requests=0)
    assert [quiet.period() for _ in range(4)] == [0] * 4
    busy, pinned = Region(split()), frozenset(topic for group in GROUPS for topic in group)
    assert [busy.period(pinned) for _ in range(4)] == [0] * 4


def test_a_group_goes_to_where_a_person_has_put_some_of_it() -> None:
    region, pinned = Region(split()), frozenset(group[3] for group in GROUPS)
    while not region.period(pinned):
        pass
    assert [region.at(group) for group in GROUPS] == [{BESIDE}] * 4
    assert [region.period(pinned) for _ in range(10)] == [0] * 10


def test_topics_heard_apart_are_not_company() -> None:
    region = Region(split())
    region.heard = tuple((topic,) for group in GROUPS for topic in group)
    assert [region.period() for _ in range(4)] == [0] * 4
