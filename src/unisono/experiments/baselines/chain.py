"""The paper's chain to the letter: a manager per topic, requests hop over the managers of their group, tickets.

Topics precede each other by number, the lowest highest. A request of T starts at T's manager, takes what that manager
knows of the lower topics of the group, and visits the managers of the higher ones from the nearest upwards, straight
from one to the next; each fills in its number and remembers those it sees. The last one answers the publisher, who then
publishes. A subscriber delivers an event when its own entry is the next and all others *equal* its clocks.

Requests that skip managers overtake each other, and then events wait for each other in a circle, for ever (ordering
spec, C3): that is what the tree of `unisono.protocols.sequencer` repairs. Subscriptions are given, so neither dummies
nor subscription requests are needed here.
"""

from typing import assert_never

from msgspec import Struct

from unisono.machine import Accepted, Broadcast, Deliver, Effect, Heard, Join, Joined, Publish, Send, Subscribe
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros

Entries = dict[Topic, int]


class Visit(Struct, frozen=True, tag="Visit"):
    """A request: to T's manager without entries, then on to the managers of `path`."""

    publisher: Address
    request: int
    topic: Topic
    entries: Entries = {}
    path: tuple[Topic, ...] = ()


class ChainTicket(Struct, frozen=True, tag="Ticket"):
    """To the publisher: the timestamp is complete."""

    request: int
    entries: Entries


class ChainTicketed(Struct, frozen=True, tag="Ticketed"):
    """On the broker."""

    entries: Entries
    event: Event


class ChainSite:
    """The managers that live on one server; hops between them take no time."""

    def __init__(self, me: Address, sites: dict[Topic, Address], groups: dict[Topic, tuple[Topic, ...]]) -> None:
        """`sites`: where every topic's manager lives; `groups`: what each topic is ordered against."""
        self._me = me
        self._sites = sites
        self._groups = groups
        self._known: dict[Topic, Entries] = {topic: {topic: 0} for topic, site in sites.items() if site == me}

    def handle(self, message: Visit, now: Micros) -> list[Effect]:
        entries, path = dict(message.entries), list(message.path)
        if not entries:
            topic, known = message.topic, self._known[message.topic]
            known[topic] += 1
            group = self._groups[topic]
            entries = {topic: known[topic], **{x: known.get(x, 0) for x in group if x > topic}}
            path = sorted((x for x in group if x < topic), reverse=True)
        while path and self._sites[path[0]] == self._me:
            self._fill(path.pop(0), entries)
        if path:
            onward = Visit(message.publisher, message.request, message.topic, entries, tuple(path))
            return [Send(self._sites[path[0]], onward)]
        return [Send(message.publisher, ChainTicket(message.request, entries))]

    def _fill(self, manager: Topic, entries: Entries) -> None:
        known = self._known[manager]
        for x, number in entries.items():
            known[x] = max(known.get(x, 0), number)
        entries[manager] = known[manager]


class ChainClient:
    """Publishes with a ticket, delivers by equality."""

    def __init__(self, me: Address, sites: dict[Topic, Address]) -> None:
        self._me = me
        self._sites = sites
        self._open: dict[int, tuple[Topic, Event]] = {}
        self._clock: Entries = {}
        self._held: dict[Topic, dict[int, ChainTicketed]] = {}

    def handle(self, message: Publish | Subscribe | Heard | Joined | ChainTicket, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=event, request=request):
                self._open[request] = (topic, event)
                return [Send(self._sites[topic], Visit(self._me, request, topic))]
            case ChainTicket(request=request, entries=entries):
                topic, event = self._open.pop(request)
                return [Broadcast(topic, ChainTicketed(entries, event)), Deliver(Accepted(request))]
            case Heard(topic=topic, message=heard):
                self._held[topic][heard.entries[topic]] = heard
                return self._release()
            case Subscribe(topics=topics):
                self._clock |= dict.fromkeys(topics, 0)
                self._held |= {topic: {} for topic in topics}
                return [Join(topic) for topic in topics]
            case Joined():
                return [Deliver(message)]
            case _:
                assert_never(message)

    def _release(self) -> list[Effect]:
        effects: list[Effect] = []
        clock = self._clock
        while (topic := next((t for t in clock if self._is_next(t)), None)) is not None:
            clock[topic] += 1
            event = self._held[topic].pop(clock[topic]).event
            effects.append(Deliver(Heard(topic, event, number=clock[topic])))
        return effects

    def _is_next(self, topic: Topic) -> bool:
        head, clock = self._held[topic].get(self._clock[topic] + 1), self._clock
        return head is not None and all(clock[x] == n for x, n in head.entries.items() if x != topic and x in clock)
