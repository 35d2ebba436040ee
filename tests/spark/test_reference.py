"""What docs/reference/spark.md shows runs as it stands there, and so does the notebook of the examples."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.test_live import journal
from tests.spark.test_sink import NodeThread
from tests.spark.test_source import fill

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "spark.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    for archive in ("data/hub/archive", "eu/archive", "us/archive"):
        fill(tmp_path / archive, 1, 20)
    journal(tmp_path / "journals" / "region=us" / "ann.parquet", [1, 3, 2])
    journal(tmp_path / "deliveries" / "ann.parquet", [1, 3, 2])
    return tmp_path


PATH = re.compile(r'"((?:data|eu|us|lake|checkpoints)/[^"]*|journals|deliveries/|live)"')


def run(block: str, spark: SparkSession, **given: Any) -> dict[str, Any]:
    """To the end of what it starts. The session is older than our folder: its tasks are elsewhere."""
    names = {"spark": spark, **given}
    exec(compile(PATH.sub(lambda found: f'"{Path.cwd()}/{found[1]}"', block), "docs/reference/spark.md", "exec"), names)
    for query in spark.streams.active:
        query.processAllAvailable()
        names["rows_read"] = sum(progress.numInputRows for progress in query.recentProgress)
        query.stop()
    return names


def block(*words: str) -> str:
    """The one that has these words."""
    (found,) = [text for text in BLOCKS if all(word in text for word in words)]
    return found


def test_every_block_is_run_here() -> None:
    words = [("events = spark.readStream",), ("alerts.selectExpr",), ("import audit, report",), ("archive-to-lake",)]
    words += [('option("columns"',), ("import compact, retain",), ("audit_stream(rows",)]
    assert sorted(block(*some) for some in words) == sorted(BLOCKS)


def test_source_audits_and_lakehouse_work_as_the_page_says(
    spark: SparkSession, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("deltalake", reason="the extra lakehouse is not installed")
    events = run(block("events = spark.readStream"), spark)["events"]
    assert events.isStreaming
    run(block("import audit, report"), spark)
    assert "pairwise-order" in capsys.readouterr().out
    run(block("archive-to-lake"), spark)
    found = run(block('option("columns"'), spark)["events"]
    assert found.columns == ["seq", "payload"]
    assert found.count() == 10, "every second row is of the topic"
    run(block("import compact, retain"), spark)
    assert spark.read.format("unisono_delta").load(str(place / "lake" / "events")).count() == 0, (
        "all of 1970 is older than 30 days"
    )


def test_the_live_audit_works_as_the_page_says(spark: SparkSession, place: Path) -> None:
    run(block("audit_stream(rows"), spark)
    assert spark.read.parquet(str(place / "live" / "batches")).count() >= 1


@pytest.mark.campaign
def test_the_sink_works_as_the_page_says(spark: SparkSession, place: Path) -> None:
    node = NodeThread(place)
    try:
        alerts = spark.readStream.format("unisono").load(str(place / "data" / "hub" / "archive"))
        names = run(block("alerts.selectExpr").replace("unisono://127.0.0.1:7474", node.url), spark, alerts=alerts)
        assert names["rows_read"] == 20
    finally:
        node.end()


@pytest.mark.parametrize("whose", ["simulated", "of a reader"])
def test_the_notebook_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str) -> None:
    """Cell after cell, as a kernel does; also on journals of two regions that agree."""
    pytest.importorskip("matplotlib", reason="the extra experiments is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    notebook = json.loads((ROOT / "examples" / "notebook" / "audit.ipynb").read_text(encoding="utf-8"))
    if whose == "of a reader":
        for region, name in (("eu", "bob"), ("us", "ann")):
            journal(tmp_path / "run" / f"region={region}" / f"{name}.parquet", [1, 2, 3], name)
        monkeypatch.setenv("UNISONO_RUN", str(tmp_path / "run"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "audit.ipynb", "exec"), names)
            assert not cell["outputs"], "a page of code, not of somebody's run"
    assert names["verdicts"]["pairwise-order"].holds == (whose == "of a reader")
    regions = {line.delivered_in for line in names["latencies"]}
    assert regions == {"eu", "us"} if whose == "of a reader" else regions >= {"eu", "us", "asia"}
    assert len(names["plt"].get_fignums()) == 2 - (whose == "of a reader")
    names["plt"].close("all")
