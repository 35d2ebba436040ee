"""A planned deployment is one that `simulate` plays, and its subscribers wait less than with homes by lot."""

import json
import sys
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from tests.planning.lots import placed_by_lot
from unisono.audit import judge
from unisono.cli.main import main
from unisono.model.deployment import Deployment
from unisono.model.region import public_cloud
from unisono.planning.placement import Demand, Interest, place, to_deployment
from unisono.sim import scenario

TABLE = public_cloud().among({"ap-northeast-1", "eu-west-1", "sa-east-1", "us-east-1"})
REGIONS = TABLE.regions
CLIENTS, TOPICS, ROUNDS = 16, 8, 12


def world(seed: int) -> tuple[Demand, list[dict[str, object]]]:
    """Who hears and says what, as a demand for the planner and as a script for the simulator."""
    dice = Random(seed)
    names = [f"c{i:02}" for i in range(CLIENTS)]
    near = {i: [t for t in range(TOPICS) if t % len(REGIONS) == i] for i in range(len(REGIONS))}
    interests, script = [], []
    for i, name in enumerate(names):
        at = i % len(REGIONS)  # as the simulator spreads clients over regions
        own = {*near[at], dice.randrange(TOPICS)}
        topics = tuple(f"t{t}" for t in sorted(own))
        interests.append(Interest(REGIONS[at], topics))
        script.append({"at": "100ms", "do": "subscribe", "who": name, "topics": topics})
    rates = {f"t{t}": {REGIONS[t % len(REGIONS)]: 1.0} for t in range(TOPICS)}
    for turn in range(ROUNDS):
        for t in range(TOPICS):
            who = names[t % len(REGIONS)]
            script.append({"at": f"{3000 + 400 * turn + 40 * t}ms", "do": "publish", "who": who, "topics": [f"t{t}"]})
    return Demand(tuple(interests), rates), script


def mean_latency_ms(deployment: Deployment, script: list[dict[str, object]]) -> float:
    promises = scenario.OF_A_DEPLOYMENT
    base = scenario.Scenario("sequencer", name="planned", promises=promises, deployment=deployment)
    quiet = {"workload.clients": CLIENTS, "workload.topics_per_client": 0, "workload.duration": 0, "script": script}
    journal = scenario.play(scenario.with_options(base, quiet), seed=1)
    assert all(verdict.holds for verdict in judge(journal, promises))
    told = [r for r in journal.records if r.kind == "deliver"]
    assert told
    published = {r.event: r.at_us for r in journal.records if r.kind == "publish"}
    return fmean(r.at_us - published[r.event] for r in told) / 1000


def test_subscribers_of_a_planned_deployment_wait_less_than_with_homes_by_lot() -> None:
    demand, script = world(5)
    planned = place(demand, TABLE)
    lots = [placed_by_lot(demand, TABLE, planned.tree, seed) for seed in range(4)]
    felt = mean_latency_ms(to_deployment(planned, TABLE), script)
    waits = [mean_latency_ms(to_deployment(lot, TABLE), script) for lot in lots]
    assert felt < min(waits)


def test_what_plan_writes_simulate_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.csv").write_text(
        "subscriber,topic,region\na,x,eu-west-1\nb,x,us-east-1\na,y,eu-west-1\nb,y,us-east-1\n"
    )
    (tmp_path / "r.csv").write_text("topic,region,rate\nx,eu-west-1,5\ny,us-east-1,5\n")
    plan = [
        "placement",
        str(tmp_path / "s.csv"),
        str(tmp_path / "r.csv"),
        "--out",
        str(tmp_path / "planned.toml"),
        "--json",
    ]
    for command in (["plan", *plan], ["simulate", str(tmp_path / "planned.toml"), "--seeds", "0..2", "--json"]):
        monkeypatch.setattr(sys, "argv", ["unisono", *command])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    played = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert played["runs"] == 3
    assert played["failed_seeds"] == []
    assert played["deliveries"] > 0
