"""What is wanted below, told upwards before anybody is called attached (specs: entourage, sections 0 and 6).

A broker tells the one above, and a root all other roots, one filter that covers everything wanted below: few boxes,
never too narrow. Each telling has a turn. A neighbour below is attached in a turn of its own once a turn of ours that
covers it has been answered by everybody above; only then it is fed, so it misses nothing from then on. It may shrink
what it wants at once, and grows when that has been answered; meanwhile both are in force.
"""

import math

from unisono.errors import MisuseError
from unisono.model.ids import Address
from unisono.model.predicate import NO_EVENT, Filter, Summary
from unisono.model.time import Micros
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.messages import Attach, Attached, Churn, Tally
from unisono.protocols.regions.neighbours import RegionAround, RegionOutbox
from unisono.protocols.regions.ports import StreamPorts

TIDY = "tidy"
TIDY_US = 5_000_000
"""What is wanted no more is told upwards after this, together."""
CHURN = "churn"
CHURN_US = 1_000_000
HOUR_US = 3_600_000_000


class _Pending:
    """A turn of a neighbour below that is not answered yet; `needs` is the turn of ours that covers it."""

    __slots__ = ("needs", "turn", "wanted")

    def __init__(self, turn: int, wanted: Filter, needs: int) -> None:
        self.turn, self.wanted, self.needs = turn, wanted, needs


