"""The log on a stream: what was committed is there for the next owner, and the one before it writes nothing more."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from unisono.errors import FormatError, TransportError
from unisono.model.time import Micros
from unisono.runtime.brokers.nats.fenced import FencedError, Stored
from unisono.runtime.driver.replicated import RecordPart, ReplicatedConfig, ReplicatedLog
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.turns import Logged


def play(directory: Path, story: Callable[[NatsServer, ReplicatedConfig], Awaitable[None]]) -> None:
    async def run() -> None:
        server = NatsServer(directory, NatsServerConfig(jetstream=True))
        await server.start()
        try:
            async with asyncio.timeout(120):
                await story(server, ReplicatedConfig((server.url,), "n", 1, beat_s=0.1, patience_s=0.6))
        finally:
            server.resume()
            server.kill()

    asyncio.run(run())


async def claimed(config: ReplicatedConfig) -> tuple[ReplicatedLog, object, list[Logged]]:
    log = ReplicatedLog(config, "toy 1", str)
    await log.claim()
    snapshot, inputs = log.recover()
    return log, snapshot, list(inputs)


def logged(*words: str) -> list[Logged]:
    return [Logged(Micros(i), word) for i, word in enumerate(words)]


def test_an_owner_that_leaves_hands_everything_to_the_next(tmp_path: Path) -> None:
    async def story(server: NatsServer, config: ReplicatedConfig) -> None:
        one, snapshot, inputs = await claimed(config)
        assert (snapshot, inputs) == (None, [])
        one.commit(logged("a", "b"))
        one.commit(logged("c" * 1_500_000))  # three parts
        one.close()
        two, snapshot, inputs = await claimed(config)
        assert [item.message for item in inputs] == ["a", "b", "c" * 1_500_000]
        two.finish_snapshot(two.begin_snapshot(Micros(7), {"state": [1, 2]}))
        two.commit(logged("d"))
        two.close()
        three, snapshot, inputs = await claimed(config)
        assert snapshot == (7, {"state": [1, 2]})
        assert [item.message for item in inputs] == ["d"]
        three.close()

    play(tmp_path, story)


def test_an_owner_that_was_taken_for_dead_writes_nothing_more_and_hears_of_it(tmp_path: Path) -> None:
    async def story(server: NatsServer, config: ReplicatedConfig) -> None:
        old, _, _ = await claimed(structs.replace(config, beat_s=600.0))
        old.commit(logged("a"))
        new, _, inputs = await claimed(config)
        assert [item.message for item in inputs] == ["a"]
        with pytest.raises(FencedError, match="another process"):
            old.commit(logged("b"))
        with pytest.raises(TransportError, match="takes nothing more"):
            old.commit(logged("b"))
        new.commit(logged("c"))
        old.close()
        new.close()
        last, _, inputs = await claimed(config)
        assert [item.message for item in inputs] == ["a", "c"]
        last.close()

    play(tmp_path, story)


def test_an_idle_owner_finds_out_by_itself_that_it_was_replaced(tmp_path: Path) -> None:
    async def story(server: NatsServer, config: ReplicatedConfig) -> None:
        old, _, _ = await claimed(structs.replace(config, beat_s=1.0))
        lost: list[Exception] = []
        old.on_lost = lost.append
        new, _, _ = await claimed(config)
        while not lost:
            await asyncio.sleep(0.02)
        assert isinstance(lost[0], FencedError)
        old.close()
        new.close()

    play(tmp_path, story)


def test_who_waits_does_not_take_over_from_an_owner_that_beats(tmp_path: Path) -> None:
    async def story(server: NatsServer, config: ReplicatedConfig) -> None:
        old, _, _ = await claimed(config)
        waiting = ReplicatedLog(config, "toy 1", str)
        claim = asyncio.ensure_future(waiting.claim())
        await asyncio.wait([claim], timeout=3 * config.patience_s)
        old.close()  # leaves office: no need to be patient
        await claim
        # On a machine that has no time for it the owner may have been silent; nothing else is an excuse.
        before, last = await asyncio.to_thread(waiting._line.wait, newest_two(waiting))
        released = msgspec.msgpack.decode(before.data, type=RecordPart).kind == "released"
        assert released or last.at_ns - before.at_ns >= config.patience_s * 1e9
        waiting.close()

    play(tmp_path, story)


async def newest_two(log: ReplicatedLog) -> tuple[Stored, Stored]:
    """The claim and what stands before it."""
    at = (await log._line.state()).first_seq
    found: list[Stored] = []
    while (message := await log._line.get(at)) is not None:
        found.append(message)
        part = msgspec.msgpack.decode(message.data, type=RecordPart)
        if (part.kind, part.owner) == ("claimed", log._owner):
            break
        at += 1
    return found[-2], found[-1]


def test_an_append_that_was_not_answered_is_taken_once(tmp_path: Path) -> None:
    async def story(server: NatsServer, config: ReplicatedConfig) -> None:
        log, _, _ = await claimed(structs.replace(config, request_s=0.2))
        loop = asyncio.get_running_loop()
        server.pause()
        commit = loop.run_in_executor(None, log.commit, logged("a"))
        await asyncio.wait([commit], timeout=0.7)  # sent three times meanwhile, all wait in the server's socket
        assert not commit.done()
        server.resume()
        await commit
        await loop.run_in_executor(None, log.commit, logged("b"))
        await loop.run_in_executor(None, log.close)
        last, _, inputs = await claimed(config)
        assert [item.message for item in inputs] == ["a", "b"]
        last.close()

    play(tmp_path, story)


def test_the_log_of_another_machine_is_refused(tmp_path: Path) -> None:
    async def story(server: NatsServer, config: ReplicatedConfig) -> None:
        log, _, _ = await claimed(config)
        log.close()
        other = ReplicatedLog(config, "toy 2", str)
        with pytest.raises(FormatError, match=r"was written by 'toy 1'.*new data directory"):
            await other.claim()
        other.close()

    play(tmp_path, story)
