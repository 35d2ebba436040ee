"""Spark reads and refuses dirty logs as the Python judges do: the same verdicts, counts and words."""

import gzip
import os
import socket
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.archive.test_archive import rows
from tests.audit import dirty, refused, untidy
from tests.audit.test_timely import LATE, PUBLISHED
from tests.spark.test_source import fill
from unisono.audit import JUDGES, Report, examine, judge, read, write_jsonl
from unisono.audit.columns import write_parquet
from unisono.audit.judges.table import Judge
from unisono.cli.main import main
from unisono.errors import FormatError, MisuseError
from unisono.model.journal import Header, Journal, Record
from unisono.spark import meaning, reading
from unisono.spark.archived import deliveries
from unisono.spark.audits import audit, load, report_file
from unisono.spark.limits import RangeLimits

PARTS = RangeLimits(anchors=100, bucket_rows=100, task_rows=200, stream_rows=1000)
"""Also small logs are judged in parts."""


def said(report: Report) -> tuple[object, ...]:
    """What has to be equal. A witness may be another violation; the degree of order is counted by other places."""
    metrics = {name: value for name, value in report.metrics.items() if name != "ordering_degree"}
    verdicts = [(v.judge, v.holds, v.violations, v.judged, bool(v.witness)) for v in report.verdicts]
    return report.deliveries, report.subscribers, verdicts, metrics


@pytest.mark.parametrize("notices", [False, True], ids=["deliveries", "full journals"])
def test_spark_says_of_dirty_files_what_python_says(spark: SparkSession, tmp_path: Path, notices: bool) -> None:
    """Forty logs in one: a job for each would be forty times as long."""
    path = dirty.write_many(range(40), tmp_path, notices)
    expected = examine(read(path))
    assert sum(not verdict.holds for verdict in expected.verdicts) > 7, "there is something to find"
    assert said(report_file(spark, path, PARTS)) == said(expected)


def test_spark_says_of_untidy_logs_what_python_says(spark: SparkSession, tmp_path: Path) -> None:
    """Those whose forms Spark reads in its own way: in pieces, by row groups, by folders."""
    for what in ("lines of Windows", "packed in pieces", "categories", "journals of three regions"):
        (tmp_path / what).mkdir()
        path = untidy.UNTIDY[what](tmp_path / what)
        assert said(report_file(spark, path)) == said(examine(read(path))), what


ROW = '{"subscriber":"s","event":"a","position":1}\n'
REFUSED = {
    "no event": '{"subscriber":"s","position":1}\n',
    "no JSON": "{]\n",
}


@pytest.mark.parametrize("what", REFUSED)
def test_spark_refuses_in_the_words_of_python(spark: SparkSession, tmp_path: Path, what: str) -> None:
    """The first of all refusals, with its file and line, whatever the tasks do first."""
    folder = tmp_path / "log" / "topic=T"
    folder.mkdir(parents=True)
    (folder / "part-0").write_text(ROW * 3)
    (folder / "part-1.gz").write_bytes(gzip.compress((ROW + REFUSED[what] + ROW).encode()))
    (folder / "part-2").write_text("{]\n")
    with pytest.raises(FormatError) as expected:
        read(tmp_path / "log")
    with pytest.raises(FormatError) as found:
        report_file(spark, tmp_path / "log")
    assert str(found.value) == str(expected.value)
    assert "part-1.gz, line 2" in str(found.value)


def test_equal_positions_stand_in_the_order_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    """All deliveries of a subscriber have one position: only the order of rows tells what came first."""
    names = [f"e{i}" for i in range(8)]
    records = [Record(subscriber="s", event=event, position=1) for event in names[::-1]]
    records += [Record(subscriber="t", event=event, position=2**63 - 1) for event in names]
    write_jsonl(tmp_path / "log", Header(), records)
    found = {v.judge: v.violations for v in report_file(spark, tmp_path / "log").verdicts}
    assert found == {v.judge: v.violations for v in examine(read(tmp_path / "log")).verdicts}
    assert found["pairwise-order"] == 28


def test_what_one_subscriber_s_rows_tell_judges_the_others(spark: SparkSession, tmp_path: Path) -> None:
    told = [
        Record(subscriber="s", event="a", position=1, publisher="p", publisher_seq=1, topic="T"),
        Record(subscriber="s", event="b", position=2, publisher="p", publisher_seq=2, topic="T", clock={"p": 1}),
    ]
    silent = [Record(subscriber="t", event="b", position=1), Record(subscriber="t", event="a", position=2)]
    (tmp_path / "log").mkdir()
    write_parquet(tmp_path / "log" / "1", Header(), told)
    write_jsonl(tmp_path / "log" / "2", Header(), silent)
    found = {v.judge: v.violations for v in report_file(spark, tmp_path / "log").verdicts}
    assert (found["fifo"], found["publisher-order"], found["causal"]) == (1, 1, 1)


