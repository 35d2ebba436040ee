"""The source: one order, exact offsets, the same rows for ever, and loss that is told."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from tests.archive.test_archive import rows
from tests.spark.queries import finish
from unisono.archive.headers import GAP
from unisono.archive.schema import ArchivedEvent, to_events
from unisono.archive.writer import ArchiveConfig, ArchiveWriter
from unisono.errors import DataLossError, MisuseError
from unisono.model.time import Micros
from unisono.spark.source import ROWS, BatchReader, Options, Range, StreamReader, arrow_schema, rows_of, split

NOW = Micros(1_000)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    fill(tmp_path / "archive", 1, 100)
    return tmp_path / "archive"


def fill(directory: Path, first: int, count: int) -> None:
    with ArchiveWriter(directory, ArchiveConfig(seal_rows=10)) as writer:
        for start in range(first, first + count, 10):
            writer.append(rows(start, 10), NOW)


def drop_upto(directory: Path, segments_kept: int) -> None:
    with ArchiveWriter(directory, ArchiveConfig(keep_bytes=1)) as writer:
        assert len(writer.manifest.segments) >= segments_kept
        writer.retain(NOW)


def reader(path: Path, **options: str) -> StreamReader:
    return StreamReader(Options({"path": str(path), **options}), ROWS)


def read(path: Path, part: Range, **options: str) -> list[ArchivedEvent]:
    batches = rows_of(Options({"path": str(path), **options}), part, arrow_schema(ROWS))
    return [event for batch in batches for event in to_events(batch)]


@pytest.mark.parametrize(("after", "upto", "parts"), [(0, 0, 3), (0, 1, 3), (5, 100, 4), (7, 20, 1), (0, 7, 7)])
def test_the_parts_of_a_range_are_the_range(after: int, upto: int, parts: int) -> None:
    ranges = split(after, upto, parts)
    assert [row for part in ranges for row in range(part.after + 1, part.upto + 1)] == list(range(after + 1, upto + 1))
    assert len(ranges) == min(parts, upto - after)


def test_a_range_read_twice_gives_the_same_rows(archive: Path) -> None:
    assert read(archive, Range(13, 57)) == read(archive, Range(13, 57)) == rows(14, 44)
    assert {event.topic for event in read(archive, Range(0, 100), topics="quotes")} == {"quotes"}


def test_notices_of_gaps_are_no_events(tmp_path: Path) -> None:
    notice = ArchivedEvent(4, "trades", 9, "", 0, 1, 1, None, {GAP: "7"}, b"lost")
    with ArchiveWriter(tmp_path / "archive", ArchiveConfig(seal_rows=5)) as writer:
        writer.append([*rows(1, 3), notice, *rows(5, 1)], NOW)
    whole = Range(0, 5)
    assert [event.seq for event in read(tmp_path / "archive", whole)] == [1, 2, 3, 5]
    assert read(tmp_path / "archive", whole, gaps="rows")[3] == notice
    with pytest.raises(DataLossError, match=r"numbers 7 to 9 of trades are missing in the archive \(lost\)"):
        read(tmp_path / "archive", whole, gaps="fail")
    assert len(read(tmp_path / "archive", Range(0, 3), gaps="fail")) == 3


def test_admission_takes_no_more_than_it_may(archive: Path) -> None:
    stream = reader(archive, maxRowsPerTrigger="30")
    assert isinstance(stream.getDefaultReadLimit(), ReadMaxRows)
    start = stream.initialOffset()
    assert start == {"v": 1, "seq": 0}
    assert stream.latestOffset(start, ReadMaxRows(30)) == {"v": 1, "seq": 30}
    assert stream.latestOffset({"v": 1, "seq": 90}, ReadMaxRows(30)) == {"v": 1, "seq": 100}
    assert stream.partitions(start, start) == []


def test_available_now_never_passes_its_target(archive: Path) -> None:
    stream = reader(archive)
    stream.prepareForTriggerAvailableNow()
    fill(archive, 101, 20)
    assert stream.latestOffset({"v": 1, "seq": 0}, ReadAllAvailable()) == {"v": 1, "seq": 100}
    assert stream.reportLatestOffset() == {"v": 1, "seq": 120}


def test_rows_removed_before_they_were_read_are_told(archive: Path) -> None:
    drop_upto(archive, 1)
    with pytest.raises(DataLossError, match="rows 6 to 90"):
        reader(archive).latestOffset({"v": 1, "seq": 5}, ReadAllAvailable())
    with pytest.raises(DataLossError, match="rows 6 to 20"):
        reader(archive).partitions({"v": 1, "seq": 5}, {"v": 1, "seq": 20})
    tolerant = reader(archive, failOnDataLoss="false")
    assert [part.after for part in tolerant.partitions({"v": 1, "seq": 5}, {"v": 1, "seq": 100})] == [90]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "needs a path"),
        ({"path": "x", "colour": "red"}, "unknown option 'colour'"),
        ({"path": "x", "startingSeq": "yesterday"}, "startingSeq"),
        ({"path": "x", "maxRowsPerTrigger": "0"}, "maxRowsPerTrigger"),
        ({"path": "x", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"path": "x", "gaps": "hide"}, "gaps is omit, rows or fail"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(MisuseError, match=problem):
        Options(options)


def test_an_unknown_offset_version_is_refused(archive: Path) -> None:
    with pytest.raises(MisuseError, match="unknown version"):
        reader(archive).latestOffset({"v": 2, "seq": 0}, ReadAllAvailable())


def test_a_column_the_archive_does_not_have_is_named(archive: Path) -> None:
    with pytest.raises(MisuseError, match="colour"):
        BatchReader(Options({"path": str(archive)}), StructType().add("seq", "long").add("colour", "string"))


def test_spark_reads_the_archive_without_registration(spark: SparkSession, archive: Path) -> None:
    frame = spark.read.format("unisono").option("minPartitions", "3").load(str(archive))
    found = [row.asDict() for row in frame.orderBy("seq").collect()]
    assert [row["seq"] for row in found] == list(range(1, 101))
    assert found[9]["headers"] == {"n": "10"}
    assert bytes(found[9]["payload"]) == rows(10, 1)[0].payload
    narrowed = frame.where("seq > 20 and seq <= 40 and topic = 'trades'")
    assert narrowed.count() == 10


def test_a_restarted_stream_writes_every_row_once(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run() -> None:
        stream = spark.readStream.format("unisono").option("maxRowsPerTrigger", "40").load(str(archive))
        finish(stream.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint))

    run()
    fill(archive, 101, 50)
    run()
    written = spark.read.parquet(out)
    assert sorted(row.seq for row in written.select("seq").collect()) == list(range(1, 151))


def test_a_stream_over_lost_rows_fails_with_their_numbers(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    drop_upto(archive, 1)
    stream = spark.readStream.format("unisono").option("startingSeq", "5").load(str(archive))
    with pytest.raises(StreamingQueryException, match="rows 5 to 90 were removed by retention"):
        finish(stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")))
