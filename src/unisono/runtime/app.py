"""Decorator style: functions that are called for every event.

app = unisono.App("unisono://127.0.0.1:7474")

@app.on("trades", "quotes", order="total")
async def print_it(event):
    print(event.topic, event.data)

app.run()
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.runtime.connect import connect
from unisono.runtime.loop import run, stop_signal
from unisono.runtime.notification import Notification
from unisono.runtime.session import Session
from unisono.runtime.stream import Stream

Handler = Callable[[Notification], Awaitable[None]]


class App:
    """Handlers and the deployment they listen to."""

    def __init__(self, where: str | Path | Deployment, **options: Any) -> None:
        """`options` are those of `unisono.connect`."""
        self._where, self._options = where, options
        self._handlers: list[tuple[tuple[str, ...], dict[str, Any], Handler]] = []

    def on(self, *topics: str, **options: Any) -> Callable[[Handler], Handler]:
        """Calls the function for every notification of this subscription, one after the other, in its order."""

        def register(handler: Handler) -> Handler:
            self._handlers.append((topics, options, handler))
            return handler

        return register

    async def serve(self, stop: asyncio.Event, session: Session | None = None) -> None:
        """Runs until `stop` is set, or a handler raises. A session of one's own is used and left open."""
        if not self._handlers:
            raise MisuseError("an app without handlers has nothing to do: use @app.on(topic)")
        if session is not None:
            await self._serve(session, stop)
            return
        async with connect(self._where, **self._options) as mine:
            await self._serve(mine, stop)

    def run(self) -> None:
        """Runs until SIGTERM or Ctrl-C."""
        run(self._run())

    async def _run(self) -> None:
        await self.serve(stop_signal())

    async def _serve(self, session: Session, stop: asyncio.Event) -> None:
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            streams = []
            for topics, options, handler in self._handlers:
                streams.append(await stack.enter_async_context(session.subscribe(*topics, **options)))
                group.create_task(_call(streams[-1], handler))
            await stop.wait()
            for stream in streams:
                await stream.close()


async def _call(stream: Stream, handler: Handler) -> None:
    async for event in stream:
        await handler(event)
