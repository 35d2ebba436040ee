"""Brokers on FIFO links without time: every schedule is a sequence of choices which link delivers next.

Clients sit at their broker. What a client hears is kept per client, and `check` holds it against the guarantees of
specs: content-order, section 1.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from unisono.machine import Deliver, Effect, Refuse, Send
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import Filter, parse
from unisono.model.time import Micros
from unisono.protocols.overlay.broker import Broker
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.detection import Detection
from unisono.protocols.overlay.messages import (
    Active,
    Adv,
    LinkDown,
    LinkUp,
    Missing,
    OverlayCut,
    OverlayDelivery,
    Pub,
    Sub,
    Unadv,
    Unsub,
)
from unisono.structures.content import flat


def span(low: int, high: int | None = None) -> Filter:
    """The interval [low..high] of the one attribute of the spec's test cases."""
    return parse(f"x between {low} and {low if high is None else high}")


class Site:
    """A broker and its clients as one machine: what it sends to a client becomes a delivery."""

    def __init__(self, broker: Broker, brokers: Iterable[str]) -> None:
        self.broker = broker
        self._brokers = tuple(brokers)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        effects: list[Effect] = []
        for effect in self.broker.handle(message, now):
            if isinstance(effect, Send) and effect.to not in self._brokers:
                effects.append(Deliver((str(effect.to), effect.message)))
            else:
                effects.append(effect)
        return effects


