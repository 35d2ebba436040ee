"""A broker of an acyclic overlay: content-based routing with one order for every pair of subscribers.

"Order at the top" (specs: content-order). A publication climbs towards the root only as far as somebody above wants
it. Subscribers below a broker it passes get it at once where nothing from above could be ordered differently, else when
the parent echoes it: the echo marks its place in the parent's stream. Publications from above are never delayed.

Assumed: brokers form a tree in which whoever dialled a link is its lower end, so everybody has at most one parent;
links are FIFO and reliable and report their own loss. A broker that restarts is a new broker. Promised: pairwise total
order and FIFO per publisher always, completeness without failures; what a failure costs is told to the subscribers.

Here is what a broker is told; how publications pass it is `publications`, who may send what `local`, and how brokers
come to know of advertisements and subscriptions `routes`.
"""

from typing import Any

from unisono.machine import Effect, Fired
from unisono.model.ids import Address, EventId
from unisono.model.time import Micros
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.forwarding import Forwarding
from unisono.protocols.overlay.local import LocalPublishers
from unisono.protocols.overlay.messages import (
    Ack,
    Adv,
    HeardAgain,
    LinkDown,
    LinkUp,
    Nack,
    Ok,
    OverlayMissed,
    OverlayOpen,
    Pub,
    Sub,
    Unadv,
    Unsub,
)
from unisono.protocols.overlay.publications import HELD, Publications
from unisono.protocols.overlay.routes import Routes
from unisono.protocols.overlay.state import BrokerEffects, Link, Neighbours, OverlayCounters
from unisono.protocols.overlay.tables import Tables


class Broker:
    """One broker; brokers and clients are its peers, links are its driver's."""

    def __init__(self, me: Address, config: BrokerConfig = BrokerConfig()) -> None:
        self._me = me
        self._config = config
        self._around = Neighbours()
        self._links = self._around.links
        self._tables = Tables(config.covering)
        self._out = BrokerEffects()
        self._publications = Publications(
            me, config.detection, config.held_us_max, self._tables, self._around, self._out
        )
        self._local = LocalPublishers(config, self._tables, self._publications, self._out)
        self._routes = Routes(me, config, self._tables, self._around, self._publications, self._local, self._out)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        self._out.effects = []
        match message:
            case Pub():
                self._on_pub(message, now)
            case Ack(source=source) | Nack(source=source) | OverlayMissed(source=source) if source != self.parent:
                self._out.refuse(f"only a parent says {type(message).__name__}, and {source} is not")
            case Ack(event=event):
                if self._publications.echoed(event, now):
                    self._drain(now)
            case Nack(event=event, reason=reason):
                self._publications.drop(event, reason)
                self._drain(now)
            case OverlayMissed(source=source, event=event, reason=reason):
                self._publications.missed(event, reason, source)
            case Adv():
                self._routes.on_adv(message, now)
            case Unadv(source=source, ads=ads, lost=lost):
                self._routes.on_unadv(source, ads, lost, now)
            case Sub():
                self._routes.on_sub(message, now)
            case Unsub(source=source, sub=sub):
                self._routes.on_unsub(source, sub, now)
            case Ok():
                self._routes.on_ok(message, now)
            case OverlayOpen(source=source):
                self._routes.on_open(source, now)
            case HeardAgain(source=source, ads=ads):
                self._routes.on_heard_again(source, ads)
            case LinkUp(peer=peer, is_parent=is_parent):
                self._on_link_up(peer, is_parent, now)
            case LinkDown(peer=peer):
                self._on_link_down(peer, now)
            case Fired(key=key) if key == HELD:
                self._publications.expire(now)
                self._drain(now)
                self._publications.watch()
            case _:
                self._out.refuse(f"{type(message).__name__} is nothing a broker understands")
        return self._out.effects

    @property
    def parent(self) -> Address | None:
        return self._around.parent

    @property
    def counters(self) -> OverlayCounters:
        return self._publications.counters

    @property
    def refusals(self) -> dict[str, int]:
        """How often something was refused, by code."""
        return self._out.refusals

    @property
    def pending(self) -> list[EventId]:
        """Publications that wait for their echo, or for one that does."""
        return list(self._publications.pending)

    @property
    def subscriptions(self) -> int:
        """How many it knows of: what matching costs."""
        return len(self._tables.subs)

    @property
    def is_idle(self) -> bool:
        """Nothing pends, nothing is being agreed on, nobody's publications are buffered."""
        buffered = any(True for _ in self._local.waiting())
        joining = any(not link.is_open or link.forwarding.confirming for link in self._links.values())
        return not (self._publications.pending or self._routes.is_busy or buffered or joining)

    # -- publications (section 6)

    def _on_pub(self, message: Pub, now: Micros) -> None:
        source, event = message.source, message.event
        link = self._links.get(source)
        if link is not None:
            if link.forwarding.confirming:
                # A link just healed: what comes before our subscriptions are confirmed has no safe place here.
                if message.echo:
                    self._out.send(source, Nack(self._me, event.id, "the link is being healed"))
                return
            self._publications.pass_on(event, source, message.echo, message.barrier, now)
        elif self._local.take(message):
            self._routes.admit(f"pub:{source}", now)

    def _drain(self, now: Micros) -> None:
        """Emits what has become ready, and goes on with what waited for that."""
        self._publications.release()
        self._routes.go_on(now)

    # -- links that come and go (section 8)

    def _on_link_up(self, peer: Address, is_parent: bool, now: Micros) -> None:
        if peer in self._links or (is_parent and self.parent is not None):
            self._out.refuse(f"a second link to {peer}, or a second parent, would not be a tree")
            return
        self._links[peer] = Link(Forwarding(peer, self._config.covering))
        if is_parent:
            self._around.parent = peer
        self._routes.join(peer, now)

    def _on_link_down(self, peer: Address, now: Micros) -> None:
        if peer not in self._links:
            self._routes.client_gone(peer, now)
            return
        was_heard = self._links.pop(peer).is_heard
        self._publications.forget(peer)
        self._routes.wait_no_more(peer, now)
        if peer == self.parent:
            self._around.parent = None
            self._publications.give_up_echoes(f"the link to {peer} was lost")
        self._routes.lose(peer, was_heard, now)
        self._drain(now)
