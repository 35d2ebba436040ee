"""Members' messages as datagrams, and every reason to turn one away.

    magic u16 | version u8 | kind u8 | constants u32 | length u32 | content | (length u32 | frame)* | tag 8 B

`constants` is a digest of the deployment's name and of what all members must agree on: ticks, eps, lives. The tag is
HMAC-SHA256 of all before it, with SHA-256 of each frame in its place: a frame passes a member several times, and is
hashed once. Its key is the deployment's token where it has one: without, it stops accidents only. Content is msgpack,
and a frame

    sender u16 | stamp u64 | deadline - stamp u8 | groups u8, u16 each
    | entries u16, each: incarnation u16, group u16, age u8, deadline u8 | length u32 | events in msgpack

An entry's age is counted back from the frame's stamp, its deadline forward from eps before that; sorted, so a vector
has one form. The paper packs colours into bits, `packed_bytes` says how few.
"""

import hmac
import struct
from collections.abc import Iterable, Iterator
from enum import Enum
from hashlib import blake2b, sha256
from math import ceil, log2
from typing import NamedTuple

import msgspec
from msgspec import Struct

from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.numbers import Number
from unisono.protocols.causal.config import CausalConfig
from unisono.protocols.causal.messages import (
    CausalDigest,
    CausalFrame,
    CausalFrames,
    CausalGossip,
    CausalLeft,
    CausalMember,
    CausalRequest,
    FrameId,
    FromMember,
    Past,
)
from unisono.protocols.causal.order import why_malformed

MAGIC = 0x7563
VERSION = 3
GOSSIP, REQUEST, FRAMES = 1, 2, 3
TAG_BYTES = 8
DATAGRAM_BYTES = 60_000
"""The largest datagram that is made or read; UDP carries 65 507 bytes."""
FRAME_BYTES_MAX = 50_000
FRAMES_MAX = 256
"""Of one datagram."""
PACKED_MAX = 1024
"""Frames whose packed form is kept, since they are sent many times and come as often."""
STAMP_MAX = 2**62

_HEADER = struct.Struct(">HBBI")
_FRAME = struct.Struct(">HQBB")
_ID = struct.Struct(">HQ")
_ENTRY = struct.Struct(">HHBB")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
ENTRY_BYTES = _ENTRY.size


class BadDatagram(Enum):
    """Why a datagram was dropped without a trace, counted by these names."""

    SHORT = "short"
    OVERSIZED = "oversized"
    MAGIC = "magic"
    VERSION = "version"
    KIND = "kind"
    CONSTANTS = "constants"
    TAG = "tag"
    CONTENT = "content"
    FRAME = "frame"
    """A frame in it has no sound form, or says what no conforming sender says; the others of the datagram count."""


class _Gossip(Struct, frozen=True, array_like=True):
    member: CausalMember
    tick: Number
    digest: tuple[CausalDigest, ...]
    members: tuple[CausalMember, ...]
    left: tuple[CausalLeft, ...]


class _Request(Struct, frozen=True, array_like=True):
    source: Address
    ids: tuple[tuple[Number, Number], ...]


class _Frames(Struct, frozen=True, array_like=True):
    source: Address


_gossip = msgspec.msgpack.Decoder(_Gossip)
_request = msgspec.msgpack.Decoder(_Request)
_frames = msgspec.msgpack.Decoder(_Frames)
_events = msgspec.msgpack.Decoder(tuple[Event, ...])


def pack_frame(frame: CausalFrame, config: CausalConfig) -> bytes:
    parts = [
        _FRAME.pack(frame.sender, frame.stamp, frame.deadline - frame.stamp, len(frame.groups)),
        *(_U16.pack(group) for group in frame.groups),
        pack_vector(frame, config),
    ]
    body = msgspec.msgpack.encode(frame.body)
    return b"".join((*parts, _U32.pack(len(body)), body))


def pack_vector(frame: CausalFrame, config: CausalConfig) -> bytes:
    """The ordering vector alone: two bytes and six for every entry."""
    parts = [_U16.pack(len(frame.past))]
    for (sender, group), (stamp, deadline) in sorted(frame.past.items()):
        # What is over counts as over for eps more: that is waiting, never a wrong order.
        left = max(deadline - frame.stamp + config.eps_ticks, 0)
        parts.append(_ENTRY.pack(sender, group, frame.stamp - stamp, left))
    return b"".join(parts)


def vector_bytes(frame: CausalFrame) -> int:
    return _U16.size + ENTRY_BYTES * len(frame.past)


