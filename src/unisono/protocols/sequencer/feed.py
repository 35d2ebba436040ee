"""What a subscriber has heard on one topic and not yet processed: runs as far as they are known, and payloads."""

from collections.abc import Container
from contextlib import suppress

from msgspec import Struct

from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.messages import Entries, Numbers, Run, Topics


class Item(Struct, gc=False):
    """A run as far as it is known."""

    first: int
    last: int
    publisher: Address
    request: int
    topics: Topics
    numbers: Numbers
    since: Micros
    """When we first knew of it: its deadlines run from here."""
    missing: Topics | None = None
    """Topics whose entries are still to come; None: not known yet."""
    settled: Topics = ()
    """By pieces that came before the home's."""
    void: bool = False
    met: int = 0
    """So many entries, the first ones, are known to have been reached."""


def singles(run: Run) -> list[Run]:
    if run.count == 1:
        return [run]
    return [Run(run.first + i, 1, run.publisher, run.request + i, run.topics, run.numbers) for i in range(run.count)]


ASKS_MAX = 100
"""Numbers of one topic that are asked for at once: the pace of catching up after a long silence of the broker."""


class Held:
    """Payloads of one topic that wait for their numbers, by publisher and request.

    They come and go in rows of consecutive requests, and a row costs a few calls: what is done per event is done by
    `dict.update`, `map` and slices. When each of them came is written down nowhere; `look`, called now and then, sees
    who is still here.
    """

    __slots__ = ("_first", "_rows", "count")

    def __init__(self) -> None:
        self.count = 0
        self._rows: dict[Address, dict[int, Event]] = {}  # no row is empty, and each is in order of arrival
        self._first: dict[Address, tuple[int, int, Micros]] = {}  # a row's first and last, and when it was first first

    def __contains__(self, key: tuple[Address, int]) -> bool:
        return key[1] in self._rows.get(key[0], ())

    def put(self, publisher: Address, request: int, event: Event) -> None:
        row = self._rows.get(publisher)
        if row is None:
            row = self._rows[publisher] = {}
        if request not in row:
            self.count += 1
        row[request] = event

    def put_row(self, publisher: Address, request: int, events: tuple[Event, ...]) -> None:
        row = self._rows.get(publisher)
        if row is None:
            row = self._rows[publisher] = {}
        before = len(row)
        row.update(zip(range(request, request + len(events)), events))
        self.count += len(row) - before

    def take(self, publisher: Address, request: int, count: int) -> tuple[Event, ...]:
        """Takes out the events of up to `count` consecutive requests, until one is missing."""
        row = self._rows.get(publisher)
        if row is None or request not in row:
            return ()
        events = [row.pop(request)]
        if count > 1 and request + 1 in row:
            with suppress(KeyError):  # of the first that is missing: those before it are in the list
                events.extend(map(row.pop, range(request + 1, request + count)))
        self.count -= len(events)
        if not row:
            del self._rows[publisher]
        return tuple(events)

    def take_all(self) -> list[tuple[Address, int, Event]]:
        """Takes out everything, each publisher's in its order."""
        rows, self._rows, self.count = self._rows, {}, 0
        return [(publisher, request, row[request]) for publisher, row in rows.items() for request in sorted(row)]

    def look(self, now: Micros) -> None:
        """Notes which payload of every publisher has waited longest."""
        before, self._first = self._first, {}
        for publisher, row in self._rows.items():
            request, known = next(iter(row)), before.get(publisher)
            if known is None or known[0] != request:
                known = (request, next(reversed(row)), now)
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
        for request in [request for request in self._rows[publisher] if request <= last]:
            self.take(publisher, request, 1)


class Feed:
    """What has come in on one topic."""

    __slots__ = (
        "answers_since",
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
        self.answers_since = Micros(0)  # when the last silence of the home ended

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
