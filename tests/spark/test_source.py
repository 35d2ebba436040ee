"""The source: one order, exact offsets, the same rows for ever, and loss that is told."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from tests.archive.test_archive import rows
from tests.spark.queries import finish
from unisono.archive.headers import GAP
from unisono.archive.schema import ArchivedEvent, to_events
from unisono.archive.writer import ArchiveConfig, ArchiveWriter
from unisono.errors import DataLossError, MisuseError
from unisono.model.time import Micros
from unisono.runtime.archiving.streamed import StreamArchiveWriter
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.spark.source import (
    ROWS,
    BatchReader,
    Range,
    SourceOptions,
    StreamReader,
    arrow_schema,
    rows_of,
    split,
    with_password,
)

NOW = Micros(1_000)
SHELVES = count(1)


class Shelf:
    """An archive of a hundred rows that a test can add to and take from; `location` is what users write."""

    def __init__(
        self, location: str, open_writer: Callable[[ArchiveConfig], ArchiveWriter | StreamArchiveWriter]
    ) -> None:
        self.location = location
        self._open_writer = open_writer
        self.fill(1, 100)

    def fill(self, first: int, count: int) -> None:
        with self._open_writer(ArchiveConfig(seal_rows=10)) as writer:
            append(writer, first, count)

    def drop(self) -> None:
        """Retention removes everything but the last ten rows."""
        with self._open_writer(ArchiveConfig(seal_rows=10, keep_bytes=1)) as writer:
            for _ in range(20):
                writer.retain(NOW)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"), NatsServerConfig(jetstream=True))
    asyncio.run(server.start())
    yield server
    server.kill()


@pytest.fixture
def archive(tmp_path: Path) -> Shelf:
    return Shelf(str(tmp_path / "archive"), lambda config: ArchiveWriter(tmp_path / "archive", config))


@pytest.fixture
def in_stream(server: NatsServer) -> Shelf:
    name = f"shelf{next(SHELVES)}"  # a test that is tried again has a new one
    options = NatsOptions((server.url,))
    return Shelf(f"{server.url}/{name}", lambda config: StreamArchiveWriter(name, options, 1, config))


@pytest.fixture(params=["archive", "in_stream"])
def either(request: pytest.FixtureRequest) -> Shelf:
    """What holds for files holds for a stream."""
    store: Shelf = request.getfixturevalue(request.param)
    return store


def append(writer: ArchiveWriter | StreamArchiveWriter, first: int, count: int) -> None:
    for start in range(first, first + count, 10):
        writer.append(rows(start, 10), NOW)


def fill(directory: Path, first: int, count: int) -> None:
    with ArchiveWriter(directory, ArchiveConfig(seal_rows=10)) as writer:
        append(writer, first, count)


def reader(store: Shelf, **options: str) -> StreamReader:
    return StreamReader(SourceOptions({"path": store.location, **options}), ROWS)


def read(path: Path | str, part: Range, **options: str) -> list[ArchivedEvent]:
    batches = rows_of(SourceOptions({"path": str(path), **options}), part, arrow_schema(ROWS))
    return [event for batch in batches for event in to_events(batch)]


@pytest.mark.parametrize(("after", "upto", "parts"), [(0, 0, 3), (0, 1, 3), (5, 100, 4), (7, 20, 1), (0, 7, 7)])
def test_the_parts_of_a_range_are_the_range(after: int, upto: int, parts: int) -> None:
    ranges = split(after, upto, parts)
    assert [row for part in ranges for row in range(part.after + 1, part.upto + 1)] == list(range(after + 1, upto + 1))
    assert len(ranges) == min(parts, upto - after)


def test_a_range_read_twice_gives_the_same_rows(either: Shelf) -> None:
    place = either.location
    assert read(place, Range(13, 57)) == rows(14, 44)
    either.fill(101, 20)
    assert read(place, Range(13, 57)) == rows(14, 44)
    assert [event for part in split(5, 120, 4) for event in read(place, part)] == rows(6, 115)
    assert read(place, Range(0, 100), topics="quotes") == [row for row in rows(1, 100) if row.topic == "quotes"]


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


def test_a_stream_starts_where_it_is_told(either: Shelf) -> None:
    starts = {start: reader(either, startingSeq=start).initialOffset()["seq"] for start in ("earliest", "latest", "41")}
    assert starts == {"earliest": 0, "latest": 100, "41": 40}
    since = {at: reader(either, startingTimestamp=at).initialOffset()["seq"] for at in ("0", "46", "105", "106")}
    assert since == {"0": 0, "46": 40, "105": 99, "106": 100}
    either.drop()
    assert reader(either).initialOffset()["seq"] == 90
    assert reader(either, startingTimestamp="1970-01-01").initialOffset()["seq"] == 90


def test_admission_takes_no_more_than_it_may(either: Shelf) -> None:
    stream = reader(either, maxRowsPerTrigger="30")
    assert isinstance(stream.getDefaultReadLimit(), ReadMaxRows)
    start = stream.initialOffset()
    assert start["seq"] == 0
    assert stream.latestOffset(start, ReadMaxRows(30))["seq"] == 30
    assert stream.latestOffset({"v": 1, "seq": 90}, ReadMaxRows(30))["seq"] == 100
    assert stream.partitions(start, start) == []


def test_available_now_never_passes_its_target(either: Shelf) -> None:
    stream = reader(either)
    stream.prepareForTriggerAvailableNow()
    either.fill(101, 20)
    assert stream.latestOffset({"v": 1, "seq": 0}, ReadAllAvailable())["seq"] == 100
    assert stream.reportLatestOffset()["seq"] == 120


def test_rows_removed_before_they_were_read_are_told(either: Shelf) -> None:
    either.drop()
    with pytest.raises(DataLossError, match="rows 6 to 90"):
        reader(either).latestOffset({"v": 1, "seq": 5}, ReadAllAvailable())
    with pytest.raises(DataLossError, match="rows 6 to 20"):
        reader(either).partitions({"v": 1, "seq": 5}, {"v": 1, "seq": 20})
    tolerant = reader(either, failOnDataLoss="false")
    assert [part.after for part in tolerant.partitions({"v": 1, "seq": 5}, {"v": 1, "seq": 100})] == [90]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "needs a path"),
        ({"url": "nats://a:1"}, "needs a path"),
        ({"path": "x", "stream": "S"}, "one place"),
        ({"path": "x", "colour": "red"}, "unknown option 'colour'"),
        ({"path": "x", "startingSeq": "yesterday"}, "startingSeq"),
        ({"path": "x", "startingTimestamp": "yesterday"}, "startingTimestamp is a moment"),
        ({"path": "x", "startingSeq": "5", "startingTimestamp": "0"}, "startingSeq or startingTimestamp"),
        ({"path": "x", "startingSeq": "0"}, "the first row of an archive is 1"),
        ({"path": "x", "startingSeq": "5", "endingSeq": "4"}, "endingSeq is 4, before startingSeq"),
        ({"path": "x", "maxRowsPerTrigger": "0"}, "maxRowsPerTrigger"),
        ({"path": "x", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"path": "x", "gaps": "hide"}, "gaps is omit, rows or fail"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(MisuseError, match=problem):
        SourceOptions(options)


def test_an_unknown_offset_version_is_refused(archive: Shelf) -> None:
    with pytest.raises(MisuseError, match="unknown version"):
        reader(archive).latestOffset({"v": 3, "seq": 0}, ReadAllAvailable())


def test_a_column_the_archive_does_not_have_is_named(archive: Shelf) -> None:
    with pytest.raises(MisuseError, match="colour"):
        BatchReader(SourceOptions({"path": archive.location}), StructType().add("seq", "long").add("colour", "string"))


def test_spark_reads_the_archive_without_registration(spark: SparkSession, archive: Shelf) -> None:
    frame = spark.read.format("unisono").option("minPartitions", "3").load(archive.location)
    found = [row.asDict() for row in frame.orderBy("seq").collect()]
    assert [row["seq"] for row in found] == list(range(1, 101))
    assert found[9]["headers"] == {"n": "10"}
    assert bytes(found[9]["payload"]) == rows(10, 1)[0].payload


def test_one_use_of_a_frame_does_not_narrow_another(spark: SparkSession, archive: Shelf) -> None:
    """Decision 17: also where filters may be pushed down, and a frame is used twice in one plan."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("unisono").load(archive.location)
        low, high = frame.where("seq <= 20 and topic = 'trades'"), frame.where("seq > 90")
        assert (low.unionAll(high).count(), frame.count()) == (10 + 10, 100)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_no_filter_is_pushed_into_the_reader(archive: Shelf) -> None:
    """Decision 17. A reader with a `pushFilters` of its own is refused by sessions that do not allow it, besides."""
    found = BatchReader(SourceOptions({"path": archive.location}), ROWS)
    assert found.pushFilters.__func__ is DataSourceReader.pushFilters


