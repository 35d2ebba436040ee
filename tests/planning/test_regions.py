"""Trees of brokers by rates and subscriptions: no broker sends more than it may, and no level is there for nothing."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from typer.testing import CliRunner

from unisono.cli.main import application
from unisono.errors import MisuseError
from unisono.model.deployment import load_deployment
from unisono.planning.regions import RegionDemand, RegionsPlan, count_demand, plan_regions


def planned(subscribers: int, rate: float, copy_us: float = 100.0, away: str = "eu") -> RegionsPlan:
    return plan_regions([RegionDemand("us", {"trades": subscribers})], {"trades": {away: rate}}, copy_us, 0.5)


def test_one_broker_is_enough_until_it_has_more_to_send_than_it_may() -> None:
    us = planned(50, 100).trees[1]
    assert (us.levels, us.busiest) == ((1,), 1.0)
    us = planned(51, 100).trees[1]
    assert us.levels == (1, 2)
    assert us.fan_out == 2
    assert us.notifications_per_s == 5100


def test_a_root_that_cannot_feed_all_at_the_bottom_has_a_level_between() -> None:
    us = planned(100, 1000).trees[1]
    assert us.levels == (1, 4, 20)
    assert us.busiest <= 1.0


def test_what_a_publisher_would_send_directly_is_one_copy_per_broker_at_the_bottom() -> None:
    assert planned(100, 1000).direct == {"trades": 20}
    assert planned(10, 1000, 10.0).direct == {"trades": 1}


def test_what_no_tree_carries_is_refused_with_the_numbers() -> None:
    with pytest.raises(MisuseError, match="us: 3000 events per second are too many"):
        planned(100, 3000)
    with pytest.raises(MisuseError, match="6000 copies per second to other regions"):
        planned(1, 6000)


def test_subscribers_are_counted_by_region_and_a_row_that_comes_twice_once() -> None:
    rows = [("a", "t", "eu"), ("a", "t", "eu"), ("b", "t", "eu"), ("a", "u", "us")]
    assert count_demand(rows) == [RegionDemand("eu", {"t": 2}), RegionDemand("us", {"u": 1})]


@given(
    some.dictionaries(some.sampled_from("tuvw"), some.integers(1, 400), min_size=1),
    some.dictionaries(some.sampled_from("tuvw"), some.floats(0.1, 400.0), min_size=1),
)
def test_no_broker_sends_more_than_it_may(heard: dict[str, int], rates: dict[str, float]) -> None:
    try:
        plan = plan_regions(
            [RegionDemand("us", heard)], {topic: {"eu": rate} for topic, rate in rates.items()}, 200.0, 0.5
        )
    except MisuseError:
        return
    for tree in plan.trees:
        assert tree.busiest <= 1.0 + 1e-9
        assert tree.levels[0] == 1
        assert list(tree.levels) == sorted(tree.levels)
        assert (
            tree.levels == (1,)
            or tree.notifications_per_s > plan.copies_per_s_max * (tree.levels[-1] - 1)
            or (tree.levels[-1] == 2)
        )


def test_the_plan_is_written_as_a_deployment_that_can_be_read(tmp_path: Path) -> None:
    wanted, rates, out = tmp_path / "wanted.csv", tmp_path / "rates.csv", tmp_path / "deployment.toml"
    rows = "".join(f"s{n},trades,us-east-1\n" for n in range(200))
    wanted.write_text(f"subscriber,topic,region\n{rows}")
    rates.write_text("topic,region,rate\ntrades,eu-west-1,500\n")
    asked = ["plan", "regions", str(wanted), str(rates), "--out", str(out)]
    shown = CliRunner().invoke(application("plan"), asked)
    assert shown.exit_code == 0, shown.output
    assert "fan-out" in shown.output
    told = CliRunner().invoke(application("plan"), [*asked, "--json"])
    trees = {tree["region"]: tree["levels"] for tree in json.loads(told.output)["trees"]}
    assert trees == {"eu-west-1": [1], "us-east-1": [1, 8]}
    deployment = load_deployment(out)
    assert deployment.kind == "regions"
    assert [node.parent for node in deployment.nodes if node.region == "us-east-1"][1:] == ["us-east-1-0-1"] * 8
    assert deployment.membership.servers
