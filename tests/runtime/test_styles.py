"""Other ways to touch it: without an event loop, by decorators, and under faults in users' own tests."""

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import unisono
import unisono.testing
from tests.runtime.test_session import take


def test_a_session_without_an_event_loop_publishes_and_reads() -> None:
    with unisono.connect_sync("memory://") as session, session.subscribe("a", "b") as stream:
        assert isinstance(session.publish("a", {"n": 1}), unisono.Accepted)
        assert session.publish_all("b", range(100)) == 100
        events = stream.take(101, timeout=10)
        assert [event.data for event in events if event.topic == "b"] == list(range(100))
        stream.commit(events[-1].position)


def test_taking_more_than_there_is_ends_at_the_timeout() -> None:
    with unisono.connect_sync("memory://") as session, session.subscribe("a") as stream:
        session.publish("a", 1)
        assert [event.data for event in stream.take(2, timeout=0.1)] == [1]


def test_errors_reach_the_caller_of_the_facade() -> None:
    with unisono.connect_sync("memory://") as session, pytest.raises(unisono.PlanError):
        session.subscribe("a", order="realtime")
    with pytest.raises(unisono.MisuseError, match="not open"):
        session.publish("a", 1)


def test_the_facade_has_what_streams_have() -> None:
    with unisono.connect_sync("memory://") as session:
        with session.subscribe("a", type=dict) as stream:
            stream.subscribe("b")
            session.publish("b", {"n": 1}, {"key": "x"})
            (event,) = stream.take(1, timeout=10)
            assert event.attributes["key"] == "x"
            assert stream.position() == event.position
            stream.unsubscribe("b")
            session.publish("b", {"n": 2})
            session.publish("a", {"n": 3})
            assert [event.data for event in stream.take(1, timeout=10)] == [{"n": 3}]
        assert list(stream) == []


def test_the_facade_is_entered_once() -> None:
    session = unisono.connect_sync("memory://")
    with session:
        pass
    with pytest.raises(unisono.MisuseError, match="a session is entered once"), session:
        pass


def test_an_interrupt_ends_the_wait_for_an_event_and_loses_none() -> None:
    """As in a notebook: the cell that reads is interrupted, and run again."""
    with unisono.connect_sync("memory://") as session, session.subscribe("a") as stream:
        session.publish("a", 1)
        assert next(stream).data == 1
        interrupt = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        session.publish_all("a", [2, 3])
        assert [event.data for event in stream.take(2, timeout=10)] == [2, 3]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda: unisono.App(""), "the address is empty"),
        (lambda: unisono.App("http://eu"), "connect to unisono://"),
        (lambda: unisono.App("memory://", timeout=0), "timeout=0"),
        (lambda: unisono.App("memory://").on(print), "is given the topics"),
        (lambda: unisono.App("memory://").on(), "at least one topic"),
        (lambda: unisono.App("memory://").on("a", order="best"), "order is one of"),
    ],
)
def test_what_an_app_can_never_do_is_told_where_it_is_written(wrong: Callable[[], Any], problem: str) -> None:
    with pytest.raises(unisono.MisuseError, match=problem):
        wrong()


def test_decorated_functions_are_called_in_order() -> None:
    async def run() -> None:
        app = unisono.App("memory://app")
        heard: list[Any] = []
        stop = asyncio.Event()

        @app.on("a", "b")
        async def remember(event: unisono.Notification) -> None:
            heard.append(event.data)
            if len(heard) == 10:
                stop.set()

        async with asyncio.timeout(120), unisono.connect("memory://app") as session:
            serving = asyncio.ensure_future(app.serve(stop, session))
            await asyncio.sleep(0)
            while not session._streams or len(session._streams[0].topics) < 2 or not session._streams[0].bases:
                await asyncio.sleep(0.002)
            for number in range(10):
                await session.publish("ab"[number % 2], number)
            await serving
            assert heard == list(range(10))

    asyncio.run(run())


def test_an_error_in_a_handler_ends_the_app() -> None:
    async def run() -> None:
        app = unisono.App("memory://app")

        @app.on("a")
        async def fail(event: unisono.Notification) -> None:
            raise ValueError("on purpose")

        async with asyncio.timeout(120), unisono.connect("memory://app") as session:
            serving = asyncio.ensure_future(app.serve(asyncio.Event()))
            while not serving.done():
                await session.publish("a", 1)
                await asyncio.sleep(0.005)
            with pytest.raises(ValueError, match="on purpose") as caught:
                await serving
            assert "raised by the handler fail, for a " in caught.value.__notes__[0]

    asyncio.run(run())


def test_lost_payloads_are_told_as_gaps_and_nothing_is_reordered() -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(120),
            unisono.testing.deployment(seed=3) as world,
            world.connect() as session,
            session.subscribe("a", deadline="100ms") as stream,
        ):
            world.set_faults(loss=0.2, delay="5ms", reorder=True, seed=3)
            publisher = await session.publisher("a")
            await publisher.send_all(range(100))
            await publisher.drain()
            numbers: list[int] = []
            gaps = 0
            while not numbers or numbers[-1] < 100:
                (event,) = await take(stream, 1)
                if event.gap is not None:
                    gaps += 1
                    numbers += range(event.gap.first, event.gap.last + 1)
                elif event.stalled is None:
                    numbers.append(event.number)
            assert numbers == list(range(1, 101))
            assert gaps > 0

    asyncio.run(run())


def test_a_home_that_is_away_keeps_publications_waiting_and_loses_none() -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(120),
            unisono.testing.deployment() as world,
            world.connect() as session,
            session.subscribe("a") as stream,
        ):
            world.take_home_away()
            pending = asyncio.ensure_future(session.publish("a", 1))
            done, _ = await asyncio.wait([pending], timeout=0.2)
            assert not done
            world.bring_home_back()
            assert isinstance(await pending, unisono.Accepted)
            assert [event.data for event in await take(stream, 1)] == [1]

    asyncio.run(run())
