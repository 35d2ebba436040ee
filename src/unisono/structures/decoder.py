"""Random linear coding of one generation: n rows of one size, any n independent combinations give them back.

Elimination is progressive and works on coefficients alone; payloads are kept as they came and combined once, when
they are needed. So a plain packet costs nothing but a place, a lost row costs one combination, an incomplete node
recodes from what it has, and rows can be taken back by their source when one of them turns out to be polluted.
A dependent packet is not free: its payload is compared with the combination it must equal, and a difference proves
pollution (specs: coded gossip, 5.4 and 5.8).
"""

from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import Generic, TypeVar

from unisono.errors import InvariantError
from unisono.structures import field

Source = TypeVar("Source")


class Put(Enum):
    """What a packet did to the generation."""

    INNOVATIVE = "innovative"
    USELESS = "useless"
    INCONSISTENT = "inconsistent"


def unit(n: int, index: int) -> bytes:
    """The coefficients of a plain row."""
    return bytes(index) + b"\1" + bytes(n - index - 1)


def random_coefficients(n: int, dice: Random) -> bytes:
    """Uniform, never all zero."""
    while not any(coefficients := dice.randbytes(n)):
        pass
    return coefficients


def split(data: bytes, n: int, row_bytes: int) -> list[bytes]:
    """The n plain rows of a generation, the last one padded with zeros."""
    data = data.ljust(n * row_bytes, b"\0")
    return [data[start : start + row_bytes] for start in range(0, n * row_bytes, row_bytes)]


def encode(rows: Sequence[bytes], count: int, dice: Random) -> list[tuple[bytes, bytes]]:
    """Fresh combinations of plain rows, as (coefficients, payload)."""
    if not count:
        return []
    lines = [random_coefficients(len(rows), dice) for _ in range(count)]
    return list(zip(lines, field.combine(lines, rows), strict=True))


