"""What one neighbour has been told of our subscriptions, and what it need not be told.

A subscription is covered if the neighbour knows a wider one from us: whatever matches it comes anyway, and the wider
one only makes decisions behind the neighbour more careful (specs: content-order, section 15). What is said about
confirmations in section 7.2 then holds for the one that *stands for* a subscription, which is itself or its cover:
whoever waits, waits until that one is confirmed. When a cover ends, those it stood for are told before its end is;
links are FIFO, so no broker behind ever knows neither.
"""

from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from unisono.model.ids import Address
from unisono.protocols.overlay.tables import Tables


class Change(NamedTuple):
    """What ended subscriptions mean for a neighbour, to be said in this order."""

    told: list[str]
    withdrawn: list[str]
    settled: list[str]
    """These waited for the confirmation of one that ended, and wait for nothing any more."""


class Forwarding:
    """Our subscriptions as one neighbour knows them."""

    __slots__ = ("_awaited", "_cover_of", "_covered_by", "_covering", "_peer", "_sent", "_turns", "confirming")

    def __init__(self, peer: Address, covering: bool) -> None:
        self._peer, self._covering = peer, covering
        self._sent: dict[str, int] = {}  # the turn in which it was told; 0 when it is confirmed
        self._turns = 0
        self._cover_of: dict[str, str] = {}
        self._covered_by: dict[str, dict[str, None]] = {}
        self._awaited: dict[str, dict[str, None]] = {}  # whose confirmation -> who waits for it
        self.confirming: dict[str, None] = {}
        """Sent when the link opened and not confirmed: until then we are deaf to the neighbour."""

    def take(self, tables: Tables, names: Iterable[str]) -> list[str]:
        """Which of these the neighbour must be told of; for the others there is no need, or one of those stands."""
        new = {name: i for i, name in enumerate(names) if self._is_needed(tables, name)}
        if self._covering:
            for name in [name for name in new if self._cover(tables, name)]:
                del new[name]
            widest = [name for name in new if not _is_behind(tables, name, new)]
            self._sent.update(dict.fromkeys(widest, self._turns))
            told = [name for name in new if name in self._sent or not self._cover(tables, name)]
        else:
            told = list(new)
        for name in told:
            self._turns += 1
            self._sent[name] = self._turns
        return told

    def turn(self, name: str) -> int:
        """The number under which one has just been told."""
        return self._sent[name]

    def awaits(self, name: str) -> bool:
        """Whether whoever stands for it is still to be confirmed; if so, `confirm` will name it."""
        standing = self._standing(name)
        if standing is None or not self._sent[standing]:
            return False
        self._awaited.setdefault(standing, {})[name] = None
        return True

    def confirm(self, name: str, turn: int) -> list[str]:
        """The neighbour has confirmed one; returns who waited for that.

        What it says of an earlier turn is about one that has ended: it does not know the present one yet.
        """
        if self._sent.get(name) != turn:
            return []
        self._sent[name] = 0
        self.confirming.pop(name, None)
        return list(self._awaited.pop(name, {}))

    def forget(self, tables: Tables, gone: list[str]) -> Change:
        """These have left the tables."""
        withdrawn: list[str] = []
        alone: list[str] = []
        waiting: list[str] = []
        was_deaf = False
        for name in gone:
            cover = self._cover_of.pop(name, None)
            if cover is not None:
                del self._covered_by[cover][name]
            if name not in self._sent:
                continue
            del self._sent[name]
            withdrawn.append(name)
            waiting += self._awaited.pop(name, {})
            was_deaf |= self.confirming.pop(name, name) is None
            for covered in self._covered_by.pop(name, {}):
                del self._cover_of[covered]
                alone.append(covered)
        alone = [name for name in alone if name in tables.subs]
        told = self.take(tables, alone)
        if was_deaf:
            standing = [self._standing(name) for name in alone]
            self.confirming.update({name: None for name in standing if name is not None and self._sent[name]})
        left = [name for name in waiting if name in tables.subs]
        return Change(told, withdrawn, [name for name in left if not self.awaits(name)])

    def _is_needed(self, tables: Tables, name: str) -> bool:
        sub = tables.subs[name]
        if sub.hop == self._peer or not sub.met.any_from(self._peer):
            return False
        return self._standing(name) is None

    def _standing(self, name: str) -> str | None:
        return name if name in self._sent else self._cover_of.get(name)

    def _cover(self, tables: Tables, name: str) -> bool:
        """Finds one that the neighbour knows and that is at least as wide."""
        cover = next(_wider(tables, name, self._sent), None)
        if cover is None:
            return False
        self._cover_of[name] = cover
        self._covered_by.setdefault(cover, {})[name] = None
        return True


def _is_behind(tables: Tables, name: str, new: dict[str, int]) -> bool:
    """Whether another new one is wider, or the same and earlier."""
    mine = tables.subs[name].filter
    return any(
        new[other] < new[name] or not mine.covers(tables.subs[other].filter) for other in _wider(tables, name, new)
    )


def _wider(tables: Tables, name: str, among: Container[str]) -> Iterator[str]:
    """Whatever covers a filter matches each of its events, so the index finds all that come into question."""
    filter = tables.subs[name].filter
    event = filter.sample()
    for other in tables.subs if event is None else tables.matching(event):
        if other in among and other != name and tables.subs[other].filter.covers(filter):
            yield other
