"""The matching engine that needs nothing but Python: equality opens the door, the rest is asked one by one.

A box with a side of a few single values is found by those values in a dictionary; every other box is tried for
every event.
"""

from collections.abc import Hashable, Mapping

from unisono.model.predicate import Box, Values

_DOORS_MAX = 8
_Door = tuple[str, Hashable, Hashable]


class LoopEngine:
    """Rows of boxes; `match` tries the ones that could match."""

    def __init__(self) -> None:
        self._behind: dict[_Door, dict[int, Box]] = {}
        self._others: dict[int, Box] = {}

    def add(self, row: int, box: Box) -> None:
        doors = _doors(box)
        for door in doors:
            self._behind.setdefault(door, {})[row] = box
        if not doors:
            self._others[row] = box

    def remove(self, row: int, box: Box) -> None:
        self._others.pop(row, None)
        for door in _doors(box):
            del self._behind[door][row]
            if not self._behind[door]:
                del self._behind[door]

    def match(self, event: Mapping[str, object]) -> list[int]:
        rows = [row for row, box in self._others.items() if box.matches(event)]
        if self._behind:
            for name, value in event.items():
                if isinstance(value, str | int | float | None):
                    for row, box in self._behind.get((name, _kind(value), value), _NONE).items():
                        if box.matches(event):
                            rows.append(row)
        return rows


_NONE: dict[int, Box] = {}


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "constant"
    return "string" if isinstance(value, str) else "number"


def _doors(box: Box) -> list[_Door]:
    """The values of the side with the fewest, if every value of that side is a single one."""
    best: list[_Door] = []
    for name, values in box.sides:
        points = _points(values)
        if points and (not best or len(points) < len(best)):
            best = [(name, _kind(value), value) for value in points]
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
