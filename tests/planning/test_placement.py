"""Placement: no home that anybody could better alone, better than chance, and a file that nodes accept."""

import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from tests.planning.lots import placed_by_lot
from unisono.cli.plan import plan
from unisono.errors import FormatError, MisuseError
from unisono.model.deployment import dump_deployment, load_deployment, parse_deployment
from unisono.model.region import LatencyTable, public_cloud
from unisono.planning.files import read_rates
from unisono.planning.placement import Demand, Interest, PlacementTree, place, stars, to_deployment

TRIANGLE = LatencyTable(("a", "b", "c"), ((0, 10, 40), (10, 0, 30), (40, 30, 0)))
STAR_AT_B = PlacementTree("star at b", (1, -1, 1))


def two_of(region: str, *topics: str) -> tuple[Interest, Interest]:
    return Interest(region, topics), Interest(region, topics)


def test_a_topic_of_one_region_lives_there_and_costs_nothing_extra() -> None:
    demand = Demand(two_of("a", "x", "y"), {"x": {"a": 5.0}, "y": {"a": 1.0}})
    found = place(demand, TRIANGLE)
    assert found.homes == {"x": "a", "y": "a"}
    assert found.latency_us == found.direct_us == 0


def test_the_latency_of_a_shared_pair_is_that_of_the_climb() -> None:
    demand = Demand((*two_of("a", "x", "y"), *two_of("c", "x", "y")), {"x": {"a": 1.0}, "y": {"c": 1.0}})
    found = place(demand, TRIANGLE, [STAR_AT_B])
    # Two near subscribers, two far ones: the near latencies sum to a round trip, whoever decides (lower bound).
    assert found.latency_us == pytest.approx((80 + 40 + 40) / 4)


def test_no_single_move_betters_a_plan() -> None:
    demand = random_demand(3)
    table = public_cloud()
    tree = stars(table)[0]
    found = place(demand, table, [tree])
    again = place(demand, table, [tree])
    assert found == again
    chances = [placed_by_lot(demand, table, tree, seed).latency_us for seed in range(20)]
    assert found.direct_us <= found.latency_us < min(chances)


def random_demand(seed: int) -> Demand:
    dice, regions = Random(seed), public_cloud().regions
    topics = [f"t{i}" for i in range(12)]
    interests = tuple(Interest(dice.choice(regions), tuple(dice.sample(topics, 3))) for _ in range(40))
    return Demand(interests, {topic: {dice.choice(regions): dice.uniform(1, 10)} for topic in topics})


def test_the_plan_is_a_deployment_that_can_be_read_back() -> None:
    found = place(random_demand(1), public_cloud())
    deployment = to_deployment(found, public_cloud())
    assert parse_deployment(dump_deployment(deployment)) == deployment
    assert {topic.name: topic.home for topic in deployment.topics} == found.homes


def test_an_unknown_region_is_named() -> None:
    with pytest.raises(MisuseError, match="'mars'"):
        place(Demand(two_of("mars", "x"), {"x": {"a": 1.0}}), TRIANGLE)


@pytest.mark.parametrize("rate", ["many", "-5", "nan", "inf"])
def test_a_rate_that_is_none_is_named(rate: str, tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text(f"topic,region,rate\nt,eu,1\nu,eu,{rate}\n")
    with pytest.raises(FormatError, match=f"rates.csv: the rate of u in eu is '{rate}', not a number from 0"):
        read_rates(tmp_path / "rates.csv")


def test_the_command_writes_a_deployment_file(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("subscriber,topic,region\na,x,eu-west-1\nb,x,us-east-1\n")
    (tmp_path / "r.csv").write_text("topic,region,rate\nx,eu-west-1,5\n")
    arguments = [
        "placement",
        str(tmp_path / "s.csv"),
        str(tmp_path / "r.csv"),
        "--out",
        str(tmp_path / "d.toml"),
        "--json",
    ]
    result = CliRunner().invoke(plan, arguments)
    assert json.loads(result.stdout)["homes"] == {"x": "eu-west-1"}
    assert load_deployment(tmp_path / "d.toml").topics[0].home == "eu-west-1"
