"""Who is around a node, who is fed, and what leaves it: shared by all parts of one machine."""

from collections.abc import Iterator
from typing import Any
from zlib import crc32

from unisono.machine import CancelTimer, Effect, Refuse, Send, SetTimer
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import NO_EVENT, Filter
from unisono.model.time import Micros
from unisono.protocols.regions.messages import Side, StreamItem, Tally
from unisono.structures.content import flat
from unisono.structures.matching import MatchingIndex


class RegionOutbox:
    """What the input being handled leads to."""

    __slots__ = ("effects", "now", "refusals")

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.now = Micros(0)
        self.refusals: dict[str, int] = {}
        """How often what was refused, by code."""

    def begin(self, now: Micros) -> None:
        self.effects, self.now = [], now

    def send(self, to: Address, message: Any) -> None:
        self.effects.append(Send(to, message))

    def add(self, effect: Effect) -> None:
        self.effects.append(effect)

    def wake(self, key: str, after: int) -> None:
        self.effects.append(SetTimer(key, Micros(self.now + after)))

    def wake_about(self, key: str, after: int) -> None:
        """Up to half of it later, so that many who begin together do not go on together."""
        self.wake(key, after + crc32(f"{key}{self.now}".encode()) % (after // 2 + 1))

    def sleep(self, key: str) -> None:
        self.effects.append(CancelTimer(key))

    def refuse(self, reason: str, code: str = "protocol") -> None:
        self.refusals[code] = self.refusals.get(code, 0) + 1
        self.effects.append(Refuse(reason))


class RegionNeighbour:
    """One link: what the other end wants, and how far that is agreed on."""

    __slots__ = ("accepts_direct", "is_active", "side", "tally", "told", "turn", "wanted")

    def __init__(self, side: Side) -> None:
        self.side: Side = side
        self.is_active = side == "parent"
        """Fed: streams are open, and everything wanted comes."""
        self.turn = 0  # of its last Attach
        self.wanted: Filter = NO_EVENT
        self.told = 0  # turn of its last Attach that we have answered
        self.tally = Tally()
        self.accepts_direct = False


class RegionAround:
    """The neighbours of a node, and which of them an event goes to."""

    def __init__(self, me: Address, is_root: bool) -> None:
        self.me, self.is_root = me, is_root
        self.links: dict[Address, RegionNeighbour] = {}
        self.parent: Address | None = None
        self._index: MatchingIndex[Address] = MatchingIndex()

    def add(self, peer: Address, side: Side) -> None:
        self.links[peer] = RegionNeighbour(side)
        if side == "parent":
            self.parent = peer

    def remove(self, peer: Address) -> RegionNeighbour:
        if peer in self._index:
            self._index.remove(peer)
        if peer == self.parent:
            self.parent = None
        return self.links.pop(peer)

    def feed(self, peer: Address, wanted: Filter) -> None:
        """From now on it gets what matches this."""
        link = self.links[peer]
        link.is_active, link.wanted = True, wanted
        if peer in self._index:
            self._index.remove(peer)
        if not wanted.is_empty:
            self._index.add(peer, wanted)

    def is_below(self, peer: Address) -> bool:
        return self.links[peer].side in ("broker", "client")

    def is_client(self, peer: Address) -> bool:
        return self.links[peer].side == "client"

    def above(self) -> list[Address]:
        """The broker above, or the other roots."""
        return [peer for peer, link in self.links.items() if link.side in ("parent", "peer")]

    def fed(self, below: bool) -> Iterator[Address]:
        """Whom a stream is open to: all that are active below; if it comes from below, those above too."""
        for peer, link in self.links.items():
            if link.is_active and (below or link.side in ("broker", "client")):
                yield peer

    def wanting(self, item: StreamItem) -> list[Address]:
        """Of the active ones but the parent, those that want an item."""
        if item.event is not None:
            return self._index.match(seen(item.event))
        scope = item.scope
        return [peer for peer in self.links if peer in self._index and (scope is None or self._overlaps(peer, scope))]

    def _overlaps(self, peer: Address, scope: Filter) -> bool:
        return self._index[peer].overlaps(scope)

    def wants_something(self, peer: Address) -> bool:
        return peer in self._index


def seen(event: Event) -> dict[str, object]:
    """What filters see of an event."""
    return flat(event)
