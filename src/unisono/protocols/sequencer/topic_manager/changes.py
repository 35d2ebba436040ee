"""Counters, and readers who want to know which of their counters have changed since they last looked.

A turn increments many counters, one after the other, and after each increment one reader looks. Done by a compiled
kernel the whole turn costs little more than its results; interpreted, the same loop would be slower than the ways there
are without arrays, so whoever uses this has another way until the kernel is ready (`structures.warming`).
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from unisono.structures.warming import Kernel

Ints = npt.NDArray[np.int64]


def turn(
    rows: Ints,
    increments: Ints,
    own: Ints,
    starts: Ints,
    stops: Ints,
    members: Ints,
    last: Ints,
    values: Ints,
    ids: Ints,
    out_ids: Ints,
    out_values: Ints,
    ends: Ints,
) -> int:
    """For each row: its own counter grows, then what its reader has not seen yet is written out, up to `ends`."""
    found = 0
    for step in range(rows.shape[0]):
        row = rows[step]
        values[own[row]] += increments[step]
        for at in range(starts[row], stops[row]):
            value = values[members[at]]
            if value != last[at]:
                last[at] = value
                out_ids[found] = ids[members[at]]
                out_values[found] = value
                found += 1
        ends[step] = found
    return found


def _compile() -> Callable[..., int] | None:
    try:
        from numba import njit
    except ImportError:
        return None
    compiled: Callable[..., int] = njit(turn, nogil=True, cache=True)
    some = np.zeros(1, np.int64)
    compiled(*[some.copy() for _ in range(12)])
    return compiled


KERNEL: Kernel[Callable[..., int]] = Kernel("changes", _compile)


class Changes:
    """Counters with names (numbers), and for each reader the counters it watches with the values it has seen."""

    def __init__(self, kernel: Callable[..., int]) -> None:
        """`kernel` is `turn`, compiled or as it stands."""
        self._turn = kernel
        self._places: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._views: dict[int, tuple[Ints, Ints]] = {}  # of the pool: what a reader watches, and what it has seen
        self._found = 0
        self._used = self._dead = 0  # of the pool of segments; those of readers that watch something else by now
        self._values, self._ids = np.zeros(64, np.int64), np.zeros(64, np.int64)
        self._own, self._starts, self._stops = (np.zeros(64, np.int64) for _ in range(3))
        self._members, self._last, self._out_ids, self._out_values = (np.zeros(1024, np.int64) for _ in range(4))

    def set(self, counter: int, value: int) -> None:
        self._values[self._place(counter)] = value

    def watch(self, reader: int, counters: Sequence[int], seen: Iterable[int]) -> int:
        """From now on the reader, which is a counter too, watches these, of which it has seen these values; returns
        its row."""
        row = self._rows.get(reader)
        if row is None:
            row = self._rows[reader] = len(self._rows)
            if row == len(self._own):
                self._own, self._starts, self._stops = map(_double, (self._own, self._starts, self._stops))
            self._own[row] = self._place(reader)
        else:
            self._dead += int(self._stops[row] - self._starts[row])
        places = [self._place(counter) for counter in counters]
        if 2 * self._dead > self._used:
            self._compact(row)
        while self._used + len(places) > len(self._members):
            self._members, self._last = _double(self._members), _double(self._last)
            self._out_ids, self._out_values = _double(self._out_ids), _double(self._out_values)
            self._views.clear()
        self._views.pop(reader, None)
        start, stop = self._used, self._used + len(places)
        self._members[start:stop], self._last[start:stop] = places, list(seen)
        self._starts[row], self._stops[row], self._used = start, stop, stop
        return row

    def look(self, reader: int) -> tuple[list[int], list[int]]:
        """The values of the reader's counters, and those it has seen."""
        watched, last = self._view(reader)
        now: list[int] = self._values[watched].tolist()
        seen: list[int] = last.tolist()
        return now, seen

    def saw(self, reader: int, values: Sequence[int]) -> None:
        self._view(reader)[1][:] = values

    def _view(self, reader: int) -> tuple[Ints, Ints]:
        view = self._views.get(reader)
        if view is None:
            row = self._rows[reader]
            part = slice(int(self._starts[row]), int(self._stops[row]))
            view = self._views[reader] = (self._members[part], self._last[part])
        return view

    def turn(self, rows: Sequence[int], increments: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
        """The counter of each row's reader grows, and the reader is told which counters it watches have changed: where
        in the values, which come all together, its own end. No row may come twice; `names` belongs to the last turn."""
        ends = np.empty(len(rows), np.int64)
        found = self._found = self._turn(
            np.array(rows),
            np.array(increments),
            self._own,
            self._starts,
            self._stops,
            self._members,
            self._last,
            self._values,
            self._ids,
            self._out_ids,
            self._out_values,
            ends,
        )
        return ends.tolist(), tuple(self._out_values[:found].tolist())

    def names(self) -> tuple[int, ...]:
        """The counters whose values the last turn told."""
        return tuple(self._out_ids[: self._found].tolist())

    def _place(self, counter: int) -> int:
        place = self._places.get(counter)
        if place is None:
            place = self._places[counter] = len(self._places)
            if place == len(self._ids):
                self._ids, self._values = _double(self._ids), _double(self._values)
            self._ids[place] = counter
        return place

    def _compact(self, but: int) -> None:
        """Closes the gaps in the pool; the segment of row `but` is one of them."""
        self._views.clear()
        members, last = np.zeros_like(self._members), np.zeros_like(self._last)
        used = 0
        for row in self._rows.values():
            start, stop = int(self._starts[row]), int(self._stops[row])
            if row == but or start == stop:
                continue
            end = used + stop - start
            members[used:end], last[used:end] = self._members[start:stop], self._last[start:stop]
            self._starts[row], self._stops[row], used = used, end, end
        self._members, self._last, self._used, self._dead = members, last, used, 0


def _double(array: Ints) -> Ints:
    grown: Ints = np.concatenate([array, np.zeros_like(array)])
    return grown
