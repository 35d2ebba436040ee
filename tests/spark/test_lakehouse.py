"""Tables of Delta Lake: a commit per batch, once; streams by versions; files not opened; jobs that disturb nobody."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake", reason="the extra lakehouse is not installed")

import deltalake
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.archive.test_archive import rows
from tests.spark.queries import finish
from tests.spark.test_source import fill
from unisono.errors import DataLossError, FormatError, MisuseError
from unisono.spark.lakehouse.jobs import compact, retain
from unisono.spark.lakehouse.options import DeltaOptions
from unisono.spark.lakehouse.sink import DeltaSinkOptions, DeltaStreamWriter
from unisono.spark.lakehouse.source import DeltaBatchReader, DeltaDataSource, DeltaStreamReader
from unisono.spark.lakehouse.table import LakeTable
from unisono.spark.moments import moment_us

SCHEMA = pa.schema(
    [("seq", pa.int64()), ("topic", pa.string()), ("delivered_us", pa.int64()), ("payload", pa.binary())]
)
COLUMNS = from_arrow_schema(SCHEMA)


def events(first: int, count: int, topic: str = "t") -> pa.RecordBatch:
    seqs = range(first, first + count)
    columns = [list(seqs), [topic] * count, [1000 * seq for seq in seqs], [b"x" * 5] * count]
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA)], schema=SCHEMA)


def append(table: Path, batch: int, *parts: pa.RecordBatch, writer: str = "w") -> None:
    """One batch of a query, a task per part, as Spark asks for it."""
    sink = DeltaStreamWriter(DeltaSinkOptions({"path": str(table), "writer": writer}, named=True), COLUMNS)
    sink.commit([sink.write(iter([part])) for part in parts], batch)


def reader(table: Path, **options: str) -> DeltaStreamReader:
    return DeltaStreamReader(DeltaOptions({"path": str(table), **options}), COLUMNS)


def seqs(source: Any, parts: Any) -> list[int]:
    return [seq for part in parts for batch in source.read(part) for seq in batch.column("seq").to_pylist()]


def read_on(table: Path, start: dict[str, Any] | None = None, **options: str) -> tuple[list[int], dict[str, Any]]:
    """What a query reads from an offset on, and how far it comes."""
    source = reader(table, **options)
    start = start or source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    return sorted(seqs(source, source.partitions(start, end))), end


def read_all(table: Path, **options: str) -> tuple[list[int], int]:
    """What a batch reads, and from how many files."""
    source = DeltaBatchReader(DeltaOptions({"path": str(table), **options}), COLUMNS)
    parts = source.partitions()
    return sorted(seqs(source, parts)), sum(len(part.files) for part in parts)


def test_a_batch_is_one_commit_once_however_often_it_is_played(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 0, events(1, 3), events(4, 2))
    append(table, 1)  # a batch without rows counts, too
    append(table, 2, events(6, 3), events(9, 1))
    assert LakeTable(str(table)).version == 3, "made, and a commit a batch"
    before = sorted(path.name for path in table.glob("*.parquet"))
    append(table, 2, events(9, 1), events(6, 3))
    assert LakeTable(str(table)).version == 3
    assert sorted(path.name for path in table.glob("*.parquet")) == before, "its files are not left behind"
    assert read_all(table)[0] == list(range(1, 10))


def test_a_second_query_under_the_same_name_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 0, events(1, 3))
    append(table, 1, events(4, 3))
    with pytest.raises(DataLossError, match="3 rows in batch 1 of w, and now batch 1 has 2: no replay"):
        append(table, 1, events(50, 2))
    with pytest.raises(DataLossError, match="batches up to 1 of w, and now batch 0 has 3: no replay"):
        append(table, 0, events(50, 3))
    with pytest.raises(DataLossError, match="batches of w up to 1, and the next is 3"):
        append(table, 3, events(50, 3))
    append(table, 0, events(7, 1), writer="another")
    assert read_all(table)[0] == list(range(1, 8))


def test_what_does_not_fit_the_table_is_refused_before_it_is_in_it(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 0, events(1, 3))
    other = from_arrow_schema(pa.schema([("seq", pa.string())]))
    sink = DeltaStreamWriter(DeltaSinkOptions({"path": str(table), "writer": "w"}, named=True), other)
    with pytest.raises(MisuseError, match="has other columns seq"):
        sink.commit([], 1)
    with pytest.raises(MisuseError, match="needs the option writer"):
        DeltaSinkOptions({"path": str(table)}, named=True)
    assert LakeTable(str(table)).version == 1


def test_a_stream_goes_on_at_the_version_it_has_read(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 0, events(1, 3))
    append(table, 1, events(4, 3))
    first, offset = read_on(table)
    assert (first, offset["version"]) == ([1, 2, 3, 4, 5, 6], 2)
    append(table, 2, events(7, 2))
    append(table, 3, events(9, 2))
    assert read_on(table, offset)[0] == [7, 8, 9, 10]
    assert read_on(table, offset, maxVersionsPerTrigger="1")[0] == [7, 8]
    assert read_on(table, startingVersion="2")[0] == [4, 5, 6, 7, 8, 9, 10]
    assert read_on(table, startingVersion="latest")[0] == []


def test_compaction_adds_nothing_and_retention_takes_whole_files(tmp_path: Path) -> None:
    table = tmp_path / "table"
    for batch in range(6):
        append(table, batch, events(1 + 10 * batch, 10))
    before, offset = read_on(table)
    done = compact(str(table))
    assert (done.files_before, done.files_after) == (6, 1)
    append(table, 6, events(61, 10))
    append(table, 7, events(71, 10))
    assert read_all(table)[0] == list(range(1, 81))
    assert read_on(table, offset)[0] == list(range(61, 81)), "what was compacted was read before"
    removed = retain(str(table), before_us=1000 * 75)
    assert (removed.files, removed.rows) == (2, 70), "the rows of half a file stay"
    assert read_all(table)[0] == list(range(71, 81))
    assert read_on(table, offset)[0] == list(range(61, 81)), "removed, and not deleted yet: still there to be read"
    retain(str(table), before_us=0, unread_hours=0)
    with pytest.raises(DataLossError, match=r"was removed before it was read \(10 rows\)"):
        read_on(table, offset)
    assert read_on(table, offset, failOnDataLoss="false")[0] == list(range(71, 81))
    assert before == list(range(1, 61))


def test_a_version_that_changes_rows_is_named(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 0, events(1, 5))
    _, offset = read_on(table)
    deltalake.DeltaTable(table).update({"topic": "'u'"}, predicate="seq = 2")
    with pytest.raises(MisuseError, match=r"version 2 of .* changes rows \(UPDATE\)"):
        read_on(table, offset)
    assert read_on(table, startingVersion="3")[0] == []


def test_a_table_that_was_replaced_or_set_back_does_not_fit_an_offset(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 0, events(1, 5))
    shutil.copytree(table, tmp_path / "backup")
    append(table, 1, events(6, 5))
    _, offset = read_on(table)
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "backup", table)
    with pytest.raises(DataLossError, match="is at version 1, and version 2 was read of it"):
        read_on(table, offset)
    shutil.rmtree(table)
    append(table, 0, events(1, 5))
    append(table, 1, events(6, 5))
    with pytest.raises(DataLossError, match="and the offset is of table"):
        read_on(table, offset)


def test_files_without_wanted_rows_are_not_opened(tmp_path: Path) -> None:
    table = tmp_path / "table"
    for batch, topic in enumerate(("a", "b", "c", "b")):
        append(table, batch, events(1 + 10 * batch, 10, topic))
    assert read_all(table) == (list(range(1, 41)), 4)
    assert read_all(table, topics="b") == ([*range(11, 21), *range(31, 41)], 2)
    assert read_all(table, startingSeq="15", endingSeq="22") == (list(range(15, 23)), 2)
    assert read_all(table, startingTimestamp="35000") == (list(range(35, 41)), 1)
    assert read_all(table, endingTimestamp="1970-01-01T00:00:00.005Z") == (list(range(1, 6)), 1)
    assert read_all(table, topics="b", endingTimestamp="12000") == ([11, 12], 1)
    assert read_all(table, versionAsOf="2") == (list(range(1, 21)), 2)
    assert moment_us("2026-01-01T00:00:00+01:00", "x") == 1767222000_000_000
    with pytest.raises(MisuseError, match="startingTimestamp is a moment"):
        moment_us("yesterday", "startingTimestamp")


def test_a_file_that_fell_ill_is_named(tmp_path: Path) -> None:
    append(tmp_path / "table", 0, events(1, 10))
    (file,) = (tmp_path / "table").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(FormatError, match=f"{file.name} of .*table: damaged .*: put back a copy"):
        read_all(tmp_path / "table")


def test_a_version_that_is_not_there_yet_is_none_to_start_at(tmp_path: Path) -> None:
    append(tmp_path / "table", 0, events(1, 10))
    assert read_on(tmp_path / "table", startingVersion="2")[0] == []
    with pytest.raises(MisuseError, match=r"startingVersion is 3, and .* is at version 1"):
        read_on(tmp_path / "table", startingVersion="3")


def test_tables_for_other_readers_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 0, events(1, 5))
    deltalake.DeltaTable(table).alter.add_feature(deltalake.TableFeatures.DeletionVectors, True)
    with pytest.raises(MisuseError, match="is written for readers that know deletionVectors"):
        read_all(table)
    with pytest.raises(MisuseError, match="is written for readers that know deletionVectors"):
        append(table, 1, events(6, 5))
    with pytest.raises(MisuseError, match="is no Delta table"):
        read_all(tmp_path / "nothing")


def test_others_read_what_the_sink_wrote_and_the_source_what_others_wrote(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 0, events(1, 5))
    assert deltalake.DeltaTable(table).to_pyarrow_table().column("seq").to_pylist() == [1, 2, 3, 4, 5]
    theirs = pa.table({"seq": [1, 2, 3], "topic": ["a", "b", "a"]})
    deltalake.write_deltalake(tmp_path / "theirs", theirs, partition_by=["topic"])
    options = DeltaOptions({"path": str(tmp_path / "theirs"), "topics": "a"})
    source = DeltaBatchReader(options, DeltaDataSource({"path": str(tmp_path / "theirs")}).schema())
    found = [row for part in source.partitions() for batch in source.read(part) for row in batch.to_pylist()]
    assert sorted(row["seq"] for row in found) == [1, 3]
    assert {row["topic"] for row in found} == {"a"}


def test_a_query_of_spark_keeps_an_archive_in_a_table_and_reads_it_by_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(tmp_path / "archive", 1, 60)
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    source = spark.readStream.format("unisono").option("maxRowsPerTrigger", "30").load(str(tmp_path / "archive"))
    sink = source.writeStream.format("unisono_delta").option("writer", "keep")
    finish(sink.option("checkpointLocation", checkpoint).option("path", table))
    found = spark.read.format("unisono_delta").option("columns", "seq,topic").load(table)
    assert found.columns == ["seq", "topic"]
    expected = [(row.seq, row.topic) for row in rows(1, 60)]
    assert sorted((row.seq, row.topic) for row in found.collect()) == expected
