"""Wrong calls are told as such: a MisuseError names the argument and how to write it."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import unisono
from unisono import MisuseError, Session, TransportError


def endless() -> list[Any]:
    each: list[Any] = []
    each.append(each)
    return each


async def send_all(session: Session, batch: Any) -> None:
    await (await session.publisher("a")).send_all(batch)


WRONG: dict[str, Callable[[Any], Any]] = {
    "a topic is text": lambda s: s.subscribe(["a", "b"]),
    "a topic is": lambda s: s.subscribe(5),
    "deadline is text": lambda s: s.subscribe("a", deadline=500),
    "500 is": lambda s: s.subscribe("a", deadline=500),
    "order is one of": lambda s: s.subscribe("a", order="best"),
    "buffer is a number": lambda s: s.subscribe("a", buffer="many"),
    "True is of the type bool": lambda s: s.subscribe("a", buffer=True),
    "buffer=0": lambda s: s.subscribe("a", buffer=0),
    "'0ms' leaves no time": lambda s: s.subscribe("a", deadline="0ms"),
    "'99999999h' is longer than a hundred years": lambda s: s.subscribe("a", deadline="99999999h"),
    "999 is longer than a hundred": lambda s: s.publish("a", 1, deadline="9" * 400 + "h"),
    "one of fifo, causal, total, realtime": lambda s: s.subscribe("a", order="none"),
    "name is text": lambda s: s.subscribe("a", name=5),
    "group is text": lambda s: s.subscribe("a", group=b"g"),
    "where is the text": lambda s: s.subscribe("a", where=5),
    "start is": lambda s: s.subscribe("a", start=None),
    "reliability is one of": lambda s: s.subscribe("a", reliability="yes"),
    "type=5": lambda s: s.subscribe("a", type=5),
    "latest_only is": lambda s: s.subscribe("a", latest_only="yes"),
    "a topic's name": lambda s: s.publish(["a"], 1),
    "'>' is not a word": lambda s: s.publish("a.>", 1),
    r"'\*' is not a word": lambda s: s.publisher("a.*"),
    "'0s' would be over at once": lambda s: s.publish("a", 1, deadline="0s"),
    "attributes is a dict": lambda s: s.publish("a", 1, "key=1"),
    "publisher: the first": lambda s: s.publisher(5),
    "maximum recursion depth": lambda s: s.publish("a", endless()),
    "several events, like a list; None is": lambda s: send_all(s, None),
    "several events, like a list; 'IBM' is": lambda s: send_all(s, "IBM"),
    "a node's name": lambda s: s.status(5),
    "no node 'nobody'": lambda s: s.status("nobody"),
}


ON_OPEN: dict[str, Callable[[Any, Any], Any]] = {
    "attributes is a dict .* 5 is": lambda p, _: p.send(1, 5),
    "attributes is a dict .* 'a=1' is": lambda p, _: p.try_send(1, "a=1"),
    "a position is text": lambda _, stream: stream.commit(None),
    "subscribe: a topic is": lambda _, stream: stream.subscribe(5),
    "1 to 200 characters": lambda _, stream: stream.subscribe(""),
    "unsubscribe: a topic is": lambda _, stream: stream.unsubscribe(["a"]),
    "batches: the argument is a number": lambda _, stream: anext(stream.batches("9")),
    "batches: the argument is 0": lambda _, stream: anext(stream.batches(0)),
}


@pytest.mark.parametrize("problem", ON_OPEN)
def test_a_wrong_type_to_a_publisher_or_a_stream_names_its_argument(problem: str) -> None:
    async def run() -> None:
        async with unisono.connect("memory://") as session, session.subscribe("a") as stream:
            answer = ON_OPEN[problem](await session.publisher("a"), stream)
            if isinstance(answer, Awaitable):
                await answer

    with pytest.raises(MisuseError, match=problem):
        asyncio.run(run())


def test_a_publisher_of_a_closed_session_says_so_and_loses_nothing_in_silence() -> None:
    async def run() -> None:
        async with unisono.connect("memory://") as session:
            publisher = await session.publisher("a")
        for use in (publisher.send(1), publisher.send_all([1]), session.status("memory")):
            with pytest.raises(MisuseError, match="the session is closed"):
                await use
        with pytest.raises(MisuseError, match="the session is closed"):
            publisher.try_send(1)
        await publisher.drain()
        assert (publisher.accepted, publisher.refused, publisher.unknown) == (0, 0, 0)

    asyncio.run(run())


def test_a_handler_with_an_option_that_there_is_not_is_told_what_was_meant() -> None:
    with pytest.raises(MisuseError, match="dedline= is no option of subscribe: did you mean deadline"):
        unisono.App("memory://").on("a", dedline="1s")


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
        ({"where": "memory://", "state": "a\0b"}, "state is a path; .* has a character that no path has"),
        ({"where": "a\0b"}, "first argument is a path"),
        ({"where": ""}, "the address is empty"),
        ({"where": "memory://", "timeout": 0}, "timeout=0"),
        ({"where": "memory://", "timeout": float("nan")}, "timeout=nan"),
        ({"where": "memory://", "journal": __file__}, f"journal: no file can be written to the directory {__file__}"),
        ({"where": "unisono://[::1:7474"}, r"write an IPv6 address as \[::1\]:7474"),
        ({"where": "nats://[::1:4222"}, r"write an IPv6 address as \[::1\]:7474"),
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

    async def next_one() -> None:
        async with unisono.connect("memory://") as session:
            await anext(session.subscribe("a"))

    for using in (connected(), next_one()):
        with pytest.raises(MisuseError, match="was not entered: use 'async with"):
            asyncio.run(using)
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


def test_a_filter_that_is_no_text_changes_nothing() -> None:
    async def connected() -> None:
        async with unisono.connect("memory://") as session, session.subscribe("a") as stream:
            with pytest.raises(MisuseError, match="where is the text"):
                await stream.update(where=5)  # type: ignore[arg-type]
            await session.publish("a", 1)
            assert (await anext(stream)).data == 1, "it goes on"

    asyncio.run(connected())


def test_testing_comes_with_the_package() -> None:
    assert unisono.testing.deployment.__doc__


def test_a_session_that_was_not_entered_says_so() -> None:
    opening: Any = unisono.connect("memory://")
    with pytest.raises(MisuseError, match="not connected yet, so there is no publish: use 'async with"):
        opening.publish("a", 1)
    assert not hasattr(opening, "_repr_html_")  # what notebooks ask of everything

    async def awaited() -> None:
        await opening

    with pytest.raises(MisuseError, match=r"use 'async with unisono\.connect"):
        asyncio.run(awaited())


def test_a_closed_session_is_not_entered_again() -> None:
    async def run() -> None:
        async with unisono.connect("memory://") as session:
            pass
        async with session:
            pass

    with pytest.raises(MisuseError, match="the session is closed"):
        asyncio.run(run())


@pytest.mark.parametrize("use", ["publish", "publisher", "subscribe"])
def test_a_session_of_another_event_loop_is_refused_and_not_waited_for(use: str) -> None:
    async def elsewhere(session: Session) -> None:
        if use == "publish":
            await session.publish("a", 1)
        elif use == "publisher":
            await session.publisher("a")
        else:
            await session.subscribe("a").__aenter__()

    async def run() -> None:
        async with unisono.connect("memory://") as session:
            await asyncio.to_thread(lambda: asyncio.run(elsewhere(session)))

    with pytest.raises(MisuseError, match="was opened in another event loop"):
        asyncio.run(run())


def test_a_stream_has_one_reader_at_a_time() -> None:
    async def run() -> None:
        async with unisono.connect("memory://") as session, session.subscribe("a") as stream:
            first = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            with pytest.raises(MisuseError, match="somebody reads this stream already"):
                await anext(stream)
            await session.publish("a", 1)
            assert (await first).data == 1
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.01)  # who has given up reads no more
            await session.publish("a", 2)
            assert (await anext(stream)).data == 2

    asyncio.run(run())


def test_a_name_without_a_place_for_its_position_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def subscribe(state: Path | None) -> None:
        async with unisono.connect("memory://", state=state) as session:
            session.subscribe("a", name="mine")

    with pytest.raises(MisuseError, match=r"name='mine' keeps its position in a directory"):
        asyncio.run(subscribe(None))
    with pytest.raises(MisuseError, match=r"state: no file can be written to the directory .*file/in: Not a directory"):
        asyncio.run(subscribe(tmp_path / "file" / "in"))
    (tmp_path / "mine.position").write_bytes(b"\xff")
    with pytest.raises(MisuseError, match=r"mine\.position cannot be read: not a text file"):
        asyncio.run(subscribe(tmp_path))


def test_a_position_that_cannot_be_kept_is_the_fault_of_the_disk(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            unisono.connect("memory://", state=tmp_path) as session,
            session.subscribe("a", name="mine") as stream,
        ):
            await session.publish("a", 1)
            event = await anext(stream)
            (tmp_path / "mine.tmp").mkdir()  # where it would be written
            with pytest.raises(TransportError, match="the position of 'mine' is not kept"):
                await stream.commit(event.position)

    asyncio.run(run())


def test_a_running_subscription_takes_names_and_says_so() -> None:
    async def run() -> None:
        async with unisono.connect("memory://") as session, session.subscribe("a") as stream:
            await stream.subscribe("b.*")

    with pytest.raises(MisuseError, match=r"'b\.\*': a running subscription takes names"):
        asyncio.run(run())


def test_whatever_is_told_can_be_printed() -> None:
    async def run() -> None:
        async with (
            unisono.connect("memory://") as session,
            session.subscribe("a", buffer=1, type=int) as stream,
        ):
            await session.publish("a", 1)
            assert repr(await anext(stream)) == "Notification(a 1: 1)"
            await session.publish("a", "no number")
            assert repr(await anext(stream)) == """Notification(a 2: b'"no number"')"""
            for number in range(4):
                await session.publish("a", number)
            assert re.fullmatch(
                r"Notification\(a, 3 to \d will not come: the subscriber was too slow\)", repr(await anext(stream))
            )

    asyncio.run(run())
