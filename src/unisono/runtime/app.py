"""Decorator style: functions that are called for every event, one after the other, in its order.

app = unisono.App("unisono://127.0.0.1:7474")

@app.on("trades", "quotes", order="total", retries=3, backoff="200ms", dead_letter="trades.dead")
async def book(event):
    print(event.topic, event.data)

app.run()

A handler that raises is called again, and later events wait for it: their order is worth more than their haste. What
fails to the end is published on the topic of dead letters, and the next event has its turn; without such a topic the
app ends with the handler's error. Subscriptions with a `name` or a `group` commit what was handled.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from unisono.errors import MisuseError, TransportError
from unisono.machine import Accepted
from unisono.model.arguments import expect
from unisono.model.deployment import Deployment
from unisono.model.event import Scalar
from unisono.model.explained import meant
from unisono.model.interest import check_topic_name
from unisono.model.time import SECOND, parse_span
from unisono.runtime.client.publishing.topic_window import Outcome
from unisono.runtime.client.session import Session
from unisono.runtime.client.subscription.event_stream import EventStream
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.client.subscription.request import subscribe_request
from unisono.runtime.connect import connect
from unisono.runtime.driver.loop import run, stop_signal

logger = logging.getLogger(__name__)

Handler = Callable[[Notification], Awaitable[None]]
BACKOFF_S_MAX = 30.0
COMMIT_EVERY = 100
"""Handled events between two commits, unless nothing waits: then at once."""
ERROR_CHARACTERS = 300
"""Of an error's text that travel with a dead letter."""


class Handling(Struct, frozen=True):
    """What becomes of an event whose handler raises."""

    retries: int = 0
    backoff_s: float = 0.1
    """Before the first retry; each further pause is twice as long, up to half a minute."""
    dead_letter: str | None = None
    commits: bool = False


