"""Bytes on a connection: length-prefixed msgpack list frames, a hello, and letters.

A frame is four bytes of length (big endian) and one msgpack value. The first frame of each side is a `Hello` (or
`Rejected`), every later one a list of `Letter`s; an empty list is a heartbeat. Letters posted in one turn of the loop
leave in one write (coalescing is worth more than any codec). `Connection` is an `asyncio.Protocol`, not a stream: no
task, no future and no await per message.

What a peer can do to us is bounded: a frame longer than `frame_bytes_max`, a value of the wrong type or an unknown
message closes the connection with a `PeerError`; letters that cannot leave wait in a bounded list, and at its bound
the connection is closed (sessions and clients send again after a reconnect, so nothing is lost by it).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec
from msgspec import Struct

from unisono.errors import PeerError, TransportError, UnisonoError
from unisono.model.ids import Address

PROTOCOL_VERSIONS = (4, 4)
"""Lowest and highest version of the wire protocol spoken here."""

M = TypeVar("M")


class Hello(Struct, frozen=True, tag=True):
    """Who is at this end, and what it speaks."""

    kind: Literal["node", "client"]
    addresses: tuple[Address, ...]
    """Letters to these, and to what begins with one of them and a slash, can be handed to this connection."""
    protocols: tuple[int, int] = PROTOCOL_VERSIONS
    features: tuple[str, ...] = ()
    deployment: str = ""
    token: str = ""


class Rejected(Struct, frozen=True, tag=True):
    """The other side will not talk to us; the connection closes."""

    reason: str


class Letter(Struct, Generic[M], frozen=True, array_like=True):
    """A message and the address it goes to."""

    to: Address
    message: M


class WireConfig(Struct, frozen=True):
    """Bounds of one connection."""

    frame_bytes_max: int = 8 << 20
    """A longer frame is refused before it is read; memory per connection is about twice this."""
    letters_waiting_max: int = 200_000
    """Letters waiting for a peer that does not read; at the bound the connection is closed."""
    heartbeat_s: float = 5.0
    """An idle side says so this often; three silent spans close the connection."""
    hello_s: float = 5.0
    """How long a new connection may take to introduce itself."""


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises on bytes that are not what they should be; bad UTF-8 is not a DecodeError."""

_HEAD = 4
_encoder = msgspec.msgpack.Encoder()
_hello_decoder: msgspec.msgpack.Decoder[Hello | Rejected] = msgspec.msgpack.Decoder(Hello | Rejected)


def encode_frame(value: Any) -> bytes:
    body = _encoder.encode(value)
    return len(body).to_bytes(_HEAD, "big") + body


class FrameReader:
    """Cuts a byte stream into frame bodies; keeps at most one unfinished frame."""

    __slots__ = ("_bytes_max", "_rest")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest = b""

    def feed(self, data: bytes) -> list[memoryview]:
        """The bodies completed by `data`; raises PeerError as soon as a length is too long."""
        if self._rest:
            data = self._rest + data
        view, start, end = memoryview(data), 0, len(data)
        bodies = []
        while end - start >= _HEAD:
            length = int.from_bytes(view[start : start + _HEAD], "big")
            if length > self._bytes_max:
                raise PeerError(f"a frame of {length} bytes; the longest allowed is {self._bytes_max}")
            if end - start - _HEAD < length:
                break
            bodies.append(view[start + _HEAD : start + _HEAD + length])
            start += _HEAD + length
        self._rest = bytes(view[start:]) if start < end else b""
        return bodies


class Codec:
    """Typed decoding of letters whose messages are of one union."""

    def __init__(self, messages: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[Letter[messages]])

    def decode(self, body: bytes | memoryview) -> list[Letter[Any]]:
        try:
            return self._decoder.decode(body)
        except UNREADABLE as error:
            raise PeerError(f"not a list of letters: {error}") from None


def decode_hello(body: bytes | memoryview) -> Hello | Rejected:
    try:
        return _hello_decoder.decode(body)
    except UNREADABLE as error:
        raise PeerError(f"not a hello: {error}") from None


def agree_on_protocol(theirs: tuple[int, int]) -> int:
    """The highest version both speak; raises PeerError if there is none."""
    low, high = max(theirs[0], PROTOCOL_VERSIONS[0]), min(theirs[1], PROTOCOL_VERSIONS[1])
    if low > high:
        ours = "-".join(map(str, PROTOCOL_VERSIONS))
        raise PeerError(f"they speak protocols {theirs[0]}-{theirs[1]}, here it is {ours}")
    return high


