"""GF(2^8), polynomial 0x11d: bytes are field elements, rows of bytes are vectors over them (specs: coded gossip, 5.2).

Addition is exclusive or. `combine` is the one expensive operation: everything the coder does to payloads is a list of
linear combinations of rows. It has two implementations with identical results: `bytes.translate` by a table per
factor, and a numba kernel that works on eight bytes at a time (Horner's scheme over the bits of the factors, so a
row costs four additions on average and no table). The kernel is compiled by `warm_up` in the background, never at
import; until it is ready, and wherever numba is missing, the tables do the work.
"""

from collections.abc import Callable, Sequence
from typing import Any

from unisono.structures.warming import Kernel, Thread

POLYNOMIAL = 0x11D
_WORD_BYTES = 8


def _powers() -> tuple[list[int], list[int]]:
    """Exponentials of the generator 2 (written twice, so sums of two logarithms need no modulus) and logarithms."""
    exponential, logarithm, value = [0] * 510, [0] * 256, 1
    for power in range(255):
        exponential[power] = exponential[power + 255] = value
        logarithm[value] = power
        value <<= 1
        if value & 0x100:
            value ^= POLYNOMIAL
    return exponential, logarithm


_EXP, _LOG = _powers()


def multiply(a: int, b: int) -> int:
    return _EXP[_LOG[a] + _LOG[b]] if a and b else 0


def inverse(a: int) -> int:
    """Of a nonzero element; zero has none."""
    if not a:
        raise ZeroDivisionError("zero has no inverse in GF(2^8)")
    return _EXP[255 - _LOG[a]]


TIMES = tuple(bytes(multiply(factor, value) for value in range(256)) for factor in range(256))
"""`row.translate(TIMES[c])` is the row times c."""


def scale(factor: int, row: bytes) -> bytes:
    return row.translate(TIMES[factor])


def add(a: bytes, b: bytes) -> bytes:
    """The sum (and the difference) of two rows of one length."""
    return (int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).to_bytes(len(a), "little")


def combine_portable(factors: Sequence[bytes], rows: Sequence[bytes]) -> list[bytes]:
    """One combination of the rows per line of factors."""
    size = len(rows[0])
    combinations = []
    for line in factors:
        total = 0
        for factor, row in zip(line, rows, strict=True):
            if factor:
                total ^= int.from_bytes(row if factor == 1 else row.translate(TIMES[factor]), "little")
        combinations.append(total.to_bytes(size, "little"))
    return combinations


def warm_up() -> Thread:
    """Starts compiling the kernel; join the thread to wait for it. Without numba it does nothing."""
    return _kernel.warm_up()


def is_compiled() -> bool:
    return _kernel.ready() is not None


def combine(factors: Sequence[bytes], rows: Sequence[bytes]) -> list[bytes]:
    """One combination of the rows per line of factors; every line has one factor per row, all rows one length."""
    return combine_compiled(factors, rows) if _kernel.ready() is not None else combine_portable(factors, rows)


def combine_compiled(factors: Sequence[bytes], rows: Sequence[bytes]) -> list[bytes]:
    """As `combine`; the kernel must be compiled."""
    import numpy as np

    kernel = _kernel.ready()
    if kernel is None:
        raise RuntimeError("the kernel is not compiled: join warm_up() first")
    size = len(rows[0])
    if not size:
        return [b""] * len(factors)
    stride = -(-size // _WORD_BYTES) * _WORD_BYTES
    if size != stride:
        rows = [row.ljust(stride, b"\0") for row in rows]
    source = np.frombuffer(b"".join(rows), np.uint64).reshape(len(rows), -1)
    lines = np.frombuffer(b"".join(factors), np.uint8).reshape(-1, len(rows))
    target = np.empty((len(factors), stride // _WORD_BYTES), np.uint64)
    kernel(lines, source, target)
    flat = target.tobytes()
    return [flat[start : start + size] for start in range(0, len(flat), stride)]


def _compile() -> Callable[[Any, Any, Any], None] | None:
    try:
        import numpy as np
        from numba import njit, types
    except ImportError:
        return None

    high = np.uint64(0x8080808080808080)
    reduction = np.uint64(0x1D1D1D1D1D1D1D1D)  # the polynomial's low byte, in each byte of the word
    one, seven = np.uint64(1), np.uint64(7)

    def kernel(lines: Any, rows: Any, target: Any) -> None:
        count, width = rows.shape
        chosen = np.empty(count, np.int64)
        for line in range(lines.shape[0]):
            total = target[line]
            total[:] = 0
            for bit in range(7, -1, -1):
                if bit < 7:
                    for i in range(width):  # total *= 2; a byte that overflows is reduced: (h << 1) - (h >> 7) is 0xff
                        word = total[i]
                        top = word & high
                        total[i] = ((word ^ top) << one) ^ (((top << one) - (top >> seven)) & reduction)
                found = 0
                for row in range(count):
                    if (lines[line, row] >> bit) & 1:
                        chosen[found] = row
                        found += 1
                at = 0
                while at + 4 <= found:  # four rows at a time: one read and one write of the total for four additions
                    a, b = rows[chosen[at]], rows[chosen[at + 1]]
                    c, d = rows[chosen[at + 2]], rows[chosen[at + 3]]
                    for i in range(width):
                        total[i] ^= a[i] ^ b[i] ^ c[i] ^ d[i]
                    at += 4
                while at < found:
                    a = rows[chosen[at]]
                    for i in range(width):
                        total[i] ^= a[i]
                    at += 1

    bytes_in = types.Array(types.uint8, 2, "C", readonly=True)
    words_in = types.Array(types.uint64, 2, "C", readonly=True)
    words_out = types.Array(types.uint64, 2, "C")
    compiled: Callable[[Any, Any, Any], None] = njit(types.void(bytes_in, words_in, words_out), nogil=True)(kernel)
    return compiled


_kernel = Kernel("field", _compile)
