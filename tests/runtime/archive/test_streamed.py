"""The archive in a stream: what was appended is there once and in order, whoever was killed when."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec import structs

from tests.archive.test_archive import NOW, rows
from tests.runtime.archive.test_replay import play, publish
from tests.runtime.test_session import take
from unisono.archive.messages import PART_BYTES, in_messages, rows_subject
from unisono.archive.schema import ArchivedEvent, to_events
from unisono.archive.writer import ArchiveConfig
from unisono.cli.doctor import check_archive
from unisono.errors import DataLossError, MisuseError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.health import Checked
from unisono.model.settings import ArchiveSpec
from unisono.model.time import SECOND, Micros
from unisono.runtime.archiving.streamed import StreamArchive, StreamArchiveWriter, open_stream
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.brokers.nats.fenced import PULL_BYTES, FencedError, Stored
from unisono.runtime.client.session import Session
from unisono.runtime.node.node import Node
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig

SMALL = ArchiveConfig(seal_rows=7)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"), NatsServerConfig(jetstream=True))
    asyncio.run(server.start())
    yield server
    server.kill()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Every test has a stream of its own."""
    return request.node.name.partition("[")[0]


def writer(server: NatsServer, name: str, config: ArchiveConfig = SMALL) -> StreamArchiveWriter:
    return StreamArchiveWriter(name, NatsOptions((server.url,)), 1, config)


def reader(server: NatsServer, name: str) -> StreamArchive:
    return open_stream(f"{server.url}/{name}")


def everything(archive: StreamArchive) -> list[ArchivedEvent]:
    first, last = archive.bounds()
    return [event for batch in archive.read(first - 1, last) for event in to_events(batch)]


def test_rows_come_back_as_they_were_as_soon_as_they_are_appended(server: NatsServer, name: str) -> None:
    with writer(server, name) as store, reader(server, name) as archive:
        assert archive.bounds() == (1, 0)
        store.append(rows(1, 20), NOW)
        assert everything(archive) == rows(1, 20)
        for row in range(21, 33):
            store.append(rows(row, 1), NOW)
        assert everything(archive) == rows(1, 32)
        assert [e for b in archive.read(4, 9) for e in to_events(b)] == rows(5, 5)
        assert [e for b in archive.read(0, 23, ("trades",)) for e in to_events(b)] == rows(1, 23)[::2]
        assert archive.prefix().numbers == store.numbers() == {"trades": 16, "quotes": 17}
        assert archive.check() == []
        with pytest.raises(MisuseError, match="row 33 is not there yet"):
            list(archive.read(30, 33))


def test_every_row_is_found_and_read_from_there(server: NatsServer, name: str) -> None:
    with writer(server, name) as store, reader(server, name) as archive:
        row = 1
        for count in (1, 3, 9, 2, 7, 1, 1, 14, 5):
            store.append(rows(row, count), NOW)
            row += count
        written = rows(1, row - 1)
        for after in range(row - 1):
            assert [e.seq for b in archive.read(after, row - 1) for e in to_events(b)] == list(range(after + 1, row))
        assert [archive.locate(event.topic, event.number) for event in written] == list(range(1, row))
        assert archive.locate("trades", 1000) == max(event.seq for event in written if event.topic == "trades")
        assert archive.locate("nothing", 1) == 0
        for event in written:
            skipped = archive.skip(("trades",), {"trades": event.number})
            assert not [e for e in written[:skipped] if e.topic == "trades" and e.number > event.number]


def test_any_arrow_reads_a_message(server: NatsServer, name: str) -> None:
    with writer(server, name) as store:
        store.append(rows(1, 3), NOW)
        message: Stored | None = store._line.wait(store._line.get_last(rows_subject(name)))
    assert message is not None
    assert pa.ipc.open_stream(message.data).read_all().column("seq").to_pylist() == [1, 2, 3]
    assert message.headers()["Unisono-First"] == "1"
    assert message.headers()["Unisono-Count"] == "3"


def test_a_row_larger_than_a_message_travels_in_parts(server: NatsServer, name: str) -> None:
    large = ArchivedEvent(2, "trades", 9, "p", 1, 1, 1, None, {}, bytes(5 * PART_BYTES))
    with writer(server, name) as store, reader(server, name) as archive:
        store.append([*rows(1, 1), large, *rows(3, 40)], NOW)
        assert everything(archive) == [*rows(1, 1), large, *rows(3, 40)]
        assert [e for b in archive.read(1, 2) for e in to_events(b)] == [large]


def test_the_next_writer_goes_on_and_the_one_before_writes_nothing_more(server: NatsServer, name: str) -> None:
    old = writer(server, name)
    old.append(rows(1, 5), NOW)
    with writer(server, name) as new:
        assert (new.last, new.numbers()) == (5, old.numbers())
        with pytest.raises(FencedError, match="another process"):
            old.append(rows(6, 1), NOW)
        new.append(rows(6, 4), NOW)
    old.close()
    with reader(server, name) as archive:
        assert everything(archive) == rows(1, 9)


def test_what_an_interrupted_writer_left_in_parts_does_not_count(server: NatsServer, name: str) -> None:
    old = writer(server, name)
    old.append(rows(1, 2), NOW)
    head = "Unisono-Version: 1\r\nUnisono-First: 3\r\nUnisono-Count: 1\r\nUnisono-Owner: x\r\nUnisono-Part: {}/3\r\n"
    for part in (1, 2):
        old._line.wait(old._line.append(rows_subject(name), b"half", head.format(part)))
    with reader(server, name) as archive:
        assert archive.bounds() == (1, 2)
        with writer(server, name) as new:
            assert new.last == 2
            new.append(rows(3, 3), NOW)
        assert everything(archive) == rows(1, 5)
        assert [e for b in archive.read(2, 3) for e in to_events(b)] == rows(3, 1)
    old._line.close()


