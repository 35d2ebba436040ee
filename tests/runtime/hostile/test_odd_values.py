"""Values that no wire carries or no filter reads: their publisher is told at once, whatever carries events."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import unisono
from tests.runtime.hostile.test_any_message import PLACES
from tests.runtime.hostile.world import HUB, Target
from tests.runtime.test_cluster import FAST
from unisono.model.ids import Address
from unisono.runtime.links import control
from unisono.runtime.links.connection import Connection
from unisono.runtime.links.frames import Codec, Hello
from unisono.runtime.node.node import Node

ATTRIBUTES: tuple[dict[str, Any], ...] = (
    {"px": float("nan")},
    {"px": 2**70},
    {"px": -(2**63) - 1},
    {"px": [1]},
    {"px": None},
    {"px": "\ud800"},
)
DATA: tuple[Any, ...] = ({"px": 2**70}, {"px": -(2**63) - 1}, {"px": float("nan")}, {"px": "\ud800"}, b"x" * (9 << 20))


async def outcome(session: unisono.Session, data: Any, attributes: dict[str, Any] | None = None) -> type:
    try:
        return type(await session.publish("trades", data, attributes))
    except unisono.MisuseError:
        return unisono.MisuseError


@pytest.mark.parametrize("place", PLACES)
def test_a_value_that_cannot_travel_is_told_its_publisher_and_costs_nobody_else(tmp_path: Path, place: str) -> None:
    async def run() -> None:
        order, make = PLACES[place]
        running = make()
        async with (
            asyncio.timeout(60),
            Node(running, HUB, tmp_path, FAST) as node,
            unisono.connect(Target(running, node).url) as session,
            session.subscribe("trades", order=order, where="px = 7") as stream,
        ):
            for attributes in ATTRIBUTES:
                assert await outcome(session, 1, attributes) in (unisono.MisuseError, unisono.Refused), attributes
            told = [await outcome(session, data) for data in DATA]
            assert unisono.Unknown not in told
            assert isinstance(await session.publish("trades", {"px": 7}), unisono.Accepted)
            heard = await anext(stream)
            assert (heard.data, heard.gap) == ({"px": 7}, None)
            assert not any(node.refusals.counts.values()), "nobody was cut off for it"
            assert node.failure is None

    asyncio.run(run())


def test_a_letter_that_has_no_form_on_the_wire_ends_its_connection_with_the_reason() -> None:
    """Not the callback in which it was to be sent, with everything beside it."""

    async def run() -> None:
        closed: list[Exception | None] = []
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        place = server.sockets[0].getsockname()
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(
                Codec(control.Letters),
                Hello("client", (Address("c"),)),
                True,
                lambda *_: None,
                lambda *_: None,
                lambda _, error: closed.append(error),
            ),
            *place,
        )
        assert connection._pack([control.AskReport(2**70)]) == b""  # type: ignore[list-item, arg-type]
        async with asyncio.timeout(10):
            while not closed:
                await asyncio.sleep(0)
        assert isinstance(closed[0], unisono.TransportError)
        assert "no form on the wire" in str(closed[0])
        server.close()

    asyncio.run(run())
