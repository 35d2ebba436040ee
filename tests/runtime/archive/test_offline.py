"""A subscriber that is cut off from everything and comes back: nothing lost and nothing twice where somebody keeps what
was published meanwhile, and an explicit gap where nobody does."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
from msgspec import structs

import unisono
from tests.runtime.archive.test_replay import FAST
from tests.runtime.test_session import take
from unisono.model.deployment import Deployment
from unisono.model.settings import BrokerSpec, NodeSpec, TopicSpec
from unisono.model.time import Micros
from unisono.runtime.client.session import Session
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.node.node import Node
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

Keeper = Literal["broker", "archive", "nobody"]
EVENTS = 40
"""Published during an absence, at least."""


class Network:
    """What lies between one client and everybody else."""

    def __init__(self) -> None:
        self._proxies: dict[DelayProxy, tuple[str, int]] = {}

    async def to(self, port: int) -> int:
        """A port that leads to this one while the network is there."""
        proxy = DelayProxy(Micros(0))
        self._proxies[proxy] = ("127.0.0.1", port)
        return await proxy.start(("127.0.0.1", port))

    def fail(self) -> None:
        for proxy in self._proxies:
            proxy.target = None
            proxy.cut()

    def come_back(self) -> None:
        for proxy, target in self._proxies.items():
            proxy.target = target

    async def stop(self) -> None:
        for proxy in self._proxies:
            await proxy.stop()


@asynccontextmanager
async def world(base: Path, keeper: Keeper) -> AsyncGenerator[tuple[Session, Session, Network], None]:
    """A session that publishes, one that can be cut off, and the network between it and the rest."""
    server, network = NatsServer(base / "nats", NatsServerConfig(jetstream=keeper == "broker")), Network()
    await server.start()
    hub, store = free_ports(2)
    nodes = (NodeSpec("hub", listen=f"127.0.0.1:{hub}", data="data"),)
    if keeper == "archive":
        nodes += (NodeSpec("shelf", listen=f"127.0.0.1:{store}", parent="hub", roles=("archive",), data="data"),)
    deployment = Deployment(
        1,
        "shop",
        nodes=nodes,
        topics=(TopicSpec("a"), TopicSpec("b")),
        broker=BrokerSpec("jetstream" if keeper == "broker" else "nats", (server.url,)),
    )
    running = [Node(deployment, spec.name, base, FAST) for spec in deployment.nodes]
    for node in running:
        await node.start()
    beyond = structs.replace(
        deployment,
        nodes=tuple(
            [
                structs.replace(spec, listen=f"127.0.0.1:{await network.to(int(spec.listen.rpartition(':')[2]))}")
                for spec in deployment.nodes
            ]
        ),
        broker=structs.replace(deployment.broker, servers=(f"nats://127.0.0.1:{await network.to(server.port)}",)),
    )
    try:
        async with unisono.connect(deployment) as here, unisono.connect(beyond) as there:
            yield here, there, network
    finally:
        await network.stop()
        for node in reversed(running):
            await node.stop()
        server.kill()


async def publish(session: Session, first: int, count: int) -> int:
    for number in range(first, first + count):
        outcome = await session.publish("ab"[number % 2], number)
        assert isinstance(outcome, unisono.Accepted)
    return first + count


async def read_upto(stream: Stream, last: dict[str, int]) -> list[Notification]:
    """Everything up to these numbers, be it an event or in a gap."""
    found: list[Notification] = []
    at: dict[str, int] = {}
    async for event in stream:
        if event.stalled is None:
            found.append(event)
            at[event.topic] = event.number
        if all(at.get(topic, 0) >= number for topic, number in last.items()):
            break
    return found


async def away_and_back(base: Path, keeper: Keeper, away_s: float) -> None:
    reliability: Literal["best-effort", "reliable"] = "best-effort" if keeper == "nobody" else "reliable"
    async with (
        asyncio.timeout(240 + away_s),
        world(base, keeper) as (here, there, network),
        here.subscribe("a", "b") as other,
        there.subscribe("a", "b", reliability=reliability) as stream,
    ):
        count = await publish(here, 0, 20)
        found = await take(stream, 20)
        network.fail()
        until = asyncio.get_running_loop().time() + away_s
        count = await publish(here, count, EVENTS)
        while asyncio.get_running_loop().time() < until:
            count = await publish(here, count, 2)
            await asyncio.sleep(0.05)
        network.come_back()
        count = await publish(here, count, 20)
        last = {"a": (count + 1) // 2, "b": count // 2}
        found += await read_upto(stream, last)
        check(found, await read_upto(other, last), keeper)


def check(found: list[Notification], others: list[Notification], keeper: Keeper) -> None:
    """What it was told is what somebody was told who was there all the time, or a gap says what is missing."""
    at: dict[str, int] = {}
    for event in found:  # each number once, as an event or in a gap
        assert (event.gap.first if event.gap is not None else event.number) == at.get(event.topic, 0) + 1
        at[event.topic] = event.number
    told = [event.id for event in found if event.gap is None]
    missed = sum(event.gap.last - event.gap.first + 1 for event in found if event.gap is not None)
    if keeper == "nobody":
        assert told == [event.id for event in others if event.id in dict.fromkeys(told)]
        assert missed >= EVENTS
    else:
        assert told == [event.id for event in others]
        assert missed == 0


@pytest.mark.parametrize("keeper", ["broker", "archive", "nobody"])
def test_a_subscriber_that_was_offline(tmp_path: Path, keeper: Keeper) -> None:
    asyncio.run(away_and_back(tmp_path, keeper, 0.0))


@pytest.mark.campaign
@pytest.mark.parametrize("keeper", ["broker", "archive", "nobody"])
def test_a_subscriber_that_was_offline_for_a_minute(tmp_path: Path, keeper: Keeper) -> None:
    asyncio.run(away_and_back(tmp_path, keeper, 60.0))
