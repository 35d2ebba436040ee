"""Regions and the time between them."""

from collections.abc import Iterable
from importlib import resources

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.model.time import Micros


class LatencyTable(Struct, frozen=True):
    """One-way latencies between named regions; a row and a column per region, zero on the diagonal."""

    regions: tuple[str, ...]
    one_way_us: tuple[tuple[int, ...], ...]

    def between(self, a: str, b: str) -> Micros:
        try:
            return Micros(self.one_way_us[self.regions.index(a)][self.regions.index(b)])
        except ValueError:
            raise MisuseError(
                f"no latency between {a!r} and {b!r}: known regions are {', '.join(self.regions)}"
            ) from None

    def among(self, names: Iterable[str]) -> "LatencyTable":
        """The same table for some of the regions only, in the table's order; unknown names are refused."""
        wanted = set(names)
        unknown = sorted(wanted.difference(self.regions))
        if unknown:
            raise MisuseError(f"no latencies for {', '.join(unknown)}: known regions are {', '.join(self.regions)}")
        kept = [i for i, name in enumerate(self.regions) if name in wanted]
        return LatencyTable(
            tuple(self.regions[i] for i in kept), tuple(tuple(self.one_way_us[i][j] for j in kept) for i in kept)
        )


def parse_round_trips(text: str) -> LatencyTable:
    """Reads a square CSV of round-trip milliseconds whose first row and column name the regions."""
    rows = [line.split(",") for line in text.strip().splitlines()]
    regions = tuple(rows[0][1:])
    if tuple(row[0] for row in rows[1:]) != regions or any(len(row) != len(rows[0]) for row in rows):
        raise MisuseError("a latency table is square: the first row and the first column name the same regions")
    one_way = tuple(tuple(round(float(cell) * 500) for cell in row[1:]) for row in rows[1:])
    return LatencyTable(regions, one_way)


def public_cloud() -> LatencyTable:
    """Ten public cloud regions: mean round trips of a table a user published in 2017, both directions averaged."""
    return parse_round_trips(resources.files("unisono.model").joinpath("region-rtt-ms.csv").read_text())
