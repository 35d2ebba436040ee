"""What a session may rearrange between two turns of its loop, and what it may not."""

import asyncio
from contextlib import AsyncExitStack
from typing import Literal

import pytest

import unisono
from tests.runtime.test_session import take
from unisono.model.deployment import Deployment
from unisono.model.settings import BrokerSpec, NodeSpec, Sequencing
from unisono.protocols.sequencer.messages import Creates
from unisono.runtime.client.sequenced import SequencedSession
from unisono.runtime.client.session import SessionConfig
from unisono.runtime.node.node import IN_PROCESS, Node

EVENTS = 20


@pytest.mark.parametrize("order", ["pairwise", "causal"])
def test_events_of_one_turn_are_joined_per_topic_unless_order_is_causal(order: Literal["pairwise", "causal"]) -> None:
    async def run() -> tuple[list[object], int]:
        deployment = Deployment(
            1,
            f"publishing-{order}",
            nodes=(NodeSpec("memory", listen=IN_PROCESS),),
            broker=BrokerSpec("memory"),
            sequencing=Sequencing(order=order),
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(asyncio.timeout(120))
            node = await stack.enter_async_context(Node(deployment, "memory"))
            session = SequencedSession(deployment, node.base, "", SessionConfig(), node.links)
            await session.open()
            stack.push_async_callback(session.close)
            stream = await stack.enter_async_context(session.subscribe("a", "b"))
            publishers = [await session.publisher(topic) for topic in ("a", "b")]
            requests = count_requests(node)
            for number in range(EVENTS):
                await publishers[number % 2].send(number)
            return [event.data for event in await take(stream, EVENTS)], len(requests)

    heard, requests = asyncio.run(run())
    if order == "causal":
        assert heard == list(range(EVENTS))
    else:  # whatever the order between the topics, each topic has its own
        assert [n for n in heard if isinstance(n, int) and n % 2] == list(range(1, EVENTS, 2))
        assert [n for n in heard if isinstance(n, int) and not n % 2] == list(range(0, EVENTS, 2))
        assert requests == 2


def test_large_payloads_fill_the_window_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.runtime.client.publishing.publications.WINDOW_BYTES_MAX", 1000)

    async def run() -> None:
        async with asyncio.timeout(60), unisono.connect("memory://") as session, session.subscribe("a") as stream:
            publisher = await session.publisher("a")
            assert [publisher.try_send(bytes(400)) for _ in range(4)] == [True, True, True, False]
            await publisher.send(b"after the first three")
            assert publisher.accepted == 3
            await publisher.send_all([bytes(400)] * 20)
            assert publisher.accepted >= 16, "what is in flight has at most 1000 bytes, and the one that fills them up"
            await publisher.drain()
            assert (publisher.accepted, publisher.failures) == (24, [])
            assert publisher.try_send(bytes(5000)), "whatever its size, one may be in flight"
            assert not publisher.try_send(b"")
            assert len(await take(stream, 25)) == 25

    asyncio.run(run())


def count_requests(node: Node) -> list[int]:
    """Grows by every run of requests that reaches the node."""
    found: list[int] = []
    assert node.host is not None
    pass_on = node.host.post

    def post(message: object) -> None:
        if isinstance(message, Creates):
            found.extend(item.count for item in message.items)
        pass_on(message)

    node.host.post = post  # type: ignore[method-assign]
    return found
