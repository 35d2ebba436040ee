"""What a subscriber has heard on one topic and not yet processed: runs as far as they are known, and payloads."""

from collections import deque
from collections.abc import Container
from contextlib import suppress

from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.messages import Entries, Numbers, Run, Topics


class Item:
    """A run as far as it is known."""

    __slots__ = (
        "first",
        "last",
        "missing",
        "numbers",
        "publisher",
        "request",
        "settled",
        "since",
        "topics",
        "void",
    )

    def __init__(self, run: Run, now: Micros) -> None:
        self.since = now  # when we first knew of it: its deadlines run from here
        self.first = run.first
        self.last = run.first + run.count - 1
        self.publisher = run.publisher
        self.request = run.request
        self.topics: Topics = run.topics
        self.numbers: Numbers = run.numbers
        self.missing: dict[Topic, None] | None = None  # None: not known yet
        self.settled: dict[Topic, None] = {}  # by pieces that came before the home's
        self.void = False


def singles(run: Run) -> list[Run]:
    if run.count == 1:
        return [run]
    return [Run(run.first + i, 1, run.publisher, run.request + i, run.topics, run.numbers) for i in range(run.count)]


ASKS_MAX = 100
"""Numbers of one topic that are asked for at once: the pace of catching up after a long silence of the broker."""
ARRIVALS_MIN = 1000
"""How many arrivals are remembered before those of events that no longer wait are looked for."""


class Held:
    """Payloads of one topic that wait for their numbers, by publisher and request.

    They come and go in rows of consecutive requests, and a row costs a few calls: what is done per event is done by
    `dict.update`, `map` and slices.
    """

    __slots__ = ("_arrivals", "_arrivals_max", "_count", "_rows")

    def __init__(self) -> None:
        self._rows: dict[Address, dict[int, Event]] = {}
        self._count = 0
        self._arrivals: deque[tuple[Address, int, int, Micros]] = deque()  # publisher, first request, how many, when
        self._arrivals_max = ARRIVALS_MIN

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: tuple[Address, int]) -> bool:
        return key[1] in self._rows.get(key[0], ())

    def put(self, publisher: Address, request: int, event: Event, now: Micros) -> None:
        row = self._rows.get(publisher)
        if row is None:
            row = self._rows[publisher] = {}
        if request not in row:
            self._count += 1
        row[request] = event
        self._arrivals.append((publisher, request, 1, now))
        if len(self._arrivals) > self._arrivals_max:
            self._tidy()

    def put_row(self, publisher: Address, request: int, events: tuple[Event, ...], now: Micros) -> None:
        row = self._rows.get(publisher)
        if row is None:
            row = self._rows[publisher] = {}
        before = len(row)
        row.update(zip(range(request, request + len(events)), events))
        self._count += len(row) - before
        self._arrivals.append((publisher, request, len(events), now))
        if len(self._arrivals) > self._arrivals_max:
            self._tidy()

    def take(self, publisher: Address, request: int, count: int) -> tuple[Event, ...]:
        """Takes out the events of up to `count` consecutive requests, until one is missing."""
        row = self._rows.get(publisher)
        if row is None:
            return ()
        first = row.pop(request, None)
        if first is None:
            return ()
        events = [first]
        if count > 1 and request + 1 in row:
            with suppress(KeyError):  # of the first that is missing: those before it are in the list
                events.extend(map(row.pop, range(request + 1, request + count)))
        self._count -= len(events)
        if not row:
            del self._rows[publisher]
        return tuple(events)

    def take_all(self) -> list[tuple[Address, int, Event]]:
        """Takes out everything, each publisher's in its order."""
        rows, self._rows, self._count = self._rows, {}, 0
        return [(publisher, request, row[request]) for publisher, row in rows.items() for request in sorted(row)]

    def drop_before(self, moment: Micros) -> None:
        """Forgets what has come before this moment."""
        while self._arrivals and self._arrivals[0][3] <= moment:
            publisher, request, count, _ = self._arrivals.popleft()
            for one in range(request, request + count):
                self.take(publisher, one, 1)

    def oldest(self) -> tuple[Address, int, Micros] | None:
        """Publisher and request of the payload that has waited longest, and since when."""
        while self._arrivals:
            arrival = self._arrivals.popleft()
            first = self._first_of(arrival)
            if first is not None:
                publisher, request, count, since = arrival
                self._arrivals.appendleft((publisher, first, request + count - first, since))
                return publisher, first, since
        return None

    def _tidy(self) -> None:
        """Forgets the arrivals of what has been taken out; their number stays within a multiple of what waits."""
        if self._count:
            self._arrivals = deque([one for one in self._arrivals if self._first_of(one) is not None])
        else:
            self._arrivals.clear()
        self._arrivals_max = ARRIVALS_MIN + 8 * len(self._arrivals)

    def _first_of(self, arrival: tuple[Address, int, int, Micros]) -> int | None:
        publisher, request, count, _ = arrival
        row = self._rows.get(publisher, ())
        if request in row:
            return request
        return next((one for one in range(request, request + count) if one in row), None)


class Feed:
    """What has come in on one topic."""

    __slots__ = (
        "awaited",
        "base",
        "cleared",
        "gate",
        "head",
        "heard",
        "items",
        "live",
        "lost",
        "mark",
        "muted",
        "payloads",
        "skipped",
        "stalled",
        "tagged",
        "waiting_for",
        "waiting_since",
    )

    def __init__(self) -> None:
        self.live = False  # joining until the subscription is complete
        self.muted = False  # the application has left already
        self.base = 0
        self.gate: Entries = {}
        self.items: dict[int, Item] = {}
        self.head = 0  # the first number of the run that is being processed
        self.cleared = 0  # the same, if its timestamp holds nothing back any more
        self.awaited: tuple[Address, int] | None = None  # the payload that is all the head waits for
        self.payloads = Held()
        self.lost: dict[int, None] = {}  # numbers whose payload will not come
        self.skipped: dict[tuple[Address, int], int] = {}  # requests whose numbers went by without their payload
        self.mark = 0  # the highest number known to exist
        self.waiting_for = 0  # the number we wait for, and since when
        self.waiting_since = Micros(0)
        self.stalled = False
        self.tagged: dict[tuple[Address, int], None] = {}  # told out of order while the topic was stalled
        self.heard = Micros(0)  # when the home last answered

    def skip(self, key: tuple[Address, int], number: int, bound: int) -> None:
        """The number has gone by without its payload."""
        self.skipped[key] = number
        if len(self.skipped) > bound:
            del self.skipped[next(iter(self.skipped))]

    def tag_all(self, bound: int) -> list[Event]:
        """Everything held back, to be told out of order; beyond the bound the oldest will end in a gap as well."""
        events = []
        for publisher, request, event in self.payloads.take_all():
            self.tagged[publisher, request] = None
            events.append(event)
        while len(self.tagged) > bound:
            del self.tagged[next(iter(self.tagged))]
        return events

    def unknown(self, number: int, ours: Container[Topic]) -> list[int]:
        """Numbers from `number` on that exist and whose timestamps, as far as they concern our topics, we lack: asked
        for together, they wait together."""
        unknown: list[int] = []
        while number <= self.mark and len(unknown) < ASKS_MAX:
            item = self.items.get(number)
            if item is None or item.missing is None or any(x in ours for x in item.missing):
                unknown.append(number)
            number = number + 1 if item is None else item.last + 1
        return unknown
