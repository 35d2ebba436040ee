"""The matching engine that needs nothing but Python: equality opens the door, the rest is asked one by one.

A box with a side of a few single values is found by those values in a dictionary; every other box is tried for
every event. What many want alike is tried once.
"""

from collections.abc import Hashable, Mapping

from unisono.model.predicate import Box, Values

_DOORS_MAX = 8
_Door = tuple[str, Hashable, Hashable]
_Rows = dict[Box, dict[int, None]]
"""Those of equal boxes together."""


class LoopEngine:
    """Rows of boxes; `match` tries the ones that could match."""

    def __init__(self) -> None:
        self._behind: dict[_Door, _Rows] = {}
        self._others: _Rows = {}

    def add(self, row: int, box: Box) -> None:
        doors = _doors(box)
        for door in doors:
            self._behind.setdefault(door, {}).setdefault(box, {})[row] = None
        if not doors:
            self._others.setdefault(box, {})[row] = None

    def remove(self, row: int, box: Box) -> None:
        doors = _doors(box)
        for door in doors:
            _forget(self._behind[door], row, box)
            if not self._behind[door]:
                del self._behind[door]
        if not doors:
            _forget(self._others, row, box)

    def match(self, event: Mapping[str, object]) -> list[int]:
        rows: list[int] = []
        for box, same in self._others.items():
            if box.matches(event):
                rows += same
        if self._behind:
            for name, value in event.items():
                kind = _KINDS.get(type(value))
                if kind is not None:
                    for box, same in self._behind.get((name, kind, value), _NONE).items():
                        if box.matches(event):
                            rows += same
        return rows


_NONE: _Rows = {}
_KINDS = {str: "string", int: "number", float: "number", bool: "constant", type(None): "constant"}


def _forget(rows: _Rows, row: int, box: Box) -> None:
    del rows[box][row]
    if not rows[box]:
        del rows[box]


def _doors(box: Box) -> list[_Door]:
    """The values of the side with the fewest, if every value of that side is a single one."""
    best: list[_Door] = []
    for name, values in box.sides:
        points = _points(values)
        if points and (not best or len(points) < len(best)):
            best = [(name, _KINDS[type(value)], value) for value in points]
    return best


def _points(values: Values) -> list[str | int | float | bool | None]:
    """The members of a small finite set; empty if it is not one."""
    if values.contains([]) or len(values.numbers) + len(values.strings) > 2 * _DOORS_MAX:
        return []
    points: list[str | int | float | bool | None] = []
    for (low, after), high in zip(values.numbers[::2], (*values.numbers[1::2], None)):
        if after or high != (low, 1):
            return []
        points.append(low)
    for start, end in zip(values.strings[::2], (*values.strings[1::2], None)):
        if end != start + "\0":
            return []
        points.append(start)
    constants: tuple[bool | None, ...] = (False, True, None)
    points += [value for value in constants if values.contains(value)]
    return points if values.kinds < 8 else []
