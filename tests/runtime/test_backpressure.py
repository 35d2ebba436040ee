"""Bounded everywhere: whoever is too slow slows those who feed it, or is told; nothing grows without end."""

import asyncio
from pathlib import Path

import unisono
import unisono.testing
from tests.runtime.test_cluster import running, star, url
from tests.runtime.test_session import take


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
