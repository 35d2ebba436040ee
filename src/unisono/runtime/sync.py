"""A facade for programs without an event loop: notebooks, scripts. The session lives in a thread of its own.

with unisono.connect_sync("unisono://127.0.0.1:7474") as session:
    session.publish("trades", {"px": 1})
    with session.subscribe("trades") as stream:
        for event in stream: ...
"""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Self, TypeVar

from unisono.errors import MisuseError
from unisono.model.arguments import expect
from unisono.model.deployment import Deployment
from unisono.model.event import Scalar
from unisono.runtime.client.publishing.topic_window import Outcome
from unisono.runtime.client.session import Recorded, Session
from unisono.runtime.client.subscription.event_stream import EventStream
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.connect import connect
from unisono.runtime.driver.loop import new_loop

T = TypeVar("T")
HOW_TO_OPEN = "the session is not open: use it inside 'with unisono.connect_sync(…) as session:'"


class SyncStream:
    """A subscription to iterate in a plain `for`."""

    def __init__(self, session: "SyncSession", stream: EventStream) -> None:
        self._session, self._stream = session, stream
        self._was_entered = False
        self._rest: list[Notification] = []
        """What was read and not told yet, the oldest last. An interrupt loses none of it."""

    def __enter__(self) -> Self:
        self._session.wait(self._stream.__aenter__())
        self._was_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.wait(self._stream.close())

    def __iter__(self) -> Iterator[Notification]:
        if not self._was_entered:
            raise MisuseError("the subscription was not entered: use 'with session.subscribe(…) as stream:'")
        return self

    def __next__(self) -> Notification:
        if not self._rest:
            self._session.wait(self._read())
        if not self._rest:
            raise StopIteration
        return self._rest.pop()

    async def _read(self, timeout: float | None = None) -> None:
        """Reads what waits, or the next that comes; nothing once the subscription is over."""
        async with asyncio.timeout(timeout):
            async for batch in self._stream.batches():
                self._rest = batch[::-1]
                return

    def take(self, count: int, timeout: float | None = None) -> list[Notification]:
        """The next `count` notifications, or fewer if they do not come within `timeout` seconds."""
        iter(self)
        expect("take: the first argument", count, int, "a number of notifications")
        expect("timeout", timeout, (int, float, NoneType), "a number of seconds")
        taken: list[Notification] = []
        until = time.monotonic() + timeout if timeout is not None else None
        while len(taken) < count:
            if not self._rest:
                try:
                    self._session.wait(self._read(max(0.0, until - time.monotonic()) if until is not None else None))
                except TimeoutError:
                    return taken
            if not self._rest:
                return taken
            taken.append(self._rest.pop())
        return taken

    def position(self) -> str:
        """As `Stream.position`."""
        return self._stream.position()

    def commit(self, position: str) -> None:
        """As `Stream.commit`."""
        self._session.wait(self._stream.commit(position))

    def subscribe(self, *topics: str) -> None:
        """As `Stream.subscribe`."""
        self._session.wait(self._stream.subscribe(*topics))

    def unsubscribe(self, *topics: str) -> None:
        """As `Stream.unsubscribe`."""
        self._session.wait(self._stream.unsubscribe(*topics))

    def update(self, *, where: str) -> None:
        """As `Stream.update`."""
        self._session.wait(self._stream.update(where=where))


class SyncSession:
    """A connected client without `await`. Made by `unisono.connect_sync`."""

    def __init__(self, opening: AbstractAsyncContextManager[Session]) -> None:
        self._opening = opening
        self._session: Session | None = None
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="unisono", daemon=True)

    def __enter__(self) -> Self:
        if self._thread.ident is not None:
            raise MisuseError("a session is entered once: make another with unisono.connect_sync(…)")
        self._thread.start()
        try:
            self._session = self.wait(self._opening.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait(self._opening.__aexit__(None, None, None))
        finally:
            self._end()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine of the session and waits for its result."""
        if not self._thread.is_alive():
            coroutine.close()
            raise MisuseError(HOW_TO_OPEN)
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result()
        except KeyboardInterrupt:  # nobody waits for it any more
            running.cancel()
            raise

    def publish(
        self, topic: str, data: Any, attributes: dict[str, Scalar] | None = None, *, deadline: str | None = None
    ) -> Outcome:
        """Publishes one event and waits for its outcome."""
        return self.wait(self._open().publish(topic, data, attributes, deadline=deadline))

    def publish_all(self, topic: str, batch: Iterable[Any]) -> int:
        """Publishes many without waiting for each; returns how many were accepted."""

        async def publish() -> int:
            publisher = await self._open().publisher(topic)
            await publisher.send_all(batch)
            await publisher.drain()
            return publisher.accepted

        return self.wait(publish())

    def subscribe(self, *topics: str, **options: Any) -> SyncStream:
        """As `Session.subscribe`."""

        async def subscribe() -> EventStream:
            return self._open().subscribe(*topics, **options)

        return SyncStream(self, self.wait(subscribe()))

    def _open(self) -> Session:
        if self._session is None:
            raise MisuseError(HOW_TO_OPEN)
        return self._session

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def connect_sync(
    where: str | Path | Deployment,
    *,
    token: str | None = None,
    authority: str | Path | None = None,
    credentials: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    journal: str | Path | None = None,
    record: Recorded = "deliveries",
    state: str | Path | None = None,
    region: str | None = None,
    timeout: float = 10.0,
) -> SyncSession:
    """Connects to a deployment, for programs without an event loop; the options are those of `connect`.

    with unisono.connect_sync("unisono://127.0.0.1:7474") as session:
        session.publish("trades", {"sym": "IBM", "px": 101.2})
    """
    opening = connect(
        where,
        token=token,
        authority=authority,
        credentials=credentials,
        certificate=certificate,
        key=key,
        journal=journal,
        record=record,
        state=state,
        region=region,
        timeout=timeout,
    )
    return SyncSession(opening)
