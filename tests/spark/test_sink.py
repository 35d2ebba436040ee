"""The sink: every row once, for ever, in the order of its sequence, whatever fails and whenever it is tried again."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import unisono
from tests.runtime.test_leases import SkippingLoop
from tests.spark.faulty import COMMITTING, FAULTS, READING, Fault, Faulty, Reading, Writing
from tests.spark.queries import finish
from tests.spark.test_source import fill
from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec, Security
from unisono.model.time import SECOND, Micros
from unisono.protocols.sequencer.deployed import CLIENT_LEASE_US
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports
from unisono.spark.sink import SinkOptions, collect, publish, rows_of
from unisono.spark.source import ROWS, SourceOptions

HOUR = Micros(3600 * SECOND)
NO_FAULT = Fault()
SCHEMA = StructType().add("seq", "long").add("topic", "string").add("payload", "binary")


class NodeThread:
    """A node with the embedded broker, on loopback, in a thread of its own."""

    def __init__(self, directory: Path, security: Security = Security()) -> None:
        (port,) = free_ports(1)
        spec = NodeSpec("n", listen=f"127.0.0.1:{port}", roles=("sequencer", "broker"), data="data")
        self.deployment = Deployment(1, "sink", nodes=(spec,), security=security)
        self.url = f"unisono://127.0.0.1:{port}"
        self._directory = directory
        self._loop = SkippingLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()

    def start(self) -> None:
        async def make() -> Node:
            node = Node(self.deployment, "n", self._directory)
            await node.start()
            return node

        self._node = asyncio.run_coroutine_threadsafe(make(), self._loop).result(30)

    def skip_an_hour(self, without: str) -> None:
        """An hour passes in which publisher `without` is away: clients that are lose what a node forgets of them."""

        async def skip() -> None:
            while self._node.links.is_up(Address(f"@{without}")):
                await asyncio.sleep(0)
            self._loop.skipped_s += HOUR / SECOND
            for _ in range(2):  # what is due comes after us in the first turn
                await asyncio.sleep(0)

        assert HOUR > CLIENT_LEASE_US
        asyncio.run_coroutine_threadsafe(skip(), self._loop).result(30)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._node.stop(), self._loop).result(30)

    def end(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


TOKENS = Security(token_variable="TEST_CLIENT_TOKEN", node_token_variable="TEST_NODE_TOKEN")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeThread]:
    running = NodeThread(tmp_path)
    yield running
    running.end()


def batch(*rows: tuple[int, str]) -> pa.RecordBatch:
    seqs, topics = zip(*rows)
    payloads = [f"{seq}".encode() for seq in seqs]
    return pa.record_batch({"seq": pa.array(seqs, pa.int64()), "topic": list(topics), "payload": payloads})


def options(**raw: str) -> SinkOptions:
    return SinkOptions({"url": "unisono://127.0.0.1:1", "publisher": "p", **raw}, SCHEMA)


def test_rows_of_all_partitions_go_out_in_one_order() -> None:
    parts = [collect(iter([batch((9, "a"), (2, "b"))])), None, collect(iter([])), collect(iter([batch((5, "a"))]))]
    assert [(row.request, row.topic, row.payload) for row in rows_of(parts, None)] == [
        (2, "b", b"2"),
        (5, "a", b"5"),
        (9, "a", b"9"),
    ]


def test_a_sequence_used_twice_is_refused_because_the_second_would_be_lost() -> None:
    with pytest.raises(MisuseError, match="two rows for a have seq 5"):
        rows_of([collect(iter([batch((5, "a"), (5, "b"), (5, "a"))]))], None)
    with pytest.raises(MisuseError, match="seq 0"):
        rows_of([collect(iter([batch((0, "a"))]))], None)


@pytest.mark.parametrize(
    ("raw", "schema", "problem"),
    [
        ({"url": "u"}, SCHEMA, "needs the option publisher"),
        ({"url": "u", "publisher": "p", "colour": "red"}, SCHEMA, "unknown option 'colour'"),
        ({"url": "u", "publisher": "p"}, StructType().add("seq", "long"), "no column payload, topic"),
        ({"url": "u", "publisher": "p"}, StructType([*SCHEMA.fields]).add("x", "long"), "column x is not published"),
        ({"url": "u", "publisher": "p", "timeoutSeconds": "soon"}, SCHEMA, "timeoutSeconds"),
    ],
)
def test_a_wrong_sink_option_or_column_is_named(raw: dict[str, str], schema: StructType, problem: str) -> None:
    with pytest.raises(MisuseError, match=problem):
        SinkOptions(raw, schema)


def test_rows_that_were_published_before_are_counted_in_the_log(
    node: NodeThread, caplog: pytest.LogCaptureFixture
) -> None:
    mine = options(url=node.url)
    rows = rows_of([collect(iter([batch((1, "a"), (2, "a"), (3, "b"))]))], None)
    assert publish(mine, rows[:2]) == 2
    assert not caplog.records
    assert publish(mine, rows) == 1
    assert "2 of 3 rows for a, b, seq 1 to 3, were published before" in caplog.text


def test_a_node_knows_how_far_a_sink_has_come_an_hour_later_and_after_a_restart(node: NodeThread) -> None:
    """The memory of a sink has no clock: it outlives the leases of clients, and the node."""
    mine = options(url=node.url)
    rows = rows_of([collect(iter([batch((1, "a"), (2, "a"), (3, "b"))]))], None)
    assert publish(mine, rows[:2]) == 2
    node.skip_an_hour(without=mine.publisher)
    assert publish(mine, rows) == 1
    node.skip_an_hour(without=mine.publisher)
    node.stop()
    node.start()
    assert publish(mine, rows) == 0


def play(archive: Path, url: str, fault: Fault) -> None:
    """What Spark asks of source and sink, from the first row on: the checkpoint was lost too."""
    source = SourceOptions({"path": str(archive), "maxRowsPerTrigger": "30", "minPartitions": "3"})
    reader, writer = Reading(source, ROWS, fault), Writing(options(url=url), fault)
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        parts = [(rows.select(SCHEMA.names) for rows in reader.read(part)) for part in reader.partitions(start, end)]
        writer.commit([writer.write(part) for part in parts], batchId=0)
        start = end


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.place)
def test_what_died_anywhere_and_is_played_again_an_hour_later_is_published_once(
    fault: Fault, node: NodeThread, tmp_path: Path
) -> None:
    fill(tmp_path / "archive", 1, 100)
    with unisono.connect_sync(node.url) as session, session.subscribe("trades", "quotes") as stream:
        with pytest.raises(RuntimeError, match=f"died {fault.place}"):
            play(tmp_path / "archive", node.url, fault)
        node.skip_an_hour(without="p")
        play(tmp_path / "archive", node.url, NO_FAULT)
        fill(tmp_path / "archive", 101, 10)
        play(tmp_path / "archive", node.url, NO_FAULT)
        heard = stream.take(110, timeout=20)
    assert sorted(int(str(event.id).rpartition(":")[2]) for event in heard) == list(range(1, 111))


def replayed(spark: SparkSession, archive: Path, fault: Fault) -> DataFrame:
    """Four batches of up to three parts; what reads dies of `fault`."""
    spark.dataSource.register(Faulty)
    stream = spark.readStream.format("faulty").option("maxRowsPerTrigger", "30").option("minPartitions", "3")
    return stream.option("dies", fault.place).option("beyond", fault.beyond).load(str(archive))


def republish(spark: SparkSession, archive: Path, checkpoint: Path, url: str, fault: Fault = NO_FAULT) -> None:
    frame = replayed(spark, archive, fault).where("seq % 7 != 0")
    writer = frame.selectExpr("seq", "concat('again.', topic) AS topic", "payload").writeStream.format("faulty")
    writer = writer.option("dies", fault.place).option("beyond", fault.beyond).option("url", url)
    finish(writer.option("publisher", "spark").option("checkpointLocation", str(checkpoint)))


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param((COMMITTING[1],), id="one"),
        pytest.param(FAULTS, id="all", marks=pytest.mark.campaign),
    ],
)
def test_whatever_fails_the_republished_topics_have_every_event_once_in_order(
    faults: tuple[Fault, ...], spark: SparkSession, node: NodeThread, tmp_path: Path
) -> None:
    """The matrix: the query dies at each place in turn and is started again, the last time an hour later; the node
    restarts in between; at the end everything is played once more from an empty checkpoint, as if all memory of
    Spark's were lost."""
    archive, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    fill(archive, 1, 100)
    topics = ("again.trades", "again.quotes")
    with (
        unisono.connect_sync(node.url) as session,
        session.subscribe(*topics) as stream,
        session.subscribe(*topics),  # topics that two subscribers share are ordered against each other
    ):
        for fault in faults:
            with pytest.raises(StreamingQueryException, match=f"died {fault.place}"):
                republish(spark, archive, checkpoint, node.url, fault)
        node.skip_an_hour(without="spark")
        republish(spark, archive, checkpoint, node.url)
        wanted = [seq for seq in range(1, 101) if seq % 7]
        heard = stream.take(len(wanted), timeout=20)
        node.stop()
        node.start()
        fill(archive, 101, 10)
        republish(spark, archive, tmp_path / "another checkpoint", node.url)
        heard += stream.take(9, timeout=20)
    assert all(event.gap is None for event in heard)
    assert [int(event.id.rpartition(":")[2]) for event in heard] == [*wanted, *(s for s in range(101, 111) if s % 7)]
    assert {event.topic for event in heard} == {"again.trades", "again.quotes"}


