"""Leans: never worse than none, right where they can be counted by hand, and refused with what to do."""

import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from tests.planning.test_placement import TRIANGLE, two_of
from unisono.cli.plan import plan
from unisono.errors import MisuseError
from unisono.model.region import public_cloud
from unisono.planning.leans import plan_leans
from unisono.planning.placement import Demand, Interest


def test_a_rare_remote_topic_does_not_hold_up_a_busy_local_one() -> None:
    """Whoever hears both waits for the far clock; a lean ahead there costs its rare events, not the busy ones."""
    demand = Demand(two_of("a", "busy", "rare"), {"busy": {"a": 1000.0}, "rare": {"c": 1.0}})
    found = plan_leans(demand, TRIANGLE)
    assert found.leans_us["rare", "c"] - found.leans_us["busy", "a"] >= 40
    assert found.unplanned_us == pytest.approx(40)
    assert found.latency_us == pytest.approx((1000 * 0 + 1 * 40) / 1001)
    assert found.direct_us == pytest.approx(40 / 1001)


def test_leans_never_make_the_mean_worse_and_no_order_is_faster_than_the_path() -> None:
    table = public_cloud()
    for seed in range(20):
        dice = Random(seed)
        topics = [f"t{i}" for i in range(6)]
        interests = tuple(
            Interest(dice.choice(table.regions), tuple(dice.sample(topics, dice.randint(1, 4)))) for _ in range(30)
        )
        rates = {
            topic: {region: dice.expovariate(1.0) for region in dice.sample(table.regions, dice.randint(1, 3))}
            for topic in topics
        }
        found = plan_leans(Demand(interests, rates), table, beat_us=dice.choice([0, 5000]))
        assert found.direct_us <= found.latency_us * 1.000001
        assert found.latency_us <= found.unplanned_us * 1.000001


def test_the_lane_of_a_keeper_counts_though_nothing_is_published_on_it() -> None:
    demand = Demand(two_of("a", "x", "silent"), {"x": {"a": 1.0}})
    assert plan_leans(demand, TRIANGLE).unplanned_us == 0
    kept = plan_leans(demand, TRIANGLE, keepers={"silent": "c"})
    assert kept.unplanned_us == pytest.approx(40)
    assert kept.latency_us == pytest.approx(0)
    elsewhere = plan_leans(Demand(two_of("a", "x"), {"x": {"a": 1.0}}), TRIANGLE, keepers={"x": "c"})
    assert (elsewhere.unplanned_us, elsewhere.latency_us) == pytest.approx((40, 0))


def test_nobody_hears_anything() -> None:
    assert plan_leans(Demand((), {"x": {"a": 1.0}}), TRIANGLE).leans_us == {}


def test_a_region_without_distances_is_named() -> None:
    with pytest.raises(MisuseError, match="atlantis"):
        plan_leans(Demand(two_of("atlantis", "x"), {"x": {"a": 1.0}}), TRIANGLE)


def test_the_command_prints_the_plan(tmp_path: Path) -> None:
    subscriptions, rates = tmp_path / "subscriptions.csv", tmp_path / "rates.csv"
    subscriptions.write_text("subscriber,topic,region\nann,x,eu-west-1\nann,y,eu-west-1\n")
    rates.write_text("topic,region,rate\nx,eu-west-1,100\ny,us-east-1,1\n")
    asked = CliRunner().invoke(plan, ["leans", str(subscriptions), str(rates), "--json"])
    assert asked.exit_code == 0, asked.output
    found = json.loads(asked.output)
    assert found["direct_us"] <= found["latency_us"] <= found["unplanned_us"]
    assert {(lane["topic"], lane["region"]) for lane in found["leans"]} == {("x", "eu-west-1"), ("y", "us-east-1")}
    assert "without leans" in CliRunner().invoke(plan, ["leans", str(subscriptions), str(rates)]).output
