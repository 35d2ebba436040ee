"""Who is told of whom when brokers lose each other: b0 - b1 - b2, and b1 goes away while both others stay."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import unisono
from tests.runtime.overlay.test_overlay import all_linked, chain, running, started, take, until, url
from unisono.model.deployment import Deployment
from unisono.runtime.client.session import Session
from unisono.runtime.node.node import Node

Overlay = tuple[Deployment, dict[str, Node]]


@asynccontextmanager
async def both_ends() -> AsyncGenerator[tuple[Overlay, Session, Session], None]:
    deployment = chain(3)
    async with (
        running(deployment) as nodes,
        unisono.connect(url(deployment, "b0")) as top,
        unisono.connect(url(deployment, "b2")) as low,
    ):
        yield (deployment, nodes), top, low


async def lose_the_middle(overlay: Overlay) -> None:
    nodes = overlay[1]
    await nodes["b1"].stop()
    await until(lambda: all(nodes[name].overlay.counters.links == 0 for name in ("b0", "b2")))  # type: ignore[union-attr]


async def join_again(overlay: Overlay) -> None:
    deployment, nodes = overlay
    nodes["b1"] = await started(deployment, "b1")
    await until(lambda: all_linked(nodes))


def play(run: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await run()

    asyncio.run(bounded())


def test_a_cut_names_the_last_event_though_the_advertisement_was_changed_after_it() -> None:
    async def run() -> None:
        async with both_ends() as (overlay, top, low), top.subscribe("t", where="x > 0") as stream:
            publisher = await low.publisher("t", advertise="x > 0")
            for x in (1, 2, 3):
                await publisher.send({"x": x})
            await take(stream, 3)
            publisher.advertise("x > 1")
            await until(lambda: all_linked(overlay[1]))
            await lose_the_middle(overlay)
            (notice,) = await take(stream, 1)
            assert notice.cut is not None
            assert [number for _, number in notice.cut.publishers] == [3]

    play(run)


def test_a_publisher_that_leaves_its_advertisement_out_of_reach_has_been_named() -> None:
    async def run() -> None:
        async with both_ends() as (overlay, top, low), top.subscribe("t", where="x < 0") as stream:
            publisher = await low.publisher("t", advertise="x > 0")
            await publisher.send({"x": 1})
            await publisher.drain()
            await lose_the_middle(overlay)
            await publisher.send({"x": -1})
            await publisher.drain()
            assert publisher.failures == []
            (notice,) = await take(stream, 1)
            assert notice.cut is not None
            assert [name for name, _ in notice.cut.publishers] == [publisher._topic_window.publisher]
            await join_again(overlay)
            await publisher.send({"x": -2})
            (event,) = await take(stream, 1)
            assert event.data == {"x": -2}

    play(run)


def test_everybody_is_told_of_a_lost_link_and_whoever_began_behind_it_is_named_when_it_is_heard() -> None:
    async def run() -> None:
        async with both_ends() as (overlay, top, low), top.subscribe("t", where="x > 0") as stream:
            await lose_the_middle(overlay)
            (notice,) = await take(stream, 1)
            assert notice.cut is not None
            assert notice.cut.publishers == ()
            publisher = await low.publisher("t")
            await publisher.send({"x": 1})
            await publisher.drain()
            await join_again(overlay)
            await publisher.send({"x": 2})
            again, event = await take(stream, 2)
            assert again.cut is not None
            assert again.cut.publishers == ((publisher._topic_window.publisher, 0),)
            assert event.data == {"x": 2}

    play(run)


def test_a_subscription_made_while_a_publisher_is_out_of_reach_is_told_its_name_when_it_is_heard() -> None:
    async def run() -> None:
        async with both_ends() as (overlay, top, low), top.subscribe("t") as before:
            publisher = await low.publisher("t")
            await publisher.send({"x": 1})
            await take(before, 1)
            await lose_the_middle(overlay)
            await take(before, 1)
            async with top.subscribe("t") as stream, top.subscribe("u") as elsewhere:
                await publisher.send({"x": 2})
                await publisher.drain()
                await join_again(overlay)
                await publisher.send({"x": 3})
                notice, event = await take(stream, 2)
                assert notice.cut is not None
                assert notice.cut.publishers == ((publisher._topic_window.publisher, 1),)
                assert event.data == {"x": 3}
                (event,) = await take(before, 1)
                assert event.data == {"x": 3}  # it was told once
                await low.publish("u", {"x": 4})
                (event,) = await take(elsewhere, 1)
                assert event.data == {"x": 4}

    play(run)
