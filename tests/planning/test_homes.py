"""When homes move by themselves: on the word of several periods, for enough gain, never while too little is heard."""

import pytest

from unisono.model.ids import Address, Topic
from unisono.model.time import MILLISECOND, SECOND, Micros
from unisono.planning.demand import Asked, Audience, DemandCounter, DemandView
from unisono.planning.homes import HomePlanner, HomesConfig, ProposedMove
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Creates, Install, Wanted
from unisono.protocols.sequencer.node import TopicManager

HUB, EU, ASIA = Address("hub"), Address("eu"), Address("asia")
PARENTS = {HUB: None, EU: HUB, ASIA: HUB}
REGIONS = {HUB: "us", EU: "europe", ASIA: "asia"}
FAR = {("us", "europe"): 80_000, ("us", "asia"): 200_000, ("europe", "asia"): 250_000}
X, T = Topic(1), Topic(2)
CONFIG = HomesConfig()


class Deployed:
    """A deployment whose nodes speak once a period, and a planner that is obeyed."""

    def __init__(self, homes: dict[Topic, Address], config: HomesConfig = CONFIG) -> None:
        self.planner = HomePlanner(PARENTS, REGIONS, FAR, config)
        self.homes, self.config, self.now = dict(homes), config, Micros(0)
        self.asked: tuple[Asked, ...] = ()
        self.audiences: tuple[Audience, ...] = ()
        self.silent: tuple[Address, ...] = ()
        self.spans: dict[str, dict[str, int]] = {}

    def period(self) -> list[ProposedMove]:
        self.now = Micros(self.now + self.config.period_us)
        for node in (HUB, EU, ASIA):
            if node not in self.silent:
                here = tuple(topic for topic, home in self.homes.items() if home == node)
                asked = tuple(one for one in self.asked if one.topic in here)
                told = tuple(each for each in self.audiences if each.topics[0] in here)
                self.planner.hear(DemandView(node, here, asked, told, self.spans), self.now)
        moves = self.planner.plan(self.now)
        for move in moves:
            assert self.homes[move.topic] == move.at
            self.homes[move.topic] = move.to
        return moves

    def demand(self, region: str, *topics: Topic) -> None:
        """Everything happens there."""
        self.asked = tuple(Asked(topic, region, 100) for topic in topics)
        self.audiences = (Audience(region, topics, 3),)


def test_topics_move_to_where_they_are_used_when_two_periods_agree() -> None:
    world = Deployed({X: HUB, T: ASIA})
    world.demand("europe", X, T)
    assert world.period() == []
    moves = world.period()
    assert {move.topic: (move.to, move.path) for move in moves} == {X: (EU, (EU,)), T: (EU, (HUB, EU))}
    assert "ms" in moves[0].reason
    assert world.period() == []


def test_periods_that_do_not_agree_move_nothing() -> None:
    world = Deployed({X: HUB})
    for i in range(10):
        world.demand(("europe", "asia")[i % 2], X)
        assert world.period() == []


def test_a_topic_that_has_moved_stays_for_a_while() -> None:
    world = Deployed({X: HUB})
    world.demand("europe", X)
    while not world.period():
        pass
    moved = world.now
    world.demand("asia", X)
    while not world.period():
        pass
    assert world.now - moved >= CONFIG.dwell_us
    assert world.homes == {X: ASIA}


def test_a_small_gain_moves_nothing() -> None:
    """Half of what is published comes from here, half from there: either home is as good."""
    world = Deployed({X: HUB})
    world.asked = (Asked(X, "us", 100), Asked(X, "europe", 101))
    world.audiences = (Audience("us", (X,), 2), Audience("europe", (X,), 2))
    assert [world.period() for _ in range(5)] == [[]] * 5


def test_nothing_moves_while_fewer_than_half_of_the_regions_are_heard() -> None:
    world = Deployed({X: HUB})
    world.demand("europe", X)
    world.silent = (EU, ASIA)
    assert [world.period() for _ in range(6)] == [[]] * 6
    world.silent = (ASIA,)
    assert [bool(world.period()) for _ in range(2)] == [False, True]


def test_quiet_topics_stay_but_for_those_heard_with_busy_ones() -> None:
    world = Deployed({X: HUB, T: ASIA})
    world.asked = (Asked(X, "europe", 2), Asked(T, "europe", 2))
    world.audiences = (Audience("europe", (X, T), 3),)
    assert [world.period() for _ in range(4)] == [[]] * 4
    world.asked = (Asked(X, "europe", 50),)
    world.period()
    assert {move.topic: move.to for move in world.period()} == {X: EU, T: EU}


def test_topics_heard_together_go_together() -> None:
    """One alone would gain nothing: the other is still an ocean away."""
    world = Deployed({X: ASIA, T: ASIA})
    world.demand("europe", X, T)
    world.period()
    assert {move.topic: move.to for move in world.period()} == {X: EU, T: EU}


def test_so_many_move_at_a_time() -> None:
    topics = [Topic(number) for number in range(1, 8)]
    world = Deployed(dict.fromkeys(topics, HUB), HomesConfig(moves_max=3))
    world.demand("europe", *topics)
    assert [len(world.period()) for _ in range(5)] == [0, 3, 3, 1, 0]


