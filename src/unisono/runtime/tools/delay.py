"""A TCP proxy that delays the bytes of every connection by a fixed time each way: a wide area network for one machine.

Bytes keep their order and nothing is lost. What waits is bounded: a full direction stops reading from its sender. A
direction can be held: nothing passes, and nobody is told, as when a route is gone and TCP still tries.
"""

import asyncio
from collections import deque
from typing import cast

from unisono.errors import MisuseError
from unisono.model.time import Micros


class DelayProxy:
    """Listens on a loopback port and forwards to `target`, `delay_us` later in each direction."""

    def __init__(self, delay_us: Micros, waiting_bytes_max: int = 32 * 1024 * 1024) -> None:
        if delay_us < 0:
            raise MisuseError(f"delay_us={delay_us}: at least 0")
        self.delay_us = delay_us
        self.waiting_bytes_max = waiting_bytes_max
        self.target: tuple[str, int] | None = None
        self.port = 0
        self.sides: dict[_Side, None] = {}
        self.holds_requests = self.holds_answers = False
        self._server: asyncio.Server | None = None

    async def start(self, target: tuple[str, int] | None = None, port: int = 0) -> int:
        """Returns the port it listens on. The target may also be set later; until then connections are closed."""
        self.target = target or self.target
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self, None), "127.0.0.1", port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for side in list(self.sides):
                side.abort()
            await self._server.wait_closed()
            self._server = None

    def cut(self) -> None:
        """Breaks every connection now, as a failing network would."""
        for side in list(self.sides):
            side.abort()

    def hold(self, requests: bool, answers: bool) -> None:
        """From now on what those who dial send (`requests`), or what they are sent, waits here until it is let go."""
        self.holds_requests, self.holds_answers = requests, answers
        for side in list(self.sides):
            if side.other is not None:
                side.other.move()  # who may be gone, and its last bytes still be here


class _Side(asyncio.Protocol):
    """One end of a proxied connection: what it receives leaves, later, at its `other` end."""

    def __init__(self, proxy: DelayProxy, other: "_Side | None") -> None:
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self.other = other
        self._dials = other is None
        self._transport: asyncio.Transport | None = None
        self._on_the_way: deque[tuple[float, bytes | None]] = (
            deque()
        )  # due, bytes; b"" is the end of file, None a lost line
        self._eof_came = self._eof_sent = False
        self.waiting_bytes = 0
        self._other_is_full = self._reading_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._dialing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._proxy.sides[self] = None
        if self.other is None:
            self._dialing = self._loop.create_task(self._dial())
        else:
            self.other.other = self
            self.other.move()

    async def _dial(self) -> None:
        target = self._proxy.target
        if target is None:
            self.abort()
            return
        try:
            await self._loop.create_connection(lambda: _Side(self._proxy, self), *target)
        except OSError:
            self.abort()

    def data_received(self, data: bytes) -> None:
        self.waiting_bytes += len(data)
        self._put(data)
        self._throttle()

    def eof_received(self) -> bool:
        self._eof_came = True
        self._put(b"")
        return not self._eof_sent  # the other direction may go on

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy.sides.pop(self, None)
        self._put(None)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other._other_is_full = True
            self.other._throttle()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other._other_is_full = False
            self.other.move()

    def _finish_writing(self) -> None:
        assert self._transport is not None
        self._eof_sent = True
        try:
            self._transport.write_eof()
        except OSError:
            self._transport.abort()  # the peer went away in this moment
        if self._eof_came:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _put(self, data: bytes | None) -> None:
        self._on_the_way.append((self._loop.time() + self._proxy.delay_us / 1e6, data))
        if self._timer is None:
            self._timer = self._loop.call_at(self._on_the_way[0][0], self.move)

    def move(self) -> None:
        """Writes what is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        other = self.other
        if other is None or other._transport is None:
            return  # still dialing; the far side moves us when it is there
        if self._proxy.holds_requests if self._dials else self._proxy.holds_answers:
            return  # who lets go moves us
        now = self._loop.time()
        while self._on_the_way and self._on_the_way[0][0] <= now and not self._other_is_full:
            data = self._on_the_way.popleft()[1]
            if data:
                self.waiting_bytes -= len(data)
            if other._transport.is_closing():
                continue
            if data:
                other._transport.write(data)
            elif data is None:
                other._transport.close()
            else:
                other._finish_writing()
        self._throttle()
        if self._on_the_way and not self._other_is_full:
            self._timer = self._loop.call_at(self._on_the_way[0][0], self.move)

    def _throttle(self) -> None:
        full = self.waiting_bytes > self._proxy.waiting_bytes_max
        if full != self._reading_paused and self._transport is not None and not self._transport.is_closing():
            self._reading_paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
