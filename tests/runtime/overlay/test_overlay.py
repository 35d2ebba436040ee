"""An overlay of real nodes on loopback sockets: clients select by content, agree on the order, and hear of losses."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import unisono
from unisono.model.deployment import Deployment
from unisono.model.settings import NodeSpec, OverlaySpec, Region
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports


def chain(count: int, held_ms: float | None = None) -> Deployment:
    """b0 - b1 - …, each in a region of its own, rooted at the first."""
    nodes = tuple(
        NodeSpec(f"b{i}", f"r{i}", f"127.0.0.1:{port}", f"b{i - 1}" if i else None, ("overlay",))
        for i, port in enumerate(free_ports(count))
    )
    regions = tuple(Region(node.region) for node in nodes)
    return Deployment(1, "chain", kind="overlay", regions=regions, nodes=nodes, overlay=OverlaySpec(held_ms=held_ms))


@asynccontextmanager
async def running(deployment: Deployment, base: Path = Path()) -> AsyncGenerator[dict[str, Node], None]:
    nodes: dict[str, Node] = {}
    try:
        for spec in deployment.nodes:
            nodes[spec.name] = await started(deployment, spec.name, base)
        await until(lambda: all_linked(nodes))
        yield nodes
    finally:
        for node in reversed(nodes.values()):
            await node.stop()


async def started(deployment: Deployment, name: str, base: Path = Path()) -> Node:
    node = Node(deployment, name, base)
    await node.start()
    return node


def all_linked(nodes: dict[str, Node]) -> bool:
    """Every broker has its neighbours and nothing is being agreed on."""
    for name, node in nodes.items():
        neighbours = sum(name == other.spec.parent for other in nodes.values()) + (node.spec.parent in nodes)
        if node.overlay is None or node.overlay.counters.links != neighbours or not node.overlay.broker.is_idle:
            return False
    return True


async def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


async def take(stream: Stream, count: int) -> list[Notification]:
    async with asyncio.timeout(120):
        return [await anext(stream) for _ in range(count)]


def url(deployment: Deployment, name: str) -> str:
    return f"unisono://{deployment.node(name).listen}"


def test_subscribers_get_what_their_filters_select_in_one_order() -> None:
    async def run() -> None:
        deployment = chain(3)
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "b0")) as top,
            unisono.connect(url(deployment, "b2")) as low,
            top.subscribe("trades", "quotes", where="px >= 50") as high,
            low.subscribe("trades", "quotes", where="px < 60 or sym = 'SAP'") as mixed,
        ):
            assert (top.broker.name, low.broker.name) == ("b0", "b2")  # type: ignore[union-attr]
            senders = [await s.publisher(topic) for s in (top, low) for topic in ("trades", "quotes")]
            for i in range(200):
                await senders[i % 4].send({"px": (i * 7) % 100, "sym": "SAP" if i % 5 == 0 else "IBM"})
                if i % 10 == 0:
                    await asyncio.sleep(0)
            for sender in senders:
                await sender.drain()
                assert sender.failures == []
            wanted = [i for i in range(200) if (i * 7) % 100 >= 50]
            got = await take(high, len(wanted))
            assert sorted(e.data["px"] for e in got) == sorted((i * 7) % 100 for i in wanted)
            others = await take(mixed, sum((i * 7) % 100 < 60 or i % 5 == 0 for i in range(200)))
            common = {e.id for e in got} & {e.id for e in others}
            assert [e.id for e in got if e.id in common] == [e.id for e in others if e.id in common]
            assert len(common) > 10
            assert sum(node.overlay.broker.counters.detections for node in nodes.values() if node.overlay) > 0

    asyncio.run(run())


def test_an_update_selects_anew_without_losing_what_both_want() -> None:
    async def run() -> None:
        deployment = chain(2)
        async with (
            running(deployment),
            unisono.connect(url(deployment, "b0")) as top,
            unisono.connect(url(deployment, "b1")) as low,
            top.subscribe("t", where="x < 10") as stream,
        ):
            for x in (1, 11):
                await low.publish("t", {"x": x})
            await stream.update(where="x > 5")
            for x in (2, 12, 6):
                await low.publish("t", {"x": x})
            assert [e.data["x"] for e in await take(stream, 3)] == [1, 12, 6]
            with pytest.raises(unisono.FormatError, match="column 5"):
                await stream.update(where="x > ")
            await low.publish("t", {"x": 7})
            assert [e.data["x"] for e in await take(stream, 1)] == [7]

    asyncio.run(run())


def test_patterns_follow_topics_that_come_later_and_leave_others_aside() -> None:
    async def run() -> None:
        deployment = chain(2)
        async with (
            running(deployment),
            unisono.connect(url(deployment, "b0")) as top,
            unisono.connect(url(deployment, "b1")) as low,
            top.subscribe("trades.*", "news.>", where="x > 0") as stream,
        ):
            for topic in ("trades.ibm", "trades.ibm.eu", "news.a.b", "news", "trades.sap"):
                assert isinstance(await low.publish(topic, b"", {"x": 1}), unisono.Accepted)
            assert [e.topic for e in await take(stream, 3)] == ["trades.ibm", "news.a.b", "trades.sap"]

    asyncio.run(run())


def test_an_event_outside_its_advertisement_waits_until_brokers_know_and_then_comes() -> None:
    async def run() -> None:
        deployment = chain(2)
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "b0")) as top,
            unisono.connect(url(deployment, "b1")) as low,
            top.subscribe("t", where="x < 0 or x = 3") as stream,
        ):
            publisher = await low.publisher("t", advertise="x > 0")
            for x in (1, -1, 3, -2):
                await publisher.send({"x": x})
            await publisher.drain()
            assert publisher.failures == []
            assert [e.data["x"] for e in await take(stream, 3)] == [-1, 3, -2]
            publisher.advertise("x > 100")
            await publisher.send({"x": 200})
            await publisher.send({"x": -3})
            assert [e.data["x"] for e in await take(stream, 1)] == [-3]
            await until(lambda: all_linked(nodes))
            overlay = nodes["b1"].overlay
            assert overlay is not None
            assert len(overlay.broker._tables.ads) == 2  # the narrow one and the whole topic; the first two are gone

    asyncio.run(run())


def test_a_link_between_brokers_that_is_lost_and_comes_back_is_told_and_heals() -> None:
    async def run() -> None:
        deployment = chain(2)
        nodes = {name: await started(deployment, name) for name in ("b0", "b1")}
        try:
            await until(lambda: all_linked(nodes))
            async with (
                unisono.connect(url(deployment, "b0")) as top,
                unisono.connect(url(deployment, "b1")) as low,
                top.subscribe("t", where="x > 0") as stream,
            ):
                for x in (1, 0, 2):
                    await low.publish("t", {"x": x})
                assert [e.data["x"] for e in await take(stream, 2)] == [1, 2]
                await nodes["b1"].stop()
                (notice,) = await take(stream, 1)
                assert notice.cut is not None
                assert [number for _, number in notice.cut.publishers] == [3]
                nodes["b1"] = await started(deployment, "b1")
                await until(lambda: all_linked(nodes))
                assert isinstance(await low.publish("t", {"x": 4}), unisono.Accepted)
                assert [e.data["x"] for e in await take(stream, 1)] == [4]
        finally:
            for node in nodes.values():
                await node.stop()

    asyncio.run(run())


def test_a_client_cut_off_from_its_broker_is_told_and_begins_anew() -> None:
    async def run() -> None:
        deployment = chain(1)
        node = await started(deployment, "b0")
        try:
            async with unisono.connect(url(deployment, "b0"), timeout=30) as session:
                async with session.subscribe("t") as stream:
                    old = await session.publisher("t")
                    await old.send(1)
                    await old.drain()
                    await node.stop()
                    told = [await anext(stream), await anext(stream)]
                    assert told[0].data == 1
                    assert told[1].stalled is not None
                    with pytest.raises(unisono.TransportError, match="Subscribe again"):
                        await anext(stream)
                await old.send(2)
                await old.drain()
                assert [type(failure) for failure in old.failures] == [unisono.Refused]
                node = await started(deployment, "b0")
                async with session.subscribe("t") as stream:
                    assert isinstance(await session.publish("t", 3), unisono.Accepted)
                    assert [e.data for e in await take(stream, 1)] == [3]
        finally:
            await node.stop()

    asyncio.run(run())


def test_brokers_count_what_order_costs() -> None:
    async def run() -> None:
        deployment = chain(2)
        async with (
            running(deployment),
            unisono.connect(url(deployment, "b0")) as top,
            unisono.connect(url(deployment, "b1")) as low,
            top.subscribe("t", where="x > 3") as above,
            low.subscribe("t") as below,
        ):
            await top.publish("t", {"x": 1})
            for x in range(10):
                await low.publish("t", {"x": x})
            assert len(await take(above, 6)) == 6
            assert len(await take(below, 11)) == 11
            counters = (await low.status("b1")).counters["overlay"]
            assert counters["publications"] >= 10
            assert counters["detections"] == counters["echoes"] == 6
            assert counters["echo_us"] >= counters["echo_us_max"] > 0
            assert (counters["links"], counters["clients"], counters["pending"]) == (1, 2, 0)
            assert counters["false_positives"] == 0

    asyncio.run(run())


def test_a_broker_keeps_nothing_of_streams_that_closed_and_of_sessions_that_went_without_a_word() -> None:
    async def run() -> None:
        deployment = chain(2)
        async with running(deployment) as nodes, unisono.connect(url(deployment, "b0")) as stays:
            overlay = nodes["b0"].overlay
            assert overlay is not None
            async with stays.subscribe("t", where="x > 1"):
                assert (overlay.counters.clients, overlay.broker.subscriptions) == (1, 1)
            await until(lambda: (overlay.counters.clients, overlay.broker.subscriptions) == (0, 0))
            async with unisono.connect(url(deployment, "b0")) as goes:
                stream = await goes.subscribe("t").__aenter__()
                await goes.publish("t", {"x": 1})
                assert await anext(stream)
                await goes.links.close()
                await until(lambda: (overlay.counters.clients, overlay.broker.subscriptions) == (0, 0))
                await until(lambda: not overlay.broker._tables.ads)

    asyncio.run(run())
