"""The NATS client protocol as an asyncio.Protocol: bulk reads in, one write per loop turn out, no task per message.

Why not nats-py on the hot path: docs/decisions says what was measured. Spoken here: INFO, CONNECT, PUB, HPUB, SUB,
UNSUB, MSG, HMSG, PING, PONG, +OK, -ERR; user and password, token, nkey or JWT (`login`), TLS.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from unisono.errors import MisuseError, PeerError, TransportError, TurnedAwayError, said
from unisono.model.address import host_port
from unisono.model.deployment import without_credentials
from unisono.runtime.brokers.nats.login import NatsLogin

Msg = tuple[bytes, bytes, bytes, bytes, bytes]
"""sid, subject, reply, header block, payload."""


class MessageRun(NamedTuple):
    """Messages with the same first line (subject, sid, sizes), one after the other in what was read at once."""

    sid: bytes
    subject: bytes
    data: bytes
    start: int
    """Of the first header block."""
    head_bytes: int
    all_bytes: int
    stride: int
    """From one message to the next."""
    length: int
    """How many they are."""

    def heads(self) -> bytes:
        """All header blocks, joined."""
        data, start, size = self.data, self.start, self.head_bytes
        return b"".join([data[at : at + size] for at in range(start, start + self.length * self.stride, self.stride)])

    def payloads(self) -> tuple[bytes, ...]:
        data, start, size = self.data, self.start + self.head_bytes, self.all_bytes - self.head_bytes
        return tuple([data[at : at + size] for at in range(start, start + self.length * self.stride, self.stride)])

    def messages(self) -> list[Msg]:
        data, heads = self.data, range(self.start, self.start + self.length * self.stride, self.stride)
        return [
            (self.sid, self.subject, b"", data[at : at + self.head_bytes], payload)
            for at, payload in zip(heads, self.payloads())
        ]


Received: TypeAlias = Msg | MessageRun


def singles(received: Iterable[Received]) -> list[Msg]:
    """Message by message."""
    messages: list[Msg] = []
    for one in received:
        if isinstance(one, MessageRun):
            messages += one.messages()
        else:
            messages.append(one)
    return messages


LINE_BYTES_MAX = 1024 * 1024
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""The largest that nats-server can be configured for."""
LINES_KNOWN_MAX = 1000
WRITE_BUFFER_BYTES = 1024 * 1024
HANDSHAKE_S = 5.0
BEAT_S = 5.0
"""An idle connection is pinged this often; two unanswered pings end it."""


class Info(Struct, frozen=True):
    """What the server says about itself."""

    server_id: str = ""
    server_name: str = ""
    cluster: str = ""
    """Empty for a server alone; its own name for a leaf node of one server."""
    version: str = ""
    max_payload: int = 1024 * 1024
    headers: bool = False
    tls_required: bool = False
    jetstream: bool = False
    connect_urls: tuple[str, ...] = ()
    nonce: str = ""
    """To be signed by whoever has a key."""


class NatsOptions(Struct, frozen=True):
    """Where the servers are and who we are. Credentials may also stand in a URL, before the host."""

    servers: tuple[str, ...]
    """`nats://host:port` or `tls://host:port`, in order of preference. Others of the cluster are found."""
    user: str = ""
    password: str = ""
    token: str = ""
    login: NatsLogin | None = None
    """A key, instead of name and password."""
    tls: ssl.SSLContext | None = None
    """For servers that ask for TLS; None means the system's trust."""
    name: str = "unisono"
    deployment: str = "unisono"
    """Whose control subjects are meant; one word."""


class WireOwner(Protocol):
    """Who stands above a connection."""

    def on_messages(self, messages: list[Msg]) -> None: ...

    def on_error(self, text: str) -> None:
        """The server complains; it closes the connection itself if it means to."""
        ...

    def on_gone(self, wire: "NatsWire", reason: str) -> None: ...


_info_decoder = msgspec.json.Decoder(Info)