@pytest.mark.campaign
def test_whatever_fails_the_parquet_output_has_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    """The query dies in tasks while others have written their files, then after all files were written and before
    they were committed, then after they were and before Spark knew; what it had not written by then is taken away."""
    archive, checkpoint, out = tmp_path / "archive", tmp_path / "checkpoint", tmp_path / "out"
    fill(archive, 1, 100)

    def run(fault: Fault = NO_FAULT) -> None:
        writer = replayed(spark, archive, fault).writeStream.format("parquet").option("path", str(out))
        finish(writer.option("checkpointLocation", str(checkpoint)))

    for fault in READING:
        with pytest.raises(StreamingQueryException, match=f"died {fault.place}"):
            run(fault)
    run()
    for unwritten in ([checkpoint / "commits", out / "_spark_metadata"], [checkpoint / "commits"]):
        for directory in unwritten:
            (directory / "3").unlink()
            (directory / ".3.crc").unlink(missing_ok=True)
        run()
        assert sorted(row.seq for row in spark.read.parquet(str(out)).collect()) == list(range(1, 101))


def test_a_sink_whose_node_is_away_fails_and_says_so(spark: SparkSession, node: NodeThread, tmp_path: Path) -> None:
    node.stop()
    frame = spark.createDataFrame([(1, "a", b"x")], "seq BIGINT, topic STRING, payload BINARY")
    writer = frame.write.format("unisono").mode("append").option("url", node.url).option("publisher", "batch")
    with pytest.raises(Exception, match="no node answers"):
        writer.option("timeoutSeconds", "1").save()
    node.start()
    with unisono.connect_sync(node.url) as session, session.subscribe("a") as stream:
        for _ in range(2):
            writer.option("timeoutSeconds", "20").save()
        frame.selectExpr("seq + 1 AS seq", "topic", "payload").write.format("unisono").mode("append").option(
            "url", node.url
        ).option("publisher", "batch").save()
        assert [event.number for event in stream.take(2, timeout=20)] == [1, 2]


