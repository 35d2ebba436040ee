"""Payloads that wait for their numbers.

They come in rows of consecutive requests and leave in runs, so both cost by the row: a row is kept as it came, and cut
where a run ends inside it. Whatever is not in line (a repetition, a hole that is filled late) is kept event by event.
"""

from bisect import bisect_right

from unisono.model.event import Event, Events
from unisono.model.ids import Address
from unisono.model.time import Micros

GONE_MIN = 64
"""How many rows leave a publisher's list before it is shortened."""


class _Line:
    """What waits of one publisher: rows in order of their requests, which do not overlap."""

    __slots__ = ("begin", "end", "firsts", "rows")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.rows: list[Events] = []
        self.begin = 0  # rows before this one have left
        self.end = 0  # the request behind the last row

    def put(self, request: int, events: Events) -> int:
        """Keeps what is not here yet; tells how many those are."""
        count = len(events)
        if request >= self.end:
            self.firsts.append(request)
            self.rows.append(events)
            self.end = request + count
            return count
        new = 0
        for at in range(count):
            if self.find(request + at) < 0:
                index = bisect_right(self.firsts, request + at, self.begin)
                self._insert(index, request + at, events[at : at + 1])
                new += 1
        self.end = max(self.end, request + count)
        return new

    def find(self, request: int) -> int:
        """Which row it is in, or -1."""
        index = bisect_right(self.firsts, request, self.begin) - 1
        return index if index >= self.begin and request < self.firsts[index] + len(self.rows[index]) else -1

    def take(self, request: int, count: int) -> Events:
        index = self.find(request)
        if index < 0:
            return ()
        row, at = self.rows[index], request - self.firsts[index]
        if at == 0 and count >= len(row):
            self._remove(index)
            return row
        rest = row[at + count :]
        if at == 0:
            self.firsts[index], self.rows[index] = request + count, rest
        else:
            self.rows[index] = row[:at]
            if rest:
                self._insert(index + 1, request + count, rest)
        return row[at : at + count]

    def _insert(self, index: int, request: int, events: Events) -> None:
        self.firsts.insert(index, request)
        self.rows.insert(index, events)

    def _remove(self, index: int) -> None:
        if index != self.begin:
            del self.firsts[index], self.rows[index]
            return
        self.rows[index] = ()
        self.begin += 1
        if self.begin >= GONE_MIN and 2 * self.begin >= len(self.rows):
            del self.firsts[: self.begin], self.rows[: self.begin]
            self.begin = 0


class Held:
    """Payloads of one topic that wait for their numbers, by publisher and request.

    When each of them came is written down nowhere; `look`, called now and then, sees who is still here.
    """

    __slots__ = ("_first", "_lines", "count")

    def __init__(self) -> None:
        self.count = 0
        self._lines: dict[Address, _Line] = {}  # none is empty
        self._first: dict[Address, tuple[int, int, Micros]] = {}  # a line's first and last, and when it was first first

    def __contains__(self, key: tuple[Address, int]) -> bool:
        line = self._lines.get(key[0])
        return line is not None and line.find(key[1]) >= 0

    def put(self, publisher: Address, request: int, events: Events) -> None:
        """Keeps the events of consecutive requests, the first of which is `request`."""
        line = self._lines.get(publisher)
        if line is None:
            line = self._lines[publisher] = _Line()
        self.count += line.put(request, events)

    def take(self, publisher: Address, request: int, count: int) -> Events:
        """Takes out the events of up to `count` consecutive requests: those that came in one row."""
        line = self._lines.get(publisher)
        if line is None:
            return ()
        events = line.take(request, count)
        self.count -= len(events)
        if line.begin == len(line.rows):
            del self._lines[publisher]
        return events

    def take_all(self) -> list[tuple[Address, int, Event]]:
        """Takes out everything, each publisher's in its order."""
        lines, self._lines, self.count = self._lines, {}, 0
        return [
            (publisher, request, event)
            for publisher, line in lines.items()
            for first, row in zip(line.firsts[line.begin :], line.rows[line.begin :])
            for request, event in enumerate(row, first)
        ]

    def look(self, now: Micros) -> None:
        """Notes which payload of every publisher has waited longest."""
        before, self._first = self._first, {}
        for publisher, line in self._lines.items():
            request, known = line.firsts[line.begin], before.get(publisher)
            if known is None or known[0] != request:
                known = (request, line.end - 1, now)
            self._first[publisher] = known

    def oldest(self) -> tuple[Address, int, Micros] | None:
        """Publisher and request of the payload that has waited longest, and since when we know that it waits."""
        waiting = [(since, who, request) for who, (request, _, since) in self._first.items() if (who, request) in self]
        if not waiting:
            return None
        since, publisher, request = min(waiting)
        return publisher, request, since

    def drop(self, publisher: Address) -> None:
        """Forgets the payload of this publisher that has waited longest, and what had come after it by then."""
        _, last, _ = self._first.pop(publisher)
        while (line := self._lines.get(publisher)) is not None and (first := line.firsts[line.begin]) <= last:
            self.take(publisher, first, last + 1 - first)
