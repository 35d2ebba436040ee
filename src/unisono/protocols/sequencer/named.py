"""A publisher with a name for ever: it says itself which number its events have, so saying one again changes nothing.

The home of a topic remembers per publisher the highest request it has numbered, durably and without a time limit
(`HostedTopic.accept`): our *mark* there. Requests are the sequence numbers of events: they may skip numbers but ascend
per topic. What is at the mark or below it is known, and its payload is not sent again. One batch is under way at a
time:

1. the marks of its topics; of several homes also whether what stands at the mark is complete, since a predecessor of
   ours may have died before it was;
2. the payloads of what is new, until the broker has taken or refused them all: a number without its payload is a gap;
3. the requests, home by home, each in one message that the home numbers in line: a request can be lost only together
   with all that follow it, and is repeated together with them. In causal order topic by topic, since a topic may have
   moved, and what is passed on to its new home is numbered there after what follows it.

What the broker refuses could never be numbered after what follows it: it, and all that follows, is refused.
"""

from collections import deque
from itertools import groupby
from typing import Any, Literal

from msgspec import Struct

from unisono.machine import (
    Accepted,
    Broadcast,
    CancelTimer,
    Deliver,
    Effect,
    Fired,
    NotTaken,
    Publish,
    Refuse,
    Refused,
    Restarted,
    Send,
    SetTimer,
    Unknown,
)
from unisono.model.event import Event, Payload
from unisono.model.ids import Address, Topic
from unisono.model.time import MILLISECOND, SECOND, Micros
from unisono.protocols.sequencer.inputs import HomeReborn
from unisono.protocols.sequencer.messages import Ask, Completed, Creates, Fate, Moved, Taken, Told, Wanted
from unisono.structures.sessions import BroadcastsDone

REPEATED = "repeated"
"""The strength of what was accepted before."""


class NamedConfig(Struct, frozen=True):
    """Bounds and pace of a named publisher."""

    is_causal: bool = False
    """Events of other topics follow only what is complete, whoever their home is. Price: a round trip whenever the
    topic changes."""
    batch_events: int = 1000
    """Events under way at once. Price: memory here, and a message of some 20 bytes per event at the home."""
    waiting_max: int = 1_000_000
    """Events that wait for their batch; further ones are refused."""
    again_us: Micros = Micros(250 * MILLISECOND)
    """A question that is not answered is asked again after this; a little over the longest round trip."""
    patience_us: Micros = Micros(30 * SECOND)
    """How long one answer of a home or of the broker is waited for before the outcome is Unknown."""


class PublishInLine(Struct, frozen=True, tag="PublishInLine"):
    """From above: publish these, each an `Event`, one after the other."""

    publications: tuple[Publish, ...]


class _Row(Struct, frozen=True):
    topic: Topic
    event: Event
    outcome: int


Phase = Literal["idle", "marks", "payloads", "numbers"]


