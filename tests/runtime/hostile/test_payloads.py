"""A client that publishes payloads at the broker and never asks for their numbers."""

import asyncio
from pathlib import Path

import msgspec

import unisono
from tests.runtime.hostile.world import attacker, broker_frame, broker_place, target
from unisono.model.limits import Limits
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.runtime.brokers.embedded import server as wire

ROW = 1_000
ROOM = SequencerConfig().buffer_max


def payloads(first: int) -> bytes:
    """Of somebody who goes on where he stopped."""
    items = [(b"x", "mallory", first + at, None) for at in range(ROW)]
    return broker_frame(wire.ItemGroup("trades", False, ROW, msgspec.Raw(msgspec.msgpack.encode(items))))


def test_payloads_that_nobody_numbers_cost_a_subscriber_none_of_the_others(tmp_path: Path) -> None:
    """More than a subscription has room for, and then an honest client publishes."""

    async def run() -> None:
        async with (
            asyncio.timeout(60),
            target(tmp_path, Limits()) as node,
            unisono.connect(node.url) as session,
            session.subscribe("trades") as stream,
            attacker(broker_place(node)) as one,
        ):
            await one.send(broker_frame(wire.Greet("mallory")))
            for first in range(1, ROOM + 20 * ROW, ROW):
                await one.send(payloads(first))
            await one.send(broker_frame(wire.Ping()))
            while b"pong" not in (await one.body() or b"pong"):
                pass
            for number in range(200):
                assert isinstance(await session.publish("trades", number), unisono.Accepted)
            heard = [await anext(stream) for _ in range(200)]
            assert [event.data for event in heard] == [*range(200)], [event.gap for event in heard if event.gap]

    asyncio.run(run())
