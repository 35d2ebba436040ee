"""Bounded everywhere: whoever is too slow slows those who feed it, or is told; nothing grows without end."""

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

import unisono
import unisono.testing
from tests.runtime.test_cluster import running, star, url
from tests.runtime.test_session import take
from unisono.model.settings import BrokerSpec, OrderedBy, Sequencing
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig


def test_a_publisher_waits_for_a_home_that_does_not_answer_and_keeps_a_window_only() -> None:
    async def run() -> None:
        async with asyncio.timeout(120), unisono.testing.deployment() as world, world.connect() as session:
            publisher = await session.publisher("a")
            world.take_home_away()
            sending = asyncio.ensure_future(publisher.send_all(range(5000)))
            done, _ = await asyncio.wait([sending], timeout=0.3)
            assert not done
            assert session._publications.in_flight == session._publications.window
            world.bring_home_back()
            await sending
            await publisher.drain()
            assert (publisher.accepted, publisher.failures) == (5000, [])

    asyncio.run(run())


def test_a_program_that_does_not_read_holds_a_bounded_buffer_while_others_go_on() -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(120),
            unisono.testing.deployment() as world,
            world.connect() as session,
            session.subscribe("a", buffer=100) as lazy,
            session.subscribe("a") as eager,
        ):
            publisher = await session.publisher("a")
            reading = asyncio.ensure_future(take(eager, 5000))
            await publisher.send_all(range(5000))
            assert len(await reading) == 5000
            assert lazy.waiting <= 100
            first = await anext(lazy)
            assert first.gap is not None
            assert (first.gap.first, first.gap.last) == (1, 4900)

    asyncio.run(run())


@pytest.mark.parametrize("by", ["tree", "clock"])
def test_a_reliable_stream_that_nobody_reads_for_long_loses_nothing(tmp_path: Path, by: OrderedBy) -> None:
    """It slows the broker down, which keeps the rest: what has a number and no payload meanwhile is not given up."""

    async def run() -> None:
        server = NatsServer(tmp_path / "nats", NatsServerConfig(jetstream=True, jetstream_sync="2m"))
        await server.start()
        broker, sequencing = BrokerSpec("jetstream", (server.url,)), Sequencing(by=by)
        deployment = structs.replace(star(data=False), broker=broker, sequencing=sequencing)
        try:
            async with (
                asyncio.timeout(120),
                running(deployment, tmp_path),
                unisono.connect(url(deployment, "east"), timeout=30) as east,
                unisono.connect(url(deployment, "east"), timeout=30) as reader,
                reader.subscribe("a", reliability="reliable", buffer=8, deadline="1s") as stream,
            ):
                publisher, sent = await east.publisher("a"), 0
                while not stream._waiting.is_pausing:
                    await publisher.send_all(range(sent, sent + 40))
                    sent += 40
                await publisher.send_all(range(sent, sent + 200))
                await publisher.drain()
                late = asyncio.get_running_loop().time() + 3.5
                while asyncio.get_running_loop().time() < late:
                    assert stream.told.gaps == 0
                    await asyncio.sleep(0.05)
                found = [event.data if event.gap is None else event.gap for event in await take(stream, sent + 200)]
                assert found == list(range(sent + 200))
        finally:
            server.kill()

    asyncio.run(run())


def test_a_node_forgets_what_a_closed_subscription_registered(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star(data=False)
        async with (
            asyncio.timeout(120),
            running(deployment, tmp_path) as nodes,
            unisono.connect(url(deployment, "east")) as session,
        ):
            # The session itself has two addresses: its own, and that of its publisher.
            before = {name: len(node.clients.leases.sids.get(session.address, {})) for name, node in nodes.items()}
            for _ in range(20):
                async with session.subscribe("trades", "quotes"):
                    pass
            await session.publish("trades", 1)
            after = {name: len(node.clients.leases.sids.get(session.address, {})) for name, node in nodes.items()}
            assert all(after[name] <= before[name] + 2 for name in nodes), (before, after)

    asyncio.run(run())
