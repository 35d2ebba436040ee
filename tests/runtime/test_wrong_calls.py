"""Wrong calls are told as such: a MisuseError names the argument and how to write it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import unisono
from unisono import MisuseError, Session

WRONG: dict[str, Callable[[Any], Any]] = {
    "a topic is text": lambda s: s.subscribe(["a", "b"]),
    "a topic is": lambda s: s.subscribe(5),
    "deadline is text": lambda s: s.subscribe("a", deadline=500),
    "500 is": lambda s: s.subscribe("a", deadline=500),
    "order is one of": lambda s: s.subscribe("a", order="best"),
    "buffer is a number": lambda s: s.subscribe("a", buffer="many"),
    "True is of the type bool": lambda s: s.subscribe("a", buffer=True),
    "buffer=0": lambda s: s.subscribe("a", buffer=0),
    "name is text": lambda s: s.subscribe("a", name=5),
    "group is text": lambda s: s.subscribe("a", group=b"g"),
    "where is the text": lambda s: s.subscribe("a", where=5),
    "start is": lambda s: s.subscribe("a", start=None),
    "reliability is one of": lambda s: s.subscribe("a", reliability="yes"),
    "type=5": lambda s: s.subscribe("a", type=5),
    "latest_only is": lambda s: s.subscribe("a", latest_only="yes"),
    "a topic's name": lambda s: s.publish(["a"], 1),
    "attributes is a dict": lambda s: s.publish("a", 1, "key=1"),
    "publisher: the first": lambda s: s.publisher(5),
    "a node's name": lambda s: s.status(5),
}


@pytest.mark.parametrize("problem", WRONG)
def test_a_wrong_type_names_its_argument(problem: str) -> None:
    async def run() -> None:
        async with unisono.connect("memory://") as session:
            answer = WRONG[problem](session)
            if isinstance(answer, Awaitable):
                await answer

    with pytest.raises(MisuseError, match=problem):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"where": 5}, "first argument is an address"),
        ({"where": "memory://", "token": 5}, "token is text"),
        ({"where": "memory://", "timeout": "10"}, "timeout is a number"),
        ({"where": "memory://", "journal": 5}, "journal is a path"),
        ({"where": "memory://", "region": 5}, "region is"),
        ({"where": ""}, "the address is empty"),
        ({"where": "memory://", "timeout": 0}, "timeout=0"),
        ({"where": "memory://", "timeout": float("nan")}, "timeout=nan"),
        ({"where": "memory://", "journal": __file__}, f"journal: no file can be written to the directory {__file__}"),
    ],
)
def test_a_wrong_way_to_connect_names_its_argument(options: dict[str, Any], problem: str) -> None:
    async def run() -> None:
        async with unisono.connect(**options):
            pass

    with pytest.raises(MisuseError, match=problem):
        asyncio.run(run())


def test_a_stream_that_was_not_entered_says_so() -> None:
    async def run(session: Session) -> None:
        async for _ in session.subscribe("a"):
            pass

    async def connected() -> None:
        async with unisono.connect("memory://") as session:
            await run(session)

    with pytest.raises(MisuseError, match="was not entered: use 'async with"):
        asyncio.run(connected())
    with unisono.connect_sync("memory://") as session, pytest.raises(MisuseError, match="was not entered: use 'with"):
        next(iter(session.subscribe("a")))


def test_a_stream_is_entered_once() -> None:
    async def connected() -> None:
        async with unisono.connect("memory://") as session, session.subscribe("a") as stream:
            with pytest.raises(MisuseError, match="is entered once"):
                async with stream:
                    pass
            await session.publish("a", 1)
            assert (await anext(stream)).data == 1, "it goes on"

    asyncio.run(connected())


def test_testing_comes_with_the_package() -> None:
    assert unisono.testing.deployment.__doc__
