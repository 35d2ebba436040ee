"""What a session publishes on one topic, and who wants to know what becomes of it."""

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from unisono.machine import Accepted, Refused, Unknown
from unisono.model.event import Event, EventRow, Events, Scalar
from unisono.model.grid import Cell, Grid
from unisono.model.ids import Topic
from unisono.model.time import Micros
from unisono.runtime.dialect import NO_ATTRIBUTES

if TYPE_CHECKING:
    from unisono.runtime.publisher import Publisher

Outcome = Accepted | Refused | Unknown


class Lane:
    """What we publish on one topic."""

    __slots__ = (
        "bytes_in_flight",
        "cells",
        "grid",
        "in_flight",
        "name",
        "publisher",
        "roomers",
        "row",
        "sequence",
        "topic",
        "unknown",
    )

    def __init__(self, name: str, topic: Topic, publisher: str) -> None:
        self.name, self.topic, self.publisher = name, topic, publisher
        self.sequence = 0
        self.in_flight = 0
        self.bytes_in_flight = 0  # about: which of them are settled first is not looked at
        self.roomers: list[asyncio.Future[None]] = []
        self.grid: Grid | None = None
        self.cells: dict[Cell, Lane] = {}
        self.row: Row | None = None  # what is published in this turn of the loop
        self.unknown = 0  # outcomes Unknown: as long as they are repeated they take up room

    def take_off(self, count: int, size: int) -> None:
        """So many more are in flight, with so many bytes of payload."""
        self.in_flight += count
        self.bytes_in_flight += size

    def land(self, count: int) -> None:
        """So many have their outcome."""
        self.bytes_in_flight -= self.bytes_in_flight * count // self.in_flight
        self.in_flight -= count


Asker: TypeAlias = "tuple[Lane, asyncio.Future[Outcome] | Publisher]"
"""Whose publication it is; all those of a `Publisher` share one."""


class Row:
    """Events on one topic in a row, and who wants to know what becomes of each."""

    __slots__ = ("askers", "attributes", "born_at", "first", "lane", "payloads")

    def __init__(self, lane: Lane, first: int, born_at: Micros) -> None:
        self.lane, self.first, self.born_at = lane, first, born_at
        self.payloads: list[bytes] = []
        self.attributes: dict[int, dict[str, Scalar]] = {}  # by sequence, of those that have some
        self.askers: list[tuple[Asker, int]] = []
        """Who asked, and from which place in the row on."""

    def ask(self, asker: Asker) -> None:
        """Wants to know what becomes of those that are added now."""
        if not self.askers or self.askers[-1][0] is not asker:
            self.askers.append((asker, len(self.payloads)))

    def events(self) -> Events:
        lane, attributes = self.lane, self.attributes
        if not attributes:
            return EventRow(lane.publisher, self.first, lane.name, tuple(self.payloads), self.born_at)
        return tuple(
            Event(lane.publisher, sequence, lane.name, payload, attributes.get(sequence, NO_ATTRIBUTES), self.born_at)
            for sequence, payload in enumerate(self.payloads, self.first)
        )
