"""Plans on Spark are the plans of one process."""

import json
import random
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from unisono.cli.main import main
from unisono.errors import MisuseError
from unisono.planning.groups import plan_groups as plan_here
from unisono.planning.leans import LeanDemand
from unisono.planning.placement import Demand, Interest
from unisono.spark import planning
from unisono.spark.planning import lean_demand, plan_groups


def test_groups_are_those_of_one_process(spark: SparkSession) -> None:
    dice = random.Random(7)
    rows = [(f"s{dice.randrange(60)}", f"t{min(int(dice.paretovariate(0.7)), 40)}") for _ in range(400)]
    frame = spark.createDataFrame(rows, "subscriber STRING, topic STRING")
    for shared in (1, 2):
        found, expected = plan_groups(frame, shared), plan_here(rows, shared)
        assert found == expected
    assert max(group.size for group in expected.groups) > 2


def test_a_plan_as_frames_is_the_plan_also_of_who_has_very_many_topics(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is collected to make it, and a plan above the bound is not begun on the driver."""
    monkeypatch.setattr(planning, "TOPICS_MAX", 4)
    dice = random.Random(3)
    rows = [(f"s{s}", f"t{t:02}") for s in range(8) for t in range(40) if dice.random() < (0.9 if s < 2 else 0.08)]
    frame = spark.createDataFrame(rows, "subscriber STRING, topic STRING")
    groups, _ = planning.group_tables(frame, 2)
    expected = plan_here(rows, 2)
    found = {row.topic: (row.subscribers, tuple(row.members)) for row in groups.collect()}
    assert found == {group.topic: (group.subscribers, group.members) for group in expected.groups}
    assert max(len(members) for _, members in found.values()) > 20
    monkeypatch.setattr(planning, "DRIVER_ROWS_MAX", 50)
    with pytest.raises(MisuseError, match=r"topics and pairs of topics: .*group_tables"):
        plan_groups(frame)


def test_a_file_of_numbers_gives_the_same_json_with_and_without_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "subscriptions.csv"
    path.write_text("topic,subscriber,region\n" + "".join(f"{n % 4},{n % 6},eu\n" for n in range(40)))
    said = []
    for where in ("local", "spark"):
        monkeypatch.setattr(sys, "argv", ["unisono", "plan", "groups", str(path), "--on", where, "--json"])
        with pytest.raises(SystemExit):
            main()
        said.append(json.loads(capsys.readouterr().out))
    assert said[0] == said[1]
    assert said[0]["topics"] == 4


def test_columns_that_are_missing_or_empty_are_named(spark: SparkSession) -> None:
    with pytest.raises(MisuseError, match="no column topic"):
        plan_groups(spark.createDataFrame([("s",)], "subscriber STRING"))
    with pytest.raises(MisuseError, match="column topic is array<int>"):
        plan_groups(spark.createDataFrame([("s", [1])], "subscriber STRING, topic ARRAY<INT>"))
    with pytest.raises(MisuseError, match="rows without"):
        plan_groups(spark.createDataFrame([("s", None)], "subscriber STRING, topic STRING"))


def test_leans_are_planned_for_kinds_of_subscribers_as_they_are_counted_by_one_process(spark: SparkSession) -> None:
    rows = [(f"s{i}", topic, "eu" if i % 3 else "us") for i in range(30) for topic in ("x", "y", "silent")[: 1 + i % 3]]
    rates = {"x": {"eu": 5.0}, "y": {"us": 1.0}}
    found, share = lean_demand(spark.createDataFrame(rows, "subscriber string, topic string, region string"), rates)
    interests: dict[tuple[str, str], list[str]] = {}
    for who, topic, region in rows:
        if topic in rates:
            interests.setdefault((who, region), []).append(topic)
    demand = Demand(tuple(Interest(region, tuple(topics)) for (_, region), topics in interests.items()), rates)
    assert (found, share) == (LeanDemand.of(demand), 1.0)