def unpack_frame(data: bytes, config: CausalConfig) -> CausalFrame:
    """Raises ValueError with the reason; nothing of a frame is believed before all of it is sound."""
    if len(data) > FRAME_BYTES_MAX:
        raise ValueError(f"it has {len(data)} bytes")
    try:
        sender, stamp, lasts, count = _FRAME.unpack_from(data)
        at = _FRAME.size
        groups = struct.unpack_from(f">{count}H", data, at)
        at += 2 * count
        (entries,) = _U16.unpack_from(data, at)
        at += _U16.size
        past: Past = {}
        last = (-1, -1)
        for entry_sender, group, age, left in _ENTRY.iter_unpack(data[at : at + entries * ENTRY_BYTES]):
            if (entry_sender, group) <= last:
                raise ValueError("its vector is not sorted")
            last = (entry_sender, group)
            ends = stamp + left - config.eps_ticks
            if not left:  # it was over when it was packed, and may be older than any deadline is long
                ends = min(ends, stamp - age + config.deadline_ticks_max)
            past[last] = (stamp - age, ends)
        at += entries * ENTRY_BYTES
        (length,) = _U32.unpack_from(data, at)
    except struct.error as error:
        raise ValueError(f"it is cut off: {error}") from None
    body = data[at + _U32.size :]
    if len(body) != length:
        raise ValueError(f"it says {length} bytes of events and has {len(body)}")
    if stamp > STAMP_MAX or any(entry[0] < 0 for entry in past.values()):
        raise ValueError("its stamps are out of range")
    try:
        events = _events.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its events cannot be read: {error}") from None
    frame = CausalFrame(sender, stamp, groups, stamp + lasts, past, events)
    wrong = why_malformed(frame, config)
    if wrong is not None:
        raise ValueError(wrong)
    return frame


class PackedFrame(NamedTuple):
    """A frame as it travels, its hash, and what it says, if that has been read."""

    data: bytes
    digest: bytes
    frame: CausalFrame | None = None


