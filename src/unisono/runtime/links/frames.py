"""Bytes on a connection: length-prefixed msgpack list frames, a hello, and letters.

A frame is four bytes of length (big endian) and one msgpack value. First both sides introduce themselves
(`links.greeting`); every later frame is a list of `Letter`s, an empty one being a heartbeat, or `Rejected`, which is
the last. A value of the wrong type, a number out of its range or an unknown message is a `PeerError`.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from unisono.errors import PeerError
from unisono.model.ids import Address

PROTOCOL_VERSIONS = (5, 5)
"""Lowest and highest version of the wire protocol spoken here."""

M = TypeVar("M")


class Hello(Struct, frozen=True, tag="Hello"):
    """Who is at this end, and what it speaks."""

    kind: Literal["node", "client"]
    addresses: tuple[Address, ...]
    """Letters to these, and to what begins with one of them and a slash, can be handed to this connection."""
    protocols: tuple[int, int] = PROTOCOL_VERSIONS
    features: tuple[str, ...] = ()
    deployment: str = ""
    """Its name. Who gives none may talk to any."""
    agreed: dict[str, str] = {}
    """Settings that all parties must have alike (`model.agreed`); who says none has found them at the other side."""
    nonce: bytes = b""
    """Of who dials and knows a token: the other side shall prove that it knows it too."""
    proof: bytes = b""
    """Of who answers: that it knows the token."""
    secret: bytes = b""
    """Of a client: whoever shows it again is the same session, and may take its address over."""
    id: str = ""
    """Of the deployment, where it has one: names are often the same."""


class Challenge(Struct, frozen=True, tag="Challenge"):
    """The answer to a hello with a nonce: prove that you know the token."""

    nonce: bytes


class Proof(Struct, frozen=True, tag="Proof"):
    """The answer to a challenge."""

    proof: bytes


class Rejected(Struct, frozen=True, tag="Rejected"):
    """The other side will not talk to us; the connection closes. `code` is one of `model.limits.REASONS`."""

    reason: str
    code: str = "protocol"


class Letter(Struct, Generic[M], frozen=True, array_like=True):
    """A message and the address it goes to."""

    to: Address
    message: M


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises on bytes that are not what they should be; bad UTF-8 is not a DecodeError."""

_HEAD = 4
_encoder = msgspec.msgpack.Encoder()
LETTERS_MAX = 16_384
"""Letters of one frame; more leave in several."""
Greetings = Hello | Challenge | Proof | Rejected
_hello_decoder: msgspec.msgpack.Decoder[Greetings] = msgspec.msgpack.Decoder(Greetings)
_OUT_OF_RANGE = re.compile(r"Expected `int` [<>]")
_TOO_MANY = re.compile(r"Expected `array` of length <= ")


def encode_frame(value: Any) -> bytes:
    body = _encoder.encode(value)
    return len(body).to_bytes(_HEAD, "big") + body


TLS_RECORD = b"\x16\x03"
STRANGERS = {b"INFO": "a NATS server", b"HTTP": "a web server", b"SSH-": "an SSH server", b"GET ": "a web client"}
"""First words of what is not ours: as lengths of frames they would be huge."""


class FrameReader:
    """Cuts a byte stream into frame bodies; keeps at most one unfinished frame. `copied` counts bytes: each a few
    times at the most, however the stream is cut."""

    __slots__ = ("_need", "_rest", "bytes_max", "code", "copied")

    def __init__(self, bytes_max: int, code: str = "frame-size") -> None:
        self.bytes_max, self.code = bytes_max, code
        """May change between two bodies."""
        self.copied = 0
        self._rest = bytearray()
        self._need = 0

    @property
    def held_bytes(self) -> int:
        """Of the frame that is not whole yet."""
        return len(self._rest)

    def clear(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """The bodies completed by `data`; raises PeerError as soon as a length is too long."""
        if self._rest:
            self._rest += data
            self.copied += len(data)
            if len(self._rest) < self._need:
                return
            data, self._rest = bytes(self._rest), bytearray()
            self.copied += len(data)
        view, start, end, length = memoryview(data), 0, len(data), 0
        while end - start >= _HEAD:
            length = int.from_bytes(view[start : start + _HEAD], "big")
            if length > self.bytes_max:
                head = bytes(view[start : start + _HEAD])
                known = "a TLS client" if head.startswith(TLS_RECORD) else STRANGERS.get(head)
                if known is not None:
                    raise PeerError(f"{known} speaks there", self.code)
                raise PeerError(f"a frame of {length} bytes; the longest allowed is {self.bytes_max}", self.code)
            if end - start - _HEAD < length:
                break
            start += _HEAD + length
            yield view[start - length : start]
        if start < end:
            self._rest += view[start:]
            self.copied += end - start
            self._need = _HEAD + length if end - start >= _HEAD else _HEAD


class Codec:
    """Typed decoding of letters whose messages are of one union."""

    def __init__(self, messages: Any, from_clients: Any = None) -> None:
        """`from_clients`: those that clients may say, if that is not all of them."""
        self.of_clients = Codec(from_clients) if from_clients is not None else self
        self._decoder = msgspec.msgpack.Decoder(
            Annotated[list[Letter[messages]], Meta(max_length=LETTERS_MAX)] | Rejected
        )

    def decode(self, body: bytes | memoryview) -> list[Letter[Any]] | Rejected:
        try:
            letters: list[Letter[Any]] | Rejected = self._decoder.decode(body)
        except UNREADABLE as error:
            raise PeerError(f"not a list of letters: {error}", code_of(str(error))) from None
        return letters


def decode_hello(body: bytes | memoryview) -> Greetings:
    try:
        return _hello_decoder.decode(body)
    except UNREADABLE as error:
        raise PeerError(f"not a hello: {error}", code_of(str(error))) from None


def code_of(problem: str) -> str:
    if _OUT_OF_RANGE.search(problem):
        return "range"
    return "letters" if _TOO_MANY.search(problem) else "protocol"


def nodes_only(hello: Hello) -> Rejected | None:
    """Whom a client talks to."""
    return None if hello.kind == "node" else Rejected("a client talks to nodes only", "address")


def agree_on_protocol(theirs: tuple[int, int]) -> int:
    """The highest version both speak; raises PeerError if there is none."""
    low, high = max(theirs[0], PROTOCOL_VERSIONS[0]), min(theirs[1], PROTOCOL_VERSIONS[1])
    if low > high:
        ours = "-".join(map(str, PROTOCOL_VERSIONS))
        raise PeerError(f"they speak protocols {theirs[0]}-{theirs[1]}, here it is {ours}", "version")
    return high
