"""Payloads that wait for their numbers.

They come in rows of consecutive requests and leave in runs, so both cost by the row: a row is kept as it came, and cut
where a run ends inside it. What comes one by one, or not in line (a repetition, a hole that is filled late), is kept
event by event, and leaves in runs all the same.
"""

from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from operator import itemgetter

from unisono.model.event import Event, Events
from unisono.model.ids import Address
from unisono.model.time import Micros

GONE_MIN = 64
"""How many rows leave a publisher's list before it is shortened."""


class _Line:
    """What waits of one publisher: rows in order of their requests, and events that came alone; none comes twice."""

    __slots__ = ("_firsts", "begin", "end", "moved_at", "rows", "singles")

    def __init__(self, now: int) -> None:
        self.moved_at = now  # how many events had come to all lines when the last left this one
        self._firsts: list[int] = []
        self.rows: list[Events] = []
        self.begin = 0  # rows before this one have left
        self.singles: dict[int, Event] = {}  # in the order in which they came
        self.end = 0  # the request after the last

    @property
    def first(self) -> int:
        """The lowest request of a line that is not empty."""
        return min([*self._firsts[self.begin : self.begin + 1], *self.singles])

    def __contains__(self, request: int) -> bool:
        return request in self.singles or self._find(request) >= 0

    def put(self, request: int, event: Event) -> int:
        """Keeps it unless it is here; tells how many are new."""
        if request >= self.end:
            self.end = request + 1
        elif request in self.singles or (self.begin < len(self.rows) and self._find(request) >= 0):
            return 0
        self.singles[request] = event
        return 1

    def put_row(self, request: int, events: Events) -> int:
        """The same for a row."""
        end, index = request + len(events), len(self.rows)
        if request < self.end:
            index = bisect_right(self._firsts, request, self.begin)
            if self._overlaps(index, request, end):
                return sum([self.put(request + at, event) for at, event in enumerate(events)])
        self._insert(index, request, events)
        self.end = max(self.end, end)
        return len(events)

    def _overlaps(self, index: int, request: int, end: int) -> bool:
        """Whether something is here already of a row that would be inserted there."""
        if index > self.begin and request < self._firsts[index - 1] + len(self.rows[index - 1]):
            return True
        if index < len(self._firsts) and self._firsts[index] < end:
            return True
        return bool(self.singles) and any(one in self.singles for one in range(request, end))

    def _find(self, request: int) -> int:
        """Which row it is in, or -1."""
        index = bisect_right(self._firsts, request, self.begin) - 1
        return index if index >= self.begin and request < self._firsts[index] + len(self.rows[index]) else -1

    def take(self, request: int, count: int) -> Events:
        singles = self.singles
        event = singles.pop(request, None)
        if event is None:
            return self._take_row(request, count)
        if count == 1 or request + 1 not in singles:
            return (event,)
        events = [event]
        with suppress(KeyError):  # of the first that is missing: those before it are in the list
            events.extend(map(singles.pop, range(request + 1, request + count)))
        return tuple(events)

    def _take_row(self, request: int, count: int) -> Events:
        index = self._find(request)
        if index < 0:
            return ()
        row, at = self.rows[index], request - self._firsts[index]
        if at == 0 and count >= len(row):
            self._remove(index)
            return row
        rest = row[at + count :]
        if at == 0:
            self._firsts[index], self.rows[index] = request + count, rest
        else:
            self.rows[index] = row[:at]
            if rest:
                self._insert(index + 1, request + count, rest)
        return row[at : at + count]

    def forget_before(self, request: int) -> int:
        """Drops what was published before it; tells how many."""
        gone = 0
        while self.begin < len(self.rows) and self._firsts[self.begin] < request:
            first, row = self._firsts[self.begin], self.rows[self.begin]
            past = min(len(row), request - first)
            if past < len(row):
                self._firsts[self.begin], self.rows[self.begin] = request, row[past:]
            else:
                self._remove(self.begin)
            gone += past
        while self.singles and (first := next(iter(self.singles))) < request:
            del self.singles[first]
            gone += 1
        return gone

    def __len__(self) -> int:
        return sum(map(len, self.rows[self.begin :])) + len(self.singles)

    def all(self) -> list[tuple[int, Event]]:
        rows = zip(self._firsts[self.begin :], self.rows[self.begin :])
        waiting = [(request, event) for first, row in rows for request, event in enumerate(row, first)]
        return sorted([*waiting, *self.singles.items()], key=itemgetter(0))

    def _insert(self, index: int, request: int, events: Events) -> None:
        self._firsts.insert(index, request)
        self.rows.insert(index, events)

    def _remove(self, index: int) -> None:
        if index != self.begin:
            del self._firsts[index], self.rows[index]
            return
        self.rows[index] = ()
        self.begin += 1
        if self.begin >= GONE_MIN and 2 * self.begin >= len(self.rows):
            del self._firsts[: self.begin], self.rows[: self.begin]
            self.begin = 0


