"""What `session.subscribe` returns: a stream of its own, or a member of a group."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

from unisono.errors import UnisonoError
from unisono.model.ids import Address
from unisono.runtime.client.measures import StreamCounters
from unisono.runtime.client.subscription.notification import Notification


class EventStream(Protocol):
    """To be entered with `async with`, and iterated."""

    sid: Address

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> AsyncIterator[Notification]: ...

    async def __anext__(self) -> Notification: ...

    def batches(self, count_max: int = 1000) -> AsyncIterator[list[Notification]]: ...

    @property
    def waiting(self) -> int: ...

    @property
    def told(self) -> StreamCounters: ...

    @property
    def name(self) -> str | None: ...

    def position(self) -> str: ...

    async def commit(self, position: str) -> None: ...

    async def subscribe(self, *topics: str) -> None: ...

    async def unsubscribe(self, *topics: str) -> None: ...

    async def update(self, *, where: str) -> None: ...

    async def close(self) -> None: ...

    def fail(self, error: UnisonoError) -> None: ...