class App:
    """Handlers and the deployment they listen to."""

    def __init__(self, where: str | Path | Deployment, **options: Any) -> None:
        """`options` are those of `unisono.connect`."""
        connect(where, **options)  # a wrong one is told here, and not when it runs
        self._where, self._options = where, options
        self._handlers: list[tuple[tuple[str, ...], dict[str, Any], Handling, Handler]] = []

    def on(
        self, *topics: str, retries: int = 0, backoff: str = "100ms", dead_letter: str | None = None, **options: Any
    ) -> Callable[[Handler], Handler]:
        """Calls the function for every notification of this subscription; `options` are those of `subscribe`.

        @app.on("orders", group="billing", retries=5, backoff="1s", dead_letter="orders.dead")
        async def bill(event): ...
        """
        if topics and callable(topics[0]):
            raise MisuseError('@app.on is given the topics that are heard: @app.on("trades")')
        for name in options.keys() - inspect.signature(subscribe_request).parameters.keys():
            known = tuple(inspect.signature(subscribe_request).parameters)[1:]
            raise MisuseError(f"{name}= is no option of subscribe{meant(name, known)}: there are {', '.join(known)}")
        subscribe_request(*topics, **options)
        expect("retries", retries, int, "a number of tries after the first")
        expect("backoff", backoff, str, 'text with a unit, like "200ms"')
        if retries < 0:
            raise MisuseError(f"retries={retries}: at least 0")
        if dead_letter is not None:
            expect("dead_letter", dead_letter, str, 'a topic\'s name, like "trades.dead"')
            check_topic_name(dead_letter)
            if dead_letter in topics:
                raise MisuseError(f"dead_letter={dead_letter!r} is a topic that this handler hears: take another")
        commits = options.get("name") is not None or options.get("group") is not None
        handling = Handling(retries, parse_span(backoff, "backoff") / SECOND, dead_letter, commits)

        def register(handler: Handler) -> Handler:
            if not inspect.iscoroutinefunction(handler):
                raise MisuseError(f"{getattr(handler, '__name__', handler)!r}: a handler is an `async def`")
            self._handlers.append((topics, options, handling, handler))
            return handler

        return register

    async def serve(self, stop: asyncio.Event, session: Session | None = None) -> None:
        """Runs until `stop` is set, or raises what a handler raised. A session of one's own is used and left open."""
        if not self._handlers:
            raise MisuseError("an app without handlers has nothing to do: use @app.on(topic)")
        if session is not None:
            await self._serve(session, stop)
            return
        async with AsyncExitStack() as stack:
            connecting = asyncio.ensure_future(stack.enter_async_context(connect(self._where, **self._options)))
            stopped = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait([connecting, stopped], return_when=asyncio.FIRST_COMPLETED)
                if connecting.done():
                    await self._serve(connecting.result(), stop)
            finally:
                stopped.cancel()
                connecting.cancel()
                await asyncio.wait([connecting])

    def run(self) -> None:
        """Runs until SIGTERM or Ctrl-C, or raises what a handler raised."""
        run(self._run())

    async def _run(self) -> None:
        await self.serve(stop_signal())

    async def _serve(self, session: Session, stop: asyncio.Event) -> None:
        """The handlers side by side: one that waits for its turn in a group keeps no other waiting."""
        callings = [
            _Calling(session, session.subscribe(*topics, **options), handling, handler, stop)
            for topics, options, handling, handler in self._handlers
        ]
        running = {asyncio.ensure_future(calling.run()): calling for calling in callings}
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([*running, stopped], return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                for task, calling in running.items():
                    if calling.has_begun:
                        await calling.close()
                    else:
                        task.cancel()  # it still waits, perhaps for ever
                await asyncio.wait(running)
            for task in running:
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            stopped.cancel()
            for task in running:
                task.cancel()
            await asyncio.wait([*running, stopped])


class _Calling:
    """One handler and its subscription."""

    def __init__(
        self, session: Session, stream: EventStream, handling: Handling, handler: Handler, stop: asyncio.Event
    ) -> None:
        self._session, self._stream, self._handling, self._stop = session, stream, handling, stop
        self._handler, self._name = handler, getattr(handler, "__name__", "handler")
        self._uncommitted = 0
        self.has_begun = False
        """The subscription is in force."""

    async def run(self) -> None:
        async with self._stream as stream:
            self.has_begun = True
            async for event in stream:
                error = await self._try(event)
                if error is not None:
                    if self._stop.is_set():
                        return  # not handled and not committed: it comes again
                    await self._bury(event, error)
                await self._commit(event)

    async def close(self) -> None:
        """Nothing new is handled; what is under way comes to its end."""
        await self._stream.close()

    async def _try(self, event: Notification) -> Exception | None:
        """What the handler raised the last time; None if it came to its end."""
        pause_s, tries = self._handling.backoff_s, 0
        while True:
            try:
                with self._traced(event):
                    await self._handler(event)
                return None
            except Exception as error:  # task boundary: of the user's own code
                tries += 1
                if tries > self._handling.retries or self._stop.is_set():
                    where = f"{event.topic} {event.number}, position {event.position}"
                    error.add_note(f"raised by the handler {self._name}, for {where}, in {tries} of {tries} tries")
                    return error
                logger.warning("%s: %r; again in %.3g s", self._name, error, pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            except TimeoutError:
                pass
            pause_s = min(2 * pause_s, BACKOFF_S_MAX)

    def _traced(self, event: Notification) -> AbstractContextManager[Any]:
        tracing, said = self._session.tracing, event.event
        return tracing.handling(said, self._name) if tracing is not None and said is not None else nullcontext()

    async def _bury(self, event: Notification, error: Exception) -> None:
        """Publishes it as a dead letter, or raises: an event is never passed over in silence."""
        topic = self._handling.dead_letter
        if topic is None or event.event is None:
            raise error
        about: dict[str, Scalar] = {
            "dead_topic": event.topic,
            "dead_id": event.id or "",
            "dead_position": event.position,
            "dead_error": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS],
            "dead_handler": self._name,
        }
        try:
            outcome = await self._publish_letter(topic, event, about)
        except MisuseError as no:
            raise MisuseError(f"{self._name} failed, and dead_letter={topic!r} cannot be published: {no}") from error
        if not isinstance(outcome, Accepted):
            problem = f"{self._name} failed, and {topic} does not take the dead letter: {outcome.reason}"
            raise TransportError(problem) from error
        logger.warning("%s: %r; %s is a dead letter on %s", self._name, error, event.id, topic)

    async def _publish_letter(self, topic: str, event: Notification, about: dict[str, Scalar]) -> Outcome:
        try:
            return await self._session.publish(topic, event.payload, {**event.attributes, **about})
        except MisuseError:  # there is no room for both beside the payload
            return await self._session.publish(topic, event.payload, about)

    async def _commit(self, event: Notification) -> None:
        if not self._handling.commits:
            return
        self._uncommitted += 1
        if self._uncommitted >= COMMIT_EVERY or not self._stream.waiting:
            self._uncommitted = 0
            await self._stream.commit(event.position)
