"""Content-based brokers to compare with: plain FIFO forwarding, and the paper's algorithms 1 to 5 as they are printed.

Both know a fixed set of advertisements and subscriptions. The reading of the printed text (its arguments do not always
fit): a publication waits on hop w for an acknowledgement from every other hop r that has an advertisement which meets a
matching subscription on w and one on r; a broker asked to acknowledge asks on where advertisements meet matching
subscriptions, and answers when nothing is left to ask. Subscribers' queues are delivered sorted by id: the whole queue
when all of it is acknowledged (`batch`), its acknowledged head (`progressive`), or kept sorted (`sorted`). It misorders
(specs: content-order, section 11): that is what it is here for.
"""

from typing import Literal

from unisono.machine import Effect, Send
from unisono.model.event import Event
from unisono.model.ids import Address, EventId
from unisono.model.time import Micros
from unisono.protocols.overlay.messages import Ack, OverlayDelivery, Pub
from unisono.protocols.overlay.tables import Hop, Tables
from unisono.structures.content import flat

Mode = Literal["plain", "batch", "progressive", "sorted"]


class _Queued:
    __slots__ = ("event", "missing")

    def __init__(self, event: Event, missing: dict[Hop, None]) -> None:
        self.event = event
        self.missing = missing


class LiteralBroker:
    """One broker with its tables filled in beforehand; `echo` and `barrier` of a Pub carry the flags R and W."""

    def __init__(self, me: Address, neighbours: list[Address], tables: Tables, mode: Mode) -> None:
        self._me = me
        self._neighbours = neighbours
        self._tables = tables
        self._mode = mode
        self._queues: dict[Hop, list[_Queued]] = {}
        self._owed: dict[tuple[str, Hop], dict[Hop, None]] = {}  # acknowledgements to give, and what they wait for

    @property
    def is_idle(self) -> bool:
        return not self._owed and not any(self._queues.values())

    @property
    def pending(self) -> list[str]:
        return [queued.event.id for queue in self._queues.values() for queued in queue]

    def handle(self, message: Pub | Ack, now: Micros) -> list[Effect]:
        if isinstance(message, Ack):
            return self._acknowledged(message.source, message.event)
        came_from = message.source if message.source in self._neighbours else f"pub:{message.source}"
        return self._forward(message.event, came_from, message.echo, message.barrier)

    def _forward(self, event: Event, came_from: Hop, asked: bool, wait: bool) -> list[Effect]:
        matches: dict[Hop, list[str]] = {}
        for name in self._tables.matching(flat(event)):
            matches.setdefault(self._tables.subs[name].hop, []).append(name)
        hops = [hop for hop in matches if hop != came_from]
        missing: dict[Hop, dict[Hop, None]] = {hop: {} for hop in hops}
        asking: dict[Hop, None] = {}
        if self._mode != "plain":
            for hop in hops:
                for other in hops:
                    if other != hop and other in self._neighbours and self._meet(matches, hop, other):
                        missing[hop][other] = asking[other] = None
                if wait:
                    missing[hop][came_from] = None
        effects: list[Effect] = []
        if asked:
            further = {hop: None for hop in hops if hop in self._neighbours and self._reach(matches, hop, hop)}
            asking.update(further)
            if further:
                self._owed[event.id, came_from] = further
            else:
                effects.append(Send(Address(came_from), Ack(self._me, event.id)))
        for hop in hops:
            if hop in self._neighbours:
                if missing[hop]:
                    self._owed[event.id, hop] = missing[hop]
                effects.append(Send(Address(hop), Pub(self._me, event, hop in asking, bool(missing[hop]))))
            else:
                queue = self._queues.setdefault(hop, [])
                queue.append(_Queued(event, missing[hop]))
                if self._mode == "sorted":
                    queue.sort(key=_id)
                effects += self._deliver(hop)
        return effects

    def _reach(self, matches: dict[Hop, list[str]], hop: Hop, ads_of: Hop) -> int:
        bits = 0
        for name in matches[hop]:
            bits |= self._tables.subs[name].ads
        return bits & self._tables.from_hop(ads_of)

    def _meet(self, matches: dict[Hop, list[str]], hop: Hop, other: Hop) -> bool:
        return self._reach(matches, hop, other) & self._reach(matches, other, other) != 0

    def _acknowledged(self, source: Address, event: str) -> list[Effect]:
        effects: list[Effect] = []
        for (name, hop), missing in list(self._owed.items()):
            if name == event and source in missing:
                del missing[source]
                if not missing:
                    del self._owed[name, hop]
                    effects.append(Send(Address(hop), Ack(self._me, EventId(name))))
        for hop, queue in self._queues.items():
            for queued in queue:
                if queued.event.id == event:
                    queued.missing.pop(source, None)
            effects += self._deliver(hop)
        return effects

    def _deliver(self, hop: Hop) -> list[Effect]:
        queue = self._queues[hop]
        ready = next((i for i, queued in enumerate(queue) if queued.missing), len(queue))
        if self._mode == "batch" and ready < len(queue):
            return []
        head, self._queues[hop] = queue[:ready], queue[ready:]
        if self._mode != "plain":
            head.sort(key=_id)
        return [Send(Address(hop.removeprefix("sub:")), OverlayDelivery(queued.event)) for queued in head]


def _id(queued: _Queued) -> tuple[str, int]:
    return queued.event.publisher, queued.event.sequence