def test_what_no_event_shows_together_is_not_said_to_hold(spark: SparkSession, tmp_path: Path) -> None:
    """Topics of one event, publishers of another: in tasks and in plans as in the reference."""
    records = [Record(subscriber="s", event="a", position=1, publisher="p", publisher_seq=1)]
    records += [Record(subscriber=s, event="b", position=2, topic="T") for s in "st"]
    write_jsonl(tmp_path / "log", Header(), records)
    expected = said(examine(read(tmp_path / "log")))
    assert said(report_file(spark, tmp_path / "log")) == expected
    assert said(report_file(spark, tmp_path / "log", PARTS._replace(bucket_rows=1))) == expected
    write_jsonl(tmp_path / "log", Header(), [*records, Record(subscriber="t", event="b", position=3)])
    expected = said(examine(read(tmp_path / "log")))
    assert said(report_file(spark, tmp_path / "log", PARTS._replace(bucket_rows=1))) == expected


def test_a_journal_without_deliveries_is_not_said_to_hold(spark: SparkSession, tmp_path: Path) -> None:
    write_parquet(tmp_path / "empty", Header(), [])
    assert said(report_file(spark, tmp_path / "empty")) == said(examine(read(tmp_path / "empty")))


def test_lines_are_read_in_ranges_and_named_by_their_number(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 400)
    records = [Record(subscriber="s", event=f"e{i}", position=i // 2) for i in range(40)]
    write_jsonl(tmp_path / "log", Header(), records)
    found = load(spark, tmp_path / "log").orderBy("_at").collect()
    assert [row.event for row in found] == [record.event for record in records]
    text = (tmp_path / "log").read_text()
    (tmp_path / "log").write_text(text.replace('"event":"e17"', '"event":true'))
    for read_it in (report_file, load):  # a broken file is no frame that lacks some rows
        with pytest.raises(FormatError, match=r"log, line 19, column event"):
            read_it(spark, tmp_path / "log")


def test_columns_that_no_part_has_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """Of Parquet that is known beforehand; whoever loads a journal sees all its columns."""
    (tmp_path / "topic=T").mkdir()
    for place, more in ((tmp_path / "1", {"number": [7]}), (tmp_path / "topic=T" / "2", {"color": ["red"]})):
        pq.write_table(pa.table({"subscriber": ["s"], "event": ["a"], "position": [1], **more}), place)
    rows = reading.scan(spark, tmp_path)
    assert rows.columns == ["subscriber", "event", "position", "topic", "number", "_at", "_problem"]
    assert [(row.topic, row.number) for row in rows.orderBy("_at").collect()] == [(None, 7), ("T", None)]
    loaded = load(spark, tmp_path)
    assert loaded.columns == [*Record.__struct_fields__, "_at"]
    assert {(row.kind, row.at_us, row.who) for row in loaded.collect()} == {("deliver", 0, None)}


def test_files_of_a_few_rows_are_read_by_one_task(spark: SparkSession, tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"part-{i:02}").write_text(ROW.replace('"a"', f'"e{i}"') * 2)
    rows = reading.scan(spark, tmp_path).withColumn("task", F.spark_partition_id()).orderBy("_at").collect()
    assert [row.event for row in rows] == [f"e{i // 2}" for i in range(60)]
    assert len({row.task for row in rows}) == 1


def test_an_archive_and_journals_with_other_columns_are_judged_together(spark: SparkSession, tmp_path: Path) -> None:
    """As docs/reference/spark.md recommends: a client's journal knows no topic, the archive no clock."""
    fill(tmp_path / "archive", 1, 20)
    told = [row for row in rows(1, 20) if row.seq in (3, 4, 9)]
    order = [told[1], told[0], told[2]]
    records = [
        Record(subscriber="ann", event=f"{row.publisher}:{row.publisher_seq}", position=i, clock={"nobody": 1})
        for i, row in enumerate(order)
    ]
    write_parquet(tmp_path / "ann.parquet", Header(), records)
    archive = deliveries(spark.read.format("unisono").load(str(tmp_path / "archive")))
    journal = spark.read.parquet(str(tmp_path / "ann.parquet"))
    together = archive.unionByName(journal, allowMissingColumns=True)
    names = [name for name in Record.__struct_fields__ if name in together.columns]
    same = [
        Record(**{name: value for name in names if (value := getattr(row, name)) is not None})
        for row in together.collect()
    ]
    expected = {v.judge: (v.holds, v.violations) for v in judge(Journal(Header(), same))}
    assert expected["pairwise-order"] == (False, 1)
    assert {row.judge: (row.holds, row.violations) for row in audit(together).collect()} == expected


def test_a_frame_with_rows_to_refuse_is_refused(spark: SparkSession) -> None:
    names = "kind STRING, subscriber STRING, event STRING, position DOUBLE"
    for row, problem in (
        (("deliver", "s", None, 1.0), "column event: missing, but a 'deliver' record needs it"),
        (("delivered", "s", "a", 1.0), "column kind: 'delivered' is no kind of record"),
        ((None, "s", "a", 1.5), "column position: 1.5 is no whole number"),
        (("gap", None, None, None), "column subscriber: missing, but a 'gap' record needs it"),
        ((None, "s", "a", float("nan")), "column position: NaN is no whole number"),
        ((None, "s", "a", 1e300), "column position: 1.0E300 is no whole number"),
    ):
        with pytest.raises(FormatError) as caught:
            audit(spark.createDataFrame([("deliver", "s", "a", 2.0), row], names))
        assert problem in str(caught.value)
    with pytest.raises(MisuseError, match="in the order of its rows"):
        audit(spark.createDataFrame([("subscribe", "s", None, None)], names))


def test_frames_that_are_no_journals_are_refused_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    """One line each, before any of Spark's own."""
    good = spark.createDataFrame([("s", "a", 1)], "subscriber STRING, event STRING, position BIGINT")
    (tmp_path / "log").write_bytes(b'{"journal": 1}\n' + refused.ROW)
    for frame, problem in (
        (good.select("*", F.col("event").alias("Event")), r"column event is there 2 times: select one"),
        (
            good.withColumn("delivered_us", F.current_timestamp()),
            "delivered_us is timestamp, .* unix_micros makes numb",
        ),
        (good.withColumn("_at", F.lit("first")), "column _at is string"),
        (good.withColumn("clock", F.create_map(F.lit("p"), F.lit(1.5))), "column clock: 1.5 of p is no whole number"),
        (good.withColumn("clock", F.struct(F.lit(0.5).alias("p:1"))), "column clock: 0.5 of p:1 is no whole number"),
        (good.withColumn("clock", F.create_map(F.lit("p"), F.lit("1"))), "column clock is map<string,string>"),
        (spark.readStream.format("rate").load(), "a stream has no end .*live.audit_stream"),
        (spark.createDataFrame([], "seq BIGINT, payload BINARY"), "of an archive's rows .*archived.deliveries makes a"),
        (spark.read.json(str(tmp_path / "log")), "headers of files are rows here: read the files by .*audits.load"),
    ):
        with pytest.raises((MisuseError, FormatError), match=problem) as caught:
            audit(frame)
        assert "\n" not in str(caught.value)
    assert load(spark, str(tmp_path / "log")).count() == 1


def test_what_the_header_says_of_clocks_counts(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_jsonl(path, Header(promises=("timely",), skew_us=50), [PUBLISHED, LATE])
    found = report_file(spark, path)
    assert said(found) == said(examine(read(path)))
    assert {v.judge: v.holds for v in found.verdicts}["timely"]


def test_a_log_with_records_that_some_judge_needs_is_a_full_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judges of whole journals are asked in one task: a kind that nobody knows here must not leave one out."""
    assert "arrive" not in meaning.full_kinds()
    monkeypatch.setitem(JUDGES, "prompt", Judge(lambda trace: None, kinds=("arrive",)))
    assert "arrive" in meaning.full_kinds()


@pytest.mark.parametrize("what", refused.REFUSED)
def test_what_is_refused_is_told_in_the_words_of_the_other_engines(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """Before any JVM starts, where the first rows show it."""
    make, words = refused.REFUSED[what]
    path = make(tmp_path)
    heard = set()
    for engine in ("arrow", "spark"):
        monkeypatch.setattr(sys, "argv", ["unisono", "audit", str(path), "--on", engine])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        heard.add(capsys.readouterr().err)
    (said,) = heard
    assert words in said
    assert said.count("\n") == 1


def test_a_name_that_is_no_text_is_refused_before_spark_is_told(tmp_path: Path) -> None:
    for name in ("a", os.fsdecode(b"\xff")):
        (tmp_path / name).write_text(ROW)
    with pytest.raises(FormatError, match="a name that is not UTF-8: rename it"):
        reading.check_file(tmp_path)


@pytest.mark.parametrize("scheme", ["spark", "sc"])
def test_a_cluster_that_does_not_answer_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        where = f"{scheme}://127.0.0.1:{nobody.getsockname()[1]}"
        (tmp_path / "log").write_text(ROW)
        monkeypatch.setattr(sys, "argv", ["unisono", "audit", str(tmp_path / "log"), "--on", where])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 2
    assert f"unisono: {where}: " in (said := capsys.readouterr().err)
    assert said.count("\n") == 1


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(1000, 11_000, 500))
def test_spark_says_of_ten_thousand_dirty_logs_what_python_says(
    spark: SparkSession, tmp_path: Path, first: int
) -> None:
    path = dirty.write_many(range(first, first + 500), tmp_path, notices=False)
    assert said(report_file(spark, path, PARTS)) == said(examine(read(path)))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(10))
def test_spark_counts_what_was_planted_in_a_million_deliveries(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from tracing.planted import planted

    found, expected = planted(1_000_000, seed)
    pq.write_table(found, tmp_path / "log")
    compiled = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: spark.conf.get(name) for name in compiled}
    for name, value in compiled.items():  # a million rows are worth compiling for
        spark.conf.set(name, value)
    try:
        assert {v.judge: v.violations for v in report_file(spark, tmp_path / "log").verdicts} == expected
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
