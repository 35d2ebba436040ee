"""Who wants to know what becomes of a request: kept by the run, since one publisher asks for most of them in a row."""

from collections.abc import Iterator
from typing import Generic, TypeVar

A = TypeVar("A")


class PendingRequests(Generic[A]):
    """Consecutive request numbers -> who asked. Answers come in order within a run, with rare exceptions."""

    def __init__(self) -> None:
        self._runs: dict[int, tuple[A, int]] = {}  # first request -> who, and how many from there
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, first: int, who: A, count: int) -> None:
        self._runs[first] = (who, count)
        self._count += count

    def take(self, first: int, count: int) -> list[tuple[int, A, int]]:
        """Takes out those of `count` requests from `first` on that are here, in runs: first request, who, how many."""
        taken: list[tuple[int, A, int]] = []
        end = first + count
        while first < end:
            run = self._runs.pop(first, None) or self._cut_out(first)
            if run is None:
                first += 1
                continue
            who, length = run
            if first + length > end:
                self._runs[end] = (who, first + length - end)
                length = end - first
            taken.append((first, who, length))
            first += length
        self._count -= sum([length for _, _, length in taken])
        return taken

    def _cut_out(self, request: int) -> tuple[A, int] | None:
        """The rest of the run it is in the middle of, from there on."""
        for first, (who, count) in self._runs.items():
            if first < request < first + count:
                self._runs[first] = (who, request - first)
                return who, first + count - request
        return None

    def __iter__(self) -> Iterator[int]:
        """Every request."""
        for first, (_, count) in list(self._runs.items()):
            yield from range(first, first + count)
