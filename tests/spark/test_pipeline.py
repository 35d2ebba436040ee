"""The declarative pipeline of the examples: it ingests what is new and says what the judges say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.archive.test_archive import rows
from tests.spark.test_source import fill
from unisono.audit.columns import write_parquet
from unisono.model.journal import Header, Record
from unisono.spark.archived import against_order, deliveries, gaps

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"


def journal(path: Path, seqs: list[int]) -> None:
    """Somebody was told of these rows of the archive, in this order."""
    by_seq = {row.seq: row for row in rows(1, 200)}
    told = [by_seq[seq] for seq in seqs]
    records = [
        Record(
            subscriber="ann",
            event=f"{row.publisher}:{row.publisher_seq}",
            position=position,
            publisher=row.publisher,
            publisher_seq=row.publisher_seq,
        )
        for position, row in enumerate(told, 1)
    ]
    write_parquet(path, Header(), records)


def test_streams_are_held_against_the_order_of_the_archive(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "archive", 1, 20)
    journal(tmp_path / "told.parquet", [3, 5, 4, 6, 20, 19])
    events = spark.read.format("unisono").option("gaps", "rows").load(str(tmp_path / "archive"))
    told = spark.read.parquet(str(tmp_path / "told.parquet")).where("event IS NOT NULL")
    (found,) = against_order(told, events).collect()
    assert (found.judge, found.violations) == ("archive-order", 2)
    assert re.search(r"ann was notified of .* which stands later in the archive \((4, 5|19, 20)\)", found.witness)
    archive = deliveries(events)
    assert against_order(archive, events).collect() == []
    assert {row.subscriber for row in archive.collect()} == {"archive"}
    assert gaps(events).collect() == []


@pytest.mark.campaign
def test_the_example_ingests_what_is_new_and_judges_it(tmp_path: Path) -> None:
    archive, journals, spec = tmp_path / "archive", tmp_path / "journals", tmp_path / "spark-pipeline.yml"
    journals.mkdir()
    fill(archive, 1, 100)
    journal(journals / "ann.parquet", list(range(10, 90)))
    text = (EXAMPLE / "spark-pipeline.yml").read_text()
    text = text.replace("file:///var/lib/unisono/pipeline", f"file://{tmp_path}/storage")
    text = text.replace("data/hub/archive", str(archive)).replace(": journals", f": {journals}")
    spec.write_text(text)
    (tmp_path / "transformations").symlink_to(EXAMPLE / "transformations")
    assert verdicts(tmp_path) == {"archive-order": True, "fifo": True, "exactly-once": True}
    fill(archive, 101, 50)
    journal(journals / "ann.parquet", [*range(10, 90), 120, 110])
    assert verdicts(tmp_path)["archive-order"] is False


def verdicts(directory: Path) -> dict[str, bool]:
    """Runs the pipeline as a user does, and reads what it wrote."""
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    remembers = "spark.sql.catalogImplementation=hive"  # the names of the tables, from one run to the next
    command = [str(home / "bin" / "spark-pipelines"), "--conf", remembers, "run", "--spec", "spark-pipeline.yml"]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    import pyarrow.parquet as pq

    found = pq.read_table(directory / "spark-warehouse" / "verdicts").to_pylist()
    return {row["judge"]: row["holds"] for row in found}
