"""The live audit as a query: a verdict per batch, once; all of them together are those of the whole log."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.archive.test_archive import rows as archived_rows
from tests.audit.test_following import timed_log
from tests.audit.test_live import said
from tests.spark.queries import finish
from tests.spark.test_source import fill
from unisono.audit.columns import batch_of, write_parquet
from unisono.audit.live import LiveLimits
from unisono.errors import DataLossError, FormatError, MisuseError
from unisono.model.journal import Header, Record
from unisono.spark.live import LiveBatches, audit_stream, from_archive

PATIENT = LiveLimits(lateness_us=500)


def table_of(records: list[Record], region: str = "eu") -> pa.Table:
    table = pa.Table.from_batches([batch_of(records)])
    return table.append_column("region", pa.array([region] * len(records)))


def batches_of(records: list[Record], count: int) -> list[pa.Table]:
    cuts = [len(records) * i // count for i in range(count + 1)]
    return [table_of(records[low:high]) for low, high in pairwise(cuts)]


def kept(folder: Path) -> dict[str, int]:
    """What all batches found; each judge once a batch."""
    rows = pq.read_table(folder / "verdicts").to_pylist()
    assert max(Counter((row["batch"], row["judge"]) for row in rows).values(), default=1) == 1
    return {
        judge: sum(row["violations"] for row in rows if row["judge"] == judge) for judge in {r["judge"] for r in rows}
    }


def test_all_batches_together_are_the_whole_log(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        records, folder = timed_log(seed), tmp_path / str(seed)
        live = LiveBatches(str(folder), PATIENT)
        for batch, table in enumerate(batches_of(records, 5)):
            live.take(batch, table)
        live.finish()
        assert kept(folder).items() <= said(records).items()
        assert kept(folder)["acyclic"]
        counted = pq.read_table(folder / "batches").to_pylist()
        assert [row["batch"] for row in counted] == list(range(6))
        assert sum(row["deliveries"] for row in counted) == sum(r.kind in ("deliver", "tag") for r in records)
        assert {row["late"] for row in counted} == {0}
        told = pq.read_table(folder / "latencies").to_pylist()
        assert sum(row["notified"] for row in told) == sum(row["deliveries"] for row in counted)
        assert {row["delivered_in"] for row in told} == {"eu"}
        with pytest.raises(MisuseError, match="was finished with batch 5"):
            LiveBatches(str(folder), PATIENT).take(6, table_of(records))


@pytest.mark.parametrize("at", ["verdicts", "latencies", "batches", "state", "after"])
def test_a_kill_anywhere_in_a_batch_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Spark plays the batch again with a new process: the machine is read from the state of the batch before."""
    records = timed_log(1)
    tables = batches_of(records, 4)
    whole = LiveBatches(str(tmp_path / "whole"), PATIENT)
    for batch, table in enumerate(tables):
        whole.take(batch, table)
    killed, folder = LiveBatches(str(tmp_path / "killed"), PATIENT), tmp_path / "killed"
    killed.take(0, tables[0])
    killed.take(1, tables[1])
    import unisono.spark.live as module

    write = module._write

    def dying(files: object, where: str, name: str, fill: object) -> None:
        if where.endswith(f"/{at}"):
            raise KeyboardInterrupt
        write(files, where, name, fill)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_write", dying)
    if at == "after":
        killed.take(2, tables[2])
    else:
        with pytest.raises(KeyboardInterrupt):
            killed.take(2, tables[2])
    monkeypatch.setattr(module, "_write", write)
    again = LiveBatches(str(folder), PATIENT)
    assert (again.take(2, tables[2]) is None) == (at == "after")
    again.take(3, tables[3])
    assert again.take(3, tables[3]) is None, "a batch that is done is not judged again"
    for name in ("verdicts", "latencies", "batches"):
        assert pq.read_table(folder / name).equals(pq.read_table(tmp_path / "whole" / name))


