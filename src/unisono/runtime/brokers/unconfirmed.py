"""What has been published and not yet confirmed: bounded, in order, kept for sending again after a reconnect."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from unisono.errors import MisuseError, TransportError
from unisono.runtime.brokers.contract import (
    AdapterLimits,
    FullError,
    Item,
    Parcel,
    check_channel,
    check_headers,
    check_publisher,
)

NAMES_KNOWN_MAX = 10_000

P = TypeVar("P", bound=Parcel)


class UnconfirmedItems(Generic[P]):
    """A FIFO of open items with bounds and waiters. A row in it stays whole: it is confirmed as it was put."""

    def __init__(self, limits: AdapterLimits, payload_bytes_max: int) -> None:
        self.items: deque[P] = deque()
        self._limits = limits
        self.payload_bytes_max = payload_bytes_max
        self._count = 0  # open items, those in rows counted
        self._bytes = 0
        self._topics: dict[str, None] = {}  # names found to be good
        self._publishers: dict[str, None] = {}
        self._taken = 0  # items ever put; taken - count have been confirmed
        self._flushers: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._roomers: list[asyncio.Future[None]] = []
        self._closed: str | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a confirmation."""
        return bool(self._flushers or self._roomers)

    def put(self, items: Sequence[P]) -> None:
        """Takes all or raises FullError."""
        if self._closed is not None:
            raise TransportError(self._closed)
        topic: str | None = None
        publisher: str | None = None
        lengths: list[int] = []
        add = lengths.append
        for item in items:
            # Many follow each other on one topic from one publisher, also where they are no `ItemRow`.
            if item.topic is not topic or item.publisher is not publisher:
                topic, publisher = item.topic, item.publisher
                if topic not in self._topics or publisher not in self._publishers:
                    self._check(topic, publisher)
            if isinstance(item, Item):
                add(len(item.payload))
                if item.headers is not None:
                    check_headers(item.headers)
            else:
                lengths += map(len, item.payloads)
        count, size, longest = len(lengths), sum(lengths), max(lengths, default=0)
        if longest > self.payload_bytes_max:
            raise MisuseError(f"a payload of {longest} bytes; this broker takes up to {self.payload_bytes_max}")
        # Whoever waited for room is let in with any batch: a large one could otherwise never pass.
        if not self.is_half_empty and (
            self._count + count > self._limits.open_items_max or self._bytes + size > self._limits.open_bytes_max
        ):
            raise FullError(f"{self._count} items ({self._bytes} bytes) are published and not yet confirmed")
        self._bytes += size
        self._count += count
        self._taken += count
        self.items.extend(items)

    def confirm(self, count: int) -> None:
        """Forgets the oldest `count` items and wakes whom that concerns."""
        self._count -= count
        pop, size = self.items.popleft, 0
        while count > 0:
            item = pop()
            if isinstance(item, Item):
                size += len(item.payload)
                count -= 1
            else:
                size += sum(map(len, item.payloads))
                count -= len(item.payloads)
        self._bytes -= size
        done = self._taken - self._count
        while self._flushers and self._flushers[0][0] <= done:
            _wake(self._flushers.popleft()[1])
        if self._roomers and self.is_half_empty:
            for waiter in self._roomers:
                _wake(waiter)
            self._roomers.clear()

    async def room(self) -> None:
        if self._closed is not None:
            raise TransportError(self._closed)
        if not self.is_half_empty:
            waiter = asyncio.get_running_loop().create_future()
            self._roomers.append(waiter)
            await waiter

    async def flush(self) -> None:
        if self.items:
            if self._closed is not None:
                raise TransportError(self._closed)
            waiter = asyncio.get_running_loop().create_future()
            self._flushers.append((self._taken, waiter))
            await waiter

    def close(self, reason: str) -> None:
        """From now on nothing is taken, and whoever waits is told."""
        self._closed = reason
        for waiter in [*self._roomers, *(waiter for _, waiter in self._flushers)]:
            if not waiter.done():
                waiter.set_exception(TransportError(reason))
        self._roomers.clear()
        self._flushers.clear()

    def _check(self, topic: str, publisher: str) -> None:
        if len(self._topics) >= NAMES_KNOWN_MAX or len(self._publishers) >= NAMES_KNOWN_MAX:
            self._topics.clear()
            self._publishers.clear()
        self._topics[check_channel(topic)] = None
        self._publishers[check_publisher(publisher)] = None

    @property
    def is_half_empty(self) -> bool:
        return 2 * self._count <= self._limits.open_items_max and 2 * self._bytes <= self._limits.open_bytes_max


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
