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
from unisono.spark.planning import plan_groups


def test_groups_are_those_of_one_process(spark: SparkSession) -> None:
    dice = random.Random(7)
    rows = [(f"s{dice.randrange(60)}", f"t{min(int(dice.paretovariate(0.7)), 40)}") for _ in range(400)]
    frame = spark.createDataFrame(rows, "subscriber STRING, topic STRING")
    for shared in (1, 2):
        found, expected = plan_groups(frame, shared), plan_here(rows, shared)
        assert found == expected
    assert max(group.size for group in expected.groups) > 2


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
