"""Records in a file: a torn tail is cut, damage at rest is told, nothing else is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import FormatError
from unisono.structures.records import frame, scan

bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


def file_of(parts: list[bytes]) -> bytes:
    return b"".join(frame(part) for part in parts)


@given(bodies, st.data())
def test_a_file_cut_anywhere_keeps_every_whole_record(parts: list[bytes], data: st.DataObject) -> None:
    whole = file_of(parts)
    cut = data.draw(st.integers(0, len(whole)))
    found, end = scan(whole[:cut])
    kept = [bytes(body) for body in found]
    assert kept == parts[: len(kept)]
    assert end == len(file_of(kept))
    assert len(kept) == len(parts) or cut < len(file_of(parts[: len(kept) + 1]))


@given(bodies.filter(len), st.integers(1, 50))
def test_a_tail_of_zeros_is_a_tail_that_never_reached_the_disk(parts: list[bytes], zeros: int) -> None:
    found, end = scan(file_of(parts) + bytes(zeros))
    assert ([bytes(body) for body in found], end) == (parts, len(file_of(parts)))


@given(bodies.filter(lambda parts: len(parts) > 1), st.data())
def test_a_flipped_bit_is_never_read_as_data(parts: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(file_of(parts))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found, _ = scan(bytes(whole))
    except FormatError:
        return
    kept = [bytes(body) for body in found]  # a damaged length may point behind the end: it looks like a torn tail
    assert kept == parts[: len(kept)]
    assert len(kept) < len(parts)


def test_damage_with_records_behind_it_is_told() -> None:
    whole = bytearray(file_of([b"first", b"second", b"third"]))
    whole[len(frame(b"first")) + 9] ^= 1
    with pytest.raises(FormatError, match=f"byte {len(frame(b'first'))}"):
        scan(bytes(whole))
