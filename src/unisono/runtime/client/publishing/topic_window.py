"""What a session publishes on one topic, and who wants to know what becomes of it: kept by the run, since one publisher
asks for most of them in a row."""

import asyncio
from collections.abc import Iterator
from typing import Generic, Protocol, TypeAlias, TypeVar

from unisono.machine import Accepted, Refused, Unknown
from unisono.model.event import Event, EventRow, Events, Scalar
from unisono.model.grid import Cell, Grid
from unisono.model.ids import Topic
from unisono.model.time import Micros
from unisono.runtime.brokers.sequencer_codec import NO_ATTRIBUTES

Outcome = Accepted | Refused | Unknown
A = TypeVar("A")


class OutcomeCounter(Protocol):
    """Who publishes much and counts outcomes, instead of a future for each."""

    def settled(self, outcome: Outcome) -> None: ...

    def settled_all(self, count: int) -> None:
        """As many as this have been accepted."""


class TopicWindow:
    """What we publish on one topic."""

    __slots__ = (
        "bytes_in_flight",
        "cells",
        "gave_up",
        "grid",
        "in_flight",
        "name",
        "publisher",
        "roomers",
        "row",
        "sequence",
        "topic",
    )

    def __init__(self, name: str, topic: Topic, publisher: str) -> None:
        self.name, self.topic, self.publisher = name, topic, publisher
        self.sequence = 0
        self.in_flight = 0
        self.bytes_in_flight = 0  # about: which of them are settled first is not looked at
        self.roomers: list[asyncio.Future[None]] = []
        self.grid: Grid | None = None
        self.cells: dict[Cell, TopicWindow] = {}
        self.row: PublicationRow | None = None  # what is published in this turn of the loop
        self.gave_up = 0  # up to this one some, told Unknown or Refused, may still be repeated, and take up room

    def take_off(self, count: int, size: int) -> None:
        """So many more are in flight, with so many bytes of payload."""
        self.in_flight += count
        self.bytes_in_flight += size

    def land(self, count: int) -> None:
        """So many have their outcome."""
        self.bytes_in_flight -= self.bytes_in_flight * count // self.in_flight
        self.in_flight -= count


Asker: TypeAlias = "tuple[TopicWindow, asyncio.Future[Outcome] | OutcomeCounter]"
"""Whose publication it is; all those of a counter share one."""


class PublicationRow:
    """Events on one topic in a row, and who wants to know what becomes of each."""

    __slots__ = ("askers", "attributes", "born_at", "deadline_us", "first", "payloads", "topic_window")

    def __init__(self, topic_window: TopicWindow, first: int, born_at: Micros, deadline_us: Micros = Micros(0)) -> None:
        """`deadline_us`: how long after their birth these are of use; 0: as long as all."""
        self.topic_window, self.first, self.born_at, self.deadline_us = topic_window, first, born_at, deadline_us
        self.payloads: list[bytes] = []
        self.attributes: dict[int, dict[str, Scalar]] = {}  # by sequence, of those that have some
        self.askers: list[tuple[Asker, int]] = []
        """Who asked, and from which place in the row on."""

    def ask(self, asker: Asker) -> None:
        """Wants to know what becomes of those that are added now."""
        if not self.askers or self.askers[-1][0] is not asker:
            self.askers.append((asker, len(self.payloads)))

    def events(self) -> Events:
        topic_window, attributes = self.topic_window, self.attributes
        if not attributes:
            return EventRow(topic_window.publisher, self.first, topic_window.name, tuple(self.payloads), self.born_at)
        return tuple(
            Event(
                topic_window.publisher,
                sequence,
                topic_window.name,
                payload,
                attributes.get(sequence, NO_ATTRIBUTES),
                self.born_at,
            )
            for sequence, payload in enumerate(self.payloads, self.first)
        )


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