class Decoder(Generic[Source]):
    """Collects packets of one generation until its rank is n.

    An accepted packet lives in the slot of its pivot column. `_reduced[p]` is 2n bytes: the reduced row echelon form
    of the coefficients (1 at p, 0 at every other pivot), and the factors over the slots that produce it. Plain rows in
    their own slot are reduced already and have no entry: their columns are marked in `_plain`.
    """

    __slots__ = ("_coefficients", "_payloads", "_plain", "_reduced", "_sources", "n", "row_bytes")

    def __init__(self, n: int, row_bytes: int) -> None:
        self.n = n
        self.row_bytes = row_bytes
        self._coefficients: dict[int, bytes] = {}
        self._payloads: dict[int, bytes] = {}
        self._sources: dict[int, Source] = {}
        self._reduced: dict[int, bytes] = {}
        self._plain = 0  # as an integer of n bytes: 0xff in every column held as a plain row in its own slot

    @property
    def rank(self) -> int:
        return len(self._payloads)

    @property
    def is_complete(self) -> bool:
        return len(self._payloads) == self.n

    def put(self, coefficients: bytes, payload: bytes, source: Source) -> Put:
        n = self.n
        is_plain = coefficients.count(0) == n - 1 and 1 in coefficients
        if is_plain and not self._reduced and (pivot := coefficients.index(1)) not in self._payloads:
            # The common case, a plain row among plain rows, needs no arithmetic.
            self._coefficients[pivot], self._payloads[pivot], self._sources[pivot] = coefficients, payload, source
            self._plain |= 0xFF << (8 * pivot)
            return Put.INNOVATIVE
        whole = int.from_bytes(coefficients, "little")
        explained = whole & self._plain  # plain rows explain their own column, at no cost
        left = whole ^ explained
        if left:
            total = left | explained << (8 * n)
            for pivot, row in self._reduced.items():
                if (factor := coefficients[pivot]) != 0:
                    total ^= int.from_bytes(row.translate(field.TIMES[factor]), "little")
            line = total.to_bytes(2 * n, "little")
        else:
            line = bytes(n) + explained.to_bytes(n, "little")
        pivot = 2 * n - len(line.lstrip(b"\0"))
        if pivot >= n:
            return Put.USELESS if payload == self._combination(line[n:]) else Put.INCONSISTENT
        if pivot in self._payloads:
            raise InvariantError(f"two packets of a generation have pivot {pivot}")  # J1: rank is the number of pivots
        self._coefficients[pivot], self._payloads[pivot], self._sources[pivot] = coefficients, payload, source
        line = (int.from_bytes(line, "little") ^ 1 << (8 * (n + pivot))).to_bytes(2 * n, "little")
        if line[pivot] != 1:
            line = field.scale(field.inverse(line[pivot]), line)
        for other, row in self._reduced.items():
            if row[pivot]:
                self._reduced[other] = field.add(row, field.scale(row[pivot], line))
        if is_plain and coefficients[pivot]:
            self._plain |= 0xFF << (8 * pivot)
        else:
            self._reduced[pivot] = line
        return Put.INNOVATIVE

    def _combination(self, factors: bytes) -> bytes:
        slots = [slot for slot in self._payloads if factors[slot]]
        if not slots:
            return bytes(self.row_bytes)
        if len(slots) == 1 and factors[slots[0]] == 1:
            return self._payloads[slots[0]]
        return field.combine([bytes(factors[s] for s in slots)], [self._payloads[s] for s in slots])[0]

    def determined(self) -> list[int]:
        """The plain rows that can be computed now, in order."""
        n = self.n
        solved = [pivot for pivot, row in self._reduced.items() if row.count(0, 0, n) == n - 1]
        return sorted([*solved, *(i for i in self._payloads if i not in self._reduced)])

    def plain(self, index: int) -> bytes:
        """A determined plain row."""
        return self._combination(self._reduced[index][self.n :]) if index in self._reduced else self._payloads[index]

    def rows(self) -> list[bytes]:
        """All n plain rows of a complete generation."""
        n = self.n
        rows = [self._payloads[i] for i in range(n)]
        if self._reduced:
            lines = [row[n:] for row in self._reduced.values()]
            for i, row in zip(self._reduced, field.combine(lines, list(rows)), strict=True):
                rows[i] = row
        return rows

    def recode(self, count: int, dice: Random) -> list[tuple[bytes, bytes]]:
        """Fresh combinations of whatever is here, as (coefficients, payload); needs a rank of at least 1."""
        if not count:
            return []
        slots = list(self._payloads)
        lines = [random_coefficients(len(slots), dice) for _ in range(count)]
        coefficients = field.combine_portable(lines, [self._coefficients[slot] for slot in slots])
        payloads = field.combine(lines, [self._payloads[slot] for slot in slots])
        return list(zip(coefficients, payloads, strict=True))

    def rank_beyond(self, columns: bytes) -> int:
        """The rank left when the plain rows marked in `columns` (a bit each) are known anyway."""
        known = int.from_bytes(bytes(0xFF * (columns[i // 8] >> i % 8 & 1) for i in range(self.n)), "little")
        rest: Decoder[None] = Decoder(self.n, 0)
        for line in self._coefficients.values():
            left = int.from_bytes(line, "little") & ~known
            rest.put(left.to_bytes(self.n, "little"), b"", None)
        return rest.rank

    def packets(self) -> list[tuple[bytes, bytes, Source]]:
        """The accepted packets as they came: coefficients, payload, source."""
        return [(line, self._payloads[slot], self._sources[slot]) for slot, line in self._coefficients.items()]

    def sources(self) -> list[Source]:
        """Where the accepted packets came from, each once, in order of their first packet."""
        return list(dict.fromkeys(self._sources.values()))

    def keep(self, sources: Sequence[Source]) -> "Decoder[Source]":
        """A decoder with the packets of these sources only."""
        kept: Decoder[Source] = Decoder(self.n, self.row_bytes)
        for coefficients, payload, source in self.packets():
            if source in sources:
                kept.put(coefficients, payload, source)
        return kept
