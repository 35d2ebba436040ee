"""The sequencer under reordering, churn, moves, crashes, losses and an outage: as users get it, in every order that a
deployment can ask for, and with whole stamps and full timestamps.

Every seed grows its own tree of one to seven nodes. The default suite plays a few hundred seeds, `make campaign` more
than twenty thousand. A seed that fails prints the command that replays it.
"""

import pytest

from unisono.audit import judge
from unisono.errors import MisuseError
from unisono.model.ids import Address
from unisono.model.journal import Journal
from unisono.model.settings import Sequencing
from unisono.sim.scenario import Scenario, load, play, stage, with_options
from unisono.sim.stages.listening import manager_of

RARE = {"outage": 2, "stored": 1, "leases": 1}
"""So many seeds in every mode."""
SCENARIOS = (
    "static",
    "churn",
    "moves",
    "crash",
    "lossy",
    "refusing",
    "outage",
    "disks",
    "named",
    "placed",
    "stored",
    "leases",
)
ORDER, EARLY, ENCODING = (f"deployment.sequencing.{field}" for field in ("order", "early", "encoding"))
ALIKE: dict[str, object] = {
    "options.config.short_from": 2,
    "workload.topics": 4,
    "workload.topics_per_client": 4,
    "workload.churn_per_s": 3,
}
"""Everybody hears the same topics, and those at one home are told in short."""
MODES: dict[str, dict[str, object]] = {
    "pairwise": {},
    "global": {ORDER: "global"},
    "causal": {ORDER: "causal"},
    "stamp": {ORDER: "global", EARLY: False},
    "full": {ORDER: "global", ENCODING: "full"},
    "stamp pairwise": {EARLY: False},
    "stamp causal": {ORDER: "causal", EARLY: False},
    "full causal": {ORDER: "causal", ENCODING: "full"},
    "short": {**ALIKE, "options.nodes_max": 1},
    "short apart": {**ALIKE, "options.nodes_max": 3},
}
SEEDS = {"pairwise": 8, "global": 3, "causal": 3}
"""The others 2 each."""
CAMPAIGN_SEEDS = 700
FORGOTTEN_MODES = [mode for mode in MODES if "causal" not in mode]
"""What a publisher had open at a home that is reborn it does not wait for, so causes may come late (decision 25)."""


def scenario(name: str, mode: str) -> Scenario:
    found = load(f"sequencer/{name}")
    if name == "outage":
        found = with_options(found, {"workload.duration": 75_000_000, "workload.rate_per_s": 8})
    return with_options(found, MODES[mode])