def test_pinned_topics_are_planned_around() -> None:
    world = Deployed({X: HUB})
    world.demand("europe", X)
    world.period()
    world.planner.hear(DemandView(HUB, (X,), world.asked, world.audiences), world.now)
    assert world.planner.plan(world.now, at_once=True, pinned=frozenset((X,))) == []
    assert [move.to for move in world.planner.plan(world.now, at_once=True)] == [EU]


def test_measured_distances_replace_configured_ones() -> None:
    """Asia is nearer to europe than to us, though the file says otherwise."""
    world = Deployed({X: ASIA})
    world.asked = (Asked(X, "asia", 100),)
    world.audiences = (Audience("asia", (X,), 2), Audience("europe", (X,), 2))
    world.spans = {"europe": {"asia": 20_000}}
    world.period()
    assert world.planner.table().between(ASIA, EU) == 10_000
    assert world.planner.table().between(EU, HUB) == 40_000


def test_a_home_is_looked_at_without_counting_anything() -> None:
    node = TopicManager(HUB, None, (), (X, T), {}, SequencerConfig())
    regions = {Address("p"): "europe", Address("s"): "asia"}
    now = Micros(SECOND)
    for sid in ("s", "z"):
        node.handle(Install(Address(sid), 1, (X, T), (X, T)), now)
    node.handle(Creates(Address("p"), (Wanted(X, 1, 5),)), now)
    counter = DemandCounter(HUB)
    first = counter.look(node.hosted, regions.get)
    assert (first.hosted, first.asked) == ((X, T), ())
    assert first.audiences == (Audience("asia", (X, T), 1),)
    node.handle(Creates(Address("p"), (Wanted(X, 6, 3),)), now)
    node.handle(Creates(Address("q"), (Wanted(X, 1, 3),)), now)
    assert counter.look(node.hosted, regions.get).asked == (Asked(X, "europe", 3),)
    assert counter.look(node.hosted, regions.get).asked == ()


def test_a_root_that_is_badly_placed_is_told_with_what_another_would_gain() -> None:
    """Everybody is in europe and asia, and hears both: what they are ordered by meets in the us."""
    far, fixed = {("us", "europe"): 80_000, ("us", "asia"): 200_000, ("europe", "asia"): 90_000}, frozenset((X, T))
    planner = HomePlanner(PARENTS, REGIONS, far)

    def hear(planner: HomePlanner, *regions: str) -> None:
        asked = tuple(Asked(topic, region, 100) for topic, region in zip((X, T), regions))
        audiences = tuple(Audience(region, (X, T), 3) for region in regions)
        planner.hear(DemandView(EU, (X,), asked[:1], audiences), Micros(1))
        planner.hear(DemandView(ASIA, (T,), asked[1:]), Micros(1))

    hear(planner, "europe", "asia")
    found = planner.better_root(Micros(1), fixed)
    assert found is not None
    assert found.node in (EU, ASIA)
    assert found.possible_us < found.expected_us * (1 - CONFIG.gain_min)
    gain_us = round(found.expected_us - found.possible_us)
    content = HomePlanner(PARENTS, REGIONS, far, HomesConfig(gain_min=0.0, gain_us_min=Micros(gain_us + 2)))
    hear(content, "europe", "asia")
    assert content.better_root(Micros(1), fixed) is None
    hear(planner, "us", "us")
    assert planner.better_root(Micros(1)) is None, "who is where the root is has nothing to gain"
    assert planner.better_root(Micros(1 + 4 * CONFIG.period_us)) is None, "nobody has spoken lately"


def test_a_root_is_not_advised_while_a_distance_is_only_guessed() -> None:
    planner = HomePlanner(PARENTS, REGIONS, {("us", "europe"): 80_000, ("us", "asia"): 200_000})
    assert planner.pairs_unknown() == [("europe", "asia")]
    asked, audiences = (
        (Asked(X, "europe", 100), Asked(T, "asia", 100)),
        (Audience("europe", (X, T), 2), Audience("asia", (X, T), 2)),
    )
    planner.hear(DemandView(EU, (X,), asked[:1], audiences), Micros(1))
    planner.hear(DemandView(ASIA, (T,), asked[1:]), Micros(1))
    fixed = frozenset((X, T))
    assert planner.better_root(Micros(1), fixed) is None
    planner.hear(DemandView(ASIA, (T,), asked[1:], round_trips_us={"asia": {"europe": 20_000}}), Micros(1))
    assert planner.pairs_unknown() == []
    assert planner.better_root(Micros(1), fixed) is not None


@pytest.mark.parametrize("agreeing", [1, 2, 4])
def test_never_on_one_periods_word(agreeing: int) -> None:
    world = Deployed({X: HUB}, HomesConfig(agreeing=agreeing, gain_us_min=Micros(MILLISECOND)))
    world.demand("europe", X)
    assert [bool(world.period()) for _ in range(max(2, agreeing))][:-1] == [False] * (max(2, agreeing) - 1)
