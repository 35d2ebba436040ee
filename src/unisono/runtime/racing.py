"""The first of several that answers, where one may be there and say nothing: a server that stands still, a host that
drops what comes. Each gets a head start before the next is tried beside it, so order is preference, and nobody who
says nothing is waited for long."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from unisono.errors import TransportError, TurnedAwayError

T = TypeVar("T")

HEAD_START_S = 1.0
"""A greeting over TLS to the other side of the world takes less."""


async def first_of(
    attempts: Sequence[Callable[[], Coroutine[Any, Any, T]]], drop: Callable[[T], None] = lambda _: None
) -> T:
    """What the first of the attempts that succeeds gives; `drop` gets what others give as late as that. Raises
    TransportError with all their reasons, TurnedAwayError if all are turned away, and at once what is neither."""
    running: dict[asyncio.Task[T], None] = {}
    errors: list[TransportError] = []
    rest = list(attempts)
    try:
        while rest or running:
            if rest:
                running[asyncio.ensure_future(rest.pop(0)())] = None
            timeout = HEAD_START_S if rest else None
            done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del running[task]
            problems = [task.exception() for task in done]
            won = [task.result() for task, problem in zip(done, problems, strict=True) if problem is None]
            if won:
                for other in won[1:]:
                    drop(other)
                return won[0]
            for problem in problems:
                if not isinstance(problem, TransportError):
                    assert problem is not None
                    raise problem
                errors.append(problem)
    finally:
        for task in running:
            task.cancel()
        for late in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(late, BaseException):
                drop(late)
    is_turned_away = bool(errors) and all(isinstance(error, TurnedAwayError) for error in errors)
    raise (TurnedAwayError if is_turned_away else TransportError)("; ".join(map(str, errors)))
