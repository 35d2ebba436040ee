"""Grids: the content of a topic cut into cells, so that a broker that knows only topics can route it (paper 000, 3.3).

Every axis cuts one attribute, either at points of its order (`cuts`: below the first, between two, from the last on)
or into single values (`values`). What an axis does not speak of, an absent attribute included, lies in its cell 0. A
cell of the grid is one cell of each axis and is a topic of its own: an event lies in exactly one, a filter meets some.

    [[topics]]
    name = "trades"
    grid = [{ attribute = "sym", values = ["IBM", "SAP"] }, { attribute = "px", cuts = [50, 100] }]

has 3 x 4 cells: `trades.cell-1-3` holds IBM from 100 on.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise, product

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.model.predicate import EVERYTHING, MISSING, Filter, Values
from unisono.model.predicate.values import above, below, point

CELLS_MAX = 256
"""Cells of one grid. Price of a cell: a topic at its home; of a cell subscribed to: an entry in some timestamps."""

Cell = tuple[int, ...]
"""The place of a cell on each axis."""


class Axis(Struct, frozen=True, forbid_unknown_fields=True):
    """How one attribute is cut: `cuts` in increasing order, or single `values`; numbers or strings, not both."""

    attribute: str
    cuts: tuple[float | str, ...] = ()
    values: tuple[float | str, ...] = ()

    def parts(self) -> tuple[Values, ...]:
        """The sets of values of its cells, cell 0 first; disjoint, and together everything."""
        if bool(self.cuts) == bool(self.values):
            raise MisuseError(f"axis {self.attribute!r}: give it either cuts or values")
        kinds = {isinstance(point, str) for point in (*self.cuts, *self.values)}
        if len(kinds) > 1:
            raise MisuseError(f"axis {self.attribute!r}: numbers or strings, not both")
        if self.values:
            if len(set(self.values)) < len(self.values):
                raise MisuseError(f"axis {self.attribute!r}: a value is named twice")
            named = [point(value) for value in self.values]
        else:
            if not all(a < b for a, b in pairwise(self.cuts)):  # type: ignore[operator]
                raise MisuseError(f"axis {self.attribute!r}: cuts must increase")
            named = [below(self.cuts[0], inclusive=False)]
            named += [above(a, inclusive=True) & below(b, inclusive=False) for a, b in pairwise(self.cuts)]
            named.append(above(self.cuts[-1], inclusive=True))
        rest = EVERYTHING
        for part in named:
            rest = rest.minus(part)
        return (rest, *named)


class Grid:
    """Axes, ready for use."""

    def __init__(self, axes: Iterable[Axis]) -> None:
        self.axes = tuple(axes)
        self._parts = [(axis.attribute, axis.parts()) for axis in self.axes]
        names = [axis.attribute for axis in self.axes]
        if not names or len(set(names)) < len(names):
            raise MisuseError("a grid has at least one axis, and one for each attribute")
        self.count = 1
        for _, parts in self._parts:
            self.count *= len(parts)
        if self.count > CELLS_MAX:
            raise MisuseError(f"the grid has {self.count} cells, {CELLS_MAX} is the most: cut less")

    @property
    def cells(self) -> list[Cell]:
        return list(product(*(range(len(parts)) for _, parts in self._parts)))

    def cell_of(self, event: Mapping[str, object]) -> Cell:
        """The one cell a flat event lies in."""
        cell = []
        for attribute, parts in self._parts:
            value = event.get(attribute, MISSING)
            cell.append(next((i for i in range(1, len(parts)) if parts[i].contains(value)), 0))
        return tuple(cell)

    def cells_met(self, where: Filter) -> list[Cell]:
        """The cells in which an event could match, in the order of the grid."""
        found: dict[Cell, None] = {}
        for box in where.boxes:
            sides = dict(box.sides)
            found.update(
                dict.fromkeys(
                    product(
                        *(
                            [i for i, part in enumerate(parts) if part.overlaps(sides.get(attribute, EVERYTHING))]
                            for attribute, parts in self._parts
                        )
                    )
                )
            )
        return sorted(found)


def cell_name(topic: str, cell: Cell) -> str:
    """`cell_name("trades", (1, 3))` is `trades.cell-1-3`; plain consumers hear all cells at `trades.*`."""
    return f"{topic}.cell-{'-'.join(map(str, cell))}"
