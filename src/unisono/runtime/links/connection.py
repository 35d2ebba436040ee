"""One TCP connection, either side, after and while both introduce themselves.

Letters posted in one turn of the loop leave in one write (coalescing is worth more than any codec). `Connection` is an
`asyncio.Protocol`, not a stream: no task, no future and no await per message.

What a peer can do to us is bounded: frames before the hello are short, the later ones no longer than `frame_bytes_max`;
what waits for a peer that does not read is counted in bytes, and at `waiting_bytes_max` the connection is closed
(sessions and clients send again after a reconnect, so nothing is lost by it). Whoever is refused is told the reason.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, cast

import msgspec
from msgspec import Struct

from unisono.errors import PeerError, TransportError, UnisonoError
from unisono.runtime.links.frames import LETTERS_MAX, Codec, FrameReader, Hello, Letter, Rejected, encode_frame
from unisono.runtime.links.greeting import Greeting, RejectedError
from unisono.runtime.links.holding import LITTLE_BYTES, Holding
from unisono.runtime.links.pace import TURN_FRAMES_MAX, Pace
from unisono.runtime.links.security import Tokens

_LINGER_S = 0.2
"""A connection that was refused stays, unread, for so long: who only tries again and again waits for each try."""
_encoder = msgspec.msgpack.Encoder()


class WireConfig(Struct, frozen=True):
    """Bounds of one connection."""

    frame_bytes_max: int = 8 << 20
    """A longer frame is refused before it is read; memory per connection is about twice this."""
    waiting_bytes_max: int = 64 << 20
    """What waits for a peer that does not read; at the bound the connection is closed."""
    heartbeat_s: float = 5.0
    """An idle side says so this often; three silent spans close the connection."""
    hello_s: float = 5.0
    """How long a new connection may take to introduce itself."""
    hello_bytes_max: int = 4_096
    """The longest frame of somebody who dialed us and has not introduced itself."""


def _turn_nobody_away(connection: "Connection") -> Rejected | None:
    return None


def _count_nothing(code: str, reason: str) -> None: ...


def _do_not_pause(connection: "Connection") -> float:
    return 0.0


class SendMeter(Struct):
    """What sending on some connections has cost."""

    letters: int = 0
    cpu_s: float = 0.0


class Connection(asyncio.Protocol):
    """One TCP connection, either side. The owner's callbacks are called in the loop and must not raise."""

    def __init__(
        self,
        codec: Codec,
        hello: Hello,
        dialed: bool,
        admit: Callable[["Connection", Hello], Rejected | None],
        receive: Callable[["Connection", list[Letter[Any]]], None],
        closed: Callable[["Connection", UnisonoError | None], None],
        config: WireConfig = WireConfig(),
        tokens: Tokens = Tokens(),
        made: Callable[["Connection"], Rejected | None] = _turn_nobody_away,
        refused: Callable[[str, str], None] = _count_nothing,
        pause_s: Callable[["Connection"], float] = _do_not_pause,
        holding: Holding | None = None,
    ) -> None:
        """`admit` and, before anything was said, `made` return why the peer is not wanted, or None; `closed` is called
        once, with what went wrong; `refused` with the code of what we did not take, and why; `pause_s` says how long
        we wait before more is read of what has arrived; `holding` counts what all connections hold."""
        self._holding = holding or Holding(config.waiting_bytes_max)
        self.peer: Hello | None = None
        self.error: UnisonoError | None = None
        self.gone: asyncio.Future[None] | None = None
        """For the owner: resolved by it when the connection is lost."""
        self.dialed = dialed
        self.round_trip_s: float | None = None
        """From the hello of who dials to the first answer."""
        self._dialed_at = 0.0
        self._greeting = Greeting(hello, dialed, tokens, lambda theirs: admit(self, theirs))
        self._codec, self._config = codec, config
        self._receive, self._closed, self._made = receive, closed, made
        self._refused, self._pause_s = refused, pause_s
        if dialed:
            self._reader = FrameReader(config.frame_bytes_max)
        else:
            self._reader = FrameReader(min(config.hello_bytes_max, config.frame_bytes_max), "hello-size")
        self._loop = asyncio.get_running_loop()
        self.offences = 0
        """For the owner: what it has refused on this connection without closing it."""
        self.pace = Pace(at=self._loop.time())
        self.unheard: deque[Letter[Any]] = deque()
        """For the owner: letters that wait for their turn, or until their sender may ask again."""
        self.waits = False
        """For the owner: it will go on with them, and reading is paused meanwhile."""
        self.stops = False
        """No further letter is handed over in this turn."""
        self.is_hurried = False
        """For the owner: whoever is refused does not stay."""
        self.heard = 0
        """Letters of the bytes that were read last."""
        self.bytes_in = self.bytes_out = 0
        self.meter: SendMeter | None = None
        self._transport: asyncio.Transport | None = None
        self._out: list[Letter[Any]] = []
        self._aside: list[bytes] = []  # letters that wait because the peer does not read, encoded
        self._aside_bytes = 0
        self._flush_asked = self._congested = self._was_closed = False
        self._silent_spans = 0
        self._wrote = False
        self._timer: asyncio.TimerHandle | None = None
        self._reading_paused = False
        self._bodies: Iterator[memoryview] | None = None  # frames that have arrived, and have not had their turn
        self._body_bytes = 0  # of the last frame
        self._held_before = 0

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        rejected = self._made(self)
        if rejected is not None:
            self.refuse(PeerError(rejected.reason, rejected.code))
            return
        self._dialed_at = self._loop.time()
        for frame in self._greeting.begin():
            self._transport.write(encode_frame(frame))
        self._timer = self._loop.call_later(self._config.hello_s, self._introduction_is_due)

    def data_received(self, data: bytes) -> None:
        if self.error is not None:
            return  # refused, and heard no more
        self._silent_spans = 0
        self.bytes_in += len(data)
        bodies = self._reader.feed(data)
        self._bodies = bodies if self._bodies is None else chain(self._bodies, bodies)
        self._read_some()
        self._note_held()

    @property
    def held_bytes(self) -> int:
        """Frames that are not whole, letters that wait for their turn, and what the peer does not read."""
        return self._reader.held_bytes + self._aside_bytes + (self._body_bytes if self.unheard else 0)

    @property
    def is_of_a_client(self) -> bool:
        return self.peer is None or self.peer.kind == "client"

    def _note_held(self) -> None:
        held = self.held_bytes
        if (held >= LITTLE_BYTES or self._held_before) and held != self._held_before and self.error is None:
            self._held_before = held
            self._holding.note(self, held)

    def _read_some(self) -> None:
        """What has arrived, up to what others can wait for; the rest of it has its turn when they had theirs."""
        if self.error is not None or self._bodies is None:
            return
        self.heard = frames = 0
        try:
            for body in self._bodies:
                if self.peer is not None:
                    self._body_bytes = len(body)
                    self._hear(self._codec.decode(body))
                else:
                    self._greet(body)
                if self._was_closed or self.error is not None:
                    return
                frames += 1
                if self.waits or (frames >= TURN_FRAMES_MAX and self.peer is not None and self.peer.kind == "client"):
                    self.pause_reading()
                    if not self.waits:
                        self._loop.call_later(self._pause_s(self), self.resume_reading)
                    return
            self._bodies = None
        except RejectedError as error:
            self.close(error)
        except PeerError as error:
            self.refuse(error)

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
            self._aside.clear()
            self.unheard.clear()
            self._holding.forget(self)
            self._closed(self, self.error)
        self._transport = None

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
        self.stops = self.stops or error is not None
        if self._transport is not None and not self._transport.is_closing():
            if error is None:
                self.flush()
                self._transport.close()
            else:
                self._transport.abort()

    def refuse(self, error: PeerError) -> None:
        """Closes, and tells the other side why; it need not read that."""
        self._refused(error.code, f"{self.whom()}: {error}")
        if self.error is not None:
            return
        self.error, self.stops = error, True
        self._holding.forget(self)
        self._aside.clear()
        self._aside_bytes, self._bodies = 0, None
        self.unheard.clear()
        self._reader.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(Rejected(str(error), error.code)))
            self.pause_reading()
            if self._timer is not None:
                self._timer.cancel()
            if self.is_hurried:
                self._transport.close()
                return
            self._timer = self._loop.call_later(_LINGER_S, self._transport.abort)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Goes on with what has arrived, then with what comes."""
        self._read_some()
        self._note_held()
        if self.waits or self._bodies is not None:
            return
        if self._transport is not None and self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._silent_spans = 0
            self._transport.resume_reading()

    @property
    def token(self) -> str:
        """What the peer has proven to know; empty for one that we have dialed."""
        return self._greeting.token

    def whom(self) -> str:
        """Who is at the other end, as far as it has said so."""
        if self.peer is not None:
            return ", ".join(self.peer.addresses)
        place = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{place[0]}:{place[1]}" if isinstance(place, tuple) else "somebody"

    @property
    def waiting_bytes(self) -> int:
        """What was posted and waits because the peer does not read."""
        return self._aside_bytes

    def _hear(self, letters: list[Letter[Any]] | Rejected) -> None:
        if isinstance(letters, Rejected):
            raise RejectedError(letters)
        if letters:
            self._receive(self, letters)

    def _greet(self, body: memoryview) -> None:
        assert self._transport is not None
        if self.dialed and self.round_trip_s is None:
            self.round_trip_s = self._loop.time() - self._dialed_at
        for frame in self._greeting.hear(body):
            self._transport.write(encode_frame(frame))
        if self._greeting.peer is None:
            return
        self.peer = self._greeting.peer
        if self.peer.kind == "client":
            self._codec = self._codec.of_clients
        self._reader.bytes_max, self._reader.code = self._config.frame_bytes_max, "frame-size"
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._config.heartbeat_s, self._beat)
        self.flush()

    def _introduction_is_due(self) -> None:
        self.refuse(PeerError(f"no hello within {self._config.hello_s} s", "hello-late"))

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
        if self.peer is None or self._transport is None or self._transport.is_closing():
            return
        if self._congested:
            self._set_aside()
            return
        if self._aside:
            aside, self._aside, self._aside_bytes = self._aside, [], 0
            self._note_held()
            for frame in _frames(aside, self._config.frame_bytes_max):
                self.bytes_out += len(frame)
                self._transport.write(frame)
        if self._out:
            letters, self._out = self._out, []
            self._wrote = True
            begun = time.thread_time() if self.meter is not None else 0.0
            packed = self._pack(letters)
            self.bytes_out += len(packed)
            self._transport.write(packed)
            if self.meter is not None:
                self.meter.letters += len(letters)
                self.meter.cpu_s += time.thread_time() - begun

    def _set_aside(self) -> None:
        """Encodes now what would be encoded later anyway, so that it is counted in bytes."""
        letters, self._out = self._out, []
        for letter in letters:
            encoded = _encoder.encode(letter)
            self._aside.append(encoded)
            self._aside_bytes += len(encoded)
        if self._aside_bytes > self._config.waiting_bytes_max:
            error = TransportError(f"{self._aside_bytes} bytes wait and the peer does not read")
            self._refused("bytes", f"{self.whom()}: {error}")
            self.close(error)
        self._note_held()

    def _pack(self, letters: list[Letter[Any]]) -> bytes:
        if len(letters) <= LETTERS_MAX:
            try:
                frame = encode_frame(letters)
            except (TypeError, ValueError, OverflowError) as error:  # the edge refuses such values: our own mistake
                self.close(TransportError(f"what was to be sent has no form on the wire: {error}"))
                return b""
            if len(frame) - 4 <= self._config.frame_bytes_max:
                return frame
            if len(letters) == 1:
                # The edge refuses payloads far below this, so a single letter of this size is our own mistake.
                self.close(TransportError(f"a letter of {len(frame)} bytes is longer than a frame may be"))
                return b""
        half = len(letters) // 2
        return self._pack(letters[:half]) + self._pack(letters[half:])


def _frames(letters: list[bytes], bytes_max: int) -> list[bytes]:
    """Encoded letters as frames that are short enough."""
    frames, start, size = [], 0, 5
    for place, letter in enumerate(letters):
        if place > start and (size + len(letter) > bytes_max or place - start == LETTERS_MAX):
            frames.append(_frame(letters[start:place]))
            start, size = place, 5
        size += len(letter)
    return [*frames, _frame(letters[start:])]


def _frame(letters: list[bytes]) -> bytes:
    body = b"".join(letters)
    return (len(body) + 5).to_bytes(4, "big") + b"\xdd" + len(letters).to_bytes(4, "big") + body
