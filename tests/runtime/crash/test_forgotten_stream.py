"""A node whose log is a stream that is older than what it told others: as with a directory, it notices and stops."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.runtime.crash.test_forgotten import World, connected, ended_first, publish
from unisono.model.deployment import Deployment
from unisono.model.settings import BrokerSpec, LogSpec, NodeSpec, TopicSpec
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.brokers.nats.fenced import FencedStream
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

STREAM = "unisono_log-forgotten-n"


class Streamed(World):
    """One node, whose log is on a NATS server of its own."""

    def __init__(self, directory: Path, server: NatsServer) -> None:
        listen, broker = (f"127.0.0.1:{port}" for port in free_ports(2))
        node = NodeSpec("n", listen=listen, roles=("sequencer", "broker"), data="data", log="jetstream")
        super().__init__(
            directory,
            Deployment(
                1,
                "forgotten",
                nodes=(node,),
                topics=(TopicSpec("of-n", "n"),),
                broker=BrokerSpec("embedded", (broker,)),
                log=LogSpec((server.url,), replicas=1, patience_s=1.0),
            ),
        )
        self.server = server

    async def back_up(self, to: Path) -> None:
        await self.server.stop()
        shutil.copytree(self.server.directory / "store", to)
        await self.server.start()

    async def spoil(self, backup: Path, how: str) -> None:
        if how == "deleted":
            line = FencedStream(STREAM, NatsOptions((self.server.url,)))
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(delete(line), line.loop))
            line.close()
            return
        await self.server.stop()
        shutil.rmtree(self.server.directory / "store")
        shutil.copytree(backup, self.server.directory / "store")
        await self.server.start()


async def delete(line: FencedStream) -> None:
    await line.open()
    await line.api.call(f"STREAM.DELETE.{STREAM}", {})


@asynccontextmanager
async def streamed(directory: Path) -> AsyncIterator[Streamed]:
    server = NatsServer(directory / "nats", NatsServerConfig(jetstream=True))
    await server.start()
    made = Streamed(directory, server)
    try:
        made.start("n")
        yield made
    finally:
        for name in list(made.nodes):
            made.kill(name)
        server.kill()


@pytest.mark.parametrize("how", [pytest.param("rolled back", marks=pytest.mark.campaign), "deleted"])
def test_a_node_whose_stream_is_older_than_what_it_told_stops_until_a_person_lets_it_go_on(
    tmp_path: Path, how: str
) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), streamed(tmp_path) as made, connected(made) as session:
            await publish(session, "of-n", 3)
            if how == "rolled back":
                await made.back_up(tmp_path / "backup")
            await publish(session, "of-n", 3)
            made.kill("n")
            await made.spoil(tmp_path / "backup", how)
            made.start("n")
            code, said = await ended_first(made, "n", session)
            assert (code, "node n has forgotten what it told others" in said) == (2, True), said
            made.start("n", "--new-incarnation")
            async with connected(made) as after:
                await publish(after, "of-n", 1)

    asyncio.run(run())


@pytest.mark.campaign
def test_a_node_whose_stream_is_set_back_under_it_stops_at_its_next_commit(tmp_path: Path) -> None:
    """Its commits say what they follow, so the older stream takes none of them."""

    async def run() -> None:
        async with asyncio.timeout(120), streamed(tmp_path) as made, connected(made) as session:
            await publish(session, "of-n", 3)
            await made.back_up(tmp_path / "backup")
            await publish(session, "of-n", 3)
            await made.spoil(tmp_path / "backup", "rolled back")
            code, said = await ended_first(made, "n", session)
            assert (code, "it was set back, or deleted and made anew" in said) == (2, True), said

    asyncio.run(run())