@pytest.mark.parametrize("by", ["size", "age"])
def test_reading_below_retention_is_an_explicit_loss(server: NatsServer, name: str, by: str) -> None:
    name = f"{name}-{by}"
    keep = {"keep_bytes": 1} if by == "size" else {"keep_age_us": Micros(3600 * SECOND)}
    later = Micros(2**52)
    with writer(server, name, ArchiveConfig(seal_rows=10, **keep)) as store, reader(server, name) as archive:  # type: ignore[arg-type]
        store.retain(NOW)
        for first in range(1, 41, 10):
            store.append(rows(first, 10), NOW)
        before = archive.bounds()
        for _ in range(5):
            store.retain(later)
        assert (before, archive.bounds()) == ((1, 40), (31, 40))
        with pytest.raises(DataLossError, match="rows 6 to 30"):
            list(archive.read(5, 40))
        assert everything(archive) == rows(31, 10)
        assert (archive.dropped().seq, archive.dropped().numbers) == (30, {"trades": 15, "quotes": 16})
        assert archive.prefix().numbers == {"trades": 20, "quotes": 21}
    with writer(server, name) as store:
        assert (store.last, store.numbers()) == (40, {"trades": 20, "quotes": 21})


def test_rows_removed_while_they_are_read_are_told(server: NatsServer, name: str) -> None:
    """The reader is past the last row of an answer of the servers when retention overtakes it."""
    third = PULL_BYTES // PART_BYTES
    large = [structs.replace(row, payload=bytes(PART_BYTES * 3 // 4)) for row in rows(1, 3 * third)]
    with writer(server, name, ArchiveConfig(seal_rows=third, keep_bytes=1)) as store, reader(server, name) as archive:
        for first in range(0, 3 * third, third):
            store.append(large[first : first + third], NOW)
        reading = archive.read(0, 3 * third)
        had = next(reading).num_rows
        assert had < 2 * third
        for _ in range(2):
            store.retain(NOW)
        with pytest.raises(DataLossError, match=f"rows {had + 1} to {2 * third} "):
            list(reading)


def test_rows_that_do_not_continue_the_sequence_are_refused(server: NatsServer, name: str) -> None:
    with writer(server, name) as store:
        store.append(rows(1, 3), NOW)
        with pytest.raises(MisuseError, match="next row is 4"):
            store.append(rows(5, 1), NOW)


def test_wrong_places_are_refused_with_the_reason(server: NatsServer) -> None:
    for wrong in (server.url, f"{server.url}/a.b", "nats:///a"):
        with pytest.raises(MisuseError, match="nats://host:port/NAME"):
            open_stream(wrong)
    with reader(server, "nobody") as archive, pytest.raises(TransportError, match="not found"):
        archive.bounds()


def test_the_doctor_reads_all_of_it(server: NatsServer, name: str) -> None:
    with writer(server, name) as store:
        store.append(rows(1, 9), NOW)
        assert [(f.state, f.detail.partition(" in ")[0]) for f in check_archive(f"{server.url}/{name}", False)] == [
            ("ok", "rows 1 to 9")
        ]
        for head, body in in_messages(rows(9, 1), "somebody") + in_messages(rows(10, 1), "somebody"):
            store._line.wait(store._line.append(rows_subject(name), body, head.block()))
    (finding,) = check_archive(f"{server.url}/{name}", False)
    assert finding.state == "broken"
    assert finding.detail.endswith("row 9 stands where row 10 should")


def test_an_archive_that_was_replaced_stops_and_says_so(server: NatsServer, tmp_path: Path) -> None:
    keep = ArchiveSpec(stream="replaced", servers=(server.url,), replicas=1)

    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        await publish(session, 0, 4)
        async with session.subscribe("a", "b", start="earliest") as stream:
            await take(stream, 4)
        with await asyncio.to_thread(writer, server, "replaced") as other:
            await publish(session, 4, 2)
            stalled = None
            async with asyncio.timeout(60):
                while stalled is None:  # until its next append it cannot know
                    async with session.subscribe("a", "b", start="earliest") as stream:
                        (first,) = await take(stream, 1)
                        stalled = first.stalled
            assert "belongs to another process now" in stalled.reason
            assert other.last == 4

    play(tmp_path, story, keep)


def test_an_archive_that_cannot_reach_its_stream_is_named_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = NatsServer(tmp_path / "own", NatsServerConfig(jetstream=True))
    asyncio.run(own.start())
    keep = ArchiveSpec(stream="away", servers=(own.url,), replicas=1)

    def check(node: Node) -> Checked:
        (found,) = [check for check in node.health().checks if check.name == "archive"]
        return found

    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        shelf = nodes[1]
        assert shelf.archivist is not None
        assert not check(shelf).passed
        assert "no NATS server" in check(shelf).detail
        async with asyncio.timeout(60):
            while shelf.archivist.counters.failures < 6:
                await asyncio.sleep(0.02)
        said = [record.getMessage() for record in caplog.records if record.name.endswith("archivist")]
        assert len(said) == 2, "of its store, and of what it should hear"
        await own.start()
        async with asyncio.timeout(60):
            while not check(shelf).passed:
                await asyncio.sleep(0.02)
        await publish(session, 0, 4)
        async with session.subscribe("a", "b", start="earliest") as stream:
            await take(stream, 4)

    try:
        own.kill()
        play(tmp_path, story, keep)
    finally:
        own.kill()