class Net:
    """A tree of brokers; `parents[i]` is the parent of broker i, -1 for a root."""

    def __init__(
        self,
        parents: Sequence[int],
        detection: Detection = "exact",
        held_us_max: int | None = None,
        covering: bool = False,
    ) -> None:
        limit = Micros(held_us_max) if held_us_max is not None else None
        self.names = [Address(f"B{i}") for i in range(len(parents))]
        config = BrokerConfig(detection=detection, held_us_max=limit, covering=covering)
        self.sites = {name: Site(Broker(name, config), self.names) for name in self.names}
        self.channels: dict[tuple[Address, Address], deque[Any]] = {}
        self.heard: dict[str, list[Event]] = {}
        self.notices: dict[str, list[Any]] = {}
        self.active: dict[str, None] = {}
        self.refused: list[str] = []
        self.counts: dict[str, int] = {}
        self.messages = 0
        self.home: dict[str, Address] = {}
        self.filters: dict[str, Filter] = {}  # subscription -> filter
        self.client_of: dict[str, str] = {}
        self.published: list[Event] = []
        self.ever: dict[str, list[Filter]] = {}
        self.owed: dict[str, list[str]] = {}  # client -> events that matched one of its active subscriptions
        self.now = Micros(0)
        self.lost: dict[tuple[Address, Address], None] = {}  # links that carry nothing more
        self.above: dict[Address, Address] = {}  # the tree as it is, whoever knows it
        for child, parent in enumerate(parents):
            if parent >= 0:
                self.link(self.names[child], self.names[parent])
        self.settle()

    def broker(self, i: int) -> Broker:
        return self.sites[self.names[i]].broker

    # -- what people do

    def link(self, lower: Address, upper: Address) -> None:
        self.above[lower] = upper
        for ends in ((lower, upper), (upper, lower)):
            self.lost.pop(ends, None)
        self.channels[lower, upper] = deque()
        self.channels[upper, lower] = deque()
        self.tell(lower, LinkUp(upper, True))
        self.tell(upper, LinkUp(lower, False))

    def advertise(self, publisher: str, at: int, filter: Filter, ad: str | None = None) -> None:
        self.home[publisher] = self.names[at]
        self.tell(self.names[at], Adv(Address(publisher), ad or f"{publisher}/ad", publisher, filter))

    def unadvertise(self, publisher: str, ad: str | None = None) -> None:
        self.tell(self.home[publisher], Unadv(Address(publisher), (ad or f"{publisher}/ad",)))

    def subscribe(self, client: str, at: int, filter: Filter, sub: str | None = None) -> None:
        self.home[client] = self.names[at]
        self.heard.setdefault(client, [])
        self.owed.setdefault(client, [])
        name = sub or client
        self.filters[name] = filter
        self.ever.setdefault(client, []).append(filter)
        self.client_of[name] = client
        self.tell(self.names[at], Sub(Address(client), name, client, filter))

    def unsubscribe(self, client: str, sub: str | None = None) -> None:
        name = sub or client
        gone = self.filters.pop(name)
        del self.client_of[name]
        # What is under way to a subscription that ends may or may not arrive.
        under_way = {event.id for event in self.published if gone.matches(flat(event))}
        self.owed[client] = [event for event in self.owed[client] if event not in under_way]
        self.active.pop(name, None)
        self.tell(self.home[client], Unsub(Address(client), name))

    def publish(self, publisher: str, **attributes: int) -> Event:
        self.counts[publisher] = self.counts.get(publisher, 0) + 1
        event = Event(publisher, self.counts[publisher], "t", attributes=attributes)
        self.published.append(event)
        owed = {self.client_of[s]: None for s in self.active if self.filters[s].matches(flat(event))}
        for client in owed:
            self.owed[client].append(event.id)
        self.tell(self.home[publisher], Pub(Address(publisher), event))
        return event

    # -- what happens

    def tell(self, name: Address, message: Any) -> None:
        for effect in self.sites[name].handle(message, self.now):
            match effect:
                case Send(to=to, message=inner):
                    if (name, to) in self.channels and (name, to) not in self.lost:
                        self.messages += 1
                        self.channels[name, to].append(inner)
                case Deliver(item=(client, item)):
                    self._hear(client, item)
                case Refuse(reason=reason):
                    self.refused.append(reason)
                case _:
                    pass

    def _hear(self, client: str, item: Any) -> None:
        match item:
            case OverlayDelivery(event=event):
                if client in self.heard:
                    self.heard[client].append(event)
            case Active(sub=sub):
                if sub in self.filters:
                    self.active[sub] = None
            case Missing() | OverlayCut():
                self.notices.setdefault(client, []).append(item)
            case _:
                pass

    def step(self, source: Address, to: Address) -> None:
        """The oldest message of a link is read."""
        self.tell(to, self.channels[source, to].popleft())

    def read(self, source: int, to: int, count: int | None = None) -> None:
        """Reads `count` messages of a link, or all that are there now."""
        for _ in range(len(self.channels[self.names[source], self.names[to]]) if count is None else count):
            self.step(self.names[source], self.names[to])

    def settle(self, dice: random.Random | None = None) -> None:
        while waiting := [link for link, channel in self.channels.items() if channel]:
            self.step(*(dice.choice(waiting) if dice else waiting[0]))

    def cut(self, lower: Address, dice: random.Random) -> None:
        """A link is lost: each end reads a prefix of what was sent, and then the loss."""
        upper = self.above.pop(lower)
        for source, to in ((lower, upper), (upper, lower)):
            channel = list(self.channels[source, to])
            self.channels[source, to] = deque([*channel[: dice.randint(0, len(channel))], LinkDown(source)])
            self.lost[source, to] = None

    def crash(self, name: Address, dice: random.Random) -> None:
        for source, to in list(self.channels):
            if source == name and to in self.sites:
                channel = list(self.channels[source, to])
                self.channels[source, to] = deque([*channel[: dice.randint(0, len(channel))], LinkDown(name)])
            elif name in (source, to):
                del self.channels[source, to]
        self.above = {lower: upper for lower, upper in self.above.items() if name not in (lower, upper)}
        del self.sites[name]

    def heal(self, dice: random.Random) -> None:
        """Some orphan dials some broker that is not below it, once both have noticed that they lost a link."""
        ways = [
            (lower, upper)
            for lower, site in self.sites.items()
            for upper in self.sites
            if lower not in self.above
            and site.broker.parent is None
            and lower != upper
            and lower not in self._upwards(upper)
            and not self.channels.get((lower, upper))
            and not self.channels.get((upper, lower))
        ]
        if ways:
            self.link(*dice.choice(ways))

    def _upwards(self, name: Address) -> list[Address]:
        way = [name]
        while way[-1] in self.above:
            way.append(self.above[way[-1]])
        return way

    # -- what must hold

    def order(self, client: str) -> list[str]:
        return [str(event.id) for event in self.heard[client]]

    def problems(self, complete: bool = True) -> list[str]:
        """Every broken guarantee in words; none is the right answer."""
        found = [*pairwise(self.heard), *fifo(self.heard)]
        for client, events in self.heard.items():
            names = [event.id for event in events]
            if len(set(names)) != len(names):
                found.append(f"{client} hears something twice: {names}")
            unasked = [e.id for e in events if not any(filter.matches(flat(e)) for filter in self.ever[client])]
            if unasked:
                found.append(f"{client} hears what it never asked for: {unasked}")
            if complete:
                missing = [name for name in self.owed[client] if name not in names]
                if missing:
                    found.append(f"{client} never hears {missing}")
        for name, site in self.sites.items():
            if not site.broker.is_idle:
                found.append(f"{name} is not at rest: {site.broker.pending}")
        return found


def pairwise(heard: dict[str, list[Event]]) -> list[str]:
    """G1: two clients that hear the same two events hear them in the same order."""
    found = []
    places = {client: {event.id: i for i, event in enumerate(events)} for client, events in heard.items()}
    clients = list(places)
    for i, s in enumerate(clients):
        for t in clients[i + 1 :]:
            common = [name for name in places[s] if name in places[t]]
            there = [places[t][name] for name in common]
            if there != sorted(there):
                found.append(f"{s} and {t} disagree: {common} and {sorted(common, key=places[t].__getitem__)}")
    return found


def fifo(heard: dict[str, list[Event]]) -> list[str]:
    """G2: nobody hears an event after a later one of the same publisher."""
    found = []
    for client, events in heard.items():
        last: dict[str, int] = {}
        for event in events:
            if event.sequence <= last.get(event.publisher, 0):
                found.append(f"{client} hears {event.id} after {last[event.publisher]}")
            last[event.publisher] = event.sequence
    return found


def before_t8(net: Net) -> None:
    """T8 up to the subscription in flight: x behind B1 and y at B0 conflict, s hears both and u only x."""
    net.advertise("x", 1, span(1, 2))
    net.advertise("y", 0, span(2))
    net.settle()
    net.subscribe("s", 1, span(1, 2))
    net.subscribe("u", 0, span(1))
    net.settle()
