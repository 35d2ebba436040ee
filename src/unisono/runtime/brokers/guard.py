"""Where the errors of a connection go: what breaks in one of its callbacks or tasks ends whoever stands on it.

The loop would only log it, and the session would go on without what the callback should have done.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from unisono.errors import TransportError

P = ParamSpec("P")


class Guard:
    """Calls, timers and tasks with one way out for what goes wrong in them: `failed`."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self.failed = failed

    def call(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:  # task boundary
            self.failed(error)

    def soon(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.get_running_loop().call_soon(lambda: self.call(function, *args, **kwargs))

    def later(
        self, delay_s: float, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, lambda: self.call(function, *args, **kwargs))

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A TransportError is for whoever awaits the task; anything else nobody expects."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not isinstance(error, TransportError):
            self.failed(error)
