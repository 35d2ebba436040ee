"""A broker on its host: what was meant for a connection never goes out on the next one of the same party."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.runtime.overlay.test_overlay import chain
from unisono.model.ids import Address
from unisono.model.predicate import parse
from unisono.protocols.overlay.messages import Active, Sub
from unisono.runtime.links.frames import Codec, Hello
from unisono.runtime.links.links import Links
from unisono.runtime.node.content.overlay import OverlayRole
from unisono.turns import TurnBounds

C = Address("c7")


class Ears:
    """A party in this process."""

    is_full = False

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def post(self, message: Any) -> None:
        self.heard.append(message)

    def when_roomy(self, callback: Any) -> None:
        raise AssertionError("it is never full")


@asynccontextmanager
async def a_role() -> AsyncGenerator[tuple[OverlayRole, Ears], None]:
    deployment = chain(1)
    links = Links(
        Hello("node", (Address("b0"),)), Codec(Sub), lambda _: None, lambda _: None, lambda _: None, lambda *_: None
    )
    failures: list[Exception] = []
    role = OverlayRole(deployment, deployment.nodes[0], links, TurnBounds(), lambda reason: None, failures.append)
    ears = Ears()
    links.attach(C, ears)
    await role.host.start()
    yield role, ears
    await role.host.stop()
    assert failures == []


def test_what_was_meant_for_an_older_connection_of_a_client_is_dropped() -> None:
    """It subscribes, loses its connection and subscribes anew, all before the broker takes its turn."""

    async def run() -> None:
        async with a_role() as (role, ears):
            role.post(Sub(C, "c7/old", C, parse("x > 1")))
            role.down(C)
            role.post(Sub(C, "c7/new", C, parse("x > 2")))
            await role.host.settle()
            assert [message.sub for message in ears.heard if isinstance(message, Active)] == ["c7/new"]

    asyncio.run(run())


def test_all_of_a_party_that_speaks_in_its_own_name_too_is_gone_with_its_connection() -> None:
    async def run() -> None:
        async with a_role() as (role, _):
            for address in (C, Address("c7/1"), Address("c7/2")):
                role.post(Sub(address, f"{address}/s", address, parse("true")))
            await role.host.settle()
            assert (role.broker.subscriptions, role.counters.clients, role.counters.links) == (3, 3, 0)
            role.down(C)
            await role.host.settle()
            assert (role.broker.subscriptions, role.counters.clients, role.counters.links) == (0, 0, 0)

    asyncio.run(run())