def test_the_sink_shows_a_token_that_no_plan_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_CLIENT_TOKEN", "of clients")
    monkeypatch.setenv("TEST_NODE_TOKEN", "of nodes")
    node = NodeThread(tmp_path, TOKENS)
    try:
        rows = rows_of([collect(iter([batch((1, "trades"), (2, "trades"))]))], None)
        given = {"url": node.url, "publisher": "p", "timeoutSeconds": "20"}
        with pytest.raises(unisono.PeerError, match="token"):
            publish(SinkOptions(given, SCHEMA), rows)
        (tmp_path / "token").write_text("of clients\n")
        named = SinkOptions(given | {"tokenVariable": "TEST_CLIENT_TOKEN"}, SCHEMA)
        assert publish(named, rows) == 2
        assert publish(SinkOptions(given | {"tokenFile": str(tmp_path / "token")}, SCHEMA), rows) == 0, "said before"
        assert "of clients" not in str(vars(named))
    finally:
        node.end()
    with pytest.raises(MisuseError, match="one place"):
        SinkOptions(given | {"tokenVariable": "A", "tokenFile": "b"}, SCHEMA)
    with pytest.raises(MisuseError, match="MISSING"):
        SinkOptions(given | {"tokenVariable": "MISSING"}, SCHEMA).token()
