"""The paper's way to publish, on our tree: the number first (a *ticket*), then event and timestamp in one message.

A number is leased to its publisher. Published in time it is a number like any other; otherwise its home declares it
void, and the publisher, when it has asked and knows, asks for another. Numbers that nobody publishes would block every
subscriber, so there is no doing without the lease, and the lease breaks what is promised:

* an event whose number was void is published after younger ones of its publisher, also where order is causal;
* the publisher says what it has published by the oldest request still open (`ack`); when that word is lost, or an older
  request has to wait, a number that was published and accepted is declared void, and whoever the broker has not brought
  it by then never hears of it, without a word;
* a grant that is lost and whose lease is over is answered never.

Each is played in tests/experiments/test_ticket.py. Subscriptions are given, timestamps full, links FIFO.
"""

from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from unisono.machine import (
    Accepted,
    Broadcast,
    Deliver,
    Effect,
    Fired,
    Heard,
    Join,
    Joined,
    Publish,
    Send,
    SetTimer,
    Subscribe,
)
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import SECOND, Micros

Entries = dict[Topic, int]
LEASE_US = Micros(30 * SECOND)
RESEND_US = Micros(1_500_000)


class CreateTicket(Struct, frozen=True, tag="Create"):
    """A publisher asks for a number; it has published what it asked for before `ack`."""

    publisher: Address
    topic: Topic
    request: int
    ack: int


class Published(Struct, frozen=True, tag="Published"):
    """The same without asking."""

    publisher: Address
    topic: Topic
    ack: int


class Ticket(Struct, frozen=True):
    """A number and its timestamp, as far as it is known."""

    publisher: Address
    request: int
    topic: Topic
    number: int
    entries: Entries = {}


class Climb(Struct, frozen=True, tag="Climb"):
    """On its way up, until the topics of `todo` are filled in."""

    ticket: Ticket
    todo: tuple[Topic, ...]


class Complete(Struct, frozen=True, tag="Complete"):
    """On its way down to the home."""

    ticket: Ticket


class TicketGranted(Struct, frozen=True, tag="Granted"):
    """To the publisher: publish it within the lease."""

    ticket: Ticket


class AskTicket(Struct, frozen=True, tag="Ask"):
    """A publisher that was granted a number too late to be sure asks what became of it."""

    publisher: Address
    topic: Topic
    number: int


class Voided(Struct, frozen=True, tag="Voided"):
    """The answer, when there is one."""

    topic: Topic
    number: int


class Ticketed(Struct, frozen=True, tag="Ticketed"):
    """On the broker; without an event the number is void."""

    ticket: Ticket
    event: Event | None


NodeInput = CreateTicket | Published | Climb | Complete | AskTicket | Fired


class TicketNode:
    """Numbers the events of its topics, and fills in what it knows of those below."""

    def __init__(
        self,
        parent: Address | None,
        hosted: tuple[Topic, ...],
        below: dict[Topic, Address],
        groups: dict[Topic, tuple[Topic, ...]],
    ) -> None:
        """`below`: behind which child a topic is; `groups`: what each topic is ordered against."""
        self._parent, self._below, self._groups = parent, below, groups
        self._hosted = hosted
        self._clock: Entries = dict.fromkeys([*hosted, *below], 0)
        self._issued: dict[tuple[Address, Topic, int], int] = {}  # (publisher, topic, request) -> number
        self._leases: dict[tuple[Topic, int], Ticket] = {}
        self._voids: dict[tuple[Topic, int], None] = {}

    def handle(self, message: NodeInput, now: Micros) -> list[Effect]:
        match message:
            case CreateTicket(publisher=publisher, topic=topic, request=request, ack=ack):
                self._end_leases(publisher, topic, ack)
                return self._create(publisher, topic, request, now)
            case Published(publisher=publisher, topic=topic, ack=ack):
                self._end_leases(publisher, topic, ack)
                return []
            case Climb(ticket=ticket, todo=todo):
                self._clock[ticket.topic] = max(self._clock[ticket.topic], ticket.number)
                return self._fill(ticket, todo, now)
            case Complete(ticket=ticket):
                return self._complete(ticket, now)
            case AskTicket(publisher=publisher, topic=topic, number=number):
                return [Send(publisher, Voided(topic, number))] if (topic, number) in self._voids else []
            case Fired(key=key):
                return self._expire(key)
            case _:
                assert_never(message)

    def _create(self, publisher: Address, topic: Topic, request: int, now: Micros) -> list[Effect]:
        number = self._issued.get((publisher, topic, request))
        if number is None:
            number = self._clock[topic] = self._issued[publisher, topic, request] = self._clock[topic] + 1
            return self._fill(Ticket(publisher, request, topic, number), self._groups[topic], now)
        lease = self._leases.get((topic, number))
        return [Send(publisher, TicketGranted(lease))] if lease is not None else []

    def _fill(self, ticket: Ticket, todo: tuple[Topic, ...], now: Micros) -> list[Effect]:
        known = {x: self._clock[x] for x in todo if x in self._clock}
        rest = tuple(x for x in todo if x not in known)
        ticket = replace(ticket, entries=ticket.entries | known)
        if rest and self._parent is not None:
            return [Send(self._parent, Climb(ticket, rest))]
        return self._complete(ticket, now)

    def _complete(self, ticket: Ticket, now: Micros) -> list[Effect]:
        topic, number = ticket.topic, ticket.number
        if topic not in self._hosted:
            return [Send(self._below[topic], Complete(ticket))]
        self._leases[topic, number] = ticket
        timer = SetTimer(f"{topic} {number}", Micros(now + LEASE_US))
        return [timer, Send(ticket.publisher, TicketGranted(ticket))]

    def _end_leases(self, publisher: Address, topic: Topic, ack: int) -> None:
        published = [
            key for key, lease in self._leases.items() if (lease.publisher, lease.topic) == (publisher, topic)
            and lease.request < ack
        ]  # fmt: skip
        for key in published:
            del self._leases[key]

    def _expire(self, key: str) -> list[Effect]:
        topic, number = map(int, key.split())
        lease = self._leases.pop((Topic(topic), number), None)
        if lease is None:
            return []
        self._voids[lease.topic, number] = None
        return [Broadcast(lease.topic, Ticketed(lease, None), control=True)]


