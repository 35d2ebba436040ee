"""When an embedded broker writes to its readers: what waits for any of them leaves in one pass over all.

A write to a socket costs the same whatever it carries, and that is most of what a wide fan-out costs: 1000 messages,
each written to 200 readers as it comes, are a second of a node's time and more. So

- passes over many readers are paced: they take a quarter of the loop's time, and what comes meanwhile leaves with the
  next. Two may follow each other at once: where there is little to pass on, nothing waits for that;
- a payload waits for its stamp, before which nobody is told of it who reads in order, about as long as the pass that
  is saved would take twice.
"""

import asyncio
from typing import Protocol

from msgspec import Struct

WRITE_S = 8e-6
"""What one write costs (measured 6 to 8 us)."""
SHARE = 4
"""A pass counts so many times what it costs."""
AT_ONCE = 2
"""Passes that may follow each other at once."""
REST_S_MAX = 0.01
"""The longest that anything waits for the next pass."""
HOLD = 2
"""A payload waits for its stamp so many times as long as a pass over its readers takes."""
HELD_BYTES_MAX = 4096
"""What is longer is on its way while it is ordered."""
WAIT_S_MIN = 0.0005
"""Shorter waits are none: timers of the loop are not finer than a millisecond. So up to 20 readers, nothing waits."""


class FanOutPace(Struct):
    """When the next pass may be. Times are given, in seconds."""

    paid_until: float = 0.0
    ahead: float = 0.0

    def spend(self, writes: int, now: float) -> None:
        cost = SHARE * WRITE_S * writes
        self.ahead = AT_ONCE * cost
        self.paid_until = min(max(self.paid_until, now) + cost, now + self.ahead + REST_S_MAX)

    def rest_s(self, now: float) -> float:
        """How long what has come now is to wait."""
        return max(0.0, self.paid_until - self.ahead - now)


class ReaderConnection(Protocol):
    """A connection with something to write."""

    def take_out(self) -> list[bytes]:
        """What waits, encoded; nothing if it has left before, or cannot any more."""
        ...

    def write(self, frame: bytes) -> None: ...


class FanOut:
    """The readers of one broker for whom something waits."""

    def __init__(self) -> None:
        self.waiting: dict[ReaderConnection, None] = {}
        self._pace = FanOutPace()
        self._next: asyncio.Handle | None = None
        self._next_s = 0.0

    def plan(self, readers: int, is_stamped: bool, size: int) -> None:
        """So many have something more of this size to be told; `is_stamped`: it is worth nothing to wait for more."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        wait = self._pace.rest_s(now)
        if not is_stamped and size <= HELD_BYTES_MAX:
            wait = max(wait, min(HOLD * WRITE_S * readers, REST_S_MAX))
        if wait < WAIT_S_MIN:
            wait = 0.0
        if self._next is not None:
            if now + wait >= self._next_s:
                return
            self._next.cancel()
        self._next_s = now + wait
        self._next = loop.call_later(wait, self._pass) if wait else loop.call_soon(self._pass)

    def _pass(self) -> None:
        self._next = None
        waiting, self.waiting = self.waiting, {}
        self._pace.spend(len(waiting), asyncio.get_running_loop().time())
        before: list[bytes] = []
        frame = b""
        for reader in waiting:
            messages = reader.take_out()
            if not messages:
                continue
            if messages != before:  # most readers are owed the very same
                before, frame = messages, pack(messages)
            reader.write(frame)


def pack(messages: list[bytes]) -> bytes:
    """A list frame of messages that are encoded already."""
    body = b"".join(messages)
    return (len(body) + 5).to_bytes(4, "big") + b"\xdd" + len(messages).to_bytes(4, "big") + body