def test_a_batch_reads_the_range_that_options_name(either: Shelf) -> None:
    def read_batch(**more: str) -> list[int]:
        batch = BatchReader(SourceOptions({"path": either.location, "minPartitions": "3", **more}), ROWS)
        return [row.seq for part in batch.partitions() for row in read(either.location, part)]

    assert read_batch(startingSeq="21", endingSeq="40") == list(range(21, 41))
    assert read_batch(startingSeq="101") == []
    assert read_batch(startingTimestamp="1970-01-01T00:00:00.000100Z") == list(range(95, 101))
    with pytest.raises(MisuseError, match="endingSeq is 101, and the last row that is sealed is 100"):
        read_batch(endingSeq="101")
    with pytest.raises(MisuseError, match="a stream has no end"):
        reader(either, endingSeq="40")
    either.drop()
    assert read_batch(endingSeq="40") == [], "removed, and not asked for by number"
    with pytest.raises(DataLossError, match="rows 21 to 90"):
        read_batch(startingSeq="21")


def test_a_restarted_stream_writes_every_row_once(spark: SparkSession, either: Shelf, tmp_path: Path) -> None:
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    url, _, stream = either.location.rpartition("/")
    place = {"url": url, "stream": stream} if url.startswith("nats://") else {"path": either.location}

    def run() -> None:
        events = spark.readStream.format("unisono").options(**place).option("maxRowsPerTrigger", "80").load()
        finish(events.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint))

    run()
    either.fill(101, 50)
    run()
    written = spark.read.parquet(out)
    assert sorted(row.seq for row in written.select("seq").collect()) == list(range(1, 151))
    if stream == "archive":  # the failure is the readers', which are tested for both
        either.drop()
        events = spark.readStream.format("unisono").option("startingSeq", "5").options(**place).load()
        with pytest.raises(StreamingQueryException, match=r"rows 5 to 140 \(136\) were removed by retention"):
            finish(events.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "other")))


def test_passwords_come_from_the_environment() -> None:
    assert with_password("nats://ann@a:1,b:2/S", "p/w") == "nats://ann:p%2Fw@a:1,b:2/S"
    for location in ("nats://a:1/S", "nats://ann:known@a:1/S"):
        assert with_password(location, "p") == location
    assert with_password("nats://ann@a:1/S", "") == "nats://ann@a:1/S"
