"""Whoever waits for a node that does not answer is told so in time, and nothing of the attempt stays behind."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.test_cluster import FAST, star
from tests.runtime.test_session import take
from unisono.model.deployment import Deployment, dump_deployment
from unisono.runtime.client.session import Session
from unisono.runtime.node.node import Node

SOURCES = Path(unisono.__file__).parents[1]


class Process:
    """A node of a deployment in a process of its own."""

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name = file, name
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        main = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); from unisono.cli.main import main; main()"
        command = [sys.executable, "-c", main, "node", str(self._file), self._name, "--journal", "off"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def east_apart(deployment: Deployment, base: Path) -> Iterator[Process]:
    """The node `east`, home of `trades`, as a process."""
    file = base / "deployment.toml"
    file.write_text(dump_deployment(deployment))
    east = Process(file, "east")
    east.start()
    try:
        yield east
    finally:
        east.kill()


def have_patience(session: Session, seconds: float) -> None:
    session.config = structs.replace(session.config, open_s=seconds)


def test_a_home_that_dies_while_it_is_joined_is_an_error_and_the_rest_of_the_stream_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star()
        with east_apart(deployment, tmp_path) as east:
            async with (
                asyncio.timeout(120),
                Node(deployment, "hub", tmp_path, FAST),
                Node(deployment, "west", tmp_path, FAST),
                unisono.connect(deployment, timeout=60) as session,
                session.subscribe("quotes") as stream,
            ):
                await session.publish("trades", 1)
                east.pause()
                have_patience(session, 1)
                joining = asyncio.ensure_future(stream.subscribe("trades"))
                while "trades" not in stream.topics:
                    await asyncio.sleep(0.001)
                east.kill()
                assert isinstance(await session.publish("quotes", 2), unisono.Accepted)
                with pytest.raises(unisono.TransportError, match=r"'trades'.* did not answer"):
                    await joining
                assert list(stream.topics) == ["quotes"]
                assert [event.data for event in await take(stream, 1)] == [2]
                with pytest.raises(unisono.TransportError, match=r"'trades'.* did not answer"):
                    async with session.subscribe("trades", "quotes"):
                        pass
                have_patience(session, 60)
                east.start()
                await stream.subscribe("trades")
                await session.publish("trades", 3)
                assert [event.data for event in await take(stream, 1)] == [3]

    asyncio.run(run())


def test_a_topic_whose_home_is_away_is_not_born_and_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star()
        async with (
            asyncio.timeout(120),
            Node(deployment, "hub", tmp_path, FAST),
            unisono.connect(deployment, timeout=60) as session,
        ):
            have_patience(session, 0.5)
            with pytest.raises(unisono.TransportError, match="node east, home of 'trades', does not answer"):
                await session.publish("trades", 1)
            with pytest.raises(unisono.TransportError, match="node east, home of 'trades', does not answer"):
                await session.publisher("trades")

    asyncio.run(run())


def test_a_pattern_does_not_wait_for_a_node_that_is_away_and_follows_its_topics_later(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star()
        async with (
            asyncio.timeout(120),
            Node(deployment, "hub", tmp_path, FAST),
            Node(deployment, "west", tmp_path, FAST),
            unisono.connect(deployment, timeout=60) as session,
        ):
            await session.publish("quotes", 1)
            have_patience(session, 3600)
            async with session.subscribe("*") as stream:
                assert list(stream.topics) == ["quotes"]
                async with Node(deployment, "east", tmp_path, FAST):
                    while "trades" not in stream.bases:
                        await asyncio.sleep(0.01)
                    await session.publish("trades", 2)
                    assert [event.data for event in await take(stream, 1)] == [2]

    asyncio.run(run())
