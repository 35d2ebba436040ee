"""The topics of a deployment that are cut into cells, by name: for clients, who open and publish on cells.

A cell is a topic like any other to nodes and brokers, and belongs to a topic only in the eyes of clients.
"""

from collections.abc import Iterable

from unisono.model.deployment import Deployment
from unisono.model.grid import Cell, Grid, cell_name


class Grids:
    """All grids of a deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self._grids = {spec.name: Grid(spec.grid) for spec in deployment.topics if spec.grid}
        self._cells = {name: {c: cell_name(name, c) for c in grid.cells} for name, grid in self._grids.items()}
        self.topic_of = {cell: name for name, cells in self._cells.items() for cell in cells.values()}
        """Cell -> the topic people know."""

    def __bool__(self) -> bool:
        return bool(self._grids)

    def __contains__(self, name: str) -> bool:
        return name in self._grids

    def of(self, name: str) -> tuple[Grid, dict[Cell, str]]:
        """A topic's grid, and the names of its cells."""
        return self._grids[name], self._cells[name]

    def with_cells(self, names: Iterable[str]) -> list[str]:
        """The names, and the cells of those that have some."""
        asked = list(names)
        return [*asked, *(cell for name in asked if name in self._cells for cell in self._cells[name].values())]
