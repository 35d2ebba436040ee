"""The publisher half of the ordering module: requests, repetitions, outcomes, and the wait that makes order causal.

The payload leaves at once, and a request for its number goes to the topic's home; `Accepted` when the number is
durable. Requests are repeated until they are answered, so the outcome Unknown ends the wait of the caller, not ours.

With `causal` a request waits until every earlier one on *another* topic is complete, and, with early stamps, until
no item that was notified here is still open: then everything the application may have reacted to precedes it.

What the broker refuses has been asked a number for, and those behind it have theirs: it keeps its place, its number is
withdrawn, and the home tells subscribers not to wait for it.
"""

from collections import deque

from msgspec import Struct

from unisono.machine import Accepted, Broadcast, Deliver, Effect, NotTaken, Refused, Send, Unknown
from unisono.model.event import Event, Events
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import (
    Completed,
    Creates,
    Payload,
    Payloads,
    Taken,
    Topics,
    Wanted,
    Withdraw,
    Withdrawn,
)
from unisono.protocols.sequencer.timers import Timers


class _Open(Struct, gc=False):
    """Publications in a row that have no numbers yet; those that may have to wait are rows of one."""

    events: Events
    outcome: int | None  # the caller's name for the first, until he has been told
    published_at: Micros
    asked_at: Micros | None = None  # when the request first left; None while it has to wait


