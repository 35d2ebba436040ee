"""Publications on their way through one broker: who gets one at once, and who waits (specs: content-order, section 6).

Whatever a broker must not emit yet pends here, in order of arrival, until its echo has come and nothing pends that it
may not overtake. The broker decides what is let in, and keeps the tables.
"""

from collections.abc import Mapping

from unisono.errors import InvariantError
from unisono.machine import SetTimer
from unisono.model.event import Event
from unisono.model.ids import Address, EventId
from unisono.model.time import Micros
from unisono.protocols.overlay.detection import (
    ArrivingPublication,
    Detection,
    Matches,
    WaitingPublication,
    closure,
    conflicts,
    must_not_overtake,
)
from unisono.protocols.overlay.messages import Ack, Missing, Nack, OverlayDelivery, OverlayMissed, Pub
from unisono.protocols.overlay.state import BrokerEffects, Neighbours, OverlayCounters
from unisono.protocols.overlay.tables import Hop, Tables
from unisono.structures.content import flat

HELD = "held"
"""The timer of the oldest that pends."""


class Publications:
    """What passes and what pends."""

    def __init__(
        self,
        me: Address,
        rule: Detection,
        held_us_max: Micros | None,
        tables: Tables,
        around: Neighbours,
        out: BrokerEffects,
    ) -> None:
        self._me, self._held_us_max = me, held_us_max
        self._rule: Detection = rule
        self._tables, self._around, self._out = tables, around, out
        self.counters = OverlayCounters()
        self.pending: dict[EventId, WaitingPublication] = {}
        self.inactive: dict[tuple[str, Address], None] = {}
        """Subscriptions of our clients and the neighbours from which they get nothing yet."""

    def _matches(self, attributes: Mapping[str, object], came_from: Hop) -> Matches:
        found: Matches = {}
        for name in self._tables.matching(attributes):
            if (name, came_from) not in self.inactive:
                found.setdefault(self._tables.subs[name].hop, []).append(name)
        return found

    def pass_on(self, event: Event, came_from: Hop, echo: bool, barrier: bool, now: Micros) -> None:
        """The heart: who gets it at once, who waits for the echo, who waits for whom."""
        self.counters.publications += 1
        attributes = flat(event)
        matches = self._matches(attributes, came_from)
        self._tables.passed(event.publisher, event.sequence)
        if came_from == self._around.parent:  # coming down: never delayed
            for hop in matches:
                if hop != self._around.parent:
                    self._emit(hop, event, came_from)
            return
        if echo:
            matches.setdefault(came_from, [])  # an echo is always answered, even if nobody matches any more
        rule, tables = self._rule, self._tables
        arrival = ArrivingPublication(event, came_from, matches, self._around.parent, echo, barrier)
        hops = {hop: None for hop in matches if hop != self._around.parent and (hop != came_from or echo)}
        asking = {hop: None for hop in hops if conflicts(rule, tables, arrival, hop)}
        behind: dict[str, None] = {}
        held: dict[Hop, None] = {}
        for identity, item in self.pending.items():
            for hop in hops:
                if hop in item.waiting and must_not_overtake(rule, tables, arrival, item, hop):
                    behind[identity] = held[hop] = None
        waiting = closure(rule, tables, arrival, hops, {**asking, **held})
        for hop in hops:
            if hop not in waiting:
                self._emit(hop, event, came_from)
        if arrival.climbs and self._around.parent is not None:
            self._out.send(self._around.parent, Pub(self._me, event, echo=bool(asking), barrier=bool(held)))
        self._count(arrival, asking, held)
        if waiting:
            item = WaitingPublication(event, attributes, came_from, arrival.climbs, waiting, bool(asking), behind, now)
            self.pending[event.id] = item
            self.counters.pending_max = max(self.counters.pending_max, len(self.pending))
            if self._held_us_max is not None and len(self.pending) == 1:
                self._out.add(SetTimer(HELD, Micros(now + self._held_us_max)))

    def _count(self, arrival: ArrivingPublication, asking: dict[Hop, None], held: dict[Hop, None]) -> None:
        if asking:
            self.counters.detections += 1
            if self._rule != "exact" and not any(conflicts("exact", self._tables, arrival, hop) for hop in asking):
                self.counters.false_positives += 1
        elif held:
            self.counters.held += 1

    def _emit(self, hop: Hop, event: Event, came_from: Hop) -> None:
        if hop == came_from:
            self._out.send(Address(hop), Ack(self._me, event.id))
        elif hop.startswith("sub:"):
            self._out.send(Address(hop.removeprefix("sub:")), OverlayDelivery(event))
        elif hop in self._around.links:
            self._out.send(Address(hop), Pub(self._me, event))

    def echoed(self, event: EventId, now: Micros) -> bool:
        """The parent has given a publication its place; returns whether anything waited for that."""
        item = self.pending.get(event)
        if item is None or not item.wants_echo:
            return False  # dropped meanwhile by its deadline
        item.echoed = True
        self.counters.echoes += 1
        self.counters.echo_us += now - item.since
        self.counters.echo_us_max = max(self.counters.echo_us_max, now - item.since)
        if not self._is_ready(item):
            raise InvariantError(f"{self._me}: the echo of {event} came before that of one it must not overtake (I4)")
        return True

    def _is_ready(self, item: WaitingPublication) -> bool:
        return (item.echoed or not item.wants_echo) and not any(other in self.pending for other in item.behind)

    def release(self) -> None:
        """Emits what has become ready; items wait only for earlier ones, so one pass in order of arrival is enough."""
        for identity, item in list(self.pending.items()):
            if self._is_ready(item):
                del self.pending[identity]
                for hop in item.waiting:
                    self._emit(hop, item.event, item.came_from)

    def drop(self, event: EventId, reason: str) -> None:
        """Gives a pending publication up where it still waits: its place in the order is gone (section 8)."""
        item = self.pending.pop(event, None)
        if item is None:
            return
        self.counters.dropped += 1
        if item.came_from in item.waiting:
            self._out.send(Address(item.came_from), Nack(self._me, event, reason))
        matches = self._matches(item.attributes, item.came_from)
        waiting = {hop: names for hop, names in matches.items() if hop in item.waiting and hop != item.came_from}
        self._tell_missed(item.event, reason, waiting)

    def missed(self, event: Event, reason: str, came_from: Hop) -> None:
        """The parent has given up one that we would have had from it."""
        self._tell_missed(event, reason, self._matches(flat(event), came_from))

    def _tell_missed(self, event: Event, reason: str, matches: Matches) -> None:
        for hop in matches:
            if hop.startswith("sub:"):
                missing = Missing(event.id, event.topic, event.publisher, event.sequence, reason)
                self._out.send(Address(hop.removeprefix("sub:")), missing)
            elif hop in self._around.links and hop != self._around.parent:
                self._out.send(Address(hop), OverlayMissed(self._me, event, reason))

    def forget(self, peer: Address) -> None:
        """Nothing waits for a neighbour that is lost."""
        for item in self.pending.values():
            item.waiting.pop(peer, None)

    def give_up_echoes(self, reason: str) -> None:
        """There is no parent any more that could give them a place."""
        for identity, item in list(self.pending.items()):
            if item.wants_echo and not item.echoed:
                self.drop(identity, reason)

    def expire(self, now: Micros) -> None:
        """Gives up what has been held too long."""
        limit = self._held_us_max
        if limit is None:
            return
        for identity, item in list(self.pending.items()):
            if item.since + limit <= now:
                self.drop(identity, f"held longer than {limit} us")

    def watch(self) -> None:
        """Sets the timer for the oldest that pends; called when everything that became ready is out."""
        if self.pending and self._held_us_max is not None:
            oldest = next(iter(self.pending.values()))
            self._out.add(SetTimer(HELD, Micros(oldest.since + self._held_us_max)))
