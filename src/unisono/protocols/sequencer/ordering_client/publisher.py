"""The publisher half of the ordering module: requests, repetitions, outcomes, and the wait that makes order causal.

The payload leaves at once, and a request for its number goes to the topic's home; `Accepted` when the number is
durable. Requests are repeated until they are answered, after pauses that double, and at once when the way to a home
is a new one; so the outcome Unknown ends the wait of the caller, not ours.

With `causal` a request waits until every earlier one on *another* topic is complete, and, with early stamps, until
no item that was notified here is still open: then everything the application may have reacted to precedes it.

What the broker refuses has been asked a number for, and those after it have theirs: it keeps its place, its number is
withdrawn, and the home tells subscribers not to wait for it.
"""

from collections import deque

from msgspec import Struct

from unisono.machine import Accepted, Broadcast, Deliver, Effect, NotTaken, Refused, Send, Unknown
from unisono.model.event import Event, Events, Payload, Payloads
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Completed, Creates, Moved, Taken, Topics, Wanted, Withdraw, Withdrawn
from unisono.protocols.sequencer.ordering_client.timers import Patience, Timers


class _Open(Struct, gc=False):
    """Publications in a row that have no numbers yet; those that may have to wait are rows of one."""

    events: Events
    outcome: int | None  # the caller's name for the first, until he has been told
    published_at: Micros
    asked_at: Micros | None = None  # when the request last left; None while it has to wait


class OrderingPublisher:
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
        self._since: dict[Topic, int] = {}
        """Topics whose homes have forgotten them: the number with which they were begun again, as far as we know."""
        self.held: deque[tuple[Topic, int]] = deque()
        """Causal: requests that have to wait, in program order."""
        self.withdrawals: dict[Topic, dict[int, None]] = {}
        """Requests whose payloads the broker has refused, until their homes have voided their numbers."""
        self._causal = config.causal
        self._timers = Timers()
        self._patience = Patience(config.resend_us)

    def count_open(self, topic: Topic, upto: int) -> int:
        """Of the first `upto` publications on the topic those that have no durable numbers, also if their callers have
        been told Unknown or Refused; those that are still on their way to us are such."""
        return self._open_count.get(topic, 0) + max(0, upto + 1 - self._next.get(topic, 1))

    def oldest_open(self, topic: Topic) -> int:
        """The first publication on the topic without a durable number, or the one that will be next."""
        return next(iter(self.open.get(topic, ())), self._next.get(topic, 1))

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
        item = Wanted(topic, first, count, min(ack, first), self._since.get(topic, 0))
        out.append(Send(self.homes[topic], Creates(self.address, (item,), self._causal)))

    def learn_of(self, message: Moved) -> bool:
        """Whether its home has forgotten the topic, which was told to nobody who thought it to be elsewhere."""
        topic, is_news = message.topic, message.since > self._since.get(message.topic, 0)
        if not is_news or (message.is_here and self.homes.get(topic) == message.home):
            return False
        self._since[topic] = message.since
        return True

    def taken(self, message: Taken, now: Micros, out: list[Effect]) -> None:
        if not self._patience.is_fresh:
            self._timers.move("create", Micros(now + self._patience.renew()), out)
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
        self._tell_unknown(now, out)
        if self._ask_again(Micros(now - self._patience.pause_us), now, out):
            self._patience.lose()
        if any(self.open.values()) or self.incomplete or self.withdrawals:
            self._timers.set("create", self._next_look(now), out)

    def reconnected(self, now: Micros, out: list[Effect]) -> None:
        """What was under way may be lost."""
        self._patience.renew()
        if self._ask_again(now, now, out):
            self._timers.move("create", self._next_look(now), out)

    def _tell_unknown(self, now: Micros, out: list[Effect]) -> None:
        for waiting in self.open.values():
            for row in waiting.values():
                if row.outcome is not None and now - row.published_at >= self.config.accept_us:
                    names = range(row.outcome, row.outcome + len(row.events))
                    out += [Deliver(Unknown(name, "the home has not answered in time")) for name in names]
                    row.outcome = None

    def _next_look(self, now: Micros) -> Micros:
        """When the oldest request has waited for a pause, or its caller for long enough."""
        pause = self._patience.pause_us
        looks = [now + pause]
        for waiting in self.open.values():
            row = next(iter(waiting.values()), None)
            if row is not None and row.asked_at is not None:
                looks.append(row.asked_at + pause)
            if row is not None and row.outcome is not None:
                looks.append(row.published_at + self.config.accept_us)
        return Micros(min(look for look in looks if look > now))

    def _ask_again(self, before: Micros, now: Micros, out: list[Effect]) -> bool:
        """Repeats what was asked for up to then; tells whether there was anything."""
        said = len(out)
        for topic, waiting in self.open.items():
            first = last = 0
            for request, publication in waiting.items():
                if publication.asked_at is not None and publication.asked_at <= before:
                    publication.asked_at = now
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
        return len(out) > said

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