class Held:
    """Payloads of one topic that wait for their numbers, by publisher and request.

    When each of them came is written down nowhere; `look`, called now and then, sees who is still here.
    """

    __slots__ = ("_come", "_first", "_lines", "count")

    def __init__(self) -> None:
        self.count = self._come = 0
        self._lines: dict[Address, _Line] = {}  # none is empty
        self._first: dict[Address, tuple[int, int, Micros]] = {}  # a line's first and last, and when it was first first

    def __contains__(self, key: tuple[Address, int]) -> bool:
        line = self._lines.get(key[0])
        return line is not None and key[1] in line

    def put(self, publisher: Address, request: int, event: Event) -> None:
        line = self._lines.get(publisher)
        if line is None:
            line = self._lines[publisher] = _Line(self._come)
        new = line.put(request, event)
        self.count += new
        self._come += new

    def put_row(self, publisher: Address, request: int, events: Events) -> None:
        """Keeps the events of consecutive requests, the first of which is `request`."""
        line = self._lines.get(publisher)
        if line is None:
            line = self._lines[publisher] = _Line(self._come)
        new = line.put_row(request, events)
        self.count += new
        self._come += new

    def take(self, publisher: Address, request: int, count: int) -> Events:
        """Takes out events of consecutive requests from this one on, at most so many; a row ends where it ended."""
        line = self._lines.get(publisher)
        if line is None:
            return ()
        events = line.take(request, count)
        self.count -= len(events)
        line.moved_at = self._come
        if not line.singles and line.begin == len(line.rows):
            del self._lines[publisher]
        return events

    def forget_before(self, publisher: Address, request: int) -> None:
        """Its numbers go up with its requests: what it published before one that is told has gone by, or was told."""
        line = self._lines.get(publisher)
        if line is not None and (gone := line.forget_before(request)):
            self.count -= gone
            if not line.singles and line.begin == len(line.rows):
                del self._lines[publisher]

    def take_all(self) -> list[tuple[Address, int, Event]]:
        """Takes out everything, each publisher's in its order."""
        lines, self._lines, self.count = self._lines, {}, 0
        return [(publisher, request, event) for publisher, line in lines.items() for request, event in line.all()]

    def look(self, now: Micros) -> None:
        """Notes which payload of every publisher has waited longest."""
        before, self._first = self._first, {}
        for publisher, line in self._lines.items():
            request, known = line.first, before.get(publisher)
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

    def drop_unnumbered(self, numbered: Mapping[Address, int], most: int) -> None:
        """If most of what is here has no number (`numbered`: the last request of a publisher that has one): forgets so
        many of it, of those publishers first of whom nothing has been taken for longest; of each what came last."""
        unknown = {who: line for who, line in self._lines.items() if line.first > numbered.get(who, 0)}
        if 2 * sum(map(len, unknown.values())) <= self.count:
            return
        for who, line in sorted(unknown.items(), key=lambda each: each[1].moved_at):
            moved_at = line.moved_at
            for request, _ in line.all()[max(0, len(line) - most) :]:
                self.take(who, request, 1)
                most -= 1
            line.moved_at = moved_at  # that was no progress
            if not most:
                return

    def drop(self, publisher: Address) -> None:
        """Forgets the payload of this publisher that has waited longest, and what had come after it by then."""
        _, last, _ = self._first.pop(publisher)
        for request, _ in self._lines[publisher].all():
            if request <= last:
                self.take(publisher, request, 1)
