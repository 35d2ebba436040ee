"""A named publisher says everything once, whatever dies in between."""

import asyncio
from pathlib import Path

import pytest

import unisono
from tests.runtime.test_cluster import FAST, running, star, url
from tests.runtime.test_session import take
from tests.runtime.toy import until
from unisono.errors import MisuseError, TransportError
from unisono.protocols.sequencer.messages import Creates
from unisono.runtime.client.publishing.named import NamedEvent, NamedPublisher, named_publisher
from unisono.runtime.node.node import Node


def rows(topic: str, *requests: int) -> list[NamedEvent]:
    return [NamedEvent(topic, request, str(request).encode()) for request in requests]


def test_what_was_said_before_is_not_said_again(tmp_path: Path) -> None:
    """Sparse numbers, a partly repeated batch, another process under the same name, a restarted home."""

    async def run() -> None:
        deployment = star()
        async with (
            asyncio.timeout(60),
            running(deployment, tmp_path) as nodes,
            unisono.connect(url(deployment, "west")) as west,
            west.subscribe("trades", "quotes") as total,
            west.subscribe("trades", order="fifo", deadline="5s") as fifo,
        ):
            async with named_publisher(url(deployment, "east"), "spark") as publisher:
                assert await publisher.publish(rows("trades", 3, 4, 9)) == 3
                assert await publisher.publish(rows("trades", 4, 9, 12)) == 1
            async with named_publisher(url(deployment, "east"), "spark") as publisher:
                assert await publisher.publish(rows("trades", 3, 4, 9, 12)) == 0
                mixed = [*rows("trades", 20), *rows("quotes", 21), *rows("trades", 22), *rows("quotes", 30)]
                assert await publisher.publish(mixed) == 4
            for name in ("east", "west"):
                await nodes[name].stop()
                nodes[name] = Node(deployment, name, tmp_path, FAST)
                await nodes[name].start()
            async with named_publisher(url(deployment, "east"), "spark") as publisher:
                assert await publisher.publish([*rows("trades", 20), *rows("quotes", 30), *rows("trades", 31)]) == 1
            heard = await take(total, 9)
            assert [event.data for event in heard] == [3, 4, 9, 12, 20, 21, 22, 30, 31]
            assert [event.data for event in await take(fifo, 7)] == [3, 4, 9, 12, 20, 22, 31]

    asyncio.run(run())


def test_a_payload_that_comes_twice_is_heard_once(tmp_path: Path) -> None:
    """A publisher that died between payload and number: its successor repeats the payload."""

    async def run() -> None:
        deployment = star()
        async with (
            asyncio.timeout(60),
            running(deployment, tmp_path),
            unisono.connect(url(deployment, "west")) as west,
            west.subscribe("trades") as stream,
            west.subscribe("trades", order="fifo") as fifo,
        ):
            async with named_publisher(url(deployment, "east"), "spark") as publisher:
                send = publisher._links.send
                publisher._links.send = lambda to, message: (  # type: ignore[method-assign]
                    None if isinstance(message, Creates) and message.items[0].first else send(to, message)
                )
                dying = asyncio.create_task(publisher.publish(rows("trades", 5, 6)))
                await until(lambda: publisher._machine._phase == "numbers")
                dying.cancel()
            async with named_publisher(url(deployment, "east"), "spark") as publisher:
                assert await publisher.publish(rows("trades", 5, 6, 8)) == 3
            assert [event.data for event in await take(stream, 3)] == [5, 6, 8]
            assert [event.data for event in await take(fifo, 3)] == [5, 6, 8]

    asyncio.run(run())


def test_a_name_is_held_by_one(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star(data=False)
        async with (
            asyncio.timeout(60),
            running(deployment, tmp_path),
            named_publisher(url(deployment, "east"), "spark") as first,
        ):
            await first.publish(rows("trades", 1))
            with pytest.raises(TransportError, match="another publisher connected as 'spark'"):
                async with named_publisher(url(deployment, "east"), "spark", timeout=1) as second:
                    await second.publish(rows("trades", 2))
            assert await first.publish(rows("trades", 2)) == 1

    asyncio.run(run())


def test_numbers_ascend_and_names_are_plain() -> None:
    async def run() -> None:
        publisher = NamedPublisher(star(data=False), Path(), "", "spark", 1)
        with pytest.raises(MisuseError, match="request 4 comes after 4"):
            await publisher.publish(rows("trades", 3, 4, 4))
        with pytest.raises(MisuseError, match="no name"):
            NamedPublisher(star(data=False), Path(), "", "a/b", 1)

    asyncio.run(run())
