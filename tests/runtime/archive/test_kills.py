"""kill -9 of the archive's process under load: nothing offered is lost, every hole is told, restart needs no hand."""

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.archive.test_replay import FAST, bounds, offered, shop
from tests.runtime.test_session import take
from unisono.errors import MisuseError
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.settings import ArchiveSpec
from unisono.runtime.brokers.nats.jetstream_api import ApiError
from unisono.runtime.client.session import Session
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.node.node import Node


def start_shelf(file: Path) -> subprocess.Popen[bytes]:
    main = "from unisono.cli.main import main; main()"
    with (file.parent / "shelf.log").open("ab") as log:
        command = [sys.executable, "-c", main, "node", str(file), "shelf", "--journal", "off", "--log-level", "info"]
        return subprocess.Popen(command, stderr=log, env=dict(os.environ))


async def grown(base: Path, keep: ArchiveSpec, beyond: int) -> int:
    """The last row that is offered, when it is beyond this one."""
    async with asyncio.timeout(300):
        while (last := await asyncio.to_thread(last_row, base, keep)) <= beyond:
            await asyncio.sleep(0.05)
    return last


def last_row(base: Path, keep: ArchiveSpec) -> int:
    try:
        return bounds(base, keep)[1]
    except (ApiError, MisuseError):  # the stream or the directory is not there yet
        return 0


async def kill_and_replay(base: Path, keep: ArchiveSpec, kills: int, seed: int) -> None:
    deployment = shop(structs.replace(keep, seal_s=0.1))
    file = base / "deployment.toml"
    file.write_text(dump_deployment(deployment))
    dice = random.Random(seed)
    hub = Node(deployment, "hub", base, FAST)
    await hub.start()
    store = start_shelf(file)
    try:
        async with unisono.connect(deployment, timeout=120) as session, session.subscribe("a", "b") as live:
            stop = asyncio.Event()
            publishing = asyncio.ensure_future(publish_until(session, stop))
            for _ in range(kills):
                await grown(base, keep, last_row(base, keep))
                await asyncio.sleep(dice.uniform(0.0, 0.4))
                before = await asyncio.to_thread(offered, base, keep)
                store.kill()
                store.wait()
                store = start_shelf(file)
                await grown(base, keep, len(before))
                assert (await asyncio.to_thread(offered, base, keep))[: len(before)] == before
            stop.set()
            count = await publishing
            heard = [str(event.id) for event in await take(live, count)]
            found = await replayed(session, count)
            check(heard, found)
            again = await replayed(session, count)
            assert [told(event) for event in again] == [told(event) for event in found]
    finally:
        store.kill()
        store.wait()
        await hub.stop()


async def publish_until(session: Session, stop: asyncio.Event) -> int:
    count = 0
    while not stop.is_set():
        await session.publish("ab"[count % 2], count)
        count += 1
        await asyncio.sleep(0.01)
    return count


async def replayed(session: Session, count: int) -> list[Notification]:
    """Everything from the beginning, up to the last number of both topics."""
    last = {"a": (count + 1) // 2, "b": count // 2}
    at: dict[str, int] = {}
    found = []
    async with asyncio.timeout(300), session.subscribe("a", "b", start="earliest") as stream:
        async for event in stream:
            if event.stalled is None:
                found.append(event)
                at[event.topic] = event.number
            if at == last:
                return found
    raise AssertionError("the stream ended")


def told(event: Notification) -> tuple[str, int, object]:
    return event.topic, event.number, event.gap.first if event.gap is not None else str(event.id)


def check(heard: list[str], found: list[Notification]) -> None:
    """Each number once, as an event or in a gap; the events in the order in which the live subscriber got them."""
    at: dict[str, int] = {}
    for event in found:
        first = event.gap.first if event.gap is not None else event.number
        assert first == at.get(event.topic, 0) + 1
        at[event.topic] = event.number
    events = [str(event.id) for event in found if event.gap is None]
    chosen = dict.fromkeys(events)
    assert events == [event for event in heard if event in chosen]
    assert len(events) > 0


def test_an_archive_that_is_killed_loses_nothing_it_offered(tmp_path: Path, keep: ArchiveSpec) -> None:
    asyncio.run(kill_and_replay(tmp_path, keep, kills=1, seed=1))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5))
def test_an_archive_that_is_killed_often_loses_nothing_it_offered(tmp_path: Path, keep: ArchiveSpec, seed: int) -> None:
    asyncio.run(kill_and_replay(tmp_path, keep, kills=10, seed=seed))


def test_a_named_subscriber_that_was_away_gets_what_it_missed_once(tmp_path: Path) -> None:
    async def story(deployment: Deployment) -> None:
        hub, store = Node(deployment, "hub", tmp_path, FAST), Node(deployment, "shelf", tmp_path, FAST)
        await hub.start()
        await store.start()
        found: list[int] = []
        try:
            async with unisono.connect(deployment) as publisher:
                for round in range(3):
                    async with (
                        unisono.connect(deployment, state=tmp_path / "state") as session,
                        session.subscribe("a", "b", name="me") as stream,
                    ):
                        await publish_some(publisher, 20 * round, 10)
                        for event in await take(stream, 20 if round else 10):
                            found.append(event.data)
                            await stream.commit(event.position)
                    await publish_some(publisher, 20 * round + 10, 10)  # nobody is there
            assert found == list(range(50))
        finally:
            await store.stop()
            await hub.stop()

    asyncio.run(story(shop()))


async def publish_some(session: Session, first: int, count: int) -> None:
    for number in range(first, first + count):
        await session.publish("ab"[number % 2], number)
