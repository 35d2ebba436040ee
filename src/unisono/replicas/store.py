"""What a replica needs of a database.

Whatever is durable in a store is a prefix of the agreed order, and says how far that goes in the same transaction.
Operations whose order is not known stand in an open transaction, each after a mark, and are seen by nobody else.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from unisono.replicas.operation import OperationName, SqlAnswer, SqlOperation, SqlParams, SqlResult


class ReplicaStore(Protocol):
    """The database of one replica, opened by one process."""

    place: str
    """Where it is, as people may see it."""
    engine: str
    """What the meaning of an operation depends on: the same at all replicas of a set."""
    position: str | None
    count: int

    @property
    def in_transaction(self) -> bool: ...

    def begin(self) -> None:
        """What comes next may be undone."""

    def rest(self) -> None:
        """Nothing is tentative: nothing needs to be held for it."""

    def mark(self, name: str) -> None: ...

    def undo(self, mark: str) -> None:
        """Everything since the mark is taken back; the mark is gone as well."""

    def commit(self, position: str, done: Iterable[OperationName], count: int) -> None:
        """All that was run is durable together with the place in the order that it brings us to."""

    def has_done(self, operation: SqlOperation) -> bool:
        """An operation of this name has had its effect."""
        ...

    def run(self, operation: SqlOperation, steps_max: int = 0, mark: str | None = None) -> SqlAnswer:
        """Runs all statements, or has no effect. With `steps_max` it raises MisuseError for what no replica should be
        asked to do; without, the same is an answer with an error, as everywhere else. With `mark` it can be undone."""
        ...

    def keeps_readers_out(self, operation: SqlOperation) -> bool:
        """As long as it is tentative nobody else could read: it waits until its order is known."""
        ...

    def read(self, sql: str, params: SqlParams, tentative: bool = False) -> SqlResult:
        """The stable state, or with `tentative` what is tentative makes of it. Stable reading may take long: it has a
        connection of its own, and is done in another thread."""
        ...

    def hash(self) -> str:
        """Of the stable state."""
        ...

    def copy_to(self, target: Path) -> None:
        """A copy of the stable state, with its place in the order: another replica may begin with it."""

    def close(self) -> None:
        """What is not stable yet is not kept: its publication is, and brings it back."""


class ReplicaState(Protocol):
    """What anybody can read of a replica's database, while it is open or not."""

    place: str

    def identity(self) -> dict[str, str]: ...

    def count(self) -> int:
        """How many operations it has followed."""
        ...

    def hash(self) -> str: ...

    def problems(self) -> list[str]:
        """What the database's own check finds; none in a whole one."""
        ...

    def tables(self) -> list[str]: ...

    def rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """All rows of a table, in the order of its key."""
        ...

    def close(self) -> None: ...


NumberRun = tuple[int, int]
"""The first and the last of numbers in a row."""


class DoneNumbers:
    """Which operations have had their effect: of every client all up to a floor, and runs of numbers beyond."""

    def __init__(self, load: Callable[[str], tuple[int, str] | None], save: Callable[[str, int, str], object]) -> None:
        self._load, self._save = load, save
        self._known: dict[str, tuple[int, list[NumberRun]]] = {}

    def has(self, client: str, number: int) -> bool:
        floor, beyond = self._of(client)
        return number <= floor or any(first <= number <= last for first, last in beyond)

    def add(self, done: Iterable[OperationName]) -> None:
        """In the transaction of their data, which is committed next."""
        numbers: dict[str, list[int]] = {}
        for client, number in done:
            numbers.setdefault(client, []).append(number)
        for client, new in numbers.items():
            floor, beyond = self._of(client)
            (_, floor), *beyond = _merged([(0, floor), *beyond, *((number, number) for number in new)])
            self._known[client] = floor, beyond
            self._save(client, floor, msgspec.json.encode(beyond).decode())

    def _of(self, client: str) -> tuple[int, list[NumberRun]]:
        known = self._known.get(client)
        if known is None:
            row = self._load(client)
            known = (row[0], msgspec.json.decode(row[1], type=list[NumberRun])) if row is not None else (0, [])
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[client] = known
        return known


def _merged(runs: list[NumberRun]) -> list[NumberRun]:
    """In their order, with none that touches the next."""
    merged: list[NumberRun] = []
    for first, last in sorted(runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


KNOWN_MAX = 10_000
"""Clients remembered in memory; the others are read again."""
