"""Whoever asks for more than `[limits]` allow is told so at once, by the code that the page of limits explains."""

import asyncio
from pathlib import Path

import pytest

import unisono
from tests.runtime.test_cluster import FAST
from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.model.limits import Limits
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports

MOST = 10
LONG_S = 60.0
"""Nobody waits for so long who is told."""


def alone(**limits: int) -> Deployment:
    (port,) = free_ports(1)
    spec = NodeSpec("hub", listen=f"127.0.0.1:{port}", roles=("sequencer", "broker"))
    return Deployment(1, "alone", nodes=(spec,), broker=BrokerSpec("embedded"), limits=Limits(**limits))


async def created(deployment: Deployment, who: str) -> list[str]:
    """As many topics as one client may create."""
    names = [f"{who}{number}" for number in range(MOST)]
    async with unisono.connect(deployment, timeout=LONG_S) as session:
        for name in names:
            assert isinstance(await session.publish(name, 0), unisono.Accepted)
    return names


def test_who_asks_the_broker_for_more_topics_than_it_allows_is_told_so_and_hears_what_it_heard(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = alone(client_topics_max=MOST)
        async with asyncio.timeout(LONG_S / 2), Node(deployment, "hub", tmp_path, FAST):
            first, second = await created(deployment, "a"), await created(deployment, "b")
            async with (
                unisono.connect(deployment, timeout=LONG_S) as session,
                session.subscribe(*first[:-1]) as heard,
            ):
                with pytest.raises(MisuseError, match=r"10 topics are the most .*\(topics\)"):
                    await session.subscribe(*second).__aenter__()
                async with session.subscribe(second[0]) as again:  # there is room for this one
                    for name in (first[0], second[0]):
                        assert isinstance(await session.publish(name, 1), unisono.Accepted)
                    assert [(await stream.__anext__()).data for stream in (heard, again)] == [1, 1]

    asyncio.run(run())


def test_who_may_create_no_more_topics_is_told_so(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = alone(client_topics_max=MOST)
        async with (
            asyncio.timeout(LONG_S / 2),
            Node(deployment, "hub", tmp_path, FAST),
            unisono.connect(deployment, timeout=LONG_S) as session,
        ):
            with pytest.raises(MisuseError, match=r"has had 10 topics created here, .*\(topics\)"):
                await session.subscribe(*(f"t{number}" for number in range(2 * MOST))).__aenter__()

    asyncio.run(run())


def test_who_has_as_many_streams_as_it_may_is_told_so_when_it_subscribes_and_when_it_publishes(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = alone(client_subscriptions_max=3)  # two streams, and who asks for their topics
        async with (
            asyncio.timeout(LONG_S / 2),
            Node(deployment, "hub", tmp_path, FAST),
            unisono.connect(deployment, timeout=LONG_S) as session,
            session.subscribe("t"),
            session.subscribe("t", "u"),
        ):
            with pytest.raises(MisuseError, match=r"which is the most \(subscriptions\)"):
                await session.subscribe("t", "u").__aenter__()
            outcome = await session.publish("t", 1)
            assert isinstance(outcome, unisono.Unknown)
            assert outcome.reason.endswith("which is the most (subscriptions)")

    asyncio.run(run())
