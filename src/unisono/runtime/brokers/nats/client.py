"""A NATS connection that stays: it moves to another server of the cluster when one is gone, and subscribes again."""

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

from unisono.errors import TransportError
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.nats.codec import (
    Info,
    Msg,
    NatsOptions,
    NatsWire,
    Received,
    dial,
    normalize,
    singles,
    with_credentials_of,
)
from unisono.runtime.racing import first_of


class ClientOwner(Protocol):
    """Who stands above: an adapter."""

    def on_messages(self, messages: list[Msg]) -> None:
        """What came for the owner's subscriptions (and perhaps for ones it has just ended)."""
        ...

    def on_error(self, text: str) -> None: ...

    def on_failed(self, error: Exception) -> None:
        """One of these calls raised it, or the connection itself is broken."""
        ...

    def on_down(self, reason: str) -> None: ...

    def on_back(self) -> None:
        """Connected again; subscriptions have been sent to the server, everything else is the owner's."""
        ...


class NatsClient:
    """The connection of one adapter, with its subscriptions and requests."""

    def __init__(
        self,
        options: NatsOptions,
        owner: ClientOwner,
        reconnect_us_max: int,
        on_received: Callable[[list[Received]], None] | None = None,
    ) -> None:
        """`on_received` is called instead of the owner's `on_messages`, for owners that understand runs."""
        self._guard = Guard(owner.on_failed)
        self.given = [normalize(server) for server in options.servers]
        # Servers found in the cluster are addressed without credentials: those of the first URL serve for all.
        self.options = with_credentials_of(self.given[0], options)
        self._found: dict[str, None] = {}
        self.session = secrets.token_hex(8)
        self.subscriptions: dict[bytes, bytes] = {}  # sid -> subject
        self.wire: NatsWire | None = None
        self._at = ""  # host:port of the server that we are or were connected to
        self._owner, self._on_received = owner, on_received
        self._reconnect_us_max = reconnect_us_max
        self._inbox = f"_INBOX.{self.session}.".encode()
        self._inbox_sid = b""
        self._replies: dict[bytes, asyncio.Future[Msg]] = {}
        self._next_sid = self._next_reply = 0
        self._gone = asyncio.Event()
        self.paused = self._closed = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def info(self) -> Info:
        return self.wire.info if self.wire is not None else Info()

    def servers(self) -> list[str]:
        """Given ones first, then those that a server told us of.

        A server stops telling of a neighbour when the route between them breaks, but the neighbour is still there and
        will be heard again: so none is forgotten unless it cannot be reached either (`forget`).
        """
        self._found.update(dict.fromkeys(normalize(url) for url in self.info.connect_urls))
        return list(dict.fromkeys([*self.given, *self._found]))

    def forget(self, url: str) -> None:
        """The server at this address cannot be reached; it is named again if it comes back."""
        self._found.pop(url, None)

    async def open(self) -> None:
        await self._dial_any(self.given)
        self._keeper = self._guard.spawn(self._keep(), "nats")

    def send(self, data: bytes) -> None:
        """Dropped while there is no connection: the owner sends again what matters in `on_back`."""
        if self.wire is not None:
            self.wire.send(data)

    def subscribe(self, subject: bytes) -> bytes:
        self._next_sid += 1
        sid = b"%d" % self._next_sid
        self.subscriptions[sid] = subject
        self.send(b"SUB %b %b\r\n" % (subject, sid))
        return sid

    def unsubscribe(self, sid: bytes) -> None:
        if self.subscriptions.pop(sid, None) is not None:
            self.send(b"UNSUB %b\r\n" % sid)

    async def ping(self) -> None:
        """Returns when the server has handled everything sent before; raises TransportError if the line breaks."""
        if self.wire is None:
            raise TransportError("the connection to the NATS server is lost, and is dialled again")
        await self.wire.ping()

    async def request(self, subject: bytes, payload: bytes, timeout_s: float = 5.0, headers: bytes = b"") -> Msg:
        """The first reply; raises TransportError when there is none."""
        if not self._inbox_sid:
            self._inbox_sid = self.subscribe(self._inbox + b"*")
        self._next_reply += 1
        inbox = self._inbox + b"r%d" % self._next_reply
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._replies[inbox] = future
        if headers:
            sizes = (len(headers), len(headers) + len(payload))
            self.send(b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, inbox, *sizes, headers, payload))
        else:
            self.send(b"PUB %b %b %d\r\n%b\r\n" % (subject, inbox, len(payload), payload))
        try:
            async with asyncio.timeout(timeout_s):  # wait_for may swallow a cancellation that meets the reply
                reply = await future
        except TimeoutError:
            raise TransportError(f"no reply on {subject.decode()} within {timeout_s} s") from None
        finally:
            del self._replies[inbox]
        if reply[3].startswith(b"NATS/1.0 503"):
            raise TransportError(f"nobody answers on {subject.decode()}")
        return reply

    def pause(self, paused: bool) -> None:
        self.paused = paused
        if self.wire is not None:
            self.wire.pause(paused)

    async def close(self) -> None:
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
        if self.wire is not None:
            self.wire.close()

    # the wire calls these

    def _received(self, received: list[Received]) -> None:
        """Runs are handed on whole, unless one of the messages may be a reply."""
        if self._replies or self._on_received is None:
            self._guard.call(self.on_messages, singles(received))
        else:
            self._guard.call(self._on_received, received)

    def on_messages(self, messages: list[Msg]) -> None:
        if self._replies:
            inbox_sid, mine = self._inbox_sid, False
            for message in messages:
                if message[0] == inbox_sid:
                    mine = True
                    future = self._replies.get(message[1])
                    if future is not None and not future.done():
                        future.set_result(message)
            if mine:
                messages = [message for message in messages if message[0] != inbox_sid]
        if not messages:
            return
        if self._on_received is not None:
            self._on_received(list[Received](messages))
        else:
            self._owner.on_messages(messages)

    def on_error(self, text: str) -> None:
        self._guard.call(self._owner.on_error, text)

    def on_gone(self, wire: NatsWire, reason: str) -> None:
        if wire is self.wire:
            self._gone.set()

    async def _keep(self) -> None:
        """Dials again whenever the connection breaks."""
        while not self._closed:
            await self._gone.wait()
            assert self.wire is not None
            servers, reason = self.servers(), f"{self._at}: {self.wire.reason}"
            self.wire = None
            for reply in self._replies.values():
                if not reply.done():
                    reply.set_exception(TransportError(f"the line broke before an answer came: {reason}"))
            self._owner.on_down(reason)
            pause_us = 20_000
            while self.wire is None:
                try:
                    await self._dial_any(servers)
                except TransportError:
                    await asyncio.sleep(pause_us / 1e6)
                    pause_us = min(2 * pause_us, self._reconnect_us_max)
            self._owner.on_back()

    async def _dial_any(self, servers: list[str]) -> None:
        """The first that lets us in."""

        async def attempt(server: str) -> tuple[str, NatsWire]:
            return server, await dial(server, self.options, self, self._received)

        server, wire = await first_of([partial(attempt, server) for server in servers], lambda late: late[1].close())
        self._gone.clear()
        self.wire, self._at = wire, urlsplit(server).netloc.rpartition("@")[2]
        self.servers()
        if wire.is_gone:
            self._gone.set()
        wire.pause(self.paused)
        for sid, subject in self.subscriptions.items():
            wire.send(b"SUB %b %b\r\n" % (subject, sid))
