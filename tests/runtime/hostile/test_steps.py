"""What a decoder does for its input is counted, and grows no faster than the input (filters: tests/matching)."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from unisono.errors import PeerError
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.protocols.causal.config import CausalConfig
from unisono.protocols.causal.messages import CausalFrame, CausalFrames
from unisono.protocols.causal.wire import DATAGRAM_BYTES, DatagramCodec
from unisono.protocols.coded.wire import PACKET_BYTES, BadPacket, unpack
from unisono.runtime.links.frames import LETTERS_MAX, Codec, FrameReader, encode_frame

COPIES_MAX = 4
"""A byte is kept with an unfinished frame and joined with what follows; both twice if another frame ends there."""


@pytest.mark.parametrize("cut", [1, 3, 64, 1000, 65_536])
@pytest.mark.parametrize("bodies", [[b"x" * 50_000], [b"x" * 61] * 1_000, [b""] * 5_000, [b"x" * 1_500, b""] * 100])
def test_each_byte_of_a_stream_is_copied_a_few_times_however_it_is_cut(cut: int, bodies: list[bytes]) -> None:
    data = b"".join(map(encode_frame, bodies))
    reader = FrameReader(1 << 20)
    found = sum(len([*reader.feed(data[at : at + cut])]) for at in range(0, len(data), cut))
    assert found == len(bodies)
    assert reader.copied <= COPIES_MAX * len(data)


def test_what_will_never_be_a_frame_is_not_copied_again_and_again() -> None:
    """The longest frame allowed, a byte short, in pieces: nothing is read, and each piece is looked at once."""
    reader = FrameReader(30_000)
    data = (30_000).to_bytes(4, "big") + b"x" * 29_999
    for at in range(0, len(data), 10):
        assert not [*reader.feed(data[at : at + 10])]
    assert reader.copied <= COPIES_MAX * len(data)


def test_letters_of_a_frame_are_counted_before_they_are_made() -> None:
    letters = b"\xdd" + (1 << 31).to_bytes(4, "big") + b"\xc0" * 100
    with pytest.raises(PeerError) as refused:
        Codec(int).decode(letters)
    assert refused.value.code == "letters"
    assert LETTERS_MAX < 1 << 31


def test_a_datagram_is_looked_at_up_to_the_size_of_one() -> None:
    assert isinstance(unpack(b"\x75\x43\x01\x00" + b"\xff" * 60_000), BadPacket)
    assert PACKET_BYTES < 60_000


def lines_of(work: Callable[[], object]) -> int:
    """Lines of ours that are run."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if "unisono" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def crowded(entries: int) -> bytes:
    """A datagram of a causal mesh with a vector of so many entries, as dense as they can be."""
    past = {(sender, 0): (1_000 - 1, 1_000 + 20) for sender in range(entries)}
    frame = CausalFrame(60_000, 1_000, (0,), 1_040, past, (Event("a.t", 1, "t"),))
    (data,) = DatagramCodec(CausalConfig()).encode(CausalFrames(Address("m"), (frame,)))
    return data


@pytest.mark.parametrize("entries", [100, 1_000])
def test_a_datagram_of_a_mesh_costs_some_steps_for_each_of_its_entries(entries: int) -> None:
    data, codec = crowded(entries), DatagramCodec(CausalConfig())
    read: list[Any] = []
    steps = lines_of(lambda: read.append(codec.decode(data)))
    (message, bad) = read[0]
    assert isinstance(message, CausalFrames)
    assert not bad
    assert len(message.frames[0].past) == entries
    assert steps <= 100 + 20 * entries
    assert lines_of(lambda: codec.decode(data[:-1] + b"x")) <= 40, "nothing of what is not signed is looked at"
    assert lines_of(lambda: codec.decode(data + bytes(DATAGRAM_BYTES))) <= 40, "nor of what is longer than one can be"


@pytest.mark.parametrize("rows", [1, 255])
def test_a_packet_of_rows_costs_the_same_however_many_it_claims(rows: int) -> None:
    data = b"\x75\x43\x01\x00" + bytes([rows]) * (PACKET_BYTES - 4)
    assert lines_of(lambda: unpack(data)) <= 60
