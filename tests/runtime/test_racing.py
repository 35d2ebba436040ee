"""Of several servers or nodes the first that answers is taken, and one that says nothing is not waited for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import unisono
from tests.runtime.ens.worlds import Ear
from tests.runtime.test_cluster import running, star, url
from unisono.errors import MisuseError, TransportError, TurnedAwayError
from unisono.runtime.brokers.contract import Item
from unisono.runtime.brokers.nats.adapter import NatsEns
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.racing import first_of
from unisono.runtime.tools.nats_server import NatsServer


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """Somebody who takes connections and says nothing, like a process that is stopped."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_the_first_is_preferred() -> None:
    async def main() -> None:
        async def at_once() -> str:
            return "first"

        async def never() -> str:
            raise AssertionError("nobody needs it")

        assert await first_of([at_once, never]) == "first"

    asyncio.run(main())


def test_all_reasons_are_told_and_what_is_no_fault_of_the_network_at_once() -> None:
    async def main() -> None:
        async def refused() -> str:
            raise TransportError("refused")

        async def no_tls() -> str:
            raise TurnedAwayError("no TLS")

        async def wrong() -> str:
            raise MisuseError("wrong")

        with pytest.raises(TransportError, match=r"^refused; no TLS$"):
            await first_of([refused, no_tls])
        with pytest.raises(TurnedAwayError, match=r"^no TLS; no TLS$"):
            await first_of([no_tls, no_tls])
        with pytest.raises(MisuseError, match="wrong"):
            await first_of([refused, wrong, no_tls])

    asyncio.run(main())


def test_who_says_nothing_is_left_when_another_answers_and_what_it_gives_late_is_dropped() -> None:
    async def main() -> None:
        dropped: list[str] = []

        async def stands_still() -> str:
            try:
                for _ in range(50):
                    await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                return "late"
            raise TransportError("no answer")

        async def answers() -> str:
            return "here"

        assert await first_of([stands_still, answers], dropped.append) == "here"
        assert dropped == ["late"]

    asyncio.run(main())


def test_a_node_that_stands_still_does_not_keep_from_another(tmp_path: Path) -> None:
    async def main() -> None:
        deployment = star(data=False)
        async with silent() as still, running(deployment, tmp_path):
            east = url(deployment, "east").removeprefix("unisono://")
            async with unisono.connect(f"unisono://{still},{east}", timeout=20) as session:
                assert session.deployment.name == deployment.name

    asyncio.run(main())


def test_a_nats_server_that_stands_still_does_not_keep_from_another(tmp_path: Path) -> None:
    async def main() -> None:
        server = NatsServer(tmp_path / "n")
        await server.start()
        try:
            async with silent() as still:
                ear = Ear()
                ens = NatsEns(NatsOptions((f"nats://{still}", server.url)), ear)
                await ens.open()
                await ens.subscribe("trades")
                ens.publish([Item("trades", b"1", "p", 1)])
                await ear.until(lambda: [item.payload for item in ear.items] == [b"1"])
                await ens.close()
                assert len(ear.items) == 1
        finally:
            await server.stop()

    asyncio.run(main())
