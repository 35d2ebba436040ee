"""Conflict detection: on which hops must a publication wait for its echo, and which pending ones may it not overtake?

Four rules (specs: content-order, sections 6.1, 6.4, 6.5), from careful to careless about cost. `exact` asks whether
some advertisement from above meets a matching subscription below and one above; for boxes that is the paper's triple
test. Right when every client has one subscription. `fast` asks only whether one from above meets the subscription
below. `clients` asks it of every subscription of the client, matching or not: the one to use when clients have several.
`always` waits whenever the publication climbs, and needs no advertisements.
"""

from collections.abc import Mapping
from typing import Literal

from unisono.model.event import Event
from unisono.protocols.overlay.tables import Hop, Tables

Detection = Literal["clients", "exact", "fast", "always"]
Matches = dict[Hop, list[str]]


class WaitingPublication:
    """A publication that has not been emitted yet on the hops in `waiting`."""

    __slots__ = ("attributes", "behind", "came_from", "climbs", "echoed", "event", "since", "waiting", "wants_echo")

    def __init__(
        self,
        event: Event,
        attributes: Mapping[str, object],
        came_from: Hop,
        climbs: bool,
        waiting: dict[Hop, None],
        wants_echo: bool,
        behind: dict[str, None],
        since: int,
    ) -> None:
        self.event = event
        self.attributes = attributes
        self.came_from = came_from
        self.climbs = climbs
        self.waiting = waiting
        self.wants_echo = wants_echo
        self.behind = behind  # ids of pending publications it may not overtake
        self.echoed = False
        self.since = since


class ArrivingPublication:
    """A publication coming from below or from a local publisher, and what matches it where."""

    __slots__ = ("barrier", "came_from", "echo", "event", "matches", "parent")

    def __init__(
        self, event: Event, came_from: Hop, matches: Matches, parent: Hop | None, echo: bool, barrier: bool
    ) -> None:
        self.event = event
        self.came_from = came_from
        self.matches = matches
        self.parent = parent
        self.echo = echo
        self.barrier = barrier

    @property
    def climbs(self) -> bool:
        return self.parent is not None and self.parent in self.matches


def conflicts(rule: Detection, tables: Tables, arrival: ArrivingPublication, hop: Hop) -> bool:
    """Could a publication from above be ordered differently against this one for somebody on `hop` and above?"""
    if not arrival.climbs:
        return False
    above = arrival.parent
    match rule:
        case "always":
            return True
        case "exact":
            return _reach(tables, arrival, hop) & _reach(tables, arrival, above) & tables.from_hop(above) != 0
        case "fast":
            return any(tables.subs[name].met.any_from(above) for name in arrival.matches[hop])
        case "clients":
            if hop == arrival.came_from or (tables.covering and not hop.startswith("sub:")):
                # The subscription that matches may be unknown here, or stand for one of a client that has others here
                # under somebody else's name: so ask all of the hop.
                return tables.hop_meets(hop, above)
            clients = dict.fromkeys(tables.subs[name].client for name in arrival.matches[hop])
            return any(tables.client_meets(client, above) for client in clients)


def must_not_overtake(
    rule: Detection, tables: Tables, arrival: ArrivingPublication, item: WaitingPublication, hop: Hop
) -> bool:
    """Whether the arrival must wait for a pending item on a hop the item still waits for."""
    same_hop = item.came_from == arrival.came_from
    both_climb = item.climbs and arrival.climbs
    match rule:
        case "always":
            return item.event.publisher == arrival.event.publisher
        case "fast" | "clients":
            return same_hop or both_climb
        case "exact":
            if hop == arrival.came_from and arrival.barrier and same_hop:
                return True
            if not (same_hop or both_climb) or not _some_match(tables, arrival, hop, item):
                return False
            return same_hop or _some_match(tables, arrival, arrival.parent, item)


def closure(
    rule: Detection, tables: Tables, arrival: ArrivingPublication, hops: dict[Hop, None], waiting: dict[Hop, None]
) -> dict[Hop, None]:
    """All hops that must wait because others do: early here and late there would let a third party in between."""
    if not waiting:
        return waiting
    if rule != "exact":
        return dict(hops)
    elsewhere = ~tables.from_hop(arrival.came_from)
    reach = {hop: _reach(tables, arrival, hop) & elsewhere for hop in hops}
    late = list(waiting)
    while late:
        met = reach[late.pop()]
        joining = [hop for hop in hops if hop not in waiting and reach[hop] & met]
        waiting.update(dict.fromkeys(joining))
        late += joining
    return waiting


def _reach(tables: Tables, arrival: ArrivingPublication, hop: Hop | None) -> int:
    """Bits of the advertisements that meet a matching subscription of the hop."""
    bits = 0
    for name in arrival.matches.get(hop, ()) if hop is not None else ():
        bits |= tables.subs[name].ads
    return bits


def _some_match(tables: Tables, arrival: ArrivingPublication, hop: Hop | None, item: WaitingPublication) -> bool:
    names = arrival.matches.get(hop, ()) if hop is not None else ()
    return any(tables.subs[name].filter.matches(item.attributes) for name in names)
