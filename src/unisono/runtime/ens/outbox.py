"""What has been published and not yet confirmed: bounded, in order, kept for sending again after a reconnect."""

import asyncio
from collections import deque
from collections.abc import Sequence

from unisono.errors import MisuseError, TransportError
from unisono.runtime.ens.adapter import FullError, Item, Limits, check_channel, check_headers, check_publisher

NAMES_KNOWN_MAX = 10_000


class Outbox:
    """A FIFO of open items with bounds and waiters."""

    def __init__(self, limits: Limits, payload_bytes_max: int) -> None:
        self.items: deque[Item] = deque()
        self._limits = limits
        self.payload_bytes_max = payload_bytes_max
        self._bytes = 0
        self._topics: dict[str, None] = {}  # names found to be good
        self._publishers: dict[str, None] = {}
        self._taken = 0  # items ever put; taken - len(items) have been confirmed
        self._flushers: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._roomers: list[asyncio.Future[None]] = []
        self._closed: str | None = None

    def __len__(self) -> int:
        return len(self.items)

    def put(self, items: Sequence[Item]) -> None:
        """Takes all or raises FullError."""
        if self._closed is not None:
            raise TransportError(self._closed)
        topic: str | None = None
        publisher: str | None = None
        for item in items:  # in rows of one topic and one publisher
            if item.topic is not topic or item.publisher is not publisher or item.headers is not None:
                topic, publisher = item.topic, item.publisher
                if topic not in self._topics or publisher not in self._publishers or item.headers is not None:
                    self._check(item)
        sizes = [len(item.payload) for item in items]
        size = sum(sizes)
        if size > self.payload_bytes_max and max(sizes) > self.payload_bytes_max:
            raise MisuseError(f"a payload of {max(sizes)} bytes; this broker takes up to {self.payload_bytes_max}")
        # Whoever waited for room is let in with any batch: a large one could otherwise never pass.
        if not self._is_half_empty() and (
            len(self.items) + len(items) > self._limits.open_items_max
            or self._bytes + size > self._limits.open_bytes_max
        ):
            raise FullError(f"{len(self.items)} items ({self._bytes} bytes) are published and not yet confirmed")
        self._bytes += size
        self._taken += len(items)
        self.items.extend(items)

    def confirm(self, count: int) -> None:
        """Forgets the oldest `count` items and wakes whom that concerns."""
        pop = self.items.popleft
        self._bytes -= sum([len(pop().payload) for _ in range(count)])
        done = self._taken - len(self.items)
        while self._flushers and self._flushers[0][0] <= done:
            _wake(self._flushers.popleft()[1])
        if self._roomers and self._is_half_empty():
            for waiter in self._roomers:
                _wake(waiter)
            self._roomers.clear()

    async def room(self) -> None:
        if self._closed is not None:
            raise TransportError(self._closed)
        if not self._is_half_empty():
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

    def _check(self, item: Item) -> None:
        if len(self._topics) >= NAMES_KNOWN_MAX or len(self._publishers) >= NAMES_KNOWN_MAX:
            self._topics.clear()
            self._publishers.clear()
        self._topics[check_channel(item.topic)] = None
        self._publishers[check_publisher(item.publisher)] = None
        if item.headers is not None:
            check_headers(item.headers)

    def _is_half_empty(self) -> bool:
        return 2 * len(self.items) <= self._limits.open_items_max and 2 * self._bytes <= self._limits.open_bytes_max


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