class DatagramCodec:
    """Datagrams of one deployment."""

    def __init__(self, config: CausalConfig, deployment: str = "", token: str = "") -> None:
        self._config = config
        shared = (
            deployment, config.tick_us, config.eps_ticks, config.life_ticks, config.spread_ticks,
            config.deadline_ticks_max, config.delay_ticks, config.late,
        )  # fmt: skip
        text = repr(shared).encode()
        self.constants = int.from_bytes(blake2b(text, digest_size=4).digest(), "big")
        self._key = blake2b(token.encode(), digest_size=32).digest() if token else b""
        self._packed: dict[FrameId, PackedFrame] = {}

    def encode(self, message: FromMember) -> Iterator[bytes]:
        """The datagrams of a message: frames that do not fit the first travel in more of them."""
        match message:
            case CausalGossip(member=member):
                head, *more = self._split(message.push)
                gossip = _Gossip(member, message.tick, message.digest, message.members, message.left)
                yield self._seal(GOSSIP, msgspec.msgpack.encode(gossip), head)
                for some in more:
                    yield self._seal(FRAMES, msgspec.msgpack.encode(_Frames(member.address)), some)
            case CausalRequest(source=source, ids=ids):
                yield self._seal(REQUEST, msgspec.msgpack.encode(_Request(source, ids)))
            case CausalFrames(source=source, frames=frames):
                for some in self._split(frames):
                    yield self._seal(FRAMES, msgspec.msgpack.encode(_Frames(source)), some)

    def _split(self, frames: tuple[CausalFrame, ...]) -> list[list[PackedFrame]]:
        parts: list[list[PackedFrame]] = [[]]
        room = full = DATAGRAM_BYTES // 2  # digests and members have the other half
        for frame in frames:
            packed = self._pack(frame)
            size = len(packed.data) + _U32.size
            if len(packed.data) > FRAME_BYTES_MAX:
                continue  # of somebody whose form was shorter than ours; brokers send none so large
            if parts[-1] and (size > room or len(parts[-1]) == FRAMES_MAX):
                parts.append([])
                room = full
            parts[-1].append(packed)
            room -= size
        return parts

    def _pack(self, frame: CausalFrame) -> PackedFrame:
        """A frame is packed once, and sent many times."""
        known = self._packed.get(frame.id)
        if known is not None and known.frame is frame:
            return known
        data = pack_frame(frame, self._config)
        return self._keep(frame, data, sha256(data).digest())

    def _keep(self, frame: CausalFrame, data: bytes, digest: bytes) -> PackedFrame:
        if frame.id not in self._packed and len(self._packed) >= PACKED_MAX:
            del self._packed[next(iter(self._packed))]
        packed = self._packed[frame.id] = PackedFrame(data, digest, frame)
        return packed

    def _seal(self, kind: int, content: bytes, frames: Iterable[PackedFrame] = ()) -> bytes:
        head = _HEADER.pack(MAGIC, VERSION, kind, self.constants) + _U32.pack(len(content)) + content
        parts = [head]
        for each in frames:
            parts += (_U32.pack(len(each.data)), each.data)
        return b"".join((*parts, self._tag(head, frames)))

    def _tag(self, head: bytes, frames: Iterable[PackedFrame]) -> bytes:
        return hmac.digest(self._key, b"".join((head, *(each.digest for each in frames))), "sha256")[:TAG_BYTES]

    def decode(self, data: bytes) -> tuple[FromMember | None, list[BadDatagram]]:
        """The message, and what was wrong; there may be both, when some of its frames are bad."""
        if len(data) < _HEADER.size + _U32.size + TAG_BYTES:
            return None, [BadDatagram.SHORT]
        if len(data) > DATAGRAM_BYTES:
            return None, [BadDatagram.OVERSIZED]
        magic, version, kind, constants = _HEADER.unpack_from(data)
        for is_wrong, bad in (
            (magic != MAGIC, BadDatagram.MAGIC),
            (version != VERSION, BadDatagram.VERSION),
            (kind not in (GOSSIP, REQUEST, FRAMES), BadDatagram.KIND),
        ):
            if is_wrong:
                return None, [bad]
        cut = self._cut(data)
        if cut is None:
            return None, [BadDatagram.CONTENT]
        head, frames = cut
        if not hmac.compare_digest(self._tag(head, frames), data[-TAG_BYTES:]):
            return None, [BadDatagram.TAG]
        if constants != self.constants:
            return None, [BadDatagram.CONSTANTS]
        try:
            return self._read(kind, head[_HEADER.size + _U32.size :], frames)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None, [BadDatagram.CONTENT]

    def _cut(self, data: bytes) -> tuple[bytes, list[PackedFrame]] | None:
        """What comes before the frames, and these; None if the lengths are not those of this datagram."""
        end = len(data) - TAG_BYTES
        at = _HEADER.size + _U32.size + _U32.unpack_from(data, _HEADER.size)[0]
        head, frames = data[:at], list[PackedFrame]()
        while at + _U32.size <= end and len(frames) < FRAMES_MAX:
            begin = at + _U32.size
            at = begin + _U32.unpack_from(data, at)[0]
            frames.append(self._look_up(data[begin:at]))
        return (head, frames) if at == end else None

    def _look_up(self, data: bytes) -> PackedFrame:
        """Copies of a frame come from several members: the first is hashed and read, and passed on as it came."""
        known = self._packed.get(_ID.unpack_from(data)) if len(data) >= _ID.size else None
        if known is not None and known.data == data:
            return known
        return PackedFrame(data, sha256(data).digest())

    def _read(self, kind: int, content: bytes, packed: list[PackedFrame]) -> tuple[FromMember, list[BadDatagram]]:
        if kind == REQUEST:
            request = _request.decode(content)
            return CausalRequest(request.source, request.ids), []
        if kind == FRAMES:
            source = _frames.decode(content).source
            frames, bad = self._frames(packed)
            return CausalFrames(source, frames), bad
        gossip = _gossip.decode(content)
        frames, bad = self._frames(packed)
        return CausalGossip(gossip.member, gossip.tick, frames, gossip.digest, gossip.members, gossip.left), bad

    def _frames(self, packed: list[PackedFrame]) -> tuple[tuple[CausalFrame, ...], list[BadDatagram]]:
        frames: list[CausalFrame] = []
        bad: list[BadDatagram] = []
        for each in packed:
            try:
                frames.append(each.frame or self._unpack(each))
            except ValueError:
                bad.append(BadDatagram.FRAME)
        return tuple(frames), bad

    def _unpack(self, packed: PackedFrame) -> CausalFrame:
        frame = unpack_frame(packed.data, self._config)
        self._keep(frame, packed.data, packed.digest)
        return frame


def packed_bytes(entries: int, life: int, eps: int) -> int:
    """The least a vector of ages can take: the paper's colours, packed into bits."""
    return ceil(entries * log2(life + eps + 2) / 8)
