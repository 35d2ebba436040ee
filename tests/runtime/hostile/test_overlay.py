"""Attacks on a broker of an overlay: each refused with its code, and an honest client is served."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.hostile.world import HUB, ME, attacker, target
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.limits import REASONS
from unisono.model.predicate import EVERY_EVENT, NO_EVENT, Box, Filter, Values, parse
from unisono.model.predicate.values import point
from unisono.protocols.overlay.messages import Adv, Pub, Sub, Unsub

TANGLED = Filter(tuple(Box(tuple((f"a{k}", point(i * k)) for k in range(10))) for i in range(1, 30)))
WIDE = Filter((Box(tuple((f"a{k:04}", point(k)) for k in range(3_200))),))
CROOKED = Filter((Box((("a", Values(numbers=((5, 0), (1, 0)))),)),))


def sub(number: int, filter: Filter = EVERY_EVENT, **fields: Any) -> Sub:
    return Sub(ME, f"{ME}/{number}", ME, filter, **fields)


def event(sequence: int, publisher: str = ME, **attributes: Any) -> Event:
    return Event(publisher, sequence, "trades", b"1", attributes)


ADVERTISED = Adv(ME, f"{ME}/ad", ME, parse("a = 1"))
ATTACKS: dict[str, tuple[str, Sequence[object]]] = {
    "a filter that takes too many steps to compare": ("filter-cost", [sub(1, TANGLED)]),
    "a filter of 3200 sides": ("filter-cost", [sub(1, WIDE)]),
    "an advertisement of 3200 sides": ("filter-cost", [Adv(ME, f"{ME}/ad", ME, WIDE)]),
    "a filter that is not one": ("filter", [sub(1, CROOKED)]),
    "a filter that nothing matches": ("filter", [sub(1, NO_EVENT)]),
    "a subscription with somebody else's name": ("forged", [Sub(ME, "victim/1", ME, EVERY_EVENT)]),
    "a subscription for somebody else": ("forged", [Sub(ME, f"{ME}/1", "victim", EVERY_EVENT)]),
    "a subscription from somebody else": ("forged", [Sub(Address("victim"), "victim/1", "victim", EVERY_EVENT)]),
    "a message from the broker itself": ("forged", [Unsub(HUB, "victim/1")]),
    "an event of somebody else": ("forged", [ADVERTISED, Pub(ME, event(1, "victim"))]),
    "an event that was not advertised": ("advertisement", [ADVERTISED, Pub(ME, event(1, a=2))]),
    "an event twice": ("range", [ADVERTISED, Pub(ME, event(1, a=1)), Pub(ME, event(1, a=1))]),
    "an event before the first": ("range", [ADVERTISED, Pub(ME, event(0, a=1))]),
    "a turn below zero": ("range", [sub(1, turn=-1)]),
    "a sequence at the end of 64 bits": ("range", [Pub(ME, event(2**64 - 1))]),
    "subscriptions without end": ("subscriptions", [sub(i, parse(f"a = {i}")) for i in range(1_100)]),
    "streams without end": (
        "subscriptions",
        [Sub(Address(f"{ME}/{i}"), f"{ME}/{i}", f"{ME}/{i}", EVERY_EVENT) for i in range(100)],
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_on_an_overlay_is_refused_with_its_code_and_it_serves(tmp_path: Path, name: str) -> None:
    code, messages = ATTACKS[name]
    assert code in REASONS

    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path, overlay=True) as node:
            before = await node.refused(code)
            async with attacker(node.place) as one:
                await one.enter()
                await one.say(*messages)
                assert await one.is_told(code)
            assert await node.refused(code) > before
            await node.serves()

    asyncio.run(run())
