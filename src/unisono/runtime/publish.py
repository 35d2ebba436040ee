"""Publishing: requests in flight, and their outcomes.

An outcome goes to whoever asked: a future (`session.publish`), or a `Publisher`, which counts. In flight are at most
`window` events per topic, with about `WINDOW_BYTES_MAX` of payload; whoever publishes more waits for room, so a slow
home slows its publishers.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from unisono.errors import PlanError
from unisono.machine import Accepted, Advertise, NotTaken, Publish, Refused, Unknown, one_by_one
from unisono.model.deployment import Deployment
from unisono.model.event import Event, Scalar
from unisono.model.ids import EventId, Topic
from unisono.model.journal import Record
from unisono.model.predicate import flatten
from unisono.model.time import Micros
from unisono.runtime.asked import Asked
from unisono.runtime.confirmations import Confirmations
from unisono.runtime.content import attributes_of, check_attributes, content_of, parse_where
from unisono.runtime.dialect import NO_ATTRIBUTES, check_room_beside, publisher_on
from unisono.runtime.ens.adapter import Item
from unisono.runtime.grids import Grids
from unisono.runtime.host import Host
from unisono.runtime.lane import Asker, Lane, Outcome, Row
from unisono.runtime.payload import encode_payload
from unisono.runtime.publisher import Publisher

WINDOW_BYTES_MAX = 64 << 20
"""Payload in flight per topic: this is the memory a publisher may take while a home is away."""


class OutboxOwner(Protocol):
    """What an outbox needs of its session."""

    @property
    def deployment(self) -> Deployment: ...

    @property
    def journals(self) -> bool: ...

    def check_alive(self) -> None: ...

    async def open_topics(self, names: list[str]) -> dict[str, Topic]: ...

    def now(self) -> Micros: ...

    def note(self, record: Record) -> None: ...

    def note_publish(self, event: Event) -> None: ...


class Outbox:
    """All publications of a session."""

    def __init__(
        self,
        session: OutboxOwner,
        host: Host,
        address: str,
        window: int,
        payload_bytes_max: Callable[[], int],
        confirm_s: float = 0.0,
        by_content: bool = False,
        still_open: Callable[[Topic], int] | None = None,
        grids: Grids | None = None,
    ) -> None:
        """`payload_bytes_max`: what the broker takes now. `confirm_s`: how long one that keeps payloads may take to say
        so. `still_open`: how many publications on a topic the machine repeats.

        With `by_content`, what is published without attributes has those that its data show.
        """
        self.by_content, self._journals = by_content, session.journals
        self._grids = grids
        self.is_dated = True
        """Whether what is published says when that was."""
        self._session, self._host, self._address, self.window = session, host, address, window
        self._confirm_s, self._still_open = confirm_s, still_open
        self.payload_bytes_max = payload_bytes_max
        self._requests = 0
        self._asked: Asked[Asker] = Asked()
        self._ids: dict[int, EventId] = {}  # of the same, for the journal
        self._lanes: dict[str, Lane] = {}
        self._rows: list[Row] = []  # published in this turn of the loop
        # Without causal order nothing is promised across topics: then all events of a topic are in a row.
        self._is_causal = session.deployment.sequencing.order == "causal"
        self._confirmations: Confirmations | None = None
        self._drainers: list[asyncio.Future[None]] = []

    @property
    def in_flight(self) -> int:
        return len(self._asked) + sum(len(row.payloads) for row in self._rows)

    def confirmations_count(self) -> None:
        """The broker keeps what it confirms: acceptance waits for that."""
        self._confirmations = Confirmations(self._confirm_s, self._settle)

    async def lane(self, topic: str) -> Lane:
        lane = self._lanes.get(topic)
        if lane is None:
            number = (await self._session.open_topics([topic]))[topic]
            lane = Lane(topic, number, publisher_on(self._address, topic))
            if self._grids is not None and topic in self._grids:
                lane.grid, names = self._grids.of(topic)
                lane.cells = {cell: await self.lane(name) for cell, name in names.items()}
            lane = self._lanes.setdefault(topic, lane)
        return lane

    def cell(self, lane: Lane, data: Any, attributes: dict[str, Scalar] | None) -> tuple[Lane, Any]:
        """Where an event of a topic with a grid goes; it is encoded for that, since subscribers see what is encoded."""
        if lane.grid is None:
            return lane, data
        payload = self.encode(data)
        if attributes:
            check_attributes(attributes)
        seen = content_of(Event(lane.publisher, 0, lane.name, payload, attributes or NO_ATTRIBUTES))
        return lane.cells[lane.grid.cell_of(flatten(seen))], payload

    def encode(self, data: Any) -> bytes:
        """The payload; raises MisuseError if there is none, or one that the broker would not take.

        Before it has a number or shares a batch: nothing else suffers for it.
        """
        return encode_payload(data, self.payload_bytes_max())

    def has_room(self, lane: Lane) -> bool:
        return lane.in_flight < self.window and self.bytes_left(lane) > 0

    def bytes_left(self, lane: Lane) -> int:
        return WINDOW_BYTES_MAX - lane.bytes_in_flight

    async def room(self, lane: Lane) -> None:
        """Returns when one more event may be published on the topic."""
        while not self.has_room(lane):
            self._session.check_alive()
            roomer = asyncio.get_running_loop().create_future()
            lane.roomers.append(roomer)
            await roomer

    def put(
        self,
        asker: Asker,
        data: Any,
        attributes: dict[str, Scalar] | None,
    ) -> None:
        lane = asker[0]
        if lane.unknown and self._is_full(lane):
            # Told here, before it has a number of its own: who hears the next one must not take it for this one.
            reason = f"{self.window} publications on the topic wait for their numbers"
            _tell(asker, Refused(0, reason))
            return
        payload = self.encode(data)
        if self.by_content:
            attributes = attributes_of(data) if attributes is None else attributes
        elif attributes:
            check_attributes(attributes)
            check_room_beside(attributes)
        lane.sequence += 1
        lane.take_off(1, len(payload))
        row = self._row(lane, lane.sequence)
        if self._journals:
            event = Event(lane.publisher, lane.sequence, lane.name, payload, attributes or NO_ATTRIBUTES, row.born_at)
            self._session.note_publish(event)
        row.ask(asker)
        row.payloads.append(payload)
        if attributes:
            row.attributes[lane.sequence] = attributes

    def put_all(self, asker: Asker, payloads: list[bytes]) -> None:
        """The same for many, where nothing but their payloads has to be looked at."""
        lane = asker[0]
        row = self._row(lane, lane.sequence + 1)
        row.ask(asker)
        row.payloads += payloads
        lane.sequence += len(payloads)
        lane.take_off(len(payloads), sum(map(len, payloads)))

    def is_plain(self, lane: Lane) -> bool:
        """Whether `put_all` will do for what is published on the topic."""
        return lane.grid is None and not lane.unknown and not self._journals and not self.by_content

    def _row(self, lane: Lane, first: int) -> Row:
        """What is published on the topic in this turn of the loop."""
        row = lane.row
        if row is None or (self._is_causal and row is not self._rows[-1]):
            row = lane.row = Row(lane, first, self._session.now() if self.is_dated else Micros(0))
            if not self._rows:
                asyncio.get_running_loop().call_soon(self._flush)
            self._rows.append(row)
        return row

    def _is_full(self, lane: Lane) -> bool:
        """Whether what is in flight, and what has been given up here and not by the machine, fills the window."""
        lane.unknown = min(lane.unknown, self._still_open(lane.topic)) if self._still_open is not None else 0
        return lane.in_flight + lane.unknown >= self.window

    def _flush(self) -> None:
        """Hands over what was published in this turn of the loop, events in a row on one topic as one."""
        rows, self._rows = self._rows, []
        for row in rows:
            row.lane.row = None
            events = row.events()
            first = self._requests + 1
            self._requests += len(events)
            requests = range(first, self._requests + 1)
            ends = [place for _, place in row.askers[1:]] + [len(events)]
            for (asker, place), end in zip(row.askers, ends):
                self._asked.put(first + place, asker, end - place)
            if self._journals:
                self._ids.update(zip(requests, [event.id for event in events]))
            if self._confirmations is not None:
                self._confirmations.add(requests, row.lane.publisher, row.first)
            self._host.post(Publish(row.lane.topic, events, first))

    def advertise(self, lane: Lane, where: str) -> None:
        if not self.by_content:
            raise PlanError("advertisements are for the brokers of an overlay, and this deployment has none")
        if self._rows:
            self._flush()
        self._host.post(Advertise(lane.topic, lane.publisher, parse_where(where)))

    async def drain(self) -> None:
        """Returns when every publication has its outcome."""
        if self._asked or self._rows:
            drainer = asyncio.get_running_loop().create_future()
            self._drainers.append(drainer)
            await drainer

    def rejected(self, item: Item, reason: str) -> None:
        """The broker has not taken this payload of ours: the machine says what becomes of it."""
        lane = self._lanes.get(item.topic)
        if lane is None or item.control or item.publisher != self._address:
            return
        name = 0
        if self._confirmations is not None:
            name = self._confirmations.rejected(lane.publisher, item.request)
        self._host.post(NotTaken(lane.topic, item.request, reason, name))

    def confirmed(self, count: int) -> None:
        """The broker has taken the oldest `count` payloads."""
        if self._confirmations is not None:
            self._confirmations.confirmed(count)

    def settle(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Accepted):
            if self._confirmations is not None and isinstance(outcome, Refused):
                self._confirmations.refused(outcome.request)
            self._settle(outcome)
        elif self._confirmations is not None:
            for request in range(outcome.request, outcome.request + outcome.count):
                self._confirmations.numbered(request)
        elif self._ids:
            for one in one_by_one(outcome):
                self._settle(one)
        else:
            self._settle_row(outcome)

    def _settle_row(self, outcome: Accepted) -> None:
        """The usual case, at a cost that hardly depends on the length of the row."""
        for first, (lane, answer), count in self._asked.take(outcome.request, outcome.count):
            lane.land(count)
            self._let_in(lane)
            if isinstance(answer, Publisher):
                answer.settled_all(count)
            elif not answer.done():
                answer.set_result(Accepted(first, outcome.strength))
        self._let_go()

    def _settle(self, outcome: Outcome) -> None:
        found = self._asked.take(outcome.request, 1)
        if not found:
            return
        asker = found[0][1]
        lane = asker[0]
        lane.land(1)
        lane.unknown += isinstance(outcome, Unknown)
        self._let_in(lane)
        event_id = self._ids.pop(outcome.request, None)
        if event_id is not None:
            word = f"accepted {outcome.strength}" if isinstance(outcome, Accepted) else type(outcome).__name__.lower()
            self._session.note(Record("outcome", self._session.now(), who=self._address, event=event_id, note=word))
        _tell(asker, outcome)
        self._let_go()

    def _let_in(self, lane: Lane) -> None:
        if lane.roomers and 2 * lane.in_flight <= self.window and 2 * lane.bytes_in_flight <= WINDOW_BYTES_MAX:
            roomers, lane.roomers = lane.roomers, []
            for roomer in roomers:
                if not roomer.done():
                    roomer.set_result(None)

    def _let_go(self) -> None:
        if not self._asked and self._drainers:
            drainers, self._drainers = self._drainers, []
            for drainer in drainers:
                if not drainer.done():
                    drainer.set_result(None)

    def give_up(self, reason: str) -> None:
        """The session ends: whatever has no outcome yet is unknown."""
        if self._confirmations is not None:
            self._confirmations.stop()
        self._flush()
        for request in list(self._asked):
            self._settle(Unknown(request, reason))


def _tell(asker: Asker, outcome: Outcome) -> None:
    answer = asker[1]
    if isinstance(answer, Publisher):
        answer.settled(outcome)
    elif not answer.done():
        answer.set_result(outcome)