class Publisher:
    """All publications of one client."""

    def __init__(self, address: Address, homes: dict[Topic, Address], config: SequencerConfig) -> None:
        self.address = address
        self.config = config
        self.homes = homes
        self.open: dict[Topic, dict[int, _Open]] = {}
        """Per topic: first request -> publications without durable numbers."""
        self._open_count: dict[Topic, int] = {}
        self._gathered: dict[Topic, int] = {}
        """How many of the youngest of them have not been asked for yet; see `SequencerConfig.gather`."""
        self.incomplete: dict[Topic, int] = {}
        """Causal: the last request per topic that is not known to be complete."""
        self._next: dict[Topic, int] = {}
        self.held: deque[tuple[Topic, int]] = deque()
        """Causal: requests that have to wait, in program order."""
        self.withdrawals: dict[Topic, dict[int, None]] = {}
        """Requests whose payloads the broker has refused, until their homes have voided their numbers."""
        self._causal = config.causal
        self._timers = Timers()

    def count_open(self, topic: Topic) -> int:
        """Publications on the topic that have no durable numbers, whether or not the caller has been told Unknown."""
        return self._open_count.get(topic, 0)

    def publish(self, topic: Topic, event: Event, outcome: int, ready: bool, now: Micros, out: list[Effect]) -> None:
        """`ready`: nothing that was notified here is still open."""
        waiting = self.open.setdefault(topic, {})
        if topic not in self.homes:
            out.append(Deliver(Refused(outcome, f"nobody hosts topic {topic}")))
            return
        count = self._open_count.get(topic, 0)
        if count >= self.config.window:
            out.append(Deliver(Refused(outcome, f"{count} publications on the topic wait for their numbers")))
            return
        self._ask_gathered(topic, now, out)
        request = self._next.get(topic, 1)
        self._next[topic] = request + 1
        waiting[request] = _Open((event,), outcome, now)
        self._open_count[topic] = count + 1
        out.append(Broadcast(topic, Payload(self.address, request, event)))
        self.held.append((topic, request))
        self.release(ready, now, out)
        self._repeat(now, out)

    def publish_all(
        self, topic: Topic, events: Events, outcome: int, ready: bool, now: Micros, out: list[Effect]
    ) -> None:
        """The same for events in a row, whose outcomes have consecutive names."""
        waiting = self.open.setdefault(topic, {})
        length = len(events)
        count = self._open_count.get(topic, 0) + length
        crowded = count > self.config.window
        if self._causal or self.held or crowded or topic not in self.homes:
            for i, event in enumerate(events):
                self.publish(topic, event, outcome + i, ready, now, out)
            return
        first = self._next.get(topic, 1)
        self._next[topic] = first + length
        waiting[first] = _Open(events, outcome, now)
        self._open_count[topic] = count
        out.append(Broadcast(topic, Payloads(self.address, first, events)))
        gathered = self._gathered[topic] = self._gathered.get(topic, 0) + length
        if gathered >= self.config.gather or count - gathered < self.config.gather_from:
            self._ask_gathered(topic, now, out)
        self._repeat(now, out)

    def _ask_gathered(self, topic: Topic, now: Micros, out: list[Effect]) -> None:
        gathered = self._gathered.pop(topic, 0)
        if not gathered:
            return
        for row in reversed(self.open[topic].values()):
            if row.asked_at is not None:
                break
            row.asked_at = now
        self._ask(topic, self._next[topic] - gathered, gathered, out)

    def release(self, ready: bool, now: Micros, out: list[Effect]) -> None:
        """Lets go what no longer has to wait."""
        while self.held:
            topic, request = self.held[0]
            if self._causal and (not ready or any(other != topic for other in self.incomplete)):
                return
            self.held.popleft()
            if self._causal:
                self.incomplete[topic] = request
            self.open[topic][request].asked_at = now
            self._ask(topic, request, 1, out)

    def _ask(self, topic: Topic, first: int, count: int, out: list[Effect]) -> None:
        waiting = self.open[topic]
        ack = next(iter(waiting)) if waiting else first
        item = Wanted(topic, first, count, min(ack, first))
        out.append(Send(self.homes[topic], Creates(self.address, (item,), self._causal)))

    def taken(self, message: Taken, now: Micros, out: list[Effect]) -> None:
        for topic, upto in message.upto.items():
            self._taken(topic, upto, out)
            self._ask_gathered(topic, now, out)

    def _taken(self, topic: Topic, upto: int, out: list[Effect]) -> None:
        waiting = self.open.get(topic, {})
        while waiting:
            request = next(iter(waiting))  # in rising order
            if request > upto:
                break
            row = waiting.pop(request)
            count = min(len(row.events), upto + 1 - request)
            if count < len(row.events):
                name = None if row.outcome is None else row.outcome + count
                rest = _Open(row.events[count:], name, row.published_at, row.asked_at)
                waiting = self.open[topic] = {upto + 1: rest, **waiting}
            self._settle(topic, row, count, out)
        if topic in self.withdrawals:
            self._withdraw(topic, out)

    def not_taken(self, message: NotTaken, now: Micros, out: list[Effect]) -> None:
        """The broker refuses a payload, whose number was or will be asked for.

        Its number is withdrawn if its caller is told Refused. One who was told Accepted before, by a broker that keeps
        nothing, is not contradicted: then subscribers wait for the payload, and are told of the gap.
        """
        topic, request = message.topic, message.request
        row = self._alone(topic, request)
        outcome = message.outcome
        if row is not None:
            outcome = outcome or row.outcome or 0
            row.outcome = None
        if outcome and 0 < request < self._next.get(topic, 1):
            out.append(Deliver(Refused(outcome, message.reason)))
            self.withdrawals.setdefault(topic, {})[request] = None
            self._withdraw(topic, out)
            self._repeat(now, out)

    def _withdraw(self, topic: Topic, out: list[Effect]) -> None:
        """Asks for what has a number; the home answers when it is void."""
        end = next(iter(self.open[topic]), self._next[topic])
        runs: list[list[int]] = []
        for request in sorted(self.withdrawals[topic]):
            if request >= end:
                break
            if runs and request == sum(runs[-1]) and runs[-1][1] < self.config.requests_max:
                runs[-1][1] += 1
            else:
                runs.append([request, 1])
        out += [Send(self.homes[topic], Withdraw(self.address, topic, first, count)) for first, count in runs]

    def withdrawn(self, message: Withdrawn) -> None:
        waiting = self.withdrawals.get(message.topic, {})
        for request in range(message.first, message.first + message.count):
            waiting.pop(request, None)
        if not waiting:
            self.withdrawals.pop(message.topic, None)

    def _alone(self, topic: Topic, request: int) -> _Open | None:
        """The publication with this request as a row of its own, if it has no number yet."""
        rows: dict[int, _Open] = {}
        found: _Open | None = None
        for first, row in self.open.get(topic, {}).items():
            place = request - first
            if not 0 <= place < len(row.events):
                rows[first] = row
                continue
            for begin, end in ((0, place), (place, place + 1), (place + 1, len(row.events))):
                if begin < end:
                    name = None if row.outcome is None else row.outcome + begin
                    rows[first + begin] = _Open(row.events[begin:end], name, row.published_at, row.asked_at)
            found = rows[request]
        if found is not None:
            self.open[topic] = rows
        return found

    def completed(self, message: Completed, ready: bool, now: Micros, out: list[Effect]) -> None:
        self._taken(message.topic, message.upto, out)
        if self.incomplete.get(message.topic, message.upto + 1) <= message.upto:
            del self.incomplete[message.topic]
        self.release(ready, now, out)

    def give_up(self, topics: Topics, out: list[Effect]) -> None:
        """Their home has forgotten whether it numbered what is open: asked again, it might number it a second time."""
        for topic in topics:
            rows, self.open[topic] = self.open.get(topic, {}), {}
            for row in rows.values():
                if row.outcome is not None:
                    names = range(row.outcome, row.outcome + len(row.events))
                    out += [Deliver(Unknown(name, "the home of its topic has forgotten it")) for name in names]
            self._open_count.pop(topic, None)
            self._gathered.pop(topic, None)
            self.incomplete.pop(topic, None)
            self.withdrawals.pop(topic, None)
        self.held = deque((topic, request) for topic, request in self.held if topic not in topics)

    def fired(self, now: Micros, out: list[Effect]) -> None:
        self._timers.fired("create")
        for topic, waiting in self.open.items():
            first = last = 0
            for request, publication in waiting.items():
                if publication.outcome is not None and now - publication.published_at >= self.config.accept_us:
                    names = range(publication.outcome, publication.outcome + len(publication.events))
                    out += [Deliver(Unknown(name, "the home has not answered in time")) for name in names]
                    publication.outcome = None
                if publication.asked_at is not None:
                    if request != last + 1 or not first:
                        self._ask_run(topic, first, last, out)
                        first = request
                    last = request + len(publication.events) - 1
            self._ask_run(topic, first, last, out)
        for topic, request in self.incomplete.items():
            if request not in self.open[topic]:  # taken, but is it complete?
                self._ask(topic, request, 1, out)
        for topic in self.withdrawals:
            self._withdraw(topic, out)
        if any(self.open.values()) or self.incomplete or self.withdrawals:
            self._repeat(now, out)

    def _ask_run(self, topic: Topic, first: int, last: int, out: list[Effect]) -> None:
        if first:
            self._ask(topic, first, last - first + 1, out)

    def _settle(self, topic: Topic, row: _Open, count: int, out: list[Effect]) -> None:
        """The first `count` publications of a row, which is no longer open, have their numbers."""
        self._open_count[topic] -= count
        if row.outcome is not None:
            out.append(Deliver(Accepted(row.outcome, count=count)))

    def _repeat(self, now: Micros, out: list[Effect]) -> None:
        self._timers.set("create", Micros(now + self.config.resend_us), out)