class NamedPublications:
    """The publications of one name. With `waits`, which several homes need, an event follows only complete ones."""

    def __init__(
        self, address: Address, homes: dict[Topic, Address], waits: bool, config: NamedConfig = NamedConfig()
    ) -> None:
        self.homes = homes
        self._since: dict[Topic, int] = {}  # where homes that had forgotten a topic began it again
        self._address, self._waits, self._config = address, waits, config
        self._waiting: deque[_Row] = deque()
        self._phase: Phase = "idle"
        self._batch: list[_Row] = []  # what is left of it
        self._marks: dict[Topic, int] = {}
        self._known: dict[Topic, None] = {}  # topics whose mark can be relied on
        self._fates: dict[Topic, Fate] = {}
        self._completed: dict[Topic, int] = {}
        self._unconfirmed = 0
        self._rejected: dict[tuple[Topic, int], str] = {}
        self._group: list[_Row] = []  # of one home, asked for
        self._question: Send | None = None

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        out: list[Effect] = []
        match message:
            case Publish(topic=topic, message=Event() as event, request=outcome):
                self._enqueue(_Row(topic, event, outcome), out)
            case PublishInLine(publications=publications):
                for each in publications:
                    self._enqueue(_Row(each.topic, each.message, each.request), out)
            case Taken(upto=taken):
                for topic, upto in taken.items():
                    self._marks[topic] = max(upto, self._marks.get(topic, 0))
            case Completed(topic=topic, upto=upto):
                self._completed[topic] = max(upto, self._completed.get(topic, 0))
                if topic in self._marks:  # `Taken` may have got lost
                    self._marks[topic] = max(upto, self._marks[topic])
            case Told(topic=topic, fate=fate):
                self._fates[topic] = fate
            case Moved(topic=topic, home=home, since=since, is_here=is_here):
                if since > self._since.get(topic, 0) and not (is_here and self.homes.get(topic) == home):
                    self._since[topic] = since
                    self._fail("a home has forgotten what it told us: some of this may have been published", out)
                self.homes[topic] = home
            case BroadcastsDone(count=count):
                self._unconfirmed -= count
            case NotTaken(topic=topic, request=request, reason=reason):
                self._rejected[topic, request] = reason
            case HomeReborn():
                self._fail("a home has forgotten what it told us: some of this may have been published", out)
                out.append(Deliver(message))  # what we ask from now on, we ask with that in mind
            case Fired(key="again"):
                if self._question is not None:
                    self._ask(self._question.to, self._question.message, now, out, is_new=False)
            case Fired(key="patience"):
                self._fail(self._who_is_silent(), out)
            case Restarted():
                pass
            case _:
                return [Refuse(f"{type(message).__name__} is nothing a named publisher understands")]
        while self._advance(now, out):
            pass
        return out

    def mark_of(self, topic: Topic) -> int:
        """As far as it was asked for."""
        return self._marks.get(topic, 0)

    def _enqueue(self, row: _Row, out: list[Effect]) -> None:
        if row.topic not in self.homes:
            out.append(Deliver(Refused(row.outcome, f"nobody hosts topic {row.topic}")))
        elif len(self._waiting) >= self._config.waiting_max:
            out.append(Deliver(Refused(row.outcome, f"{len(self._waiting)} events wait to be published")))
        else:
            self._waiting.append(row)

    # the way of a batch

    def _advance(self, now: Micros, out: list[Effect]) -> bool:
        """One step, if it can be made."""
        match self._phase:
            case "idle":
                if not self._waiting:
                    return False
                count = min(len(self._waiting), self._config.batch_events)
                self._batch = [self._waiting.popleft() for _ in range(count)]
                self._phase = "marks"
            case "marks":
                unknown = next((row.topic for row in self._batch if row.topic not in self._known), None)
                if unknown is not None:
                    return self._learn(unknown, now, out)
                self._send_payloads(now, out)
            case "payloads":
                if self._unconfirmed:
                    return False
                self._refuse_rejected(out)
                self._phase = "numbers"
            case "numbers":
                return self._number(now, out)
        return True

    def _learn(self, topic: Topic, now: Micros, out: list[Effect]) -> bool:
        """Request 0 is never new: the answer to it tells the mark and changes nothing."""
        mark = self._marks.get(topic)
        if mark is None:
            nothing = Wanted(topic, 0, 1, 0, self._since.get(topic, 0))
            return self._wait_for(topic, Creates(self._address, (nothing,)), now, out)
        if mark and self._waits and self._fates.get(topic, "pending") == "pending":
            return self._wait_for(topic, Ask(self._address, topic, 0, self._address, mark), now, out)
        self._known[topic] = None
        self._answered(out)
        return True

    def _send_payloads(self, now: Micros, out: list[Effect]) -> None:
        new: list[_Row] = []
        for row in self._batch:
            if row.event.sequence <= self._marks[row.topic]:
                out.append(Deliver(Accepted(row.outcome, REPEATED)))
            else:
                new.append(row)
                out.append(Broadcast(row.topic, Payload(self._address, row.event.sequence, row.event)))
        self._batch, self._phase = new, "payloads"
        self._unconfirmed += len(new)
        self._rejected.clear()
        if new:
            out.append(SetTimer("patience", Micros(now + self._config.patience_us)))

    def _refuse_rejected(self, out: list[Effect]) -> None:
        rejected = [i for i, row in enumerate(self._batch) if (row.topic, row.event.sequence) in self._rejected]
        if not rejected:
            return
        first = rejected[0]
        reason = self._rejected[self._batch[first].topic, self._batch[first].event.sequence]
        out.append(Deliver(Refused(self._batch[first].outcome, reason)))
        out += [Deliver(self._left_out(row)) for row in (*self._batch[first + 1 :], *self._waiting)]
        del self._batch[first:]
        self._waiting.clear()

    def _left_out(self, row: _Row) -> Accepted | Refused | Unknown:
        """What becomes of an event after one that was rejected: it may have been published in an earlier life."""
        reason = "an event before it was rejected by the broker"
        if row.topic not in self._known:
            return Unknown(row.outcome, reason)
        if row.event.sequence <= self._marks[row.topic]:
            return Accepted(row.outcome, REPEATED)
        return Refused(row.outcome, reason)

    def _number(self, now: Micros, out: list[Effect]) -> bool:
        if not self._group:
            if not self._batch:
                self._phase = "idle"
                self._answered(out)
                return True
            _, some = next(groupby(self._batch, key=self._goes_with))
            self._group = list(some)
            return self._wait_for(self._group[0].topic, self._request(), now, out)
        answered = self._completed if self._waits else self._marks
        owed = {row.topic: row.event.sequence for row in self._group}
        if any(answered.get(topic, 0) < upto for topic, upto in owed.items()):
            return self._wait_for(self._group[0].topic, self._request(), now, out)
        out += [Deliver(Accepted(row.outcome)) for row in self._group]
        del self._batch[: len(self._group)]
        self._group = []
        self._answered(out)
        return True

    def _goes_with(self, row: _Row) -> Address | Topic:
        """What is the same for events that may be asked for in one message."""
        return row.topic if self._config.is_causal and self._waits else self.homes[row.topic]

    def _request(self) -> Creates:
        items: list[Wanted] = []
        for row in self._group:
            topic, request, last = row.topic, row.event.sequence, items[-1] if items else None
            if last is not None and last.topic == topic and last.first + last.count == request:
                items[-1] = Wanted(topic, last.first, last.count + 1, last.first, last.since)
            else:
                items.append(Wanted(topic, request, 1, request, self._since.get(topic, 0)))
        return Creates(self._address, tuple(items), self._waits, in_line=True)

    # questions

    def _wait_for(self, topic: Topic, message: Any, now: Micros, out: list[Effect]) -> bool:
        """Asks the home of the topic, unless that is what we are asking; always False: the answer is still to come."""
        question = Send(self.homes[topic], message)
        if question != self._question:
            self._ask(question.to, message, now, out, is_new=True)
        return False

    def _ask(self, home: Address, message: Any, now: Micros, out: list[Effect], is_new: bool) -> None:
        self._question = Send(home, message)
        out += [self._question, SetTimer("again", Micros(now + self._config.again_us))]
        if is_new:
            out.append(SetTimer("patience", Micros(now + self._config.patience_us)))

    def _answered(self, out: list[Effect]) -> None:
        self._question = None
        out += [CancelTimer("again"), CancelTimer("patience")]

    def _who_is_silent(self) -> str:
        patience = f"within {self._config.patience_us / SECOND:g} s"
        if self._question is None:
            return f"the broker does not confirm {patience}"
        name = self._address.removeprefix("@")
        return f"node {self._question.to} does not answer {patience}; is another publisher connected as {name!r}?"

    def _fail(self, reason: str, out: list[Effect]) -> None:
        """Nobody knows what became of what is under way, and of what waits nothing may follow it."""
        out += [Deliver(Unknown(row.outcome, reason)) for row in (*self._batch, *self._waiting)]
        self._batch, self._group, self._phase = [], [], "idle"
        self._waiting.clear()
        self._rejected.clear()
        self._marks.clear()
        self._known.clear()
        self._fates.clear()
        self._answered(out)
