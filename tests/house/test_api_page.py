"""The parts of programs on the page of the API run, in its order, on a session in memory."""

import ast
import asyncio
import inspect
import types
from typing import Any

import unisono
from tests.house.test_blocks import API, Block, of
from unisono.runtime.client.subscription.request import subscribe_request

WHERE = ("unisono://127.0.0.1:7474", "memory://page")


class DoneError(Exception):
    """What the page would do for ever has been done."""


def parts() -> list[Block]:
    return [block for block in of("python") if block.page == API and block.reason is None]


async def run(text: str, names: dict[str, Any]) -> None:
    code = compile(text.replace(*WHERE), str(API), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    waits = code.co_flags & inspect.CO_COROUTINE
    made = types.FunctionType(code, names)()
    if waits:
        await made


def test_every_part_of_a_program_on_the_page_runs() -> None:
    handled: list[Any] = []

    def handle(topic: str, data: Any) -> None:
        handled.append((topic, data))
        raise DoneError

    async def publish(session: unisono.Session) -> None:
        while True:
            await session.publish("trades", {"px": 1})
            await asyncio.sleep(0.01)

    async def all_of_them() -> None:
        async with unisono.connect(WHERE[1]) as session:
            publishing = asyncio.ensure_future(publish(session))
            for block in parts():
                names = {"unisono": unisono, "session": session, "handle": handle, "trades": [{"px": 1}, {"px": 2}]}
                try:
                    await run(block.text, names)
                except DoneError:
                    continue
            publishing.cancel()

    assert len(parts()) == 5
    asyncio.run(asyncio.wait_for(all_of_them(), 60))
    assert handled == [("trades", {"px": 1})]


def options_of(function: Any) -> dict[str, tuple[Any, Any]]:
    """Its arguments with types and defaults, without the first of a method."""
    found = inspect.signature(function).parameters.values()
    return {each.name: (each.annotation, each.default) for each in found if each.name != "self"}


def test_what_people_call_has_the_options_of_what_checks_them() -> None:
    """Written twice, so that `help()` shows them where people look."""
    assert options_of(unisono.Session.subscribe) == options_of(subscribe_request)
    assert options_of(unisono.connect_sync) == options_of(unisono.connect)
