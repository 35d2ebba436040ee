"""Which archive an offset is of: one that was replaced, shortened or rolled back is told, never skipped."""

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import nats
import pytest
from nats.js.errors import NotFoundError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.archive.test_archive import rows
from tests.spark.queries import finish
from tests.spark.test_source import Shelf as Archived
from tests.spark.test_source import read, reader
from unisono.archive.writer import ArchiveWriter
from unisono.errors import DataLossError, FormatError
from unisono.runtime.archiving.streamed import StreamArchiveWriter
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.spark.source import PARTITION_BYTES, ROWS, BatchReader, Range, SourceOptions, cut

NAMES = count(1)
ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"), NatsServerConfig(jetstream=True))
    asyncio.run(server.start())
    yield server
    server.kill()


def in_files(directory: Path) -> Archived:
    return Archived(str(directory), lambda config: ArchiveWriter(directory, config))


@pytest.fixture(params=["files", "stream"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Archived]:
    """Makes an archive of a hundred rows, at the same place each time: whatever was there is gone."""
    if request.param == "files":

        def anew() -> Archived:
            shutil.rmtree(tmp_path / "archive", ignore_errors=True)
            return in_files(tmp_path / "archive")

        return anew
    server: NatsServer = request.getfixturevalue("server")
    name, options = f"identity{next(NAMES)}", NatsOptions((server.url,))

    async def remove() -> None:
        client = await nats.connect(server.url)
        with suppress(NotFoundError):
            await client.jetstream().delete_stream(name)
        await client.close()

    def in_stream() -> Archived:
        asyncio.run(remove())
        return Archived(f"{server.url}/{name}", lambda config: StreamArchiveWriter(name, options, 1, config))

    return in_stream


def test_a_replaced_archive_is_an_error_that_names_both(fresh: Callable[[], Archived]) -> None:
    store = fresh()
    start = reader(store).latestOffset(reader(store).initialOffset(), ALL)
    assert (start["seq"], reader(store).latestOffset(start, ALL)) == (100, start)
    store = fresh()
    store.fill(101, 60)
    other = reader(store).reportLatestOffset()
    assert other["archive"] != start["archive"]
    with pytest.raises(DataLossError, match=f"read from archive {start['archive']}, .* {other['archive']}: it was rep"):
        reader(store).latestOffset(start, ALL)
    with pytest.raises(DataLossError, match="it was replaced"):
        reader(store).partitions({**start, "seq": 50}, start)
    with pytest.raises(DataLossError, match="it was replaced"):  # between planning and reading
        list(read(store.location, Range(50, 100, reader(fresh()).partitions({"v": 1, "seq": 50}, other)[0].mark)))


def test_without_failing_a_replaced_archive_is_read_from_its_beginning(
    fresh: Callable[[], Archived], caplog: pytest.LogCaptureFixture
) -> None:
    store = fresh()
    start = reader(store).reportLatestOffset()
    store = fresh()
    tolerant = reader(store, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        end = tolerant.latestOffset(start, ALL)
        parts = tolerant.partitions(start, end)
    assert [row.seq for part in parts for row in read(store.location, part)] == list(range(1, 101))
    assert "what it had after row 100 is lost, rows 1 to 100 follow" in caplog.text


def test_a_shortened_or_rolled_back_archive_is_noticed(tmp_path: Path) -> None:
    store = in_files(tmp_path / "archive")
    shutil.copytree(tmp_path / "archive", tmp_path / "backup")
    store.fill(101, 60)
    start = reader(store).reportLatestOffset()
    shutil.rmtree(tmp_path / "archive")
    (tmp_path / "backup").rename(tmp_path / "archive")
    with pytest.raises(DataLossError, match="ends at row 100: it was shortened or rolled back"):
        reader(store).latestOffset(start, ALL)
    store.fill(101, 100)
    with pytest.raises(DataLossError, match="the archive was rolled back and written on"):
        reader(store).latestOffset(start, ALL)
    same = {
        **start,
        "seq": 100,
        "term": reader(store).partitions({"v": 1, "seq": 0}, start | {"term": ""})[0].mark.term,
    }
    assert same["archive"] == start["archive"]


def test_a_restarted_writer_is_the_same_archive(fresh: Callable[[], Archived]) -> None:
    store = fresh()
    start = reader(store).reportLatestOffset()
    store.fill(101, 50)
    store.fill(151, 50)
    end = reader(store).latestOffset(start, ALL)
    assert (end["seq"], end["archive"]) == (200, start["archive"])
    assert [row.seq for part in reader(store).partitions(start, end) for row in read(store.location, part)] == list(
        range(101, 201)
    )


def test_rows_removed_between_planning_and_reading_are_counted_or_fail(
    fresh: Callable[[], Archived], caplog: pytest.LogCaptureFixture
) -> None:
    store = fresh()
    (part,) = reader(store).partitions({"v": 1, "seq": 5}, reader(store).reportLatestOffset())
    store.drop()
    with pytest.raises(DataLossError, match="rows 6 to 90 were removed by retention"):
        read(store.location, part)
    with caplog.at_level(logging.WARNING):
        assert [row.seq for row in read(store.location, part, failOnDataLoss="false")] == list(range(91, 101))
    assert "rows 6 to 90 were removed by retention" in caplog.text


def test_a_flipped_byte_is_reported_with_its_file_and_rows(tmp_path: Path) -> None:
    store = in_files(tmp_path / "archive")
    damaged = sorted((tmp_path / "archive").glob("seg-*"))[3]
    data = bytearray(damaged.read_bytes())
    at = data.find(rows(35, 1)[0].payload, 1000)
    data[at] ^= 1
    damaged.write_bytes(data)
    assert [row.seq for row in read(store.location, Range(0, 30))] == list(range(1, 31))
    with pytest.raises(FormatError, match=f"{damaged.name}: rows 31 to 40: its checksum is wrong; .*--repair"):
        read(store.location, Range(0, 100))


def test_large_reads_are_cut_where_segments_end() -> None:
    heavy, light = ([(10 * (i + 1), size) for i in range(10)] for size in (PARTITION_BYTES, 1))
    assert cut(heavy, 0, 100, 1) == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert cut(heavy[5:], 55, 95, 3) == [60, 70, 80, 90, 95]
    assert (cut(light, 0, 100, 1), cut(light, 0, 100, 4), cut(light, 0, 100, 20)) == (
        [100],
        [20, 50, 70, 100],
        [5 * (i + 1) for i in range(20)],
    )


def test_a_query_stops_when_its_archive_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    place, checkpoint = tmp_path / "archive", str(tmp_path / "checkpoint")
    store = in_files(place)

    def run(**options: str) -> None:
        events = spark.readStream.format("unisono").options(**options).load(str(place))
        writing = events.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        finish(writing.option("checkpointLocation", checkpoint))

    run()
    shutil.rmtree(place)
    store = in_files(place)
    store.fill(101, 50)
    with pytest.raises(StreamingQueryException, match="it was replaced"):
        run()
    run(failOnDataLoss="false")
    written = [row.seq for row in spark.read.parquet(str(tmp_path / "out")).select("seq").collect()]
    assert sorted(written) == sorted([*range(1, 101), *range(1, 151)])


def test_a_batch_reads_all_its_partitions_of_one_archive(tmp_path: Path) -> None:
    store = in_files(tmp_path / "archive")
    parts = BatchReader(SourceOptions({"path": store.location, "minPartitions": "3"}), ROWS).partitions()
    shutil.rmtree(tmp_path / "archive")
    in_files(tmp_path / "archive")
    with pytest.raises(DataLossError, match="it was replaced"):
        [row for part in parts for row in read(store.location, part)]
