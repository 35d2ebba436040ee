"""An event: what a publisher says once and a subscriber hears. Payload bytes are never interpreted."""

from collections.abc import Iterator
from typing import TypeAlias, overload

from msgspec import Struct

from unisono.model.ids import Address, EventId, event_id
from unisono.model.numbers import Moment, Number
from unisono.model.time import Micros

Scalar = str | int | float | bool
"""What an attribute may hold; content filters speak of these."""


class Event(Struct, frozen=True, gc=False):
    """One publication. `publisher` and `sequence` name it for ever; sequences of a publisher count up from 1."""

    publisher: str
    sequence: Number
    topic: str
    payload: bytes = b""
    attributes: dict[str, Scalar] = {}
    born_at: Moment = Micros(0)
    """When its publisher handed it over, by its publisher's clock; 0: nobody says."""

    @property
    def id(self) -> EventId:
        return event_id(self.publisher, self.sequence)


class EventRow(Struct, frozen=True, gc=False):
    """Events without attributes of one publisher on one topic, published together: `sequence` is that of the first.

    Reads like a tuple of events. Most traffic is in such rows, and nobody looks at most of its events before they reach
    the subscriber, so each is made when somebody does.
    """

    publisher: str
    sequence: int
    topic: str
    payloads: tuple[bytes, ...]
    born_at: Micros = Micros(0)

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> "EventRow": ...

    def __getitem__(self, index: int | slice) -> "Event | EventRow":
        first, _, step = (index if isinstance(index, slice) else slice(index, None)).indices(len(self.payloads))
        if isinstance(index, slice):
            assert step == 1, "a row has no holes"
            return EventRow(self.publisher, self.sequence + first, self.topic, self.payloads[index], self.born_at)
        return Event(self.publisher, self.sequence + first, self.topic, self.payloads[index], born_at=self.born_at)

    def __iter__(self) -> Iterator[Event]:
        for sequence, payload in enumerate(self.payloads, self.sequence):
            yield Event(self.publisher, sequence, self.topic, payload, born_at=self.born_at)


Events: TypeAlias = tuple[Event, ...] | EventRow
"""Events that are handed on together."""


class Payload(Struct, frozen=True, tag="Payload", gc=False):
    """An event on its way over the broker, as the `request`-th of its publisher; its place in the order comes apart."""

    publisher: Address
    request: Number
    event: Event


class Payloads(Struct, frozen=True, tag="Payloads", gc=False):
    """Consecutive requests of one publisher on one topic, heard or published in one go; never travels as such."""

    publisher: Address
    request: Number
    events: Events
