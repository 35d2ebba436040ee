"""A facade for programs without an event loop: notebooks, scripts. The session lives in a thread of its own.

with unisono.connect_sync("unisono://127.0.0.1:7474") as session:
    session.publish("trades", {"px": 1})
    with session.subscribe("trades") as stream:
        for event in stream: ...
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.runtime.client.publishing.topic_window import Outcome
from unisono.runtime.client.session import Session
from unisono.runtime.client.subscription.event_stream import EventStream
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.connect import connect
from unisono.runtime.driver.loop import new_loop

T = TypeVar("T")


class SyncStream:
    """A subscription to iterate in a plain `for`."""

    def __init__(self, session: "SyncSession", stream: EventStream) -> None:
        self._session, self._stream = session, stream
        self._batches: Any = None
        self._rest: list[Notification] = []

    def __enter__(self) -> Self:
        self._session.wait(self._stream.__aenter__())
        self._batches = self._stream.batches()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.wait(self._stream.close())

    def __iter__(self) -> Iterator[Notification]:
        if self._batches is None:
            raise MisuseError("the subscription was not entered: use 'with session.subscribe(…) as stream:'")
        return self

    def __next__(self) -> Notification:
        if not self._rest:
            try:
                self._rest = self._session.wait(anext(self._batches))[::-1]
            except StopAsyncIteration:
                raise StopIteration from None
        return self._rest.pop()

    def take(self, count: int, timeout: float | None = None) -> list[Notification]:
        """The next `count` notifications, or fewer if they do not come within `timeout` seconds."""
        taken: list[Notification] = []
        while len(taken) < count:
            if not self._rest and timeout is not None:
                try:
                    self._rest = self._session.wait(_within(self._stream, timeout))
                except TimeoutError:
                    return taken
            taken.append(next(self))
        return taken

    def commit(self, position: str) -> None:
        self._session.wait(self._stream.commit(position))


async def _within(stream: EventStream, timeout: float) -> list[Notification]:
    async with asyncio.timeout(timeout):
        return [await anext(stream)]


class SyncSession:
    """A connected client without `await`. Made by `unisono.connect_sync`."""

    def __init__(self, opening: AbstractAsyncContextManager[Session]) -> None:
        self._opening = opening
        self._session: Session | None = None
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="unisono", daemon=True)

    def __enter__(self) -> Self:
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
            raise MisuseError("the session is not open: use it inside 'with unisono.connect_sync(...) as session'")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def publish(self, topic: str, data: Any, *, deadline: str | None = None) -> Outcome:
        """Publishes one event and waits for its outcome."""
        return self.wait(self._open().publish(topic, data, deadline=deadline))

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
            raise MisuseError("the session is not open")
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
    journal: str | Path | None = None,
    state: str | Path | None = None,
    region: str | None = None,
    timeout: float = 10.0,
) -> SyncSession:
    """Connects to a deployment, for programs without an event loop.

    with unisono.connect_sync("unisono://127.0.0.1:7474") as session:
        session.publish("trades", {"sym": "IBM", "px": 101.2})
    """
    options: dict[str, Any] = {"token": token, "authority": authority, "journal": journal, "state": state}
    return SyncSession(connect(where, region=region, timeout=timeout, **options))
