"""Gaps whose numbers are not all done with: by clock entries of one stamper are missing, and events of others that lie
between them still come.

A row says that everything up to its number is kept or told as missing. So such a gap is written in parts, each before
the event after it: who reads on from any row is told the rest, and so is whoever opens an archive that died in between.
"""

from collections.abc import Iterator
from typing import NamedTuple

from unisono.machine import Gap


class MissingPart(NamedTuple):
    """Numbers of a topic that will not come."""

    topic: str
    first: int
    last: int
    reason: str


class UnsettledGaps:
    """Of one archive; by topic."""

    def __init__(self) -> None:
        self._gaps: dict[str, list[MissingPart]] = {}

    def add(self, topic: str, gap: Gap) -> None:
        self._gaps.setdefault(topic, []).append(MissingPart(topic, gap.first, gap.last, gap.reason))

    def settle(self, topic: str, upto: int, done: int) -> Iterator[MissingPart]:
        """The parts up to number `upto`, of what lies after number `done`; they are counted no more."""
        for gap in sorted(self._gaps.pop(topic, ())):
            first = max(gap.first, done + 1)
            if first <= min(gap.last, upto):
                done = min(gap.last, upto)
                yield gap._replace(first=first, last=done)
            if gap.last > upto:
                self._gaps.setdefault(topic, []).append(gap._replace(first=max(gap.first, upto + 1)))

    def topics(self) -> list[str]:
        return list(self._gaps)
