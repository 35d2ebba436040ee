"""The packet format: what goes in comes out, and every malformed packet is named and dropped (specs 5.1, 5.8)."""

import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import MisuseError
from unisono.model.ids import Address, Topic
from unisono.protocols.coded.wire import (
    DIGEST_BYTES,
    OVERHEAD_BYTES,
    PACKET_BYTES,
    SEQUENCE_MAX,
    BadPacket,
    Geometry,
    Packet,
    digest,
    pack,
    publisher_id,
    shape,
    unpack,
)
from unisono.structures.decoder import unit

GEOMETRY = Geometry(16, 1403, 22_000, digest(Topic(3), 7, 8, 1, b"content"))
PLAIN = Packet(Topic(3), 7, 8, 1, GEOMETRY, unit(16, 5), b"p" * 1403)
CODED = Packet(Topic(3), 7, 8, 1, GEOMETRY, bytes(range(16)), b"c" * 1403)


def with_bytes(data: bytes, at: int, new: bytes) -> bytes:
    """Replaces bytes and repairs the checksum: only the rule under test can object."""
    body = bytearray(data[:-4])
    body[at : at + len(new)] = new
    return bytes(body) + zlib.crc32(bytes(body)).to_bytes(4, "big")


def test_a_coded_packet_of_sixteen_rows_fills_the_frame() -> None:
    assert shape(16 * 1403) == (16, 1403)
    assert shape(23_000)[0] == 17
    assert OVERHEAD_BYTES == 53
    assert len(pack(CODED)) == PACKET_BYTES


@given(st.integers(1, 290_000))
def test_every_length_has_its_geometry(length: int) -> None:
    n, row_bytes = shape(length)
    assert (n - 1) * row_bytes < length <= n * row_bytes
    assert OVERHEAD_BYTES + n + row_bytes <= PACKET_BYTES


def test_a_generation_that_cannot_fit_is_misuse() -> None:
    with pytest.raises(MisuseError):
        shape(400_000)


@pytest.mark.parametrize("packet", [PLAIN, CODED])
@pytest.mark.parametrize("key", [b"", b"secret"])
def test_packets_survive_the_wire(packet: Packet, key: bytes) -> None:
    assert unpack(pack(packet, key), key) == packet


BAD = {
    "empty": (b"", BadPacket.SHORT),
    "magic": (with_bytes(pack(PLAIN), 0, b"\0"), BadPacket.MAGIC),
    "version": (with_bytes(pack(PLAIN), 2, b"\x09"), BadPacket.VERSION),
    "kind": (with_bytes(pack(PLAIN), 3, b"\x02"), BadPacket.KIND),
    "no rows": (with_bytes(pack(PLAIN), 26, b"\0"), BadPacket.GEOMETRY),
    "no row bytes": (with_bytes(pack(PLAIN), 27, b"\0\0"), BadPacket.GEOMETRY),
    "rows too long": (with_bytes(pack(PLAIN), 27, b"\xff\xff"), BadPacket.GEOMETRY),
    "length too small": (with_bytes(pack(PLAIN), 29, (15 * 1403).to_bytes(4, "big")), BadPacket.GEOMETRY),
    "length too large": (with_bytes(pack(PLAIN), 29, (16 * 1403 + 1).to_bytes(4, "big")), BadPacket.GEOMETRY),
    "cut": (pack(PLAIN)[:-1], BadPacket.LENGTH),
    "padded": (pack(PLAIN) + b"x", BadPacket.LENGTH),
    "index": (with_bytes(pack(PLAIN), 49, b"\x10"), BadPacket.INDEX),
    "zero vector": (with_bytes(pack(CODED), 49, bytes(16)), BadPacket.ZERO),
    "flipped bit": (pack(PLAIN)[:200] + b"q" + pack(PLAIN)[201:], BadPacket.CHECK),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_packets_are_named(name: str) -> None:
    data, reason = BAD[name]
    assert unpack(data) is reason


def test_a_stranger_without_the_key_is_turned_away() -> None:
    assert unpack(pack(PLAIN), b"secret") is BadPacket.CHECK
    assert unpack(pack(PLAIN, b"other"), b"secret") is BadPacket.CHECK


@pytest.mark.parametrize("seed", range(20))
def test_every_single_flipped_bit_is_noticed(seed: int) -> None:
    dice = Random(seed)
    for data in (pack(PLAIN), pack(CODED)):
        for _ in range(100):
            bit = dice.randrange(8 * len(data))
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            assert isinstance(unpack(bytes(flipped)), BadPacket)


@given(st.binary(max_size=200))
def test_noise_is_never_a_packet(noise: bytes) -> None:
    assert isinstance(unpack(noise), BadPacket)


def test_the_digest_says_whose_content_it_is() -> None:
    digests = [
        digest(Topic(1), 2, 3, 4, b"x"),
        digest(Topic(2), 2, 3, 4, b"x"),
        digest(Topic(1), 3, 3, 4, b"x"),
        digest(Topic(1), 2, 4, 4, b"x"),
        digest(Topic(1), 2, 3, 5, b"x"),
        digest(Topic(1), 2, 3, 4, b"y"),
    ]
    assert len(set(digests)) == len(digests)
    assert publisher_id(Address("a")) != publisher_id(Address("b"))


def test_a_sequence_outside_the_range_is_turned_away() -> None:
    geometry = Geometry(1, 8, 8, bytes(DIGEST_BYTES))
    kinds = [
        unpack(pack(Packet(Topic(1), 7, sequence, 0, geometry, b"\x01", bytes(8))))
        for sequence in (SEQUENCE_MAX, SEQUENCE_MAX + 1, 2**64 - 1)
    ]
    assert [isinstance(kind, Packet) for kind in kinds] == [True, False, False]
    assert kinds[1:] == [BadPacket.SEQUENCE, BadPacket.SEQUENCE]