def test_a_failed_attempt_is_forgotten(tmp_path: Path) -> None:
    """The same process tries again, as a query that is started anew in a notebook."""
    tables = batches_of(timed_log(1), 3)
    whole, live = LiveBatches(str(tmp_path / "whole"), PATIENT), LiveBatches(str(tmp_path / "live"), PATIENT)
    timeless = table_of([Record(subscriber="s", event="e", position=1)])
    for batch, table in enumerate(tables):
        whole.take(batch, table)
        with pytest.raises(MisuseError, match="has no moment"):
            live.take(batch, pa.concat_tables([table, timeless]))
        live.take(batch, table)
    assert kept(tmp_path / "live") == kept(tmp_path / "whole")
    assert pq.read_table(tmp_path / "live" / "batches").equals(pq.read_table(tmp_path / "whole" / "batches"))


def test_a_folder_belongs_to_one_checkpoint(tmp_path: Path) -> None:
    tables = batches_of(timed_log(1), 6)
    live = LiveBatches(str(tmp_path / "live"), PATIENT)
    for batch, table in enumerate(tables[:4]):
        live.take(batch, table)
    with pytest.raises(DataLossError, match="holds a live audit up to batch 3, and the next is 0"):
        LiveBatches(str(tmp_path / "live"), PATIENT).take(0, tables[0])
    with pytest.raises(
        DataLossError, match=r"batch 3 in .* was judged with \d+ rows, and comes with \d+, not the same"
    ):
        LiveBatches(str(tmp_path / "live"), PATIENT).take(3, tables[4])
    turned = tables[3].take(list(range(tables[3].num_rows))[::-1])
    assert LiveBatches(str(tmp_path / "live"), PATIENT).take(3, turned) is None, "the same, in another order"
    with pytest.raises(MisuseError, match="holds no live audit"):
        LiveBatches(str(tmp_path / "new"), PATIENT).finish()
    with pytest.raises(DataLossError, match="is empty, and the next is 3"):
        LiveBatches(str(tmp_path / "new"), PATIENT).take(3, tables[3])
    assert len(list((tmp_path / "live" / "state").iterdir())) == 2, "what is older is not needed"


def test_a_region_that_is_behind_holds_the_others_and_late_rows_are_counted(tmp_path: Path) -> None:
    def told(region: str, *moments: int) -> pa.Table:
        records = [
            Record(subscriber=f"s-{region}", event=f"{region}{t}", position=t, delivered_us=t, topic="T", publisher="p")
            for t in moments
        ]
        return table_of(records, region)

    live = LiveBatches(str(tmp_path), LiveLimits(lateness_us=10), regions=("eu", "us"))
    first = live.take(0, told("eu", 100, 200, 300))
    assert first is not None
    assert (first.deliveries, first.open_rows) == (0, 3), "nobody knows how far us is"
    second = live.take(1, told("us", 220))
    assert second is not None
    assert (second.deliveries, second.watermark_us) == (2, 210)
    late = live.take(2, pa.concat_tables([told("eu", 150, 400), told("us", 400)]))
    assert late is not None
    assert (late.late, late.deliveries) == (1, 2)


def test_rows_that_have_to_be_refused_end_the_query_in_one_line(tmp_path: Path) -> None:
    table = table_of([Record(subscriber="s", event="e", position=1, delivered_us=1)])
    with pytest.raises(FormatError, match="'delivered' is no kind"):
        LiveBatches(str(tmp_path)).take(0, table.set_column(0, "kind", pa.array(["delivered"])))


