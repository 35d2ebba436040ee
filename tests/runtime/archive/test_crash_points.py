"""An owner dies at every step of its work on a stream; its successor has what was acknowledged, and nothing twice.

Then the dead one turns out to have been slow only, and finds that it can write nothing more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import Struct

from tests.archive.test_archive import NOW, rows
from tests.runtime.archive.cutting import CuttingLine, Moment
from tests.runtime.archive.test_replicated import claimed, logged
from unisono.archive.schema import to_events
from unisono.archive.writer import ArchiveConfig
from unisono.errors import TransportError
from unisono.model.time import Micros
from unisono.runtime.archiving.streamed import StreamArchiveWriter, open_stream
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.brokers.nats.fenced import FencedError
from unisono.runtime.driver.replicated import ReplicatedConfig, ReplicatedLog
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig

BIG = "c" * 1_500_000
"""A record of three parts."""


def play(directory: Path, story: Callable[[NatsServer, CuttingLine], Awaitable[None]]) -> None:
    async def run() -> None:
        server = NatsServer(directory, NatsServerConfig(jetstream=True))
        await server.start()
        line = CuttingLine(server.port)
        await line.start()
        try:
            async with asyncio.timeout(120):
                await story(server, line)
        finally:
            await line.stop()
            server.kill()

    asyncio.run(run())


def config(url: str) -> ReplicatedConfig:
    """An owner that does not beat, so that appends can be counted, and waits for its answers as long as it takes."""
    return ReplicatedConfig((url,), "n", 1, beat_s=600.0, patience_s=0.3, request_s=0.2, unknown_s=600.0)


async def working(work: Callable[[], object]) -> "asyncio.Future[object]":
    """Blocking work of an owner."""
    return asyncio.ensure_future(asyncio.to_thread(work))


class Point(Struct, frozen=True):
    """Where an owner dies while it commits these words, and what its successor finds of them."""

    words: tuple[str, ...]
    append: int
    moment: Moment
    found: tuple[str, ...]


POINTS = {
    "before the append": Point(("b",), 1, "before", ()),
    "after the append, before the acknowledgement": Point(("b",), 1, "after", ("b",)),
    "between two parts": Point((BIG,), 2, "before", ()),
    "after a part that is not the last": Point((BIG,), 2, "after", ()),
    "after the last part": Point((BIG,), 3, "after", (BIG,)),
}


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS.keys())
def test_an_owner_that_dies_in_a_commit(tmp_path: Path, point: Point) -> None:
    async def story(server: NatsServer, line: CuttingLine) -> None:
        old, _, _ = await claimed(config(line.url))
        await asyncio.to_thread(old.commit, logged("a"))
        line.cut_at(point.append, point.moment)
        commit = await working(lambda: old.commit(logged(*point.words)))
        await line.is_cut.wait()
        if point.moment == "after":  # what has left is on its way: the server has it before it hears the successor
            await until_appended(server, 2 + point.append)
        new, snapshot, inputs = await claimed(config(server.url))
        assert (snapshot, [item.message for item in inputs]) == (None, ["a", *point.found])
        assert not commit.done()
        line.heal()
        if point.found:
            await commit  # it is there, so this is no lie; and it is the last thing the old owner does
        else:
            with pytest.raises(FencedError, match="another process"):
                await commit
        with pytest.raises(TransportError):
            await asyncio.to_thread(old.commit, logged("never"))
        await asyncio.to_thread(new.commit, logged("d"))
        await asyncio.to_thread(new.close)
        await asyncio.to_thread(old.close)
        last, _, inputs = await claimed(config(server.url))
        assert [item.message for item in inputs] == ["a", *point.found, "d"]
        await asyncio.to_thread(last.close)

    play(tmp_path, story)


async def until_appended(server: NatsServer, count: int) -> None:
    probe = ReplicatedLog(config(server.url), "toy 1", str)
    line = probe._line
    await asyncio.to_thread(line.wait, line.open())
    while (await asyncio.to_thread(line.wait, line.state())).last_seq < count:
        await asyncio.sleep(0.02)
    await asyncio.to_thread(probe.close)


def test_an_owner_that_dies_after_the_acknowledgement(tmp_path: Path) -> None:
    async def story(server: NatsServer, line: CuttingLine) -> None:
        old, _, _ = await claimed(config(line.url))
        await asyncio.to_thread(old.commit, logged("a", "b"))
        line.cut()  # nothing of what follows from it was seen by anybody
        new, _, inputs = await claimed(config(server.url))
        assert [item.message for item in inputs] == ["a", "b"]
        await asyncio.to_thread(new.close)
        line.heal()
        with pytest.raises(FencedError):
            await asyncio.to_thread(old.commit, logged("c"))
        await asyncio.to_thread(old.close)

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("append", "moment", "is_taken"), [(1, "before", False), (2, "after", False), (3, "after", True)]
)
def test_an_owner_that_dies_in_a_snapshot(tmp_path: Path, append: int, moment: Moment, is_taken: bool) -> None:
    async def story(server: NatsServer, line: CuttingLine) -> None:
        old, _, _ = await claimed(config(line.url))
        await asyncio.to_thread(old.commit, logged("a"))
        line.cut_at(append, moment)
        snapshot = await working(lambda: old.finish_snapshot(old.begin_snapshot(Micros(7), BIG)))
        await line.is_cut.wait()
        if moment == "after":
            await until_appended(server, 2 + append)
        new, found, inputs = await claimed(config(server.url))
        assert found == ((7, BIG) if is_taken else None)
        assert [item.message for item in inputs] == ([] if is_taken else ["a"])
        await asyncio.to_thread(new.commit, logged("b"))
        line.heal()
        if is_taken:
            await snapshot  # what it purges is replaced by a snapshot that is there
        else:
            with pytest.raises(FencedError):
                await snapshot
        await asyncio.to_thread(new.close)
        with pytest.raises(TransportError):
            await asyncio.to_thread(old.commit, logged("never"))
        await asyncio.to_thread(old.close)
        last, found, inputs = await claimed(config(server.url))
        assert found == ((7, BIG) if is_taken else None)
        assert [item.message for item in inputs] == (["b"] if is_taken else ["a", "b"])
        await asyncio.to_thread(last.close)

    play(tmp_path, story)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_standby_that_dies_in_its_claim(tmp_path: Path, moment: Moment) -> None:
    async def story(server: NatsServer, line: CuttingLine) -> None:
        old, _, _ = await claimed(config(server.url))
        await asyncio.to_thread(old.commit, logged("a"))
        line.cut_at(1, moment)
        dying = ReplicatedLog(config(line.url), "toy 1", str)
        claim = asyncio.ensure_future(dying.claim())
        await line.is_cut.wait()
        if moment == "after":
            await until_appended(server, 3)
        else:
            await asyncio.to_thread(old.commit, logged("b"))  # nobody has heard of the claim
        new, _, inputs = await claimed(config(server.url))
        assert [item.message for item in inputs] == (["a"] if moment == "after" else ["a", "b"])
        with pytest.raises(FencedError):
            await asyncio.to_thread(old.commit, logged("c"))
        await asyncio.to_thread(new.commit, logged("d"))
        await asyncio.to_thread(new.close)
        line.heal()
        await claim
        if moment == "after":  # its claim was taken, and replaced since
            with pytest.raises(FencedError):
                await asyncio.to_thread(dying.commit, logged("never"))
        else:  # refused, read again, waited: now that the office is free it is its turn
            assert [item.message for item in dying.recover()[1]] == ["a", "b", "d"]
        await asyncio.to_thread(dying.close)
        await asyncio.to_thread(old.close)

    play(tmp_path, story)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_archive_that_dies_in_an_append(tmp_path: Path, moment: Moment) -> None:
    async def story(server: NatsServer, line: CuttingLine) -> None:
        patient = ArchiveConfig(unknown_s=600.0)
        old = await asyncio.to_thread(StreamArchiveWriter, "shelf", NatsOptions((line.url,)), 1, patient)
        await asyncio.to_thread(old.append, rows(1, 2), NOW)
        line.cut_at(1, moment)
        append = await working(lambda: old.append(rows(3, 2), NOW))
        await line.is_cut.wait()
        archive = await asyncio.to_thread(open_stream, f"{server.url}/shelf")
        if moment == "after":
            while (await asyncio.to_thread(archive.bounds))[1] < 4:
                await asyncio.sleep(0.02)
        new = await asyncio.to_thread(StreamArchiveWriter, "shelf", NatsOptions((server.url,)), 1)
        there = 4 if moment == "after" else 2
        assert new.last == there
        await asyncio.to_thread(new.append, rows(there + 1, 3), NOW)
        line.heal()
        if moment == "after":
            await append
        else:
            with pytest.raises(FencedError):
                await append
        with pytest.raises(FencedError):
            await asyncio.to_thread(old.append, rows(old.last + 1, 1), NOW)
        found = await asyncio.to_thread(lambda: [e for b in archive.read(0, there + 3) for e in to_events(b)])
        assert found == rows(1, there + 3)
        for end in (archive.close, new.close, old.close):
            await asyncio.to_thread(end)

    play(tmp_path, story)
