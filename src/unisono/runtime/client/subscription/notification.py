"""What subscribers are told. An event is made, its payload decoded, and its position written, when somebody looks.

The notifications of one turn share one copy of the numbers before the turn, and events in a row on one topic are one
step: none of them costs a vector.
"""

from typing import Any

from msgspec import Struct

from unisono.errors import PeerError
from unisono.machine import CutOff, Gap, Stalled
from unisono.model.content import deadline_of, shown_attributes
from unisono.model.event import Event, Events
from unisono.model.ids import EventId
from unisono.model.payload import Decode
from unisono.model.time import Micros
from unisono.runtime.client.subscription.position import encode_position


class DeliveredTurn:
    """What was delivered in one turn, after the numbers `before` it."""

    __slots__ = ("before", "steps")

    def __init__(self, before: dict[str, int]) -> None:
        self.before = before
        self.steps: list[tuple[str, int]] = []

    def position(self, count: int, *within: tuple[str, int]) -> str:
        """The position after the first `count` steps; `within` says how far into the last one of a topic."""
        return encode_position({**self.before, **dict([*self.steps[:count], *within])})


class SubscriptionProgress:
    """How far a subscription is: per topic in force the last number delivered, and the turn under way."""

    __slots__ = ("numbers", "turn")

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """Before the turn."""
        self.turn = DeliveredTurn({})

    def begin(self, numbers: dict[str, int]) -> None:
        """The subscription stands after these numbers."""
        self.numbers = numbers
        self.turn = DeliveredTurn(dict(numbers))

    def join(self, name: str, base: int) -> None:
        """A topic is in force after a number; what was delivered before in the same turn stays delivered."""
        self.numbers.update(self.turn.steps)
        self.numbers[name] = base
        self.turn = DeliveredTurn(dict(self.numbers))

    def skip_to(self, numbers: dict[str, int]) -> None:
        """Numbers up to these are done with, whether they were events or not."""
        self.numbers.update(self.turn.steps)
        self.numbers.update(numbers)
        self.turn = DeliveredTurn(dict(self.numbers))

    def reached(self) -> dict[str, int]:
        """The last number delivered per topic, the turn included."""
        return {**self.turn.before, **dict(self.turn.steps)}


class NotificationRun(Struct, frozen=True, gc=False, eq=False):
    """What notifications in a row have in common: events of one topic with numbers in a row, or one notice."""

    topic: str
    first: int
    """The number of the first event."""
    events: Events
    late: bool
    turn: DeliveredTurn
    step: int
    decode: Decode
    gap: Gap | None = None
    stalled: Stalled | None = None
    cut: CutOff | None = None
    spacing: int = 1
    """Of their numbers."""
    told_at: Micros = Micros(0)
    """When, if one of the events may have a deadline of its own."""


class Notification(Struct, frozen=True, gc=False, eq=False):
    """What a subscriber is told: an event (`topic`, `data`, `position`, `late`), a `gap`, a `cut`, or `stalled`.

    A `cut` names publishers that cannot be heard any more, with the number of the last event of each.
    """

    number: int
    payload: bytes
    _said: NotificationRun

    @property
    def topic(self) -> str:
        return self._said.topic

    @property
    def late(self) -> bool:
        """Out of order, or told after its own deadline."""
        return self._said.late or self.overdue

    @property
    def out_of_order(self) -> bool:
        """It has no place in the order: tagged while its topic stalled, or of a publisher that does not use unisono."""
        return self._said.late

    @property
    def overdue(self) -> bool:
        """It was told here after its own deadline (`publish(deadline=)`), by this clock."""
        if not self._said.told_at:
            return False
        deadline_us = self.deadline_us
        return deadline_us is not None and self._said.told_at > deadline_us

    @property
    def deadline_us(self) -> int | None:
        """Until when it is of use, in microseconds by the publisher's clock; None if its publisher set no end."""
        event = self.event
        return deadline_of(event) if event is not None and event.attributes else None

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
        said = self._said
        return said.events[(self.number - said.first) // said.spacing] if said.events else None

    @property
    def published_us(self) -> int | None:
        """When its publisher handed it over, in microseconds by the publisher's clock; None if nobody says."""
        event = self.event
        return (event.born_at or None) if event is not None else None

    @property
    def attributes(self) -> dict[str, Any]:
        event = self.event
        return dict(shown_attributes(event)) if event is not None else {}

    @property
    def id(self) -> EventId | None:
        """Names the event for ever."""
        event = self.event
        return event.id if event is not None else None

    @property
    def position(self) -> str:
        """Where the subscription stands after this notification: give it to `commit`, or to `start=`."""
        said = self._said
        if not said.events or said.late:
            return said.turn.position(said.step)
        return said.turn.position(said.step, (said.topic, self.number))

    def __repr__(self) -> str:
        if self.gap is not None:
            return f"Notification({self.topic}, {self.gap.first} to {self.gap.last} will not come: {self.gap.reason})"
        if self.stalled is not None:
            return f"Notification({self.topic} waits: {self.stalled.reason})"
        if self.cut is not None:
            names = ", ".join(name for name, _ in self.cut.publishers)
            return f"Notification({self.topic}, cannot be heard any more: {names})"
        try:
            what = self.data
        except PeerError:  # not of the type that was asked for
            what = self.payload
        return f"Notification({self.topic} {self.number}: {what!r:.60})"