def broken(found: Scenario, mode: str, seeds: range) -> list[str]:
    """What was broken, with the command that shows it again."""
    settings = "".join(f" --set {key}={value}" for key, value in MODES[mode].items())
    return [
        f"{verdict.judge}: {verdict.witness}\n  unisono simulate {found.name}{settings} --seeds {seed}"
        for seed in seeds
        for verdict in judge(play(found, seed), found.promised)
        if not verdict.holds
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_one_order_nothing_twice_nothing_lost_nothing_stuck(name: str, mode: str) -> None:
    seeds = range(RARE.get(name, SEEDS.get(mode, 2)))
    assert broken(scenario(name, mode), mode, seeds) == []


@pytest.mark.parametrize("mode", FORGOTTEN_MODES)
def test_what_was_accepted_is_heard_or_told_of_though_nodes_lose_data(mode: str) -> None:
    assert broken(scenario("forgotten", mode), mode, range(20 if mode == "pairwise" else 2)) == []
    assert broken(scenario("placed-forgotten", mode), mode, range(17 if mode == "pairwise" else 2)) == []
    assert broken(scenario("listening", mode), mode, range(100, 102)) == []


@pytest.mark.campaign
@pytest.mark.parametrize("mode", FORGOTTEN_MODES)
def test_campaign_forgotten(mode: str) -> None:
    assert broken(scenario("forgotten", mode), mode, range(1000, 1000 + CAMPAIGN_SEEDS)) == []
    assert broken(scenario("placed-forgotten", mode), mode, range(1000, 1000 + CAMPAIGN_SEEDS)) == []
    assert broken(scenario("listening", mode), mode, range(1000, 1000 + CAMPAIGN_SEEDS)) == []


@pytest.mark.parametrize("seed", [5, 15, 16])
def test_each_topic_has_one_home_though_nodes_lose_data_while_homes_move(seed: int) -> None:
    """And only the nodes on the way from the root to the home know it."""
    found = scenario("placed-forgotten", "pairwise")
    world = stage(found, seed)
    world.run(until=found.workload.begin + found.workload.duration + found.settle)
    nodes = {Address(name): manager_of(host.machine) for name, host in world.hosts.items() if name.startswith("n")}
    for topic in map(world.topic, found.topics):
        at, way = Address("n0"), [Address("n0")]
        while topic in nodes[at].below:
            at = nodes[at].below[topic]
            way.append(at)
        assert [name for name, node in nodes.items() if topic in node.hosted] == [at]
        assert {name for name, node in nodes.items() if topic in node.clock} == set(way)


@pytest.mark.campaign
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_campaign(name: str, mode: str) -> None:
    assert broken(scenario(name, mode), mode, range(1000, 1000 + CAMPAIGN_SEEDS)) == []


@pytest.mark.parametrize(("mode", "seed"), [("global", 1025), ("stamp", 1265), ("pairwise", 1014)])
def test_a_burst_that_takes_the_last_stamp_and_the_next_marks_is_noticed(mode: str, seed: int) -> None:
    """Found by the campaign when four marks followed the last change at equal intervals."""
    assert broken(scenario("lossy", mode), mode, range(seed, seed + 1)) == []


def kinds(journal: Journal, kind: str) -> int:
    return sum(record.kind == kind for record in journal.records)


def test_the_scenarios_do_what_their_names_say() -> None:
    """A campaign in which nothing ever happens would pass as well."""
    names = ("static", "moves", "crash", "lossy", "refusing", "forgotten", "disks")
    static, moves, crash, lossy, refusing, forgotten, disks = (play(scenario(name, "pairwise"), 3) for name in names)
    assert sum(record.kind == "outcome" and record.note == "refused" for record in refusing.records) > 0
    assert kinds(refusing, "gap") > 0, "what was accepted before the broker refused it"
    assert kinds(static, "deliver") > 100
    assert kinds(static, "gap") == kinds(static, "tag") == 0
    assert kinds(moves, "move") > 10
    assert kinds(crash, "crash") == kinds(crash, "restart") > 3
    assert kinds(lossy, "gap") > 0
    assert sum(record.note == "the disk refuses a commit" for record in disks.records) == kinds(disks, "crash") > 3
    assert kinds(forgotten, "restart") == 3
    assert sum(record.note == "its home no longer knows these numbers" for record in forgotten.records) > 0
    assert sum(record.kind == "outcome" and record.note == "unknown" for record in forgotten.records) > 0


def test_pairs_that_one_subscriber_has_alone_may_close_a_cycle() -> None:
    """Decision 4: with groups of two, no two subscribers disagree, and yet no single order explains all of them."""
    found = load("sequencer/static")
    verdicts = [judge(play(found, seed), ("pairwise-order", "acyclic")) for seed in range(5)]
    assert all(pairwise.holds for pairwise, _ in verdicts)
    assert not all(acyclic.holds for _, acyclic in verdicts)


def test_what_is_promised_follows_the_order_that_is_asked_for() -> None:
    promised = {mode: scenario("churn", mode).promised for mode in ("pairwise", "global", "causal")}
    assert [set(names) & {"pairwise-order", "acyclic", "causal"} for names in promised.values()] == [
        {"pairwise-order"},
        {"pairwise-order", "acyclic"},
        {"pairwise-order", "acyclic", "causal"},
    ]
    assert load("sequencer/churn").deployment.sequencing == Sequencing(), "played is what users get"


@pytest.mark.parametrize("mode", ["causal", "stamp causal", "full causal"])
def test_no_effect_is_delivered_before_its_cause(mode: str) -> None:
    assert broken(scenario("causal", mode), mode, range(10)) == []


def test_without_the_publishers_wait_effects_overtake_their_causes() -> None:
    found = with_options(load("sequencer/causal"), {ORDER: "global"})
    verdicts = [judge(play(found, seed), ("acyclic", "causal")) for seed in range(5)]
    assert all(acyclic.holds for acyclic, _ in verdicts)
    assert not all(causal.holds for _, causal in verdicts)


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["causal", "stamp causal", "full causal"])
def test_campaign_causal(mode: str) -> None:
    assert broken(scenario("causal", mode), mode, range(1000, 1000 + CAMPAIGN_SEEDS)) == []


def test_topics_that_do_not_pass_the_node_that_is_down_go_on() -> None:
    journal = play(scenario("outage", "pairwise"), 1)
    down = next(record.at_us for record in journal.records if record.kind == "crash")
    back = next(record.at_us for record in journal.records if record.kind == "restart")
    assert back - down == 60_000_000
    meanwhile = [r for r in journal.records if r.kind == "deliver" and down + 10_000_000 < r.at_us < back]
    assert {record.topic for record in meanwhile} == {"near", "nearby"}
    assert {r.topic for r in journal.records if r.kind == "deliver" and r.at_us > back} == {
        "near",
        "nearby",
        "west",
        "east",
    }
    assert {record.topic for record in journal.records if record.kind == "stalled"} == {"west", "east"}
    outcomes = {record.note for record in journal.records if record.kind == "outcome"}
    assert "accepted ordered" in outcomes
    assert outcomes & {"refused", "unknown"}, "at the bound of its outbox a home takes no more"


def test_a_wrong_option_is_told_by_name() -> None:
    with pytest.raises(MisuseError, match="colour"):
        play(with_options(load("sequencer/static"), {"options.config.colour": 1}), 0)
    with pytest.raises(MisuseError, match=r"deployment\.sequencing\.order"):
        play(with_options(load("sequencer/static"), {"options.config.shared_subscriptions_min": 1}), 0)
