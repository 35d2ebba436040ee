"""The coded packet on the wire (specs: coded gossip, 5.1), and every reason to turn one away (5.8).

    magic u16 | version u8 | kind u8 | topic u32 | publisher u64 | sequence u64 | generation u16
    | n u8 | row bytes u16 | length u32 | digest 16 B | index u8 or n coefficient bytes | row | check u32

Geometry and digest are in every packet: any single packet opens a generation. The check is a CRC-32, which stops
accidents only; with a key shared by the group it is a keyed BLAKE2 tag, which stops strangers as well.
"""

import struct
import zlib
from enum import Enum
from hashlib import blake2b

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.model.ids import Address, Topic
from unisono.structures.decoder import unit

MAGIC = 0x7543
VERSION = 1
PLAIN, CODED = 0, 1
ROWS_MAX = 255
PACKET_BYTES = 1472
"""An Ethernet frame's worth of UDP payload."""
SEQUENCE_MAX = 2**62
"""As in every other message: what comes after the last one must fit, too."""
DIGEST_BYTES = 16
ENVELOPE_BYTES = 3
"""At the start of generation 0: flags u8, number of generations u16."""

_HEADER = struct.Struct(">HBBIQQHBHI16s")
_CHECK = struct.Struct(">I")
OVERHEAD_BYTES = _HEADER.size + _CHECK.size


class BadPacket(Enum):
    """Why a packet was dropped without a trace, counted by these names."""

    SHORT = "short"
    MAGIC = "magic"
    VERSION = "version"
    KIND = "kind"
    GEOMETRY = "geometry"
    LENGTH = "length"
    CHECK = "check"
    INDEX = "index"
    ZERO = "zero"
    SEQUENCE = "sequence"


class Geometry(Struct, frozen=True):
    """The shape of a generation and the digest of its content; two that differ are not the same generation."""

    n: int
    row_bytes: int
    length: int
    digest: bytes


class Packet(Struct, frozen=True):
    """One row of a generation: plain if its coefficients are a unit vector, else a combination."""

    topic: Topic
    publisher: int
    sequence: int
    generation: int
    geometry: Geometry
    coefficients: bytes
    payload: bytes


def publisher_id(address: Address) -> int:
    """The 64-bit name of a publisher on the wire."""
    return int.from_bytes(blake2b(address.encode(), digest_size=8).digest(), "big")


def shape(length: int, packet_bytes: int = PACKET_BYTES) -> tuple[int, int]:
    """n and the row size of a generation, such that its coded packets just fit; 1403 bytes for n = 16."""
    if length < 1:
        raise MisuseError("a generation has at least one byte")
    room = packet_bytes - OVERHEAD_BYTES
    for n in range(1, ROWS_MAX + 1):
        if room - n > 0 and n * (room - n) >= length:
            return n, room - n
    raise MisuseError(f"{length} bytes do not fit in one generation of packets of {packet_bytes} bytes")


def generation_bytes_max(packet_bytes: int = PACKET_BYTES, rows_max: int = ROWS_MAX) -> int:
    """How much one generation of at most `rows_max` rows can carry."""
    return rows_max * (packet_bytes - OVERHEAD_BYTES - rows_max)


def digest(topic: Topic, publisher: int, sequence: int, generation: int, content: bytes) -> bytes:
    """Of the content and of whose content it is: rows of one event never pass for another's."""
    name = struct.pack(">IQQH", topic, publisher, sequence, generation)
    return blake2b(content, digest_size=DIGEST_BYTES, person=name[:16], salt=name[16:]).digest()


def _check(data: bytes, key: bytes) -> bytes:
    if key:
        return blake2b(data, digest_size=_CHECK.size, key=key).digest()
    return _CHECK.pack(zlib.crc32(data))


def pack(packet: Packet, key: bytes = b"") -> bytes:
    geometry, coefficients = packet.geometry, packet.coefficients
    is_plain = coefficients.count(0) == geometry.n - 1 and 1 in coefficients
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        PLAIN if is_plain else CODED,
        packet.topic,
        packet.publisher,
        packet.sequence,
        packet.generation,
        geometry.n,
        geometry.row_bytes,
        geometry.length,
        geometry.digest,
    )
    what = bytes([coefficients.index(1)]) if is_plain else coefficients
    body = b"".join((header, what, packet.payload))
    return body + _check(body, key)


def unpack(data: bytes, key: bytes = b"", packet_bytes_max: int = PACKET_BYTES) -> Packet | BadPacket:
    """The packet, or why it is none. Every field is checked before anything is believed."""
    if len(data) < OVERHEAD_BYTES + 2:
        return BadPacket.SHORT
    header = _HEADER.unpack_from(data)
    magic, version, kind, topic, publisher, sequence, generation, n, row_bytes, length, content = header
    if magic != MAGIC:
        return BadPacket.MAGIC
    if version != VERSION:
        return BadPacket.VERSION
    if kind not in (PLAIN, CODED):
        return BadPacket.KIND
    if n == 0 or row_bytes == 0 or OVERHEAD_BYTES + n + row_bytes > packet_bytes_max:
        return BadPacket.GEOMETRY
    if sequence > SEQUENCE_MAX:
        return BadPacket.SEQUENCE
    if not (n - 1) * row_bytes < length <= n * row_bytes:
        return BadPacket.GEOMETRY
    at = _HEADER.size
    what = at + (1 if kind == PLAIN else n)
    if len(data) != what + row_bytes + _CHECK.size:
        return BadPacket.LENGTH
    if _check(data[: -_CHECK.size], key) != data[-_CHECK.size :]:
        return BadPacket.CHECK
    if kind == CODED:
        coefficients = data[at:what]
        if not any(coefficients):
            return BadPacket.ZERO
    elif data[at] >= n:
        return BadPacket.INDEX
    else:
        coefficients = unit(n, data[at])
    payload = data[what : -_CHECK.size]
    geometry = Geometry(n, row_bytes, length, content)
    return Packet(Topic(topic), publisher, sequence, generation, geometry, coefficients, payload)