def journal(path: Path, seqs: list[int], subscriber: str = "ann") -> None:
    """A client was told of these rows of the archive."""
    by_seq = {row.seq: row for row in archived_rows(1, 60)}
    records = [
        Record(
            subscriber=subscriber,
            event=f"p:{seq}",
            position=place,
            topic=by_seq[seq].topic,
            publisher="p",
            publisher_seq=seq,
            published_us=seq,
            delivered_us=seq + 20,
        )
        for place, seq in enumerate(seqs, 1)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(path, Header(), records)


def test_a_query_judges_archives_and_journals_of_several_regions(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "archive", 1, 60)
    journal(tmp_path / "journals" / "region=us" / "ann.parquet", [*range(1, 20), 21, 20, *range(22, 61)])
    archive = spark.readStream.format("unisono").option("maxRowsPerTrigger", "30").load(str(tmp_path / "archive"))
    columns = spark.read.parquet(str(tmp_path / "journals")).schema
    told = spark.readStream.schema(columns).parquet(str(tmp_path / "journals"))
    both = from_archive(archive, "eu").unionByName(told, allowMissingColumns=True)
    folder = tmp_path / "live"
    writer = audit_stream(both, str(folder), LiveLimits(lateness_us=15), ["eu", "us"])
    finish(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    LiveBatches(str(folder), LiveLimits(lateness_us=15)).finish()
    found = kept(folder)
    assert (found["pairwise-order"], found["acyclic"], found["fifo"]) == (1, 1, 1)
    latencies = spark.read.parquet(str(folder / "latencies")).where("delivered_in = 'us'").collect()
    assert {row.p50_us for row in latencies} == {20}
    with pytest.raises(MisuseError, match="follows a stream"):
        audit_stream(spark.read.parquet(str(tmp_path / "journals")), str(folder))
    for rows, problem in (
        (archive, "of an archive's rows .*archived.deliveries"),
        (from_archive(archive, "o'hare").drop("delivered_us", "at_us"), "needs moments"),
        (told.withColumn("region", F.lit(3)), "column region is int"),
        (told.withColumn("delivered_us", F.current_timestamp()), "delivered_us is timestamp"),
    ):
        with pytest.raises(MisuseError, match=problem):
            audit_stream(rows, str(tmp_path / "other"))
    with pytest.raises(MisuseError, match=r"regions is a list of names, like \['eu'\]"):
        audit_stream(both, str(tmp_path / "other"), regions="eu")


QUERY = """
import sys
from pyspark.sql.types import StructType
from unisono.audit.live import LiveLimits
from unisono.spark.live import LiveBatches, audit_stream
from unisono.spark.session import local_session
journals, folder, checkpoint = sys.argv[1:]
spark = local_session("live")
columns = spark.read.parquet(journals).schema
rows = spark.readStream.schema(columns).option("maxFilesPerTrigger", "1").parquet(journals)
writer = audit_stream(rows, folder, LiveLimits(lateness_us=500))
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
LiveBatches(folder, LiveLimits(lateness_us=500)).finish()
print("done", flush=True)
"""


@pytest.mark.campaign
def test_killed_and_killed_again_a_query_gives_every_verdict_once(tmp_path: Path) -> None:
    records, dice = timed_log(1), Random(3)
    journals, folder = tmp_path / "journals", tmp_path / "live"
    journals.mkdir()
    for i, table in enumerate(batches_of(records, 8)):
        pq.write_table(table, journals / f"{i}.parquet")
        os.utime(journals / f"{i}.parquet", (1000 + i, 1000 + i))  # files are taken by their age
    command = [sys.executable, "-c", QUERY, str(journals), str(folder), str(tmp_path / "checkpoint")]
    kills = 0
    for _ in range(30):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        before = len(list(folder.glob("batches/*.parquet")))
        deadline = time.monotonic() + 300
        while kills < 4 and process.poll() is None and time.monotonic() < deadline:
            if len(list(folder.glob("batches/*.parquet"))) > before + dice.randrange(2):
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        process.wait(timeout=300)
        if process.returncode == 0:
            break
    assert (process.returncode, kills) == (0, 4)
    counted = pq.read_table(folder / "batches").to_pylist()
    assert [row["batch"] for row in counted] == list(range(9))
    assert kept(folder).items() <= said(records).items()
    assert sum(row["deliveries"] for row in counted) == sum(r.kind in ("deliver", "tag") for r in records)
