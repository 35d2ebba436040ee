"""A log in the order of keys that arrive in any order: what was applied too early is taken back and applied again.

Three numbers are counted that the thesis counts as one (its example: arrivals that take others back; its definition:
operations that are taken back at least once; the work: how often any is).
"""

from bisect import bisect_left, bisect_right
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from unisono.model.time import Micros

K = TypeVar("K", bound=tuple[Any, ...])


class KeyedRollbacks(Struct):
    """Over `arrivals`, without repetitions."""

    arrivals: int = 0
    with_undo: int = 0
    undone: int = 0
    undos: int = 0


class PlacedOperation(NamedTuple, Generic[K]):
    """An operation was put at its place."""

    key: K
    operation: str
    undone: int


class KeyedLog(Generic[K]):
    """Operations that are not stable, by key; `hold_us` and `hold_max` keep them back before they are applied."""

    def __init__(self, hold_us: Micros = Micros(0), hold_max: int = 0) -> None:
        self._hold_us, self._hold_max = hold_us, hold_max
        self._held: list[tuple[K, str, Micros]] = []  # in the order of keys
        self._keys: list[K] = []
        self._operations: list[str] = []
        self._key_of: dict[str, K] = {}  # of what is held, applied or stable
        self._undone: set[str] = set()
        self.rollbacks = KeyedRollbacks()

    @property
    def applied(self) -> list[str]:
        return list(self._operations)

    @property
    def next_release(self) -> Micros | None:
        """When something that is held has been held long enough."""
        return Micros(min(at for *_, at in self._held) + self._hold_us) if self._held else None

    def add(self, key: K, operation: str, now: Micros) -> list[PlacedOperation[K]]:
        """An operation that is known under a lesser key is this one's alias; one that is known under a greater one is
        moved: its place is that of the least of its keys."""
        known = self._key_of.get(operation)
        if known is not None and known <= key:
            return []
        if known is not None:
            self._take_out(known, operation)
        else:
            self.rollbacks.arrivals += 1
        self._key_of[operation] = key
        if not self._hold_us:
            return [self._apply(key, operation)]
        self._held.insert(bisect_right(self._held, (key,)), (key, operation, now))
        return self.release(now)

    def release(self, now: Micros) -> list[PlacedOperation[K]]:
        """Applies all up to the last that was held long enough, and the first of them while there are too many."""
        due = [i for i, (*_, at) in enumerate(self._held) if at + self._hold_us <= now]
        count = max(due[-1] + 1 if due else 0, len(self._held) - self._hold_max)
        released, self._held = self._held[:count], self._held[count:]
        return [self._apply(key, operation) for key, operation, _ in released]

    @property
    def held(self) -> list[K]:
        return [key for key, *_ in self._held]

    def release_upto(self, key: K) -> list[PlacedOperation[K]]:
        """Applies all that is held up to a key: nothing that comes before it can be missing."""
        count = sum(held <= key for held in self.held)
        released, self._held = self._held[:count], self._held[count:]
        return [self._apply(each, operation) for each, operation, _ in released]

    def settle(self, operations: list[str]) -> int:
        """These are stable now, in this order, and leave the log. How many others had to be taken back for them."""
        wanted = set(operations)
        self._held = [held for held in self._held if held[1] not in wanted]
        places = [i for i, operation in enumerate(self._operations) if operation in wanted]
        first = next((i for i, operation in enumerate(self._operations) if operation not in wanted), None)
        undone = 0
        if first is not None and ((places and places[-1] > first) or len(places) < len(operations)):
            undone = self._count_undo(self._operations[first:])
        kept = [(k, o) for k, o in zip(self._keys, self._operations) if o not in wanted]
        self._keys, self._operations = [key for key, _ in kept], [operation for _, operation in kept]
        self._undone -= wanted
        return undone

    def _apply(self, key: K, operation: str) -> PlacedOperation[K]:
        at = bisect_left(self._keys, key)
        later = self._operations[at:]
        if later:
            self.rollbacks.with_undo += 1
            self._count_undo(later)
        self._keys.insert(at, key)
        self._operations.insert(at, operation)
        return PlacedOperation(key, operation, len(later))

    def _count_undo(self, taken_back: list[str]) -> int:
        self.rollbacks.undos += len(taken_back)
        self.rollbacks.undone += len(set(taken_back) - self._undone)
        self._undone.update(taken_back)
        return len(taken_back)

    def _take_out(self, key: K, operation: str) -> None:
        """It turns out to belong further ahead: it and what comes after it are taken back."""
        self._held = [held for held in self._held if held[1] != operation]
        at = bisect_left(self._keys, key)
        if at < len(self._keys) and self._operations[at] == operation:
            self._count_undo(self._operations[at:])
            del self._keys[at], self._operations[at]
