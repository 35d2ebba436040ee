"""When lanes lean by themselves: on the word of several periods, for enough gain, never while too little is heard."""

from msgspec import structs

from unisono.model.ids import Address, Topic
from unisono.model.time import SECOND, Micros
from unisono.planning.demand import Asked, Audience, DemandView, LaneCounter
from unisono.planning.leaning import LeanOrders, LeanPlanner, LeansConfig

EU, US, ASIA = Address("eu"), Address("us"), Address("asia")
REGIONS = {EU: "europe", US: "america", ASIA: "asia"}
FAR = {("europe", "america"): 80_000, ("europe", "asia"): 200_000, ("america", "asia"): 160_000}
BUSY, RARE = Topic(1), Topic(2)
CONFIG = LeansConfig()


class Deployed:
    """Stampers that speak once a period, and a planner that is obeyed. BUSY is kept in Europe, RARE in Asia."""

    def __init__(self, config: LeansConfig = CONFIG) -> None:
        self.planner = LeanPlanner(REGIONS, FAR, 5_000, config)
        self.config, self.now = config, Micros(0)
        self.leans: dict[tuple[Address, Topic], int] = {}
        self.stamped = {EU: {BUSY: 1000}, ASIA: {RARE: 1}}
        self.hearing = EU
        self.silent: tuple[Address, ...] = ()

    def period(self) -> LeanOrders:
        self.now = Micros(self.now + self.config.period_us)
        for node in REGIONS:
            if node not in self.silent:
                asked = tuple(Asked(topic, REGIONS[node], n) for topic, n in self.stamped.get(node, {}).items())
                heard = (Audience(REGIONS[node], (BUSY, RARE), 3),) if node == self.hearing else ()
                kept = {EU: (BUSY,), ASIA: (RARE,)}.get(node, ())
                leans = tuple((topic, lean) for (at, topic), lean in self.leans.items() if at == node)
                self.planner.hear(DemandView(node, kept, asked, heard, {}, leans), self.now)
        orders = self.planner.plan(self.now)
        for node, changes in orders.items():
            self.leans.update({(node, topic): lean for topic, lean in changes})
        return orders


def test_a_busy_local_topic_leans_back_when_two_periods_agree_and_then_all_is_well() -> None:
    world = Deployed()
    assert world.period() == {}
    assert set(world.period()) == {EU}
    assert world.planner.expected_us is not None
    before, after = world.planner.expected_us
    assert before > 100_000 > 10_000 > after
    assert world.leans[EU, BUSY] <= -100_000
    assert max(world.leans.values(), default=0) <= 0, "no lane leans ahead, so one that is opened later holds up nobody"
    assert [world.period() for _ in range(20)] == [{}] * 20


def test_leans_that_have_changed_stay_for_a_while() -> None:
    world = Deployed()
    world.period()
    assert world.period() != {}
    world.stamped, world.hearing = {EU: {BUSY: 1}, ASIA: {RARE: 1000}}, ASIA
    waited = 0
    while world.period() == {}:
        waited += 1
        assert waited < 20
    assert waited >= CONFIG.dwell_us // CONFIG.period_us - 1
    assert world.leans[EU, BUSY] >= world.leans[ASIA, RARE] + 100_000


def test_nothing_leans_for_a_small_gain() -> None:
    world = Deployed(structs.replace(CONFIG, gain_us_min=Micros(10 * SECOND)))
    assert [world.period() for _ in range(5)] == [{}] * 5


def test_nothing_changes_while_fewer_than_half_of_the_regions_are_heard() -> None:
    world = Deployed()
    world.silent = (US, ASIA)
    assert [world.period() for _ in range(5)] == [{}] * 5


def test_what_was_asked_for_long_ago_is_forgotten() -> None:
    world = Deployed(structs.replace(CONFIG, dwell_us=Micros(200 * CONFIG.period_us)))
    world.period()
    world.stamped = {}
    for _ in range(40):
        world.period()
    assert world.planner.expected_us is None


def test_a_counter_tells_what_was_stamped_since_it_looked_last() -> None:
    counter = LaneCounter(EU, "europe")
    lanes = [(BUSY, True, 0, 100), (RARE, False, 7, 3)]
    first = counter.look(lanes, [(RARE, BUSY), (BUSY, RARE), ()], {BUSY: -5, RARE: 0})
    assert {asked.topic: asked.count for asked in first.asked} == {RARE: 3}, "nobody knows since when it is kept"
    assert [(each.topics, each.count) for each in first.audiences] == [((BUSY, RARE), 2)]
    assert (first.hosted, first.leans) == ((BUSY,), ((BUSY, -5),))
    second = counter.look([(BUSY, True, 0, 130), (RARE, False, 9, 2)], [], {})
    assert {asked.topic: asked.count for asked in second.asked} == {BUSY: 30, RARE: 2}, "another epoch counts anew"
