"""Publishing: requests in flight, and their outcomes.

An outcome goes to whoever asked: a future (`session.publish`), or a counter (`Publisher`). In flight are at most
`window` events per topic, with about `WINDOW_BYTES_MAX` of payload; whoever publishes more waits for room, so a slow
home slows its publishers.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from unisono.errors import PlanError
from unisono.machine import Accepted, Advertise, NotTaken, Publish, Refused, Unknown, one_by_one
from unisono.model.content import DEADLINE, TRACE, attributes_of, check_attributes, content_of, parse_where
from unisono.model.deployment import Deployment
from unisono.model.event import Event, Scalar
from unisono.model.grids import Grids
from unisono.model.ids import EventId, Topic
from unisono.model.journal import Record
from unisono.model.payload import encode_payload
from unisono.model.predicate import Filter, flatten
from unisono.model.time import Micros
from unisono.runtime.brokers.contract import Item
from unisono.runtime.brokers.sequencer_codec import NO_ATTRIBUTES, check_room_beside, publisher_on
from unisono.runtime.client.measures import Outcomes
from unisono.runtime.client.publishing.topic_window import Asker, Outcome, PendingRequests, PublicationRow, TopicWindow
from unisono.runtime.client.tracing import EventTracing
from unisono.runtime.driver.host import Host

WINDOW_BYTES_MAX = 64 << 20
"""Payload in flight per topic: this is the memory a publisher may take while a home is away."""


class RepeatedPublications(Protocol):
    """What a machine of publications asks numbers for."""

    def count_open(self, topic: Topic, upto: int) -> int:
        """Of the first `upto` on the topic those that have none, or are still on their way to the machine."""
        ...

    def oldest_open(self, topic: Topic) -> int:
        """The first on the topic that has none."""
        ...


class PublishingSession(Protocol):
    """What publishing needs of its session."""

    @property
    def deployment(self) -> Deployment: ...

    @property
    def journals(self) -> bool: ...

    @property
    def ends_lives(self) -> bool: ...

    @property
    def tracing(self) -> EventTracing | None: ...

    def check_alive(self) -> None: ...

    def check_publish(self, topic: str) -> None: ...

    def check_deadline(self, deadline: str) -> Micros: ...

    async def open_topics(self, names: list[str]) -> dict[str, Topic]: ...

    def now(self) -> Micros: ...

    def note(self, record: Record) -> None: ...

    def note_publish(self, event: Event, deadline_us: Micros = Micros(0)) -> None: ...


class SessionPublications:
    """All publications of a session."""

    def __init__(
        self,
        session: PublishingSession,
        host: Host,
        address: str,
        window: int,
        payload_bytes_max: Callable[[], int],
        by_content: bool = False,
        in_headers: bool = False,
        repeated: RepeatedPublications | None = None,
        grids: Grids | None = None,
        in_one_line: bool = False,
        counts_over_topics: bool = False,
        first: Callable[[], None] | None = None,
    ) -> None:
        """`payload_bytes_max`: what the broker takes now. `repeated`: by the machine; None if what it refuses
        keeps its place.

        With `by_content`, what is published without attributes has those that its data show. `in_headers`: attributes
        travel in a header, which has its bound. `in_one_line`: publications keep their order from topic to topic, and
        with `counts_over_topics` they have one count. `first`, if any, is called before any is handed over.
        """
        self.on_advertise: Callable[[str, str, Filter], None] | None = None
        """Told of advertisements, if whoever carries the events is not the machine."""
        self._in_headers = in_headers
        self.by_content, self._journals = by_content, session.journals
        self._ends_lives, self.tracing = session.ends_lives, session.tracing
        self._grids = grids
        self.outcomes = Outcomes()
        self.is_dated = True
        """Whether what is published says when that was."""
        self._session, self._host, self._address, self.window = session, host, address, window
        self._repeated = repeated
        self.payload_bytes_max = payload_bytes_max
        self._requests = 0
        self._pending: PendingRequests[Asker] = PendingRequests()
        self._ids: dict[int, EventId] = {}  # of the same, for the journal
        self._topic_windows: dict[str, TopicWindow] = {}
        self._rows: list[PublicationRow] = []  # published in this turn of the loop
        # Where nothing is promised across topics all events of a topic are in a row.
        self._in_one_line, self._counts_over_topics, self._first = in_one_line, counts_over_topics, first
        self._sequence = 0
        self._drainers: list[asyncio.Future[None]] = []

    @property
    def in_flight(self) -> int:
        return len(self._pending) + sum(len(row.payloads) for row in self._rows)

    async def topic_window(self, topic: str) -> TopicWindow:
        topic_window = self._topic_windows.get(topic)
        if topic_window is None:
            number = (await self._session.open_topics([topic]))[topic]
            self._session.check_publish(topic)
            topic_window = TopicWindow(topic, number, publisher_on(self._address, topic))
            if self._grids is not None and topic in self._grids:
                topic_window.grid, names = self._grids.of(topic)
                topic_window.cells = {cell: await self.topic_window(name) for cell, name in names.items()}
            topic_window = self._topic_windows.setdefault(topic, topic_window)
        return topic_window

    def cell(
        self, topic_window: TopicWindow, data: Any, attributes: dict[str, Scalar] | None
    ) -> tuple[TopicWindow, Any]:
        """Where an event of a topic with a grid goes; it is encoded for that, since subscribers see what is encoded."""
        if topic_window.grid is None:
            return topic_window, data
        payload = self.encode(data)
        if attributes:
            check_attributes(attributes)
        seen = content_of(Event(topic_window.publisher, 0, topic_window.name, payload, attributes or NO_ATTRIBUTES))
        return topic_window.cells[topic_window.grid.cell_of(flatten(seen))], payload

    def check_deadline(self, deadline: str) -> Micros:
        """An event's own deadline."""
        return self._session.check_deadline(deadline)

    def encode(self, data: Any) -> bytes:
        """The payload; raises MisuseError if there is none, or one that the broker would not take.

        Before it has a number or shares a batch: nothing else suffers for it.
        """
        return encode_payload(data, self.payload_bytes_max())

    def has_room(self, topic_window: TopicWindow) -> bool:
        return topic_window.in_flight < self.window and self.bytes_left(topic_window) > 0

    def bytes_left(self, topic_window: TopicWindow) -> int:
        return WINDOW_BYTES_MAX - topic_window.bytes_in_flight

    async def room(self, topic_window: TopicWindow) -> None:
        """Returns when one more event may be published on the topic."""
        while not self.has_room(topic_window):
            self._session.check_alive()
            roomer = asyncio.get_running_loop().create_future()
            topic_window.roomers.append(roomer)
            await roomer

    def put(
        self,
        asker: Asker,
        data: Any,
        attributes: dict[str, Scalar] | None,
        deadline_us: Micros = Micros(0),
    ) -> None:
        topic_window = asker[0]
        if topic_window.gave_up and self._is_full(topic_window):
            # Told here, before it has a number of its own: who hears the next one must not take it for this one.
            reason = f"{self.window} publications on the topic wait for their numbers"
            _tell(asker, Refused(0, reason))
            return
        payload = self.encode(data)
        if self.by_content:  # the machine knows what filters can judge, and refuses the rest
            attributes = attributes_of(data) if attributes is None else attributes
        elif attributes:
            check_attributes(attributes)
        if deadline_us and not self._ends_lives:
            attributes = {**(attributes or NO_ATTRIBUTES), DEADLINE: deadline_us}
        if self.tracing is not None and (context := self.tracing.carried()):
            attributes = {**(attributes or NO_ATTRIBUTES), TRACE: context}
        if attributes and self._in_headers:
            check_room_beside(attributes)
        sequence = self._next(topic_window, 1)
        topic_window.take_off(1, len(payload))
        row = self._row(topic_window, sequence, deadline_us if self._ends_lives else Micros(0))
        if self._journals:
            event = Event(
                topic_window.publisher,
                sequence,
                topic_window.name,
                payload,
                attributes or NO_ATTRIBUTES,
                row.born_at,
            )
            self._session.note_publish(event, deadline_us)
        row.ask(asker)
        row.payloads.append(payload)
        if attributes:
            row.attributes[sequence] = attributes

    def put_all(self, asker: Asker, payloads: list[bytes]) -> None:
        """The same for many, where nothing but their payloads has to be looked at."""
        topic_window = asker[0]
        row = self._row(topic_window, self._next(topic_window, len(payloads)))
        row.ask(asker)
        row.payloads += payloads
        topic_window.take_off(len(payloads), sum(map(len, payloads)))

    def _next(self, topic_window: TopicWindow, count: int) -> int:
        """Sequences for so many events; returns the first."""
        if self._counts_over_topics:
            topic_window.sequence = self._sequence
        first = topic_window.sequence + 1
        topic_window.sequence += count
        self._sequence = topic_window.sequence
        return first

    def is_plain(self, topic_window: TopicWindow) -> bool:
        """Whether `put_all` will do for what is published on the topic."""
        is_looked_at = self._journals or self.by_content or self.tracing is not None
        return topic_window.grid is None and not topic_window.gave_up and not is_looked_at

    def _row(self, topic_window: TopicWindow, first: int, deadline_us: Micros = Micros(0)) -> PublicationRow:
        """What is published on the topic in this turn of the loop."""
        row = topic_window.row
        if row is None or row.deadline_us != deadline_us or (self._in_one_line and row is not self._rows[-1]):
            row = topic_window.row = PublicationRow(
                topic_window, first, self._session.now() if self.is_dated else Micros(0), deadline_us
            )
            if not self._rows:
                asyncio.get_running_loop().call_soon(self._flush)
            self._rows.append(row)
        return row

    def _is_full(self, topic_window: TopicWindow) -> bool:
        """Whether the machine would refuse one more: it repeats what has been given up here, too."""
        if self._repeated is None or self._repeated.oldest_open(topic_window.topic) > topic_window.gave_up:
            topic_window.gave_up = 0
            return False
        return self._repeated.count_open(topic_window.topic, topic_window.sequence) >= self.window

    def _flush(self) -> None:
        """Hands over what was published in this turn of the loop, events in a row on one topic as one."""
        rows, self._rows = self._rows, []
        if self._first is not None:
            self._first()
        for row in rows:
            row.topic_window.row = None
            events = row.events()
            first = self._requests + 1
            self._requests += len(events)
            requests = range(first, self._requests + 1)
            ends = [place for _, place in row.askers[1:]] + [len(events)]
            for (asker, place), end in zip(row.askers, ends):
                self._pending.put(first + place, asker, end - place)
            if self._journals:
                self._ids.update(zip(requests, [event.id for event in events]))
            self._host.post(Publish(row.topic_window.topic, events, first, deadline_us=row.deadline_us))

    def advertise(self, topic_window: TopicWindow, where: str) -> None:
        if not self.by_content:
            raise PlanError('advertisements are for the brokers of an overlay: use kind = "overlay"')
        if self.on_advertise is not None:
            self.on_advertise(topic_window.name, topic_window.publisher, parse_where(where))
            return
        if self._rows:
            self._flush()
        self._host.post(Advertise(topic_window.topic, topic_window.publisher, parse_where(where)))

    async def drain(self) -> None:
        """Returns when every publication has its outcome."""
        if self._pending or self._rows:
            drainer = asyncio.get_running_loop().create_future()
            self._drainers.append(drainer)
            await drainer

    def rejected(self, item: Item, reason: str) -> None:
        """The broker has not taken this payload of ours: the machine says what becomes of it."""
        topic_window = self._topic_windows.get(item.topic)
        if topic_window is None or item.control or item.publisher != self._address:
            return
        self._host.post(NotTaken(topic_window.topic, item.request, reason))

    def settle(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Accepted):
            self._settle(outcome)
        elif self._ids:
            for one in one_by_one(outcome):
                self._settle(one)
        else:
            self._settle_row(outcome)

    def _settle_row(self, outcome: Accepted) -> None:
        """The usual case, at a cost that hardly depends on the length of the row."""
        for first, (topic_window, answer), count in self._pending.take(outcome.request, outcome.count):
            self.outcomes.accepted += count
            topic_window.land(count)
            self._let_in(topic_window)
            if not isinstance(answer, asyncio.Future):
                answer.settled_all(count)
            elif not answer.done():
                answer.set_result(Accepted(first, outcome.strength))
        self._let_go()

    def _settle(self, outcome: Outcome) -> None:
        found = self._pending.take(outcome.request, 1)
        if not found:
            return
        asker = found[0][1]
        topic_window = asker[0]
        self._count(outcome)
        topic_window.land(1)
        if not isinstance(outcome, Accepted):
            topic_window.gave_up = topic_window.sequence
        self._let_in(topic_window)
        event_id = self._ids.pop(outcome.request, None)
        if event_id is not None:
            word = f"accepted {outcome.strength}" if isinstance(outcome, Accepted) else type(outcome).__name__.lower()
            self._session.note(Record("outcome", self._session.now(), who=self._address, event=event_id, note=word))
        _tell(asker, outcome)
        self._let_go()

    def _count(self, outcome: Outcome) -> None:
        match outcome:
            case Accepted():
                self.outcomes.accepted += 1
            case Refused():
                self.outcomes.refused += 1
            case Unknown():
                self.outcomes.unknown += 1

    def _let_in(self, topic_window: TopicWindow) -> None:
        if (
            topic_window.roomers
            and 2 * topic_window.in_flight <= self.window
            and 2 * topic_window.bytes_in_flight <= WINDOW_BYTES_MAX
        ):
            roomers, topic_window.roomers = topic_window.roomers, []
            for roomer in roomers:
                if not roomer.done():
                    roomer.set_result(None)

    def _let_go(self) -> None:
        if not self._pending and self._drainers:
            drainers, self._drainers = self._drainers, []
            for drainer in drainers:
                if not drainer.done():
                    drainer.set_result(None)

    def end(self) -> None:
        """The session is over: there is room for nothing more, and who asks for room is told."""
        self.window = 0
        for topic_window in self._topic_windows.values():
            self._let_in(topic_window)

    def check_alive(self) -> None:
        """Raises what the session has ended with."""
        self._session.check_alive()

    def give_up(self, reason: str) -> None:
        """The session ends: whatever has no outcome yet is unknown."""
        self._flush()
        for request in list(self._pending):
            self._settle(Unknown(request, reason))


def _tell(asker: Asker, outcome: Outcome) -> None:
    answer = asker[1]
    if not isinstance(answer, asyncio.Future):
        answer.settled(outcome)
    elif not answer.done():
        answer.set_result(outcome)
