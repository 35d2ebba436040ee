"""Connections that break under load, at moments the proxy chooses: nothing open is lost, and where promised, once."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.runtime.ens.worlds import PATIENCE_S, Ear, EmbeddedWorld, JetStreamWorld, NatsWorld
from unisono.model.time import Micros
from unisono.runtime.brokers.contract import Ens, Item, Lost, Up
from unisono.runtime.brokers.embedded.adapter import EmbeddedEns
from unisono.runtime.brokers.nats.adapter import NatsEns
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.brokers.nats.jetstream import JetStreamEns
from unisono.runtime.tools.delay import DelayProxy

TOTAL = 3_000
CUTS = 4


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 4 * PATIENCE_S))


async def publish_under_cuts(publisher: Ens, ear: Ear, proxy: DelayProxy) -> None:
    """Cuts the connection while batches are on their way, again once it is back."""
    for start in range(0, TOTAL, 50):
        await publisher.room()
        publisher.publish([Item("trades", b"x" * 50, "p", n + 1) for n in range(start, start + 50)])
        await asyncio.sleep(0)
        if start and start % (TOTAL // (CUTS + 1)) == 0:
            seen = len(ear.heard(Up))
            proxy.cut()
            await ear.until(lambda seen=seen: len(ear.heard(Up)) > seen)
    async with asyncio.timeout(PATIENCE_S):
        await publisher.flush()


async def through(port: int) -> DelayProxy:
    proxy = DelayProxy(Micros(1_000))
    await proxy.start(("127.0.0.1", port))
    return proxy


def test_embedded_takes_every_item_once_however_often_the_publisher_is_cut_off() -> None:
    async def main() -> None:
        async with EmbeddedWorld() as world:
            here, there = Ear(), Ear()
            subscriber = await world.connect(here)
            await subscriber.subscribe("trades")
            proxy = await through(world.port)
            publisher = EmbeddedEns("127.0.0.1", proxy.port, there, token="n0de")
            await publisher.open()
            await publish_under_cuts(publisher, there, proxy)
            await here.until(lambda: len(here.items) >= TOTAL)
            assert [item.request for item in here.items] == list(range(1, TOTAL + 1))
            assert there.confirmed == TOTAL
            await publisher.close()
            await proxy.stop()

    run(main())


def test_embedded_takes_an_item_once_though_its_confirmation_was_cut_off() -> None:
    async def main() -> None:
        async with EmbeddedWorld() as world:
            here, there = Ear(), Ear()
            subscriber = await world.connect(here)
            await subscriber.subscribe("trades")
            proxy = await through(world.port)
            publisher = EmbeddedEns("127.0.0.1", proxy.port, there, token="n0de")
            await publisher.open()
            proxy.delay_us = Micros(100_000)  # the item is heard so long before its confirmation
            sent = 0
            while there.confirmed == sent:  # unless we do not get to run meanwhile: then once more
                sent += 1
                publisher.publish([Item("trades", b"x", "p", sent)])
                await here.until(lambda sent=sent: len(here.items) >= sent)
            proxy.cut()
            await there.until(lambda: bool(there.heard(Up)))
            publisher.publish([Item("trades", b"x", "p", sent + 1)])
            await here.until(lambda: here.items[-1].request == sent + 1)
            assert [item.request for item in here.items] == list(range(1, sent + 2))
            await publisher.close()
            await proxy.stop()

    run(main())


def test_jetstream_keeps_every_item_once_however_often_both_ends_are_cut_off() -> None:
    async def main() -> None:
        async with JetStreamWorld() as world:
            here, there = Ear(), Ear()
            proxy = await through(world.servers[0].port)
            options = NatsOptions((f"nats://node:n0de@127.0.0.1:{proxy.port}",))
            subscriber, publisher = JetStreamEns(options, here), JetStreamEns(options, there)
            await subscriber.open()
            await publisher.open()
            await subscriber.subscribe("trades")
            await publish_under_cuts(publisher, there, proxy)
            await here.until(lambda: len(here.items) >= TOTAL)
            assert [item.request for item in here.items] == list(range(1, TOTAL + 1))
            assert there.confirmed == TOTAL
            assert here.heard(Up)
            assert not here.heard(Lost)
            await publisher.close()
            await subscriber.close()
            await proxy.stop()

    run(main())


def test_nats_core_loses_no_open_item_and_repeats_only_what_was_open() -> None:
    async def main() -> None:
        async with NatsWorld() as world:
            here, there = Ear(), Ear()
            subscriber = await world.connect(here)
            await subscriber.subscribe("trades")
            proxy = await through(world.servers[0].port)
            publisher = NatsEns(NatsOptions((f"nats://node:n0de@127.0.0.1:{proxy.port}",)), there)
            await publisher.open()
            await publish_under_cuts(publisher, there, proxy)
            await here.until(lambda: here.items[-1:] != [] and here.items[-1].request == TOTAL)
            first_times = list(dict.fromkeys(item.request for item in here.items))
            assert first_times == list(range(1, TOTAL + 1))
            repeats = len(here.items) - TOTAL
            assert repeats <= sum(notice.resent for notice in there.heard(Up))
            assert there.confirmed == TOTAL
            await publisher.close()
            await proxy.stop()

    run(main())


@pytest.mark.parametrize("paused", [False, True])
def test_a_proxy_delays_both_ways_and_loses_nothing(paused: bool) -> None:
    """Also when the far end does not read for a while: the sender is slowed, memory is bounded."""

    async def main() -> None:
        go_on = asyncio.Event()
        if not paused:
            go_on.set()

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await go_on.wait()
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        proxy = DelayProxy(Micros(20_000), waiting_bytes_max=200_000)
        await proxy.start(("127.0.0.1", server.sockets[0].getsockname()[1]))
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        loop = asyncio.get_running_loop()
        sent = bytes(range(256)) * (20_000 if paused else 40)
        started = loop.time()
        writer.write(sent)
        writer.write_eof()
        if paused:
            done = asyncio.ensure_future(writer.drain())
            await asyncio.wait([done], timeout=0.3)
            assert max(side.waiting_bytes for side in proxy.sides) <= 200_000 + 256 * 1024
            go_on.set()
            await done
        assert await reader.read() == sent
        assert loop.time() - started >= 0.04  # never earlier than twice the delay
        writer.close()
        await proxy.stop()
        server.close()

    run(main())


@pytest.mark.parametrize("way", ["requests", "answers"])
def test_what_a_proxy_holds_waits_for_it_to_let_go_and_the_other_way_goes_on(way: str) -> None:
    async def main() -> None:
        heard: asyncio.Queue[bytes] = asyncio.Queue()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            while data := await reader.read(100):
                heard.put_nowait(data)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        proxy = DelayProxy(Micros(0))
        await proxy.start(("127.0.0.1", server.sockets[0].getsockname()[1]))
        proxy.hold(requests=way == "requests", answers=way == "answers")
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"one")
        goes_on, waits = [(heard.get(), b"one"), (reader.readexactly(5), b"hello")][:: 1 if way == "answers" else -1]
        assert await goes_on[0] == goes_on[1]
        while not any(side.waiting_bytes for side in proxy.sides):
            await asyncio.sleep(0)
        for _ in range(3):  # it is due by now
            await asyncio.sleep(0)
        assert sum(side.waiting_bytes for side in proxy.sides) == len(waits[1])
        proxy.hold(requests=False, answers=False)
        assert await waits[0] == waits[1]
        writer.close()
        await proxy.stop()
        server.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S / 3))
