"""The sequencer under reordering, churn, moves, crashes, losses and an outage: as users get it, in every order that a
deployment can ask for, and with whole stamps and full timestamps.

Every seed grows its own tree of one to seven nodes. The default suite plays a few hundred seeds, `make campaign` more
than twenty thousand. A seed that fails prints the command that replays it.
"""

import pytest

from unisono.audit import judge
from unisono.errors import MisuseError
from unisono.model.deployment import Sequencing
from unisono.model.journal import Journal
from unisono.sim.scenario import Scenario, load, play, with_options

SCENARIOS = ("static", "churn", "moves", "crash", "lossy", "refusing", "outage")
ORDER, EARLY, ENCODING = (f"deployment.sequencing.{field}" for field in ("order", "early", "encoding"))
MODES: dict[str, dict[str, object]] = {
    "pairwise": {},
    "global": {ORDER: "global"},
    "causal": {ORDER: "causal"},
    "stamp": {ORDER: "global", EARLY: False},
    "full": {ORDER: "global", ENCODING: "full"},
    "stamp pairwise": {EARLY: False},
    "stamp causal": {ORDER: "causal", EARLY: False},
    "full causal": {ORDER: "causal", ENCODING: "full"},
}
SEEDS = {"pairwise": 25, "global": 10, "causal": 10}
"""The others 4 each."""
CAMPAIGN_SEEDS = 700


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
    seeds = range(2 if name == "outage" else SEEDS.get(mode, 4))
    assert broken(scenario(name, mode), mode, seeds) == []


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
    names = ("static", "moves", "crash", "lossy", "refusing")
    static, moves, crash, lossy, refusing = (play(scenario(name, "pairwise"), 3) for name in names)
    assert sum(record.kind == "outcome" and record.note == "refused" for record in refusing.records) > 0
    assert kinds(refusing, "gap") > 0, "what was accepted before the broker refused it"
    assert kinds(static, "deliver") > 100
    assert kinds(static, "gap") == kinds(static, "tag") == 0
    assert kinds(moves, "move") > 10
    assert kinds(crash, "crash") == kinds(crash, "restart") > 3
    assert kinds(lossy, "gap") > 0


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
        play(with_options(load("sequencer/static"), {"options.config.sgmin": 1}), 0)
