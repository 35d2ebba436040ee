"""Handlers people trust: they are tried again, in order, and what fails to the end is a dead letter or a clear end."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unisono
from tests.runtime.test_session import take
from unisono import MisuseError, Notification, Session
from unisono.runtime.tools.ports import free_ports


async def ready(session: Session, streams: int) -> None:
    """Returns when as many subscriptions are in force."""
    while sum(bool(stream.bases) for stream in session._open_streams()) < streams:
        await asyncio.sleep(0.002)


def serve(app: unisono.App, play: Callable[[Session, asyncio.Event], Any]) -> None:
    """Runs the app on a session in memory, and `play` beside it; it sets the event to stop."""

    async def run() -> None:
        stop = asyncio.Event()
        async with asyncio.timeout(120), unisono.connect("memory://handlers") as session:
            serving = asyncio.ensure_future(app.serve(stop, session))
            playing = asyncio.ensure_future(play(session, stop))
            await asyncio.wait((serving, playing), return_when=asyncio.FIRST_EXCEPTION)
            playing.cancel()
            await serving
            await playing

    asyncio.run(run())


def test_a_handler_that_raises_is_tried_again_and_later_events_wait() -> None:
    app, tried = unisono.App("memory://handlers"), []

    @app.on("a", retries=3, backoff="1ms")
    async def stumble(event: Notification) -> None:
        tried.append(event.data)
        if event.data == 2 and tried.count(2) < 3:
            raise ValueError("not yet")

    async def play(session: Session, stop: asyncio.Event) -> None:
        await ready(session, 1)
        for number in (1, 2, 3):
            await session.publish("a", number)
        while 3 not in tried:
            await asyncio.sleep(0.002)
        stop.set()

    serve(app, play)
    assert tried == [1, 2, 2, 2, 3]


def test_what_fails_to_the_end_is_a_dead_letter_with_its_position_and_error() -> None:
    app, handled, letters = unisono.App("memory://handlers"), [], []

    @app.on("a", retries=1, backoff="1ms", dead_letter="a.dead")
    async def never(event: Notification) -> None:
        handled.append(event.data)
        if event.data == "bad":
            raise ValueError("x" * 5000)

    async def play(session: Session, stop: asyncio.Event) -> None:
        async with session.subscribe("a.dead") as dead:
            await ready(session, 2)
            await session.publish("a", "bad", {"sym": "IBM"})
            await session.publish("a", "good")
            letters.extend(await take(dead, 1))
            while handled[-1] != "good":
                await asyncio.sleep(0.002)
        stop.set()

    serve(app, play)
    (letter,) = letters
    assert handled == ["bad", "bad", "good"]
    assert letter.data == "bad"
    about = letter.attributes
    assert (about["sym"], about["dead_topic"], about["dead_handler"]) == ("IBM", "a", "never")
    assert about["dead_error"].startswith("ValueError: xxx")
    assert len(about["dead_error"]) == 300
    assert about["dead_id"]
    assert about["dead_position"]


def test_attributes_that_leave_no_room_beside_the_payload_stay_behind() -> None:
    app, letters = unisono.App("memory://handlers"), []

    @app.on("a", dead_letter="dead")
    async def never(event: Notification) -> None:
        raise ValueError

    async def play(session: Session, stop: asyncio.Event) -> None:
        async with session.subscribe("dead") as dead:
            await ready(session, 2)
            await session.publish("a", 1, {"long": "x" * 3000})
            letters.extend(await take(dead, 1))
        stop.set()

    serve(app, play)
    assert "long" not in letters[0].attributes
    assert letters[0].attributes["dead_topic"] == "a"


def test_a_dead_letter_that_nobody_takes_ends_the_app() -> None:
    app = unisono.App("memory://handlers")

    @app.on("a", dead_letter="_unisono.dead")
    async def never(event: Notification) -> None:
        raise ValueError("on purpose")

    async def play(session: Session, stop: asyncio.Event) -> None:
        await ready(session, 1)
        await session.publish("a", 1)
        await stop.wait()

    with pytest.raises(
        MisuseError, match=r"never failed, and dead_letter='_unisono\.dead' cannot be published"
    ) as caught:
        serve(app, play)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_stop_ends_the_wait_before_the_next_try() -> None:
    app, tries = unisono.App("memory://handlers"), []

    @app.on("a", retries=10, backoff="1h")
    async def never(event: Notification) -> None:
        tries.append(event.data)
        raise ValueError("on purpose")

    async def play(session: Session, stop: asyncio.Event) -> None:
        await ready(session, 1)
        await session.publish("a", 1)
        while not tries:
            await asyncio.sleep(0.002)
        stop.set()

    serve(app, play)
    assert tries == [1, 1], "the last try, and no dead letter"


def test_a_stop_ends_the_wait_for_a_deployment_that_is_not_there() -> None:
    (port,) = free_ports(1)
    app, stop = unisono.App(f"unisono://127.0.0.1:{port}", timeout=600), asyncio.Event()

    @app.on("a")
    async def never(event: Notification) -> None:
        raise AssertionError

    async def run() -> None:
        async with asyncio.timeout(60):
            serving = asyncio.ensure_future(app.serve(stop))
            await asyncio.sleep(0)
            assert not serving.done()
            stop.set()
            await serving

    asyncio.run(run())


def test_a_named_subscription_commits_what_was_handled(tmp_path: Path) -> None:
    async def run(numbers: range, heard: list[Any]) -> None:
        app, stop = unisono.App("memory://"), asyncio.Event()

        @app.on("a", name="mine")
        async def remember(event: Notification) -> None:
            if event.gap is None:
                heard.append(event.data)
            if heard[-1:] == [numbers[-1]]:
                stop.set()

        async with unisono.connect("memory://handlers", state=tmp_path) as session:
            serving = asyncio.ensure_future(app.serve(stop, session))
            await ready(session, 1)
            for number in numbers:
                await session.publish("a", number)
            await serving

    async def both() -> list[Any]:
        heard: list[Any] = []
        async with asyncio.timeout(120), unisono.connect("memory://handlers"):
            await run(range(5), heard)
            committed = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
            await run(range(5, 10), heard)
            assert committed != [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        return heard

    assert asyncio.run(both()) == list(range(10))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retries": "3"}, "retries is a number"),
        ({"retries": -1}, "at least 0"),
        ({"backoff": 0.1}, "backoff is text with a unit"),
        ({"dead_letter": "a"}, "a topic that this handler hears"),
        ({"dead_letter": "no good"}, "is not a word"),
    ],
)
def test_options_that_make_no_sense_are_told_at_once(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(MisuseError, match=problem):
        unisono.App("memory://").on("a", **options)


def test_a_handler_is_an_async_function() -> None:
    with pytest.raises(MisuseError, match="`async def`"):
        unisono.App("memory://").on("a")(print)  # type: ignore[arg-type]
