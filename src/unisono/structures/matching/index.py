"""Which subscriptions does an event match? One index, several engines, one answer.

Few rows: the loop. With compiled kernels: the pair index, which is faster than the bitmaps up to a million rows at
least. Without: the bitmaps if pyroaring is there, else the loop. Engines change with the number of rows and when the
kernels become ready; answers never do.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from unisono.errors import MisuseError
from unisono.model.predicate import Box, Filter
from unisono.structures.matching.loop import LoopEngine
from unisono.structures.warming import Thread

INDEX_FROM = 256  # below this the loop is as good

EngineName = Literal["auto", "loop", "pairs", "roaring"]
Key = TypeVar("Key", bound=Hashable)


class MatchingIndex(Generic[Key]):
    """Filters by key. `match` returns the keys whose filter holds for the event, in the order they were added."""

    def __init__(self, engine: EngineName = "auto", kernels: Any = None) -> None:
        """`kernels` names the form of the inner loops; by default the compiled ones, as soon as they are ready."""
        self._wanted: EngineName = engine
        self._kernels = kernels
        self._rows_of: dict[Key, list[int]] = {}
        self._filters: dict[Key, Filter] = {}
        self._boxes: list[Box | None] = []
        self._keys: list[Key | None] = []
        self._free: list[int] = []
        self._serials: list[int] = []  # per row: the how-manieth filter it belongs to
        self._next_serial = 0
        self._reused = False  # a row may have a younger filter than rows after it
        self._several = 0  # filters of more than one box: the same key may turn up twice
        self._name: EngineName = "loop"
        self._engine: Any = LoopEngine()
        self._span = range(0)

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, key: Key) -> bool:
        return key in self._filters

    def __getitem__(self, key: Key) -> Filter:
        return self._filters[key]

    @property
    def engine(self) -> EngineName:
        """The engine in use now."""
        return self._name

    @property
    def bytes(self) -> int:
        """Bytes of the engine's arrays or bitmaps, without the filters themselves; 0 for the loop."""
        size: int = getattr(self._engine, "bytes", 0)
        return size

    @property
    def codes(self) -> int:
        """Strings that the engine has given a code or a bitmap; 0 for the loop."""
        count: int = getattr(self._engine, "codes", 0)
        return count

    def add(self, key: Key, filter: Filter) -> None:
        self._file(key, filter)
        for row in self._rows_of[key]:
            self._engine.add(row, self._boxes[row])

    def add_all(self, filters: Sequence[tuple[Key, Filter]]) -> None:
        """The same as adding one by one, faster for many."""
        for key, filter in filters:
            self._file(key, filter)
        self._use(self._best())

    def remove(self, key: Key) -> None:
        if key not in self._filters:
            raise MisuseError(f"no subscription {key!r}")
        rows = self._rows_of.pop(key)
        for row in rows:
            self._engine.remove(row, self._boxes[row])
            self._boxes[row] = self._keys[row] = None
            self._free.append(row)
        self._several -= len(rows) > 1
        del self._filters[key]

    def match(self, event: Mapping[str, object]) -> list[Key]:
        """Keys of the filters that hold for a flat event (see `flatten`)."""
        self._settle()
        return self._keys_of(self._engine.match(event))

    def match_batch(self, events: Sequence[Mapping[str, object]]) -> list[list[Key]]:
        self._settle()
        if self._name == "pairs":
            return [self._keys_of(rows) for rows in self._engine.match_batch(events)]
        return [self._keys_of(self._engine.match(event)) for event in events]

    def _file(self, key: Key, filter: Filter) -> None:
        if key in self._filters:
            raise MisuseError(f"subscription {key!r} is already there: remove it first")
        if filter.is_empty:
            raise MisuseError(f"the filter of {key!r} contradicts itself: nothing can match it")
        rows: list[int] = []
        for box in filter.boxes:
            row = self._free.pop() if self._free else len(self._boxes)
            if row == len(self._boxes):
                self._boxes.append(box)
                self._keys.append(key)
                self._serials.append(self._next_serial)
            else:
                self._boxes[row], self._keys[row], self._serials[row] = box, key, self._next_serial
                self._reused = True
            rows.append(row)
        self._filters[key], self._rows_of[key] = filter, rows
        self._next_serial += 1
        self._several += len(rows) > 1

    def _keys_of(self, rows: list[int]) -> list[Key]:
        if self._reused:
            rows.sort(key=self._serials.__getitem__)
        else:
            rows.sort()
        keys: list[Any] = [self._keys[row] for row in rows]
        return list(dict.fromkeys(keys)) if self._several else keys

    def _settle(self) -> None:
        """Changes the engine if another one may be due; asked per event, so it is one look."""
        count = len(self._filters)
        if count not in self._span:
            best = self._best()
            if best != self._name:
                self._use(best)
            else:
                self._span = self._span_of(best)

    def _span_of(self, engine: EngineName) -> range:
        """How many filters there may be without another engine being better."""
        if engine == self._wanted:
            return range(1 << 62)
        if engine == "loop" and len(self._filters) < INDEX_FROM:
            return range(INDEX_FROM)
        if engine == "pairs":
            return range(INDEX_FROM // 8, 1 << 62)
        return range(0)  # kernels may become ready at any time; asking costs little beside a match without them

    def _best(self) -> EngineName:
        if self._wanted != "auto":
            wanted: EngineName = self._wanted
            return wanted
        count = len(self._filters)
        if count < INDEX_FROM:
            return "loop"
        if self._ready_kernels() is not None:
            return "pairs"
        return "roaring" if _has_pyroaring() else "loop"

    def _ready_kernels(self) -> Any:
        if self._kernels is None:
            try:
                from unisono.structures.matching.kernels import COMPILED
            except ImportError:  # no numpy
                return None
            self._kernels = COMPILED.ready()
        return self._kernels

    def _use(self, name: EngineName) -> None:
        rows = [(row, box) for row, box in enumerate(self._boxes) if box is not None]
        self._name = name
        if name == "loop":
            self._engine = LoopEngine()
            for row, box in rows:
                self._engine.add(row, box)
        elif name == "pairs":
            from unisono.structures.matching.pairs import PairEngine

            self._engine = PairEngine(self._ready_kernels(), self._boxes)
            self._engine.add_all(rows)
        else:
            from unisono.structures.matching.roaring import RoaringEngine

            self._engine = RoaringEngine(self._boxes, self._ready_kernels())
            self._engine.add_all(rows)
        self._span = self._span_of(name)


def warm_up() -> Thread | None:
    """Lets the kernels be compiled in the background; every index takes to them when they are there.

    For drivers, once an index has INDEX_FROM filters. None where there is nothing to compile.
    """
    try:
        from unisono.structures.matching.kernels import COMPILED
    except ImportError:  # no numpy
        return None
    return COMPILED.warm_up()


def _has_pyroaring() -> bool:
    try:
        import pyroaring
    except ImportError:
        return False
    return bool(pyroaring)
