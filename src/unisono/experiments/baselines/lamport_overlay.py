"""Content-based brokers that order everything by Lamport keys: safe, and dear.

A publication gets the next tick of its broker's clock and is forwarded at once. A broker delivers it to a subscriber
when every neighbour behind which somebody might publish something that subscriber also matches has *promised* that
nothing with a smaller key comes from there any more; deliveries to one subscriber are in the order of keys. A broker
promises when its own clock is past the key and the neighbours beyond have promised in turn, so promises come back from
the ends of the tree. The publication itself asks for them; where it has no reader but may have a rival, a bare question
goes. A publication that leaves the only place it could have a rival at carries the promise with it.

Everybody knows a fixed set of advertisements and subscriptions, as in `literal_overlay`.
"""

from msgspec import Struct

from unisono.machine import Effect, Send
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.overlay.messages import OverlayDelivery, Pub
from unisono.protocols.overlay.tables import Hop, Tables
from unisono.structures.content import flat

Key = tuple[int, str, int]
"""Tick of the clock, publisher, sequence."""


class Keyed(Struct, frozen=True, tag="Keyed"):
    """A publication with its tick, or the bare question; `promised` if no promise of the sender's follows."""

    source: Address
    event: Event
    tick: int
    promised: bool


class KeyPromise(Struct, frozen=True, tag="Promise"):
    """Nothing that could be a rival of this event, with a smaller key, will come from here."""

    source: Address
    event: str


class _Open:
    """A publication until all its deliveries and promises have been made."""

    __slots__ = ("key", "missing")

    def __init__(self, key: Key, missing: dict[Hop, dict[Hop, None]]) -> None:
        self.key = key
        self.missing = missing  # hop to serve (a subscriber, or a neighbour to promise to) -> who has not promised yet


class LamportBroker:
    """One broker with its tables filled in beforehand."""

    def __init__(self, me: Address, neighbours: list[Address], tables: Tables) -> None:
        self._me, self._neighbours, self._tables = me, neighbours, tables
        self._clock = 0
        self._open: dict[str, _Open] = {}
        self._queues: dict[Hop, list[tuple[Key, Event]]] = {}

    @property
    def pending(self) -> list[str]:
        return list(self._open)

    def handle(self, message: Pub | Keyed | KeyPromise, now: Micros) -> list[Effect]:
        match message:
            case Pub(source=publisher, event=event):
                self._clock += 1
                return self._take(event, self._clock, f"pub:{publisher}", False)
            case Keyed(source=source, event=event, tick=tick, promised=promised):
                self._clock = max(self._clock, tick)
                return self._take(event, tick, source, promised)
            case KeyPromise(source=source, event=name):
                if name not in self._open:
                    return []
                for missing in self._open[name].missing.values():
                    missing.pop(source, None)
                return self._serve(name)

    def _take(self, event: Event, tick: int, came_from: Hop, promised: bool) -> list[Effect]:
        reach: dict[Hop, int] = {}  # hop with readers -> advertisements that could rival there
        for name in self._tables.matching(flat(event)):
            sub = self._tables.subs[name]
            reach[sub.hop] = reach.get(sub.hop, 0) | sub.ads
        missing: dict[Hop, dict[Hop, None]] = {}
        for hop, ads in reach.items():
            if hop == came_from and hop not in self._neighbours:
                continue
            missing[hop] = {
                other: None
                for other in self._neighbours
                if other != hop and ads & self._tables.from_hop(other) and not (other == came_from and promised)
            }
        effects: list[Effect] = []
        key = (tick, event.publisher, event.sequence)
        for hop in self._neighbours:
            if hop == came_from:
                continue
            rivals = any(ads & self._tables.from_hop(hop) for other, ads in reach.items() if other != hop)
            if hop in reach or rivals:
                # We owe the neighbour a promise iff somebody on this side could rival at its readers.
                owes = hop in reach and self._rivals_here(reach[hop], hop)
                now_promised = not (owes and missing[hop])
                effects.append(Send(hop, Keyed(self._me, event, tick, now_promised)))
                if now_promised:
                    missing.pop(hop, None)
        if came_from in self._neighbours and not (
            came_from in reach and self._rivals_here(reach[came_from], came_from)
        ):
            missing.pop(came_from, None)  # it does not wait for us
        for hop in missing:
            if hop not in self._neighbours:
                queue = self._queues.setdefault(hop, [])
                queue.append((key, event))
                queue.sort(key=lambda item: item[0])
        self._open[event.id] = _Open(key, missing)
        return effects + self._serve(event.id)

    def _rivals_here(self, ads: int, hop: Hop) -> bool:
        """Whether an advertisement of our side of the link is among these."""
        return ads & ~self._tables.from_hop(hop) != 0

    def _serve(self, name: str) -> list[Effect]:
        """Makes the promises that can be made now, and the deliveries that were waiting for the last ones."""
        effects: list[Effect] = []
        for hop in [hop for hop, missing in self._open[name].missing.items() if not missing]:
            if hop in self._neighbours:
                del self._open[name].missing[hop]
                effects.append(Send(Address(hop), KeyPromise(self._me, name)))
            else:
                effects += self._deliver(hop)
        if name in self._open and not self._open[name].missing:
            del self._open[name]
        return effects

    def _deliver(self, hop: Hop) -> list[Effect]:
        """The head of a subscriber's queue, as long as nothing smaller can come."""
        effects: list[Effect] = []
        queue = self._queues[hop]
        while queue and not self._open[queue[0][1].id].missing[hop]:
            event = queue.pop(0)[1]
            found = self._open[event.id]
            del found.missing[hop]
            if not found.missing:
                del self._open[event.id]
            effects.append(Send(Address(hop.removeprefix("sub:")), OverlayDelivery(event)))
        return effects
