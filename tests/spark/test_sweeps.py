"""Sweeps: the same results wherever they run, none run twice."""

import json
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from unisono.cli.main import main
from unisono.cli.measuring.experiment import SeedWork
from unisono.spark.sweeps import sweep


def test_an_experiment_over_seeds_says_the_same_on_spark_and_continues_where_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "coded/redundancy"
    said = []
    for where in (("local", "0..3"), ("spark", "0..1"), ("spark", "0..3")):
        options = ["--events", "3", "--subscribers", "3", "--seeds", where[1], "--on", where[0], "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["unisono", "experiment", "run", name, *options, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        said.append(json.loads(capsys.readouterr().out)["rows"])
    assert said[2] == said[0] != said[1]
    (folder,) = (tmp_path / f"{name}.sweep").iterdir()
    kept = [row.run for row in spark.read.parquet(str(folder)).collect()]
    assert sorted(kept) == list(range(4)), "the first two were not run again"


def test_runs_are_packed_into_few_tasks_and_given_back_in_order(spark: SparkSession, tmp_path: Path) -> None:
    work = SeedWork("coded/redundancy", b'{"events": 2, "subscribers": 2}')
    found = [(row.run, row.result) for row in sweep(spark, work, [9, 3, 7, 4], tmp_path / "out").collect()]
    assert found == [(seed, work(seed)) for seed in (3, 4, 7, 9)]
    again = sweep(spark, work, range(3, 6), tmp_path / "out").collect()
    assert [(row.run, row.result) for row in again] == [(seed, work(seed)) for seed in (3, 4, 5)]
