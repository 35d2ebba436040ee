"""The view the judges work on: events and subscribers as small integers, one stream of notifications per subscriber.

A stream holds the untagged deliveries in the order of their positions (rows may stand in the file in any order; equal
positions keep the order of the file), each event at its first delivery only. Later deliveries of the same event are
kept apart for `exactly-once`. Tagged notifications are marked out of order and therefore in no stream.

What is known of an event (its publisher, topic, number, moment) is known from any of its rows, whoever's they are.
Where rows contradict each other, the last that tells counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from unisono.audit.inversions import Inversions, count_inversions
from unisono.audit.union import Union, unite
from unisono.errors import MisuseError
from unisono.model.journal import Header, Journal, Record

TELLING = ("deliver", "tag", "publish", "timestamp")
"""Kinds of rows that tell something of their event."""


@dataclass(slots=True)
class SubscriberStream:
    """What one subscriber was notified of, in order; the three lists run in parallel."""

    subscriber: str
    events: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    """Where in `Trace.records` each delivery stands."""


@dataclass(slots=True)
class Repeat:
    """One more notification of an event its subscriber already had; both are rows of `Trace.records`."""

    first: int
    again: int


class Trace:
    """A journal prepared once for all judges."""

    def __init__(self, journal: Journal) -> None:
        self.header: Header = journal.header
        self.records: list[Record] = journal.records
        self.streams: list[SubscriberStream] = []
        self.repeats: list[Repeat] = []
        self.tags: list[int] = []
        self.events: list[str] = []
        self.deliveries = 0
        """Notifications, tagged and untagged."""
        self.is_timed = any(record.at_us for record in journal.records)
        """Whether `at_us` means anything: files made elsewhere often have no such column."""
        self._read()

    def _read(self) -> None:
        rows_of: dict[str, tuple[list[int], list[int]]] = {}
        met: dict[str, int] = {}
        # Names are looked up in the order of rows, where those of one event stand close: along streams, which go over
        # the whole log one by one, every look would be at memory that nothing has touched for long.
        for row, record in enumerate(self.records):
            if record.kind == "deliver":
                if record.subscriber is None or record.event is None or record.position is None:
                    raise MisuseError(f"record {row + 1}: a delivery needs subscriber, event and position")
                own = rows_of.get(record.subscriber)
                if own is None:
                    own = rows_of[record.subscriber] = [], []
                own[0].append(row)
                own[1].append(met.setdefault(record.event, len(met)))
            elif record.kind == "tag":
                if record.subscriber is None or record.event is None:
                    raise MisuseError(f"record {row + 1}: a tagged notification needs subscriber and event")
                rows_of.setdefault(record.subscriber, ([], []))
                self.tags.append(row)
        self.deliveries = sum(len(rows) for rows, _ in rows_of.values()) + len(self.tags)
        numbers = [-1] * len(met)
        for subscriber, (rows, events) in rows_of.items():
            self.streams.append(self._stream(subscriber, rows, events, numbers))
        self._repeated_tags()

    def _stream(self, subscriber: str, rows: list[int], met: list[int], numbers: list[int]) -> SubscriberStream:
        """`met` says for each row which event it is of those met, `numbers` what they are called since."""
        records, names = self.records, self.events
        positions: list[int] = [records[row].position for row in rows]  # type: ignore[misc]
        if any(a > b for a, b in pairwise(positions)):
            order = sorted(range(len(rows)), key=positions.__getitem__)
            rows, positions, met = [rows[i] for i in order], [positions[i] for i in order], [met[i] for i in order]
        stream = SubscriberStream(subscriber)
        first_row: dict[int, int] = {}
        for row, position, code in zip(rows, positions, met):
            event = numbers[code]
            if event < 0:
                event = numbers[code] = len(names)
                names.append(records[row].event)  # type: ignore[arg-type]
            if event in first_row:
                self.repeats.append(Repeat(first_row[event], row))
                continue
            first_row[event] = row
            stream.events.append(event)
            stream.positions.append(position)
            stream.rows.append(row)
        return stream

    def _repeated_tags(self) -> None:
        if not self.tags:
            return
        first: dict[tuple[str | None, str | None], int] = {
            (stream.subscriber, self.events[event]): row
            for stream in self.streams
            for event, row in zip(stream.events, stream.rows)
        }
        for row in self.tags:
            key = (self.records[row].subscriber, self.records[row].event)
            if key in first:
                self.repeats.append(Repeat(first[key], row))
            first.setdefault(key, row)

    def notified(self) -> Iterator[str]:
        """The events somebody was notified of; one that was tagged may come again."""
        yield from self.events
        for row in self.tags:
            yield self.records[row].event or ""

    @cached_property
    def union(self) -> Union:
        return unite(len(self.events), [stream.events for stream in self.streams])

    @cached_property
    def inversions(self) -> list[Inversions]:
        """Per knot: an inverted pair lies inside one, so only knots are searched."""
        knots = self.union.knots
        knot_of = {event: i for i, knot in enumerate(knots) for event in knot}
        parts: list[list[list[int]]] = [[] for _ in knots]
        for stream in self.streams:
            own: dict[int, list[int]] = {}
            for event in stream.events:
                knot = knot_of.get(event)
                if knot is not None:
                    own.setdefault(knot, []).append(event)
            for knot, events in own.items():
                parts[knot].append(events)
        return [count_inversions(knot, part) for knot, part in zip(knots, parts)]

    @cached_property
    def places(self) -> list[dict[int, int]]:
        """Per stream: event -> index in the stream. Built only when a witness is needed."""
        return [{event: i for i, event in enumerate(stream.events)} for stream in self.streams]

    @cached_property
    def authors(self) -> dict[str, tuple[str, int]]:
        """Event name -> its publisher and place among that publisher's events."""
        authors: dict[str, tuple[str, int]] = {}
        for record in self.records:
            if record.event is None or record.kind not in TELLING:
                continue
            if record.publisher is not None and record.publisher_seq is not None:
                authors[record.event] = (record.publisher, record.publisher_seq)
        return authors

    @cached_property
    def topics(self) -> dict[str, str]:
        """Event name -> its topic."""
        return {
            record.event: record.topic
            for record in self.records
            if record.topic is not None and record.event is not None and record.kind in TELLING
        }

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Event name -> its number in the topic."""
        return {
            record.event: record.number
            for record in self.records
            if record.number is not None and record.event is not None and record.kind in TELLING
        }

    @cached_property
    def published_us(self) -> dict[str, int]:
        """Event name -> moment of publication: as some row tells it, else when its publish record was written."""
        moments: dict[str, int] = {}
        for record in self.records if self.is_timed else ():
            if record.kind == "publish" and record.event is not None:
                moments[record.event] = record.at_us
        for record in self.records:
            if record.published_us is not None and record.event is not None and record.kind in TELLING:
                moments[record.event] = record.published_us
        return moments

    def delivered_us(self, record: Record) -> int | None:
        if record.delivered_us is not None:
            return record.delivered_us
        return record.at_us if self.is_timed else None

    def latency_us(self, record: Record) -> int | None:
        """From publication to notification, if the journal knows both."""
        delivered = self.delivered_us(record)
        published = record.published_us
        if published is None and record.event is not None:
            published = self.published_us.get(record.event)
        return None if delivered is None or published is None else delivered - published

    def before(self, stream: int, first: int, second: int) -> str:
        """Words: why `first` is before `second` in this stream."""
        own, places = self.streams[stream], self.places[stream]
        return (
            f"{self.events[first]} before {self.events[second]} at {own.subscriber} because position "
            f"{own.positions[places[first]]} < {own.positions[places[second]]}"
        )
