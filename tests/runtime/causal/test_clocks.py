"""Real sessions whose machine has a wrong clock: they are told, and nobody else has to suffer for it."""

import asyncio
import time
from typing import Any

import pytest

import unisono
from tests.runtime.causal.test_causal import mesh, role, running
from tests.runtime.overlay.test_overlay import url

SLOW_NS = 2_000_000_000
PATIENCE_S = 30.0


def off_by(nanoseconds: int, patch: pytest.MonkeyPatch) -> None:
    """From now on: clocks of before are led by the monotonic one, and hardly notice."""
    right = time.time_ns
    patch.setattr(time, "time_ns", lambda: right() + nanoseconds)


@pytest.mark.parametrize(("nanoseconds", "words"), [(-SLOW_NS, "ms slow"), (SLOW_NS, "ms fast")])
def test_a_subscriber_with_a_wrong_clock_is_told_and_stops_nobody(
    nanoseconds: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        deployment = mesh("eu", "eu")  # each of them hears the other, and the one that is wrong
        async with running(deployment) as nodes, unisono.connect(url(deployment, "eu-0")) as right:
            off_by(nanoseconds, monkeypatch)
            async with (
                unisono.connect(url(deployment, "eu-1")) as wrong,
                wrong.subscribe("news", order="causal") as stream,
            ):
                monkeypatch.undo()
                told = asyncio.create_task(reason_of(stream, words))
                async with asyncio.timeout(PATIENCE_S):
                    while not told.done():
                        assert isinstance(await right.publish("news", "x"), unisono.Accepted)
                assert "does not come" in await told
                refused = await wrong.publish("news", "x")
                assert isinstance(refused, unisono.Refused)
                assert words in refused.reason
                for _ in range(20):  # a tick each: as long as it took to find out
                    assert isinstance(await right.publish("news", "x"), unisono.Accepted)
            assert [role(node).why_idle for node in nodes.values()] == [None, None]

    asyncio.run(run())


async def reason_of(stream: unisono.Stream, words: str) -> str:
    """Of the first gap that says so."""
    async for event in stream:
        if event.gap is not None and words in str(event.gap.reason):
            return str(event.gap.reason)
    raise AssertionError("the stream has ended")


def test_whoever_only_publishes_with_a_slow_clock_is_asked_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        deployment = mesh("eu")
        async with running(deployment):
            off_by(-SLOW_NS, monkeypatch)
            async with unisono.connect(url(deployment, "eu-0")) as wrong:
                outcome: Any = await wrong.publish("news", 1)
                assert isinstance(outcome, unisono.Refused)
                assert "is the clock of this client right?" in outcome.reason

    asyncio.run(run())