class RegionInterests:
    """The subscriptions of one broker's neighbours."""

    def __init__(
        self, me: Address, config: RegionsConfig, around: RegionAround, ports: StreamPorts, out: RegionOutbox
    ) -> None:
        self._me, self._config, self._around, self._ports, self._out = me, config, around, ports, out
        self._turn = 1
        self._told: Filter = NO_EVENT  # in our latest turn
        self._answered: dict[Address, int] = {}  # by whom above, which turn
        self._reaches: dict[Address, bool] = {}
        self._pending: dict[Address, _Pending] = {}
        self._changes = 0.0  # per microsecond, averaged
        self._changed_at = Micros(0)
        self._is_stale = self._is_stirred = False

    @property
    def waiting(self) -> list[Address]:
        """Neighbours that are not told yet that they are attached."""
        return list(self._pending)

    @property
    def wanted(self) -> Filter:
        """What those above are told."""
        return self._told

    def link_up(self, peer: Address) -> None:
        """To those above we say at once what is wanted here."""
        if self._around.links[peer].side in ("parent", "peer"):
            self._answered[peer] = 0
            self._out.send(peer, self._attach())

    def link_lost(self, peer: Address) -> None:
        self._answered.pop(peer, None)
        self._reaches.pop(peer, None)
        self._pending.pop(peer, None)
        self._stale()
        self._settle()

    def on_attach(self, m: Attach) -> None:
        link = self._around.links[m.source]
        if m.turn <= link.turn:
            self._out.refuse(f"{m.source} attaches in turn {m.turn} after turn {link.turn}", "range")
            return
        link.turn, link.accepts_direct = m.turn, m.accepts_direct
        self._count(m.source, m.tally)
        if link.side == "peer":
            self._feed(m.source, m.wanted)
            self._out.send(m.source, Attached(self._me, m.turn))
            return
        wanted = m.wanted
        if link.is_active:
            wanted = together([link.wanted, m.wanted])
            self._around.feed(m.source, wanted)
        if self._told.covers(wanted):
            needs = self._turn
        else:
            self._tell(together([self._told, wanted]))
            needs = self._turn
        self._pending[m.source] = _Pending(m.turn, m.wanted, needs)
        self._settle()

    def on_attached(self, m: Attached) -> None:
        """Somebody above has answered a turn of ours."""
        if m.source not in self._answered or m.turn > self._turn:
            self._out.refuse(f"{m.source} answers turn {m.turn}, which nobody has asked it", "range")
            return
        self._answered[m.source] = max(self._answered[m.source], m.turn)
        self._reaches[m.source] = m.reaches_all
        if self._ports.since is None and not self._around.is_root:
            self._ports.since = self._out.now
        self._settle()

    def _settle(self) -> None:
        """Answers everybody whose turn is covered by one that all above us have answered."""
        if not self._around.is_root and self._around.parent is None:
            return
        known = min(self._answered.values(), default=self._turn)
        for peer in [peer for peer, pending in self._pending.items() if pending.needs <= known]:
            pending = self._pending.pop(peer)
            self._feed(peer, pending.wanted)
            if self._around.is_root and self._ports.since is None:
                self._ports.since = self._out.now
            self._out.send(peer, Attached(self._me, pending.turn, all(self._reaches.values())))
            self._stale()

    def _feed(self, peer: Address, wanted: Filter) -> None:
        was_active = self._around.links[peer].is_active
        self._around.feed(peer, wanted)
        if not was_active:
            self._ports.activate(peer)

    def _tell(self, wanted: Filter) -> None:
        self._turn += 1
        self._told = wanted
        for peer in self._answered:
            self._out.send(peer, self._attach())

    def _attach(self) -> Attach:
        return Attach(self._me, self._turn, self._told, self.tally())

    def _stale(self) -> None:
        if not self._is_stale:
            self._is_stale = True
            self._out.wake(TIDY, TIDY_US)

    def tidy(self) -> None:
        """Shrinks what has been told, where that is less than it was."""
        self._is_stale = False
        below = [(peer, link) for peer, link in self._around.links.items() if link.side in ("broker", "client")]
        wanted = [link.wanted for _, link in below if link.is_active]
        now_wanted = together([*wanted, *(pending.wanted for pending in self._pending.values())])
        if now_wanted != self._told and self._told.covers(now_wanted):
            self._tell(now_wanted)
            for pending in self._pending.values():
                pending.needs = self._turn

    # -- who comes and goes

    def on_churn(self, m: Churn) -> None:
        self._count(m.source, m.tally)

    def _count(self, peer: Address, tally: Tally) -> None:
        link = self._around.links[peer]
        if link.side in ("broker", "client") and link.tally != tally:
            link.tally = tally
            self._stir()

    def changed(self) -> None:
        """A client of ours has come or gone."""
        now = self._out.now
        self._changes = self._rate() + 1 / self._config.churn_us
        self._changed_at = now
        self._stir()

    def _rate(self) -> float:
        """Changes per microsecond; what happened long ago counts little."""
        age = (self._out.now - self._changed_at) / self._config.churn_us
        return self._changes * math.exp(-age)

    def _stir(self) -> None:
        if not self._is_stirred:
            self._is_stirred = True
            self._out.wake(CHURN, CHURN_US)

    def stirred(self) -> None:
        self._is_stirred = False
        if self._around.parent is not None:
            self._out.send(self._around.parent, Churn(self._me, self.tally()))

    def tally(self) -> Tally:
        """What is below us, ourselves included."""
        subscribers = hops = changes = 0
        brokers = 1
        for link in self._around.links.values():
            if link.side == "client" and not link.wanted.is_empty:
                subscribers, hops = subscribers + 1, hops + 1
            elif link.side == "broker":
                subscribers += link.tally.subscribers
                hops += link.tally.hops + link.tally.subscribers
                brokers += link.tally.brokers
                changes += link.tally.changes
        return Tally(subscribers, hops, brokers, changes + round(self._rate() * HOUR_US))


def together(filters: list[Filter]) -> Filter:
    """A filter of few boxes that covers all of these."""
    distinct = [wanted for wanted in dict.fromkeys(filters) if not wanted.is_empty]
    if len(distinct) == 1:
        return distinct[0]
    try:
        known = NO_EVENT
        for wanted in distinct:
            if not known.covers(wanted):
                known = known | wanted
        return known
    except MisuseError:  # too many boxes: wider ones
        summary = Summary()
        for place, wanted in enumerate(distinct):
            if not summary.filter.covers(wanted):
                summary.add(place, wanted)
        return summary.filter
