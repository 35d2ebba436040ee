"""The decoder: any n independent packets give the rows back, whatever their order and kind (J1, J2)."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.structures.decoder import Decoder, Put, encode, random_coefficients, split, unit


def packets(rows: list[bytes], extra: int, dice: Random) -> list[tuple[bytes, bytes]]:
    return [(unit(len(rows), i), row) for i, row in enumerate(rows)] + encode(rows, extra, dice)


dice_of = st.integers(0, 2**32).map(Random)


@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 8), dice_of)
def test_rank_counts_pivots_and_never_falls(n: int, size: int, extra: int, dice: Random) -> None:  # J1
    rows = split(dice.randbytes(n * size), n, size)
    decoder: Decoder[str] = Decoder(n, size)
    ranks = [0]
    for coefficients, payload in dice.choices(packets(rows, extra, dice), k=3 * n):
        put = decoder.put(coefficients, payload, "a")
        assert put is not Put.INCONSISTENT
        ranks.append(decoder.rank)
        assert (put is Put.INNOVATIVE) == (ranks[-1] == ranks[-2] + 1)
        assert all(decoder.plain(i) == rows[i] for i in decoder.determined())  # J2
    assert all(b - a in (0, 1) for a, b in pairwise(ranks))
    assert not decoder.is_complete or decoder.rows() == rows


@given(st.integers(1, 16), dice_of)
def test_extras_stand_in_for_whatever_was_lost(n: int, dice: Random) -> None:
    rows = split(dice.randbytes(n * 8), n, 8)
    sent = packets(rows, n + 3, dice)
    decoder: Decoder[str] = Decoder(n, 8)
    for packet in dice.sample(sent, len(sent)):
        decoder.put(*packet, "a")
    assert decoder.rows() == rows


def test_an_incomplete_node_recodes_what_it_has() -> None:
    dice = Random(3)
    rows = split(dice.randbytes(10 * 16), 10, 16)
    half: Decoder[str] = Decoder(10, 16)
    for packet in packets(rows, 0, dice)[:6]:
        half.put(*packet, "a")
    other: Decoder[str] = Decoder(10, 16)
    for packet in packets(rows, 0, dice)[4:]:
        other.put(*packet, "b")
    for packet in half.recode(5, dice):
        other.put(*packet, "half")
    assert other.rows() == rows


def test_recoding_teaches_nothing_new_to_the_recoder() -> None:
    dice = Random(4)
    rows = split(dice.randbytes(8 * 16), 8, 16)
    decoder: Decoder[str] = Decoder(8, 16)
    for packet in encode(rows, 5, dice):
        decoder.put(*packet, "a")
    assert {decoder.put(*packet, "b") for packet in decoder.recode(20, dice)} == {Put.USELESS}


def test_a_dependent_packet_with_another_payload_is_inconsistent() -> None:
    dice = Random(5)
    rows = split(dice.randbytes(8 * 16), 8, 16)
    decoder: Decoder[str] = Decoder(8, 16)
    for packet in packets(rows, 0, dice)[:5]:
        decoder.put(*packet, "a")
    coefficients, payload = decoder.recode(1, dice)[0]
    polluted = bytes([payload[0] ^ 1]) + payload[1:]
    assert decoder.put(coefficients, polluted, "b") is Put.INCONSISTENT
    assert decoder.put(coefficients, payload, "b") is Put.USELESS
    assert decoder.rank == 5


def test_rows_of_a_source_can_be_taken_back() -> None:
    dice = Random(6)
    rows = split(dice.randbytes(6 * 16), 6, 16)
    decoder: Decoder[str] = Decoder(6, 16)
    for coefficients, payload in encode(rows, 3, dice):
        decoder.put(coefficients, payload, "honest")
    for coefficients, payload in encode(rows, 2, dice):
        decoder.put(coefficients, bytes(len(payload)), "liar")
    assert decoder.sources() == ["honest", "liar"]
    clean = decoder.keep(["honest"])
    assert clean.rank == 3
    for packet in packets(rows, 0, dice):
        clean.put(*packet, "honest")
    assert clean.rows() == rows


def test_the_zero_vector_is_never_rolled() -> None:
    class Zeros(Random):
        first = True

        def randbytes(self, n: int) -> bytes:
            self.first, was = False, self.first
            return bytes(n) if was else b"\1" * n

    assert random_coefficients(3, Zeros()) == b"\1\1\1"


@pytest.mark.parametrize("n", [1, 2, 255])
def test_smallest_and_largest_generation(n: int) -> None:
    dice = Random(7)
    rows = split(dice.randbytes(n * 2 - 1), n, 2)
    decoder: Decoder[str] = Decoder(n, 2)
    for packet in [*packets(rows, 0, dice)[n // 8 :], *encode(rows, n // 8 + 4, dice)]:
        decoder.put(*packet, "a")
    assert decoder.rows() == rows


def test_rank_beyond_what_another_holds() -> None:
    dice = Random(8)
    rows = split(dice.randbytes(8 * 4), 8, 4)
    sent = packets(rows, 2, dice)
    decoder: Decoder[str] = Decoder(8, 4)
    for packet in sent[:4] + sent[8:]:
        decoder.put(*packet, "a")
    assert [decoder.rank_beyond(bytes([held])) for held in (0, 0b1111, 0b1, 0b11110000, 0b11111111)] == [6, 2, 5, 4, 0]
