"""What subscribers are told. An event is made, and its payload decoded, when somebody looks."""

from typing import Any

from msgspec import Struct

from unisono.machine import CutOff, Gap, Stalled
from unisono.model.event import Event, Events
from unisono.model.ids import EventId
from unisono.runtime.payload import Decode
from unisono.runtime.position import Turn


class Said(Struct, frozen=True, gc=False, eq=False):
    """What notifications in a row have in common: events of one topic with consecutive numbers, or one notice."""

    topic: str
    first: int
    """The number of the first event."""
    events: Events
    late: bool
    turn: Turn
    step: int
    decode: Decode
    gap: Gap | None = None
    stalled: Stalled | None = None
    cut: CutOff | None = None


class Notification(Struct, frozen=True, gc=False, eq=False):
    """What a subscriber is told: an event (`topic`, `data`, `position`, `late`), a `gap`, a `cut`, or `stalled`.

    A `cut` names publishers that cannot be heard any more, with the number of the last event of each.
    """

    number: int
    payload: bytes
    _said: Said

    @property
    def topic(self) -> str:
        return self._said.topic

    @property
    def late(self) -> bool:
        return self._said.late

    @property
    def gap(self) -> Gap | None:
        return self._said.gap

    @property
    def stalled(self) -> Stalled | None:
        return self._said.stalled

    @property
    def cut(self) -> CutOff | None:
        return self._said.cut

    @property
    def data(self) -> Any:
        """The payload as the subscription's type (PeerError if it is not); None for gaps and stalls."""
        return self._said.decode(self.payload) if self._said.events else None

    @property
    def event(self) -> Event | None:
        return self._said.events[self.number - self._said.first] if self._said.events else None

    @property
    def published_us(self) -> int | None:
        """When its publisher handed it over, in microseconds by the publisher's clock; None if nobody says."""
        event = self.event
        return (event.born_at or None) if event is not None else None

    @property
    def attributes(self) -> dict[str, Any]:
        event = self.event
        return dict(event.attributes) if event is not None else {}

    @property
    def id(self) -> EventId | None:
        """Names the event for ever."""
        event = self.event
        return event.id if event is not None else None

    @property
    def position(self) -> str:
        """Where the subscription stands behind this notification: give it to `commit`, or to `start=`."""
        said = self._said
        if not said.events or said.late:
            return said.turn.position(said.step)
        return said.turn.position(said.step, (said.topic, self.number))

    def __repr__(self) -> str:
        what = self.gap or self.stalled or self.cut or self.data
        return f"Notification({self.topic} {self.number}: {what!r:.60})"
