"""What two replicas' databases have, and where they differ. Nothing is written, and neither need be closed."""

from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

from msgspec import Struct

from unisono.replicas.opening import open_state


class ReplicaFile(Struct, frozen=True):
    """A replica's database as anybody can read it."""

    file: str
    topics: str
    operations: int
    hash: str
    problems: list[str]
    """What the database's own check finds; none in a whole one."""


class Difference(Struct, frozen=True):
    """A place where two of them differ: a table that only one has, or the first row that is not the same."""

    table: str
    first: list[Any] | None
    second: list[Any] | None


def read_replica(place: str | Path) -> ReplicaFile:
    """Raises FormatError for what is no replica's."""
    with closing(open_state(place)) as state:
        topics = state.identity()["topics"]
        return ReplicaFile(state.place, topics, state.count(), state.hash(), state.problems())


def differences(first: str | Path, second: str | Path) -> Iterator[Difference]:
    """Table by table."""
    with closing(open_state(first)) as one, closing(open_state(second)) as other:
        ours, theirs = one.tables(), other.tables()
        for table in sorted({*ours, *theirs}):
            if table not in ours or table not in theirs:
                yield Difference(table, [] if table in ours else None, [] if table in theirs else None)
                continue
            for mine, yours in zip_longest(one.rows(table), other.rows(table)):
                if mine != yours:
                    yield Difference(table, list(mine) if mine else None, list(yours) if yours else None)
                    break
