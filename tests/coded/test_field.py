"""GF(2^8): against an independent implementation, and the compiled kernel against the tables."""

from random import Random

import galois
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.structures import field

GF = galois.GF(2**8, irreducible_poly=field.POLYNOMIAL, compile="python-calculate")


@pytest.fixture(scope="module")
def kernel() -> None:
    pytest.importorskip("numba")
    field.warm_up().join()
    assert field.is_compiled()


def test_products_and_inverses_are_those_of_the_field() -> None:
    everything = GF(np.arange(256))
    for factor in range(0, 256, 5):
        assert field.TIMES[factor] == bytes(np.asarray(everything * GF(factor)))
    assert [field.inverse(a) for a in range(1, 256)] == [int(x) for x in np.reciprocal(everything[1:])]
    assert all(field.multiply(a, field.inverse(a)) == 1 for a in range(1, 256))


def test_zero_has_no_inverse() -> None:
    with pytest.raises(ZeroDivisionError):
        field.inverse(0)


@given(st.binary(min_size=1, max_size=40), st.data())
def test_a_combination_is_a_matrix_product(line: bytes, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.binary(min_size=3, max_size=3), min_size=len(line), max_size=len(line)))
    product = GF([list(line)]) @ GF([list(row) for row in rows])
    assert field.combine_portable([line], rows) == [bytes(np.asarray(product)[0].astype(np.uint8))]


@given(n=st.integers(1, 20), size=st.integers(0, 70), lines=st.integers(1, 6), seed=st.integers(0, 2**32))
@settings(max_examples=200)
def test_the_kernel_and_the_tables_give_the_same_bytes(kernel: None, n: int, size: int, lines: int, seed: int) -> None:
    dice = Random(seed)
    rows = [dice.randbytes(size) for _ in range(n)]
    factors = [dice.randbytes(n) for _ in range(lines)]
    assert field.combine_compiled(factors, rows) == field.combine_portable(factors, rows)


def test_the_kernel_knows_every_factor(kernel: None) -> None:
    row = bytes(range(256))
    assert field.combine_compiled([bytes([c]) for c in range(256)], [row]) == [field.scale(c, row) for c in range(256)]


def test_adding_twice_gives_back() -> None:
    a, b = bytes(range(100)), bytes(range(100, 200))
    assert field.add(field.add(a, b), b) == a
