"""The publishing half of a client: payloads leave at once, keys are asked for in the order of publication.

All requests of a client are one sequence, whatever their topics, and its stamper gives them increasing stamps, later
than anything the client has heard of before: so causes come before effects everywhere, and nobody waits between topics.
What is published is asked for once, and all that has no answer again after a while. A request belongs to the stamper it
was first sent to; if that cannot be reached its outcome is Unknown, and it is still asked for: a payload that is out
may get its key. One whose key took long is broadcast again, for those who joined meanwhile: they are owed what has a
later stamp than their beginning, and have not heard it.
"""

from collections import deque

from msgspec import Struct

from unisono.machine import Accepted, Broadcast, Deliver, Effect, NotTaken, Refused, Send, Unknown
from unisono.model.event import Event, Events, Payloads
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.messages import Create, StampDenied, StampTaken

CREATE_MAX = 4_000
"""Requests in one message; what is beyond follows when these are answered."""


class _Pending(Struct):
    """A request without an answer."""

    topic: Topic
    event: Event | None
    """None: its payload is not there to be broadcast again."""
    outcome: int
    """Its name above."""
    since: Micros
    is_told: bool = False
    is_denied: bool = False


class ClockPublisher:
    """Asks one stamper; `heard` is the latest stamp that this client knows of."""

    def __init__(self, me: Address, stamper: Address | None, config: ClockConfig) -> None:
        self._me, self.stamper, self._config = me, stamper, config
        self._nearest = stamper
        self._pending: deque[_Pending] = deque()
        self._settled = 0  # requests up to this one have their outcome
        self._asked = 0  # requests up to this one were asked for
        self.heard = 0

    @property
    def is_waiting(self) -> bool:
        return bool(self._pending)

    def stand_on(self, stamper: Address) -> list[Effect]:
        """What is under way belongs to the stamper that it was sent to."""
        self._nearest = stamper
        if self.stamper is not None and self._pending:
            return []
        self.stamper = stamper
        return self._ask(self._settled)

    def publish(self, topic: Topic, events: Events, outcome: int, now: Micros) -> list[Effect]:
        if not self._pending:
            self.stamper = self._nearest
        effects: list[Effect] = []
        room = self._config.window - len(self._pending)
        if room < len(events):
            reason = f"{self._config.window} publications wait for an answer of {self.stamper}"
            effects += [Deliver(Refused(outcome + i, reason)) for i in range(max(0, room), len(events))]
        asked = self._settled + len(self._pending)
        for i, event in enumerate(events):
            is_full = i >= room  # it keeps its place: requests are known by their count
            self._pending.append(_Pending(topic, None if is_full else event, outcome + i, now, is_full, is_full))
        if room > 0:
            effects.append(Broadcast(topic, Payloads(self._me, asked + 1, events[:room])))
        return effects + (self._ask(asked) if self._asked == asked else [])

    def _ask(self, after: int) -> list[Effect]:
        """For what follows request `after`."""
        runs: list[tuple[Topic, int]] = []
        count = 0
        for i in range(after - self._settled, len(self._pending)):
            pending = self._pending[i]
            if pending.is_denied or count == CREATE_MAX:
                break
            count += 1
            if runs and runs[-1][0] == pending.topic:
                runs[-1] = (pending.topic, runs[-1][1] + 1)
            else:
                runs.append((pending.topic, 1))
        if not runs or self.stamper is None:
            return []
        self._asked = max(self._asked, after + count)
        return [Send(self.stamper, Create(self._me, self.stamper, after + 1, tuple(runs), self.heard, self._settled))]

    def on_taken(self, message: StampTaken, now: Micros) -> list[Effect]:
        self.heard = max(self.heard, message.stamp)
        effects: list[Effect] = []
        while self._pending and self._settled < message.upto:
            pending = self._pop()
            if not pending.is_told:
                effects.append(Deliver(Accepted(pending.outcome)))
            if pending.event is not None and now > pending.since + self._config.resend_us:
                effects.append(Broadcast(pending.topic, Payloads(self._me, self._settled, (pending.event,))))
        return effects + self._go_on()

    def on_denied(self, message: StampDenied) -> list[Effect]:
        """What comes after it is asked for once everything before it has its answer."""
        place = message.request - self._settled - 1
        if not 0 <= place < len(self._pending) or self._pending[place].is_denied:
            return []
        pending = self._pending[place]
        pending.is_denied = True
        told = [] if pending.is_told else [Deliver(Refused(pending.outcome, message.reason))]
        pending.is_told = True
        self._asked = message.request - 1
        return [*told, *self._go_on()]

    def on_not_taken(self, message: NotTaken) -> list[Effect]:
        """The broker has refused the payload: whatever key it gets, nobody will hear of it but as a gap."""
        place = message.request - self._settled - 1
        if not 0 <= place < len(self._pending):
            return [Deliver(Refused(message.outcome, message.reason))] if message.outcome else []
        pending = self._pending[place]
        pending.event = None
        if pending.is_told:
            return []
        pending.is_told = True
        return [Deliver(Refused(pending.outcome, message.reason))]

    def give_up(self, reason: str) -> list[Effect]:
        """The stamper has forgotten which of these it has given keys: nobody ever asks for them again."""
        effects: list[Effect] = [Deliver(Unknown(p.outcome, reason)) for p in self._pending if not p.is_told]
        self._settled += len(self._pending)
        self._asked = self._settled
        self._pending.clear()
        return effects

    def _go_on(self) -> list[Effect]:
        """A refused request that is the oldest is settled, and what was not asked for yet is."""
        while self._pending and self._pending[0].is_denied:
            self._pop()
        self._asked = max(self._asked, self._settled)
        return self._ask(self._asked) if self._asked == self._settled else []

    def _pop(self) -> _Pending:
        self._settled += 1
        return self._pending.popleft()

    def tick(self, now: Micros) -> list[Effect]:
        """Asks again, and tells the outcomes that nobody knows."""
        late = [p for p in self._pending if not p.is_told and now > p.since + self._config.accept_us]
        effects: list[Effect] = []
        for pending in late:
            pending.is_told = True
            effects.append(Deliver(Unknown(pending.outcome, f"{self.stamper} does not answer")))
        is_old = bool(self._pending) and now >= self._pending[0].since + self._config.resend_us
        return effects + (self._ask(self._settled) if is_old else [])