class NatsWire(asyncio.Protocol):
    """One connection to one server."""

    def __init__(self, owner: WireOwner, on_received: Callable[[list[Received]], None] | None = None) -> None:
        """`on_received` is called instead of the owner's `on_messages`, for those who understand runs."""
        self._owner, self._on_received = owner, on_received
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._need = 0  # bytes without which parsing again is useless
        self._lines: dict[bytes, tuple[bytes, bytes, int, int, bytes]] = {}  # MSG and HMSG lines: most come again
        self._out: list[bytes] = []
        self._pongs: deque[asyncio.Future[None]] = deque()
        self._silent_beats = 0
        self._beat: asyncio.TimerHandle | None = None
        self._reading_paused = False
        self._transport: asyncio.Transport | None = None
        self._info_came: asyncio.Future[None] = self._loop.create_future()
        self._congested = False
        self.info = Info()
        self.reason = "the server closed the connection"
        self.is_gone = False

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        self._silent_beats = 0
        if self._parts:
            self._parts.append(data)
            self._parts_bytes += len(data)
            if self._parts_bytes < self._need:
                return
            data = b"".join(self._parts)
        try:
            messages, used, need = self._parse(data)
        except (ValueError, IndexError, msgspec.DecodeError) as error:
            self.abort(f"not the NATS protocol: {error}")
            return
        rest = data[used:]
        self._parts, self._parts_bytes, self._need = ([rest] if rest else []), len(rest), need
        if not messages or self.is_gone:
            return
        if self._on_received is not None:
            self._on_received(messages)
        else:
            self._owner.on_messages(singles(messages))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        if exc is not None:
            self.reason = f"connection lost: {exc}"
        if self._beat is not None:
            self._beat.cancel()
        for waiter in [self._info_came, *self._pongs]:
            if not waiter.done():
                waiter.set_exception(TransportError(self.reason))
                waiter.exception()  # whoever waits is told; nobody need to
        self._pongs.clear()
        self._owner.on_gone(self, self.reason)

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False
        self.flush()

    # the owner calls these

    def send(self, data: bytes) -> None:
        """Leaves with everything else of this loop turn."""
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(data)

    def ping(self) -> asyncio.Future[None]:
        """Done when the server has handled everything sent before; TransportError if it never will."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        if self.is_gone:
            waiter.set_exception(TransportError(self.reason))
            waiter.exception()
        else:
            self._pongs.append(waiter)
            self.send(b"PING\r\n")
        return waiter

    def pause(self, paused: bool) -> None:
        transport = self._transport
        if transport is not None and paused != self._reading_paused and not transport.is_closing():
            self._reading_paused = paused
            if paused:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def abort(self, reason: str) -> None:
        self.reason = reason
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        self._congested = False
        self.flush()
        if self._transport is not None:
            self._transport.close()

    async def shake_hands(self, options: NatsOptions, url: str) -> None:
        """INFO, TLS if either side wants it, CONNECT, and a ping to see that we are let in."""
        parts = urlsplit(url)
        await self._info_came
        assert self._transport is not None
        if self.info.tls_required or parts.scheme == "tls":
            context = options.tls or ssl.create_default_context()
            secured = await self._loop.start_tls(self._transport, self, context, server_hostname=parts.hostname)
            assert secured is not None
            self._transport = secured
            secured.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if not self.info.headers:
            raise TransportError(f"nats-server {self.info.version} has no headers; 2.2 is the oldest that will do")
        options = with_credentials_of(url, options)
        greeting: dict[str, object] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "version": "1",
            "name": options.name,
        }
        if options.user:
            greeting |= {"user": options.user, "pass": options.password}
        if options.token:
            greeting |= {"auth_token": options.token}
        if options.login is not None and self.info.nonce:
            greeting |= options.login.answer(self.info.nonce)
        self.send(b"CONNECT " + msgspec.json.encode(greeting) + b"\r\n")
        await self.ping()
        self._beat = self._loop.call_later(BEAT_S, self._check_pulse)

    def _parse(self, data: bytes) -> tuple[list[Received], int, int]:
        """Messages, how many bytes they took, and how many the unfinished one at the end needs in all."""
        messages: list[Received] = []
        take, find, size, pos, lines = messages.append, data.find, len(data), 0, self._lines
        is_line, last = data.startswith, None
        while True:
            end = find(b"\r\n", pos)
            if end < 0:
                if size - pos > LINE_BYTES_MAX:
                    raise ValueError(f"a line of more than {LINE_BYTES_MAX} bytes")
                return messages, pos, 0
            known = lines.get(data[pos:end])
            if known is not None:
                sid, subject, head_bytes, all_bytes, line = known
                start = end + 2
                body, stop = start + head_bytes, start + all_bytes
                if stop > size - 2:
                    return messages, pos, stop + 2 - pos
                after = stop + 2
                if known is not last:  # a second one like it may be the beginning of a run
                    last = known
                    take((sid, subject, b"", data[start:body], data[body:stop]))
                    pos = after
                    continue
                stride = after - pos
                whole_end = size - stride  # a message that begins after it is not whole
                while after <= whole_end and is_line(line, after):
                    after += stride
                take(MessageRun(sid, subject, data, start, head_bytes, all_bytes, stride, (after - pos) // stride))
                pos = after
                continue
            kind = data[pos]
            if kind == 72:  # HMSG subject sid [reply] header-size total-size
                words = data[pos + 5 : end].split(b" ")
                start = end + 2
                body, stop = start + int(words[-2]), start + int(words[-1])
                if not start <= body <= stop <= size - 2:
                    return messages, pos, _needed(start, body, stop) - pos
                reply = words[2] if len(words) == 5 else b""
                take((words[1], words[0], reply, data[start:body], data[body:stop]))
                if not reply:
                    self._know(data[pos:end], words[1], words[0], body - start, stop - start)
                pos = stop + 2
            elif kind == 77:  # MSG subject sid [reply] size
                words = data[pos + 4 : end].split(b" ")
                start = end + 2
                stop = start + int(words[-1])
                if not start <= stop <= size - 2:
                    return messages, pos, _needed(start, start, stop) - pos
                take((words[1], words[0], words[2] if len(words) == 4 else b"", b"", data[start:stop]))
                if len(words) == 3:
                    self._know(data[pos:end], words[1], words[0], 0, stop - start)
                pos = stop + 2
            else:
                self._handle_line(data[pos:end])
                pos = end + 2

    def _know(self, line: bytes, sid: bytes, subject: bytes, head_bytes: int, all_bytes: int) -> None:
        if len(self._lines) >= LINES_KNOWN_MAX:
            self._lines.clear()
        self._lines[line] = (sid, subject, head_bytes, all_bytes, line + b"\r\n")

    def _handle_line(self, line: bytes) -> None:
        if line == b"PING":
            self.send(b"PONG\r\n")
        elif line == b"PONG":
            if self._pongs:
                waiter = self._pongs.popleft()
                if not waiter.done():
                    waiter.set_result(None)
        elif line.startswith(b"INFO "):
            self.info = _info_decoder.decode(line[5:])
            if not self._info_came.done():
                self._info_came.set_result(None)
        elif line.startswith(b"-ERR"):
            text = line[4:].strip(b" '").decode(errors="replace")
            if not text.startswith("Permissions Violation"):
                self.reason = f"the server says: {text}"
            self._owner.on_error(text)
        elif line != b"+OK":
            raise ValueError(f"{line[:40]!r}")

    def flush(self) -> None:
        if self._out and not self._congested and self._transport is not None and not self._transport.is_closing():
            out, self._out = self._out, []
            self._transport.write(b"".join(out))

    def _check_pulse(self) -> None:
        if not self._reading_paused:
            self._silent_beats += 1
        if self._silent_beats > 2:
            self.abort("the server does not answer")
            return
        self.ping()
        self._beat = self._loop.call_later(BEAT_S, self._check_pulse)


def _needed(start: int, body: int, stop: int) -> int:
    """Where an unfinished message ends; raises ValueError for sizes that cannot be."""
    if not start <= body <= stop or stop - start > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {stop - start} bytes, {body - start} of them headers")
    return stop + 2


def normalize(url: str) -> str:
    """`host:port`, as servers advertise each other, becomes a URL; raises MisuseError for what is no NATS address."""
    full = url if "://" in url else f"nats://{url}"
    try:
        parts = urlsplit(full)
        port = parts.port
    except ValueError as error:
        raise MisuseError(f"{without_credentials(url)!r} is no server address: {error}") from None
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise MisuseError(
            f"{without_credentials(url)!r} is no server address: write nats://host:port or tls://host:port"
        )
    return full if port else f"{full}:4222"


def with_credentials_of(url: str, options: NatsOptions) -> NatsOptions:
    """`nats://user:password@host` and `nats://token@host` bring their own."""
    parts = urlsplit(url)
    if parts.username is None:
        return options
    user, password, token = unquote(parts.username), unquote(parts.password or ""), ""
    if parts.password is None:
        user, token = "", user
    return msgspec.structs.replace(options, user=user, password=password, token=token, login=None)


async def dial(
    url: str,
    options: NatsOptions,
    owner: WireOwner,
    on_received: Callable[[list[Received]], None] | None = None,
) -> NatsWire:
    """A connection that has been let in; raises TransportError."""
    parts = urlsplit(url)
    assert parts.hostname is not None  # see `normalize`
    assert parts.port is not None
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            loop = asyncio.get_running_loop()
            _, wire = await loop.create_connection(lambda: NatsWire(owner, on_received), parts.hostname, parts.port)
            try:
                await wire.shake_hands(options, url)
            except BaseException:
                wire.abort("the handshake failed")
                raise
    except TimeoutError:
        where = host_port(parts.hostname, parts.port)
        todo = f"If a unisono node listens there, write unisono://{where}"
        raise TransportError(f"no answer from a NATS server at {where}. {todo}") from None
    except ssl.SSLError as error:
        raise TurnedAwayError(
            f"no TLS with the NATS server at {host_port(parts.hostname, parts.port)}: {said(error)}"
        ) from None
    except OSError as error:
        raise TransportError(f"no NATS server at {host_port(parts.hostname, parts.port)}: {said(error)}") from None
    except (PeerError, TransportError) as error:
        text = f"no NATS server for us at {host_port(parts.hostname, parts.port)}: {error}"
        if "Authorization" in text:
            raise TurnedAwayError(f"{text}. It wants another token, or broker.credentials") from None
        raise TransportError(text) from None
    return wire
