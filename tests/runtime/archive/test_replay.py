"""Replay: the archive first, then live, without a seam; holes are filled before anything later is delivered."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.test_session import expect_each, take
from unisono.archive.reader import Archive
from unisono.archive.schema import ArchivedEvent, to_events
from unisono.errors import DataLossError, PlanError
from unisono.machine import Gap, Heard
from unisono.model.deployment import Deployment
from unisono.model.event import Event
from unisono.model.ids import Topic
from unisono.model.settings import ArchiveSpec, BrokerSpec, NodeSpec, TopicSpec
from unisono.runtime.archiving.streamed import StreamArchive, open_stream
from unisono.runtime.client.session import Session
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.client.subscription.replay import Replay
from unisono.runtime.driver.log import LogConfig
from unisono.runtime.links.archive_messages import GAP, ArchiveRow, Fetched
from unisono.runtime.node.node import Node, NodeConfig
from unisono.runtime.tools.ports import free_ports

FAST = NodeConfig(witness_s=0, log=LogConfig(sync=False))


def shop(keep: ArchiveSpec = ArchiveSpec()) -> Deployment:
    """A sequencer with the broker, and an archive in a node of its own."""
    hub, store = free_ports(2)
    return Deployment(
        1,
        "shop",
        nodes=(
            NodeSpec("hub", listen=f"127.0.0.1:{hub}", roles=("sequencer", "broker"), data="data"),
            NodeSpec("shelf", listen=f"127.0.0.1:{store}", parent="hub", roles=("archive",), data="data"),
        ),
        topics=(TopicSpec("a"), TopicSpec("b")),
        broker=BrokerSpec("embedded"),
        archive=keep,
    )


def offered(base: Path, keep: ArchiveSpec) -> list[ArchivedEvent]:
    """Every row that is there, as any reader sees it."""
    with opened(base, keep) as archive:
        first, last = archive.bounds()
        return [row for batch in archive.read(first - 1, last) for row in to_events(batch)]


def bounds(base: Path, keep: ArchiveSpec) -> tuple[int, int]:
    with opened(base, keep) as archive:
        return archive.bounds()


@contextmanager
def opened(base: Path, keep: ArchiveSpec) -> Iterator[Archive | StreamArchive]:
    if keep.stream is None:
        yield Archive(base / "data" / "shelf" / "archive")
    else:
        with open_stream(f"{keep.servers[0]}/{keep.stream}") as archive:
            yield archive


@asynccontextmanager
async def running(deployment: Deployment, base: Path) -> AsyncGenerator[list[Node], None]:
    nodes = [Node(deployment, spec.name, base, FAST) for spec in deployment.nodes]
    for node in nodes:
        await node.start()
    try:
        yield nodes
    finally:
        for node in reversed(nodes):
            await node.stop()


def play(
    base: Path, story: Callable[[Deployment, list[Node], Session], Awaitable[None]], keep: ArchiveSpec = ArchiveSpec()
) -> None:
    async def run() -> None:
        deployment = shop(keep)
        async with (
            asyncio.timeout(120),
            running(deployment, base) as nodes,
            unisono.connect(deployment) as session,
        ):
            await story(deployment, nodes, session)

    asyncio.run(run())


async def publish(session: Session, first: int, count: int) -> None:
    for number in range(first, first + count):
        await session.publish("ab"[number % 2], number)


def told(events: list[Notification]) -> list[tuple[str, int, object]]:
    return [(event.topic, event.number, event.gap or event.data) for event in events]


def test_a_subscriber_that_starts_at_the_beginning_gets_everything_once_and_goes_on_live(
    tmp_path: Path, keep: ArchiveSpec
) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        await publish(session, 0, 100)
        async with session.subscribe("a", "b", start="earliest") as one:
            await publish(session, 100, 100)
            first = await take(one, 200)
            assert [event.data for event in first] == list(range(200))
            async with session.subscribe("b", "a", start="earliest", buffer=40) as two:
                assert told(await take(two, 200)) == told(first)

    play(tmp_path, story, keep)


def test_a_subscriber_that_comes_back_goes_on_behind_its_position(tmp_path: Path, keep: ArchiveSpec) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        async with session.subscribe("a", "b", start="earliest") as stream:
            await publish(session, 0, 60)
            before = await take(stream, 37)
            position = before[-1].position
        await publish(session, 60, 60)
        async with session.subscribe("a", "b", start=position) as stream:
            await publish(session, 120, 5)
            assert [event.data for event in await take(stream, 88)] == list(range(37, 125))

    play(tmp_path, story, keep)


def test_topics_that_a_position_does_not_know_begin_at_its_cut(tmp_path: Path, keep: ArchiveSpec) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        async with session.subscribe("a") as stream:
            await publish(session, 0, 10)  # five on each topic
            position = (await take(stream, 5))[-1].position
        await publish(session, 10, 4)
        async with session.subscribe("a", "b", start=position) as stream:
            found = await take(stream, 5)
            # 9, on b, was published after the last event of the position; 1, 3, 5 and 7 before it.
            assert [event.data for event in found] == [9, 10, 11, 12, 13]
        async with session.subscribe("a", "b", start=found[1].position) as stream:
            assert [event.data for event in await take(stream, 3)] == [11, 12, 13]

    play(tmp_path, story, keep)


def test_a_topic_born_by_its_first_event_is_archived_from_that_event_on(tmp_path: Path, keep: ArchiveSpec) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        for number in range(5):
            await session.publish(f"born.{number}", number)
        async with session.subscribe("born.*", start="earliest") as stream:
            assert sorted(event.data for event in await take(stream, 5)) == list(range(5))

    play(tmp_path, story, keep)


def test_what_was_published_while_the_archive_was_down_is_a_recorded_gap(tmp_path: Path, keep: ArchiveSpec) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        await publish(session, 0, 10)
        async with session.subscribe("a", "b", start="earliest") as stream:
            await take(stream, 10)  # so the archive has them
        await nodes[1].stop()
        await publish(session, 10, 4)
        shelf = nodes[1] = Node(deployment, "shelf", tmp_path, FAST)
        await shelf.start()
        assert shelf.archivist is not None
        async with asyncio.timeout(60):
            while shelf.archivist._stream is None or len(shelf.archivist._stream.bases) < 2:
                await asyncio.sleep(0.02)
        await publish(session, 14, 2)
        async with asyncio.timeout(60):
            while shelf.archivist.counters.rows < 2:
                await asyncio.sleep(0.02)
        assert shelf.archivist.counters.gaps == 2, "before what came later"
        async with session.subscribe("a", "b", start="earliest") as stream:
            found = await take(stream, 14)
            assert [event.data for event in found[:10]] == list(range(10))
            gaps = {event.topic: (event.gap.first, event.gap.last) for event in found[10:12] if event.gap is not None}
            assert gaps == {"a": (6, 7), "b": (6, 7)}
            assert [event.data for event in found[12:]] == [14, 15]

    play(tmp_path, story, keep)


def test_a_replay_whose_archive_is_away_says_so_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        await publish(session, 0, 4)
        async with session.subscribe("a", "b", start="earliest") as stream:
            await take(stream, 4)
        await nodes[1].stop()
        async with (
            unisono.connect(deployment, timeout=5) as other,
            other.subscribe("a", "b", start="earliest") as stream,
        ):
            (first,) = await take(stream, 1)
            assert first.stalled is not None
            assert "archive shelf does not answer" in first.stalled.reason
            nodes[1] = Node(deployment, "shelf", tmp_path, FAST)
            await nodes[1].start()
            assert [event.data for event in await take(stream, 4)] == [0, 1, 2, 3]

    play(tmp_path, story)


@pytest.mark.parametrize("reliability", ["best-effort", "reliable"])
def test_what_retention_removed_is_said(tmp_path: Path, keep: ArchiveSpec, reliability: str) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        for round in range(2):
            await publish(session, 10 * round, 10)
            async with session.subscribe("a", "b", start="earliest") as stream:  # it waits until all is sealed
                async for event in stream:
                    if event.data == 10 * round + 9:
                        break
        async with asyncio.timeout(60):
            while (await asyncio.to_thread(bounds, tmp_path, keep))[0] == 1:
                await publish(session, 20, 2)  # the newest part stays, so there must be another
                await asyncio.sleep(0.05)
        if reliability == "reliable":
            with pytest.raises(DataLossError, match="removed by retention"):
                async with session.subscribe("a", "b", start="earliest", reliability="reliable") as stream:
                    await take(stream, 1)
        else:
            async with session.subscribe("a", "b", start="earliest") as stream:
                found = await take(stream, 1)
                assert found[0].gap is not None
                assert found[0].gap.first == 1

    play(tmp_path, story, structs.replace(keep, keep_bytes=1, seal_s=0.2))


def test_a_reliable_subscriber_has_its_holes_filled_in_line(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        async with session.subscribe("a", "b", reliability="reliable") as stream:
            await publish(session, 0, 4)
            found = await take(stream, 4)
            # The payloads of a 3 and b 3 get lost on their way to this subscriber, and to it alone.
            real, lost = stream.deliver, []

            def lossy(item: object) -> None:
                if isinstance(item, Heard) and item.number == 3:
                    lost.append(item)
                    real(Gap(item.topic, 3, 3, "its payload did not come"))
                else:
                    real(item)

            stream.host._outside.deliver = lossy  # type: ignore[union-attr]
            await publish(session, 4, 20)
            found += await take(stream, 20)
            assert len(lost) == 2
            assert [event.data for event in found] == list(range(24))

    play(tmp_path, story)


def test_a_reliable_stream_that_is_read_in_large_batches_goes_on_when_its_buffer_was_full(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        async with session.subscribe("a", reliability="reliable", buffer=8) as stream:
            publisher = await session.publisher("a")
            await publisher.send_all(range(200))
            while not stream._waiting.is_pausing:
                await asyncio.sleep(0.01)
            rest = asyncio.create_task(publisher.send_all(range(200, 400)))  # what came before the pause is here
            found: list[object] = []
            async with asyncio.timeout(60):
                async for batch in stream.batches():
                    found += [event.data for event in batch]
                    assert stream.waiting or not stream._waiting.is_pausing, "nothing waits, and nothing is read"
                    if len(found) == 400:
                        break
            assert found == list(range(400))
            await rest

    play(tmp_path, story)


def test_a_full_stream_that_is_closed_leaves_the_broker_to_the_others(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        publisher = await session.publisher("a")
        async with session.subscribe("a", reliability="reliable", buffer=8) as lazy, session.subscribe("a") as other:
            await publisher.send_all(range(200))
            while not lazy._waiting.is_pausing:
                await asyncio.sleep(0.01)
            await lazy.close()
            assert [event.data for event in await take(other, 200)] == list(range(200))

    play(tmp_path, story)


def test_an_order_without_numbers_can_not_start_in_the_past(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        with pytest.raises(PlanError, match="no numbers"):
            session.subscribe("a", order="fifo", start="earliest")

    play(tmp_path, story)


def test_the_archive_agrees_with_a_live_subscriber_and_holds_each_event_once(tmp_path: Path, keep: ArchiveSpec) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        async with session.subscribe("a", "b") as live:
            publishers = [await session.publisher(topic) for topic in ("a", "b")]
            for number in range(3000):
                await publishers[number % 2].send(number)
            seen = [event.id for event in await take(live, 3000)]
        async with session.subscribe("a", "b", start="earliest") as stream:
            assert [event.id for event in await take(stream, 3000)] == seen
        rows = await asyncio.to_thread(offered, tmp_path, keep)
        assert [f"{row.publisher}:{row.publisher_seq}" for row in rows if GAP not in row.headers] == seen

    play(tmp_path, story, keep)


def test_replays_that_begin_under_load_tell_what_a_live_subscriber_was_told(tmp_path: Path, keep: ArchiveSpec) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        count, dice = 500, random.Random(5)
        begin = [asyncio.Event() for _ in range(3)]

        async def load() -> None:
            publishers = [await session.publisher(topic) for topic in ("a", "b")]
            for number in range(count):
                await publishers[dice.randrange(2)].send(number)
                if number % 100 == 0 and number < 300:
                    begin[number // 100].set()
                if number % 20 == 0:
                    await asyncio.sleep(0.005)

        async def replayed(i: int, buffer: int) -> list[object]:
            await begin[i].wait()
            async with session.subscribe("b", "a", start="earliest", buffer=buffer) as stream:
                return [event.id for event in await take(stream, count)]

        async with session.subscribe("a", "b") as live:
            found = await asyncio.gather(load(), *(replayed(i, 1000 >> i) for i in range(3)))
            seen = [event.id for event in await take(live, count)]
            assert found[1:] == [seen] * 3

    play(tmp_path, story, keep)


class _Shelf:
    """An archive that answers from a list of cuts: (rows, what they cover)."""

    def __init__(self, *answers: Fetched) -> None:
        self.answers = list(answers)

    async def fetch(self, after: int, topics: tuple[str, ...], above: dict[str, int], seal: bool) -> Fetched:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def _row(seq: int, topic: str, number: int) -> ArchiveRow:
    return ArchiveRow(seq, topic, number, "p", number, {}, f"{topic}{number}".encode())


def test_the_seam_is_a_cut_of_all_topics_not_the_base_of_each() -> None:
    """The trace: the order is t1 t2 x1 t3. We join T at base 1 and X at base 1: t2 is heard live, x1 is not.

    Going over topic by topic at the bases would deliver t1, x1 and then t2, an inversion to everybody who got t2 x1.
    """

    async def story() -> None:
        async with unisono.connect("memory://") as session, session.subscribe("t", "x") as stream:
            numbers = stream.topics
            stream.archive = _Shelf(  # type: ignore[assignment]
                Fetched(1, (_row(1, "t", 1),), 1, 1, {"t": 1, "x": 0}, {}),
                Fetched(2, (_row(2, "t", 2), _row(3, "x", 1)), 3, 3, {"t": 2, "x": 1}, {}),
            )
            replay = Replay(stream, stream._delivering, stream.archive, {}, 100)  # type: ignore[arg-type]
            stream._delivering.replay = replay
            replay.needs.update({"t": 1, "x": 1})
            for number in (2, 3):
                event = Event("p", number, "t", f"t{number}".encode())
                stream.deliver(Heard(numbers["t"], event, number=number))
            replay.start()
            await expect_each(stream, [b"t1", b"t2", b"x1", b"t3"], lambda event: event.payload)

    asyncio.run(story())


def test_what_is_too_much_to_hold_comes_from_the_archive(tmp_path: Path) -> None:
    async def story() -> None:
        async with unisono.connect("memory://") as session, session.subscribe("t", order="total") as stream:
            topic: Topic = stream.topics["t"]
            rows = tuple(_row(number, "t", number) for number in range(1, 9))
            stream.archive = _Shelf(  # type: ignore[assignment]
                Fetched(1, rows[:2], 2, 2, {"t": 2}, {}),
                Fetched(2, rows[2:7], 7, 7, {"t": 7}, {}),
                Fetched(3, rows[7:], 8, 8, {"t": 8}, {}),
            )
            replay = Replay(stream, stream._delivering, stream.archive, {}, 4)  # type: ignore[arg-type]
            stream._delivering.replay = replay
            replay.needs.update({"t": 2})
            for number in range(3, 13):  # four are held: 9 to 12
                stream.deliver(Heard(topic, Event("p", number, "t", f"t{number}".encode()), number=number))
            replay.start()
            await expect_each(stream, range(1, 13), lambda event: event.number)

    asyncio.run(story())


def test_what_an_archive_that_is_ahead_has_told_is_not_told_again_when_it_comes_in_later() -> None:
    """Others hear of it before we do: who waits for a far clock, or for a broker that stands still for us."""

    async def story() -> None:
        async with unisono.connect("memory://") as session, session.subscribe("t", "x") as stream:
            t, x = stream.topics["t"], stream.topics["x"]
            rows = tuple(_row(number, "t", number) for number in range(1, 6))
            stream.archive = _Shelf(Fetched(1, rows, 5, 5, {"t": 5, "x": 3}, {}))  # type: ignore[assignment]
            replay = stream._delivering.begin_replay(stream.archive, {})
            replay.needs["t"] = 1
            replay.start()
            async with asyncio.timeout(30):
                told = [await anext(stream) for _ in rows]
                while not replay.is_over:
                    await asyncio.sleep(0.001)
            events = [Event("p", number, "t", f"t{number}".encode()) for number in range(1, 10)]
            stream.deliver(Heard(t, events[1], number=2))
            stream.deliver(Heard(t, events[2], number=3, late=True))
            stream.deliver(Heard(t, tuple(events[2:6]), number=3))
            stream.deliver(Heard(t, events[6], number=7))
            stream.deliver(Gap(x, 1, 2, "lost"))
            stream.deliver(Gap(x, 3, 6, "lost", settled=3))
            stream.deliver(Heard(x, Event("p", 1, "x", b"x3"), number=3))
            stream.deliver(Heard(x, Event("p", 2, "x", b"x5"), number=5))
            stream.end_turn()
            told += [await anext(stream) for _ in range(stream.waiting)]
            seen = [(event.topic, event.gap.first if event.gap else event.number) for event in told]
            assert seen == [*(("t", number) for number in range(1, 8)), ("x", 4), ("x", 5)]

    asyncio.run(story())


def test_who_joins_a_topic_anew_is_told_all_after_its_base() -> None:
    async def story() -> None:
        async with unisono.connect("memory://") as session, session.subscribe("t") as stream:
            stream.archive = _Shelf(Fetched(1, (_row(1, "t", 7),), 1, 1, {"t": 7}, {}))  # type: ignore[assignment]
            replay = stream._delivering.begin_replay(stream.archive, {})
            replay.start()
            async with asyncio.timeout(30):
                assert (await anext(stream)).number == 7
            await stream.unsubscribe("t")
            await stream.subscribe("t")
            await session.publish("t", "new")
            async with asyncio.timeout(30):
                assert (await anext(stream)).data == "new"

    asyncio.run(story())