class _Open(Struct):
    event: Event
    outcome: int
    asked_at: Micros | None = None
    number: int = 0  # granted too late: it is asked about


ClientInput = Publish | Subscribe | Heard | Joined | TicketGranted | Voided | Fired


class TicketClient:
    """Publishes what it is granted in time; delivers what is next when all that its timestamp names has been."""

    def __init__(self, me: Address, homes: dict[Topic, Address], causal: bool = False) -> None:
        """`causal`: a request waits until earlier ones on other topics are granted."""
        self._me, self._homes, self._causal = me, homes, causal
        self._next: dict[Topic, int] = {}
        self._open: dict[tuple[Topic, int], _Open] = {}  # in the order in which they were asked for, or will be
        self._incomplete: dict[Topic, int] = {}  # the last request per topic that was not granted
        self._clock: Entries = {}
        self._held: dict[Topic, dict[int, Ticketed]] = {}
        self._skipped: dict[tuple[Topic, int], None] = {}

    def handle(self, message: ClientInput, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=event, request=outcome):
                self._add(topic, _Open(event, outcome))
                return [*self._ask(now), SetTimer("create", Micros(now + RESEND_US))]
            case TicketGranted(ticket=ticket):
                return self._granted(ticket, now)
            case Voided(topic=topic, number=number):
                return self._ask_anew(topic, number, now)
            case Fired():
                again = [self._again(topic, request, one) for (topic, request), one in self._open.items()]
                return [*again, SetTimer("create", Micros(now + RESEND_US))] if again else []
            case Heard(topic=topic, message=heard):
                return self._heard(topic, heard)
            case Subscribe(topics=topics):
                self._clock |= dict.fromkeys(topics, 0)
                self._held |= {topic: {} for topic in topics}
                return [Join(topic) for topic in topics]
            case Joined():
                return [Deliver(message)]
            case _:
                assert_never(message)

    # Publishing.

    def _add(self, topic: Topic, one: _Open) -> None:
        request = self._next.get(topic, 1)
        self._next[topic] = request + 1
        self._open[topic, request] = one

    def _ask(self, now: Micros) -> list[Effect]:
        effects: list[Effect] = []
        for (topic, request), one in self._open.items():
            if one.asked_at is None:
                if self._causal and any(other != topic for other in self._incomplete):
                    break
                one.asked_at = now
                self._incomplete[topic] = request
                effects.append(self._again(topic, request, one))
        return effects

    def _again(self, topic: Topic, request: int, one: _Open) -> Effect:
        if one.number:
            return Send(self._homes[topic], AskTicket(self._me, topic, one.number))
        return Send(self._homes[topic], CreateTicket(self._me, topic, request, min(self._ack(topic), request)))

    def _ack(self, topic: Topic) -> int:
        return min((request for t, request in self._open if t == topic), default=self._next.get(topic, 1))

    def _granted(self, ticket: Ticket, now: Micros) -> list[Effect]:
        topic, effects = ticket.topic, list[Effect]()
        one = self._open.get((topic, ticket.request))
        if one is None or one.number or one.asked_at is None:
            return []
        if self._incomplete.get(topic) == ticket.request:
            del self._incomplete[topic]
        if now - one.asked_at >= LEASE_US // 2:
            one.number = ticket.number  # too late to be sure that it is still ours
            effects.append(Send(self._homes[topic], AskTicket(self._me, topic, ticket.number)))
        else:
            del self._open[topic, ticket.request]
            effects += [Broadcast(topic, Ticketed(ticket, one.event)), Deliver(Accepted(one.outcome))]
        published = Send(self._homes[topic], Published(self._me, topic, self._ack(topic)))
        return [*effects, published, *self._ask(now)]

    def _ask_anew(self, topic: Topic, number: int, now: Micros) -> list[Effect]:
        for (other, request), one in list(self._open.items()):
            if (other, one.number) == (topic, number):
                del self._open[topic, request]
                self._add(topic, _Open(one.event, one.outcome))
        return self._ask(now)

    # Delivering.

    def _heard(self, topic: Topic, heard: Ticketed) -> list[Effect]:
        number = heard.ticket.number
        if number > self._clock[topic]:
            held = self._held[topic].get(number)
            if held is None or held.event is None:  # the event, where both have come
                self._held[topic][number] = heard
        elif heard.event is not None and (topic, number) in self._skipped:
            del self._skipped[topic, number]
            return [Deliver(Heard(topic, heard.event, number=number, late=True))]
        return self._release()

    def _release(self) -> list[Effect]:
        effects: list[Effect] = []
        clock = self._clock
        while (topic := next((t for t in clock if self._is_next(t)), None)) is not None:
            clock[topic] += 1
            event = self._held[topic].pop(clock[topic]).event
            if event is None:
                self._skipped[topic, clock[topic]] = None
            else:
                effects.append(Deliver(Heard(topic, event, number=clock[topic])))
        return effects

    def _is_next(self, topic: Topic) -> bool:
        head, clock = self._held[topic].get(self._clock[topic] + 1), self._clock
        return head is not None and all(clock[x] >= n for x, n in head.ticket.entries.items() if x in clock)