class Connection(asyncio.Protocol):
    """One TCP connection, either side. The owner's callbacks are called in the loop and must not raise."""

    def __init__(
        self,
        codec: Codec,
        hello: Hello,
        dialed: bool,
        admit: Callable[["Connection", Hello], str | None],
        receive: Callable[["Connection", list[Letter[Any]]], None],
        closed: Callable[["Connection", UnisonoError | None], None],
        config: WireConfig = WireConfig(),
    ) -> None:
        """`admit` returns the reason to reject a hello, or None; `closed` is called once, with what went wrong."""
        self.peer: Hello | None = None
        self.error: UnisonoError | None = None
        self.gone: asyncio.Future[None] | None = None
        """For the owner: resolved by it when the connection is lost."""
        self.dialed = dialed
        self._codec, self._hello, self._config = codec, hello, config
        self._admit, self._receive, self._closed = admit, receive, closed
        self._reader = FrameReader(config.frame_bytes_max)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[Letter[Any]] = []
        self._flush_asked = self._congested = self._was_closed = False
        self._silent_spans = 0
        self._wrote = False
        self._timer: asyncio.TimerHandle | None = None
        self._reading_paused = False

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.dialed:
            self._transport.write(encode_frame(self._hello))
        self._timer = self._loop.call_later(self._config.hello_s, self._introduction_is_due)

    def data_received(self, data: bytes) -> None:
        self._silent_spans = 0
        try:
            for body in self._reader.feed(data):
                if self.peer is not None:
                    letters = self._codec.decode(body)
                    if letters:
                        self._receive(self, letters)
                else:
                    self._greet(decode_hello(body))
                if self._was_closed or self.error is not None:
                    return
        except PeerError as error:
            self.close(error)

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._was_closed:
            self._was_closed = True
            if exc is not None and self.error is None:
                self.error = TransportError(f"connection lost: {exc}")
            self._out.clear()
            self._closed(self, self.error)

    # the owner calls these

    def post(self, letter: Letter[Any]) -> None:
        """Sends with everything else posted in this turn of the loop."""
        self._out.append(letter)
        if not self._flush_asked:
            self._flush_asked = True
            self._loop.call_soon(self.flush)

    def close(self, error: UnisonoError | None = None) -> None:
        if self.error is None:
            self.error = error
        if self._transport is not None and not self._transport.is_closing():
            if error is None:
                self.flush()
                self._transport.close()
            else:
                self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._silent_spans = 0
            self._transport.resume_reading()

    @property
    def waiting(self) -> int:
        """Letters posted and not yet written."""
        return len(self._out)

    def _greet(self, hello: Hello | Rejected) -> None:
        if isinstance(hello, Rejected):
            raise PeerError(f"rejected: {hello.reason}")
        agree_on_protocol(hello.protocols)
        reason = self._admit(self, hello)
        assert self._transport is not None
        if reason is not None:
            self._transport.write(encode_frame(Rejected(reason)))
            self.error = PeerError(f"a hello was rejected: {reason}")
            self._transport.close()
            return
        if not self.dialed:
            self._transport.write(encode_frame(self._hello))
        self.peer = hello
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._config.heartbeat_s, self._beat)
        self.flush()

    def _introduction_is_due(self) -> None:
        self.close(PeerError(f"no hello within {self._config.hello_s} s"))

    def _beat(self) -> None:
        if not self._reading_paused:
            self._silent_spans += 1
        if self._silent_spans > 3:
            self.close(TransportError(f"silent for {3 * self._config.heartbeat_s:.0f} s"))
            return
        if not self._wrote and not self._congested and self._transport is not None:
            self._transport.write(encode_frame([]))
        self._wrote = False
        self._timer = self._loop.call_later(self._config.heartbeat_s, self._beat)

    def flush(self) -> None:
        self._flush_asked = False
        if not self._out or self.peer is None or self._transport is None or self._transport.is_closing():
            return
        if self._congested:
            if len(self._out) > self._config.letters_waiting_max:
                self.close(TransportError(f"{len(self._out)} letters wait and the peer does not read"))
            return
        letters, self._out = self._out, []
        self._wrote = True
        self._transport.write(self._pack(letters))

    def _pack(self, letters: list[Letter[Any]]) -> bytes:
        frame = encode_frame(letters)
        if len(frame) - _HEAD <= self._config.frame_bytes_max:
            return frame
        if len(letters) == 1:
            # The edge refuses payloads far below this, so a single letter of this size is our own mistake.
            self.close(TransportError(f"a letter of {len(frame)} bytes is longer than a frame may be"))
            return b""
        half = len(letters) // 2
        return self._pack(letters[:half]) + self._pack(letters[half:])
