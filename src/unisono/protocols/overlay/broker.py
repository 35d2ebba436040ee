"""A broker of an acyclic overlay: content-based routing with one order for every pair of subscribers.

"Order at the top" (specs: content-order). A publication climbs towards the root only as far as somebody above wants
it. Subscribers below a broker it passes get it at once where nothing from above could be ordered differently, else when
the parent echoes it: the echo marks its place in the parent's stream. Publications from above are never delayed.

Assumed: brokers form a tree in which whoever dialled a link is its lower end, so everybody has at most one parent;
links are FIFO and reliable and report their own loss. A broker that restarts is a new broker. Promised: pairwise total
order and FIFO per publisher always, completeness without failures; what a failure costs is told to the subscribers.
"""

from typing import Any, TypeVar

from msgspec import Struct

from unisono.machine import Effect, Fired
from unisono.model.ids import Address, EventId
from unisono.model.time import Micros
from unisono.protocols.overlay.admission import is_own, why_not_published, why_not_routed
from unisono.protocols.overlay.detection import Detection
from unisono.protocols.overlay.events import EventLimits, flat
from unisono.protocols.overlay.forwarding import Forwarding
from unisono.protocols.overlay.messages import (
    Ack,
    Active,
    Adv,
    Cut,
    Denied,
    LinkDown,
    LinkUp,
    Missed,
    Nack,
    NotTaken,
    Ok,
    Open,
    Pub,
    Sub,
    Taken,
    Unadv,
    Unsub,
)
from unisono.protocols.overlay.publications import HELD, Publications
from unisono.protocols.overlay.state import Counters, Handshake, Link, Neighbours, Outbox, Publisher
from unisono.protocols.overlay.tables import Hop, Tables

_Routed = TypeVar("_Routed", Adv, Sub)
_NOBODY = Publisher()
"""Stands for a publisher that has advertised nothing: all it says is refused."""


class BrokerConfig(Struct, frozen=True):
    """One broker."""

    detection: Detection = "clients"
    """`exact` waits least and is right only if every client has one subscription."""
    covering: bool = False
    """A neighbour is not told of a subscription if it knows a wider one. Brokers then remember and compare less, and
    wait more often under `clients`: not every client behind a neighbour is known any more. The same everywhere."""
    held_us_max: Micros | None = None
    """A publication held longer is dropped where it waits, and subscribers are told; it is never emitted early."""
    pending_max: int = 100_000
    """Above this, local publishers wait in their buffers; broker links are always read, or echoes could not come."""
    buffer_max: int = 10_000
    """Publications of one local publisher that may wait; what comes on top is refused."""
    routes_per_client_max: int = 1_000
    """Subscriptions of one client, and its advertisements; every broker on the way keeps them."""
    limits: EventLimits = EventLimits()


class Broker:
    """One broker; brokers and clients are its peers, links are its driver's."""

    def __init__(self, me: Address, config: BrokerConfig = BrokerConfig()) -> None:
        self._me = me
        self._config = config
        self._around = Neighbours()
        self._links = self._around.links
        self._tables = Tables(config.covering)
        self._out = Outbox()
        self._publications = Publications(
            me, config.detection, config.held_us_max, self._tables, self._around, self._out
        )
        self._handshakes: dict[tuple[str, str], Handshake] = {}
        self._withdrawals = 0
        self._publishers: dict[Hop, Publisher] = {}
        # What arrived by a new way before the old way was withdrawn waits for that; there may be several new ways,
        # some of which will be withdrawn themselves.
        self._later_ads: dict[str, list[Adv]] = {}
        self._later_subs: dict[str, list[Sub]] = {}

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        self._out.effects = []
        match message:
            case Pub():
                self._on_pub(message, now)
            case Ack(source=source) | Nack(source=source) | Missed(source=source) if source != self.parent:
                self._out.refuse(f"only a parent says {type(message).__name__}, and {source} is not")
            case Ack(event=event):
                if self._publications.echoed(event, now):
                    self._drain(now)
            case Nack(event=event, reason=reason):
                self._publications.drop(event, reason)
                self._drain(now)
            case Missed(source=source, event=event, reason=reason):
                self._publications.missed(event, reason, source)
            case Adv():
                self._on_adv(message, now)
            case Unadv(source=source, ads=ads, lost=lost):
                self._on_unadv(source, ads, lost, now)
            case Sub():
                self._on_sub(message, now)
            case Unsub(source=source, sub=sub):
                self._on_unsub(source, sub, now)
            case Ok():
                self._on_ok(message, now)
            case Open(source=source):
                self._on_open(source, now)
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
    def counters(self) -> Counters:
        return self._publications.counters

    @property
    def pending(self) -> list[EventId]:
        """Publications that wait for their echo, or behind one that does."""
        return list(self._publications.pending)

    @property
    def subscriptions(self) -> int:
        """How many it knows of: what matching costs."""
        return len(self._tables.subs)

    @property
    def is_idle(self) -> bool:
        """Nothing pends, nothing is being agreed on, nobody's publications are buffered."""
        buffered = any(publisher.buffer for publisher in self._publishers.values())
        joining = any(not link.is_open or link.forwarding.confirming for link in self._links.values())
        return not (
            self._publications.pending or self._handshakes or buffered or joining or self._later_ads or self._later_subs
        )

    # -- publications, and what local publishers may send (section 6)

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
            return
        publisher = self._publishers.get(f"pub:{source}", _NOBODY)
        reason = why_not_published(source, event, publisher, self._tables, self._config.limits, self._config.buffer_max)
        if reason is not None:
            self._out.send(source, NotTaken(event.id, reason))
            self._out.refuse(reason)
            return
        publisher.last[event.publisher] = event.sequence
        publisher.buffer.append(event)
        self._admit(f"pub:{source}", now)

    def _deny(self, source: Address, name: str, reason: str) -> None:
        self._out.send(source, Denied(name, reason))
        self._out.refuse(reason)

    def _admit(self, hop: Hop, now: Micros) -> None:
        """Lets a local publisher's buffer out, in order, as far as its advertisements are open."""
        publisher = self._publishers[hop]
        while publisher.buffer and len(self._publications.pending) < self._config.pending_max:
            event = publisher.buffer[0]
            attributes = flat(event)
            if not any(
                ad.filter.matches(attributes)
                for name, ad in self._tables.ads.items()
                if ad.hop == hop and name not in publisher.opening
            ):
                break
            publisher.buffer.pop(0)
            self._out.send(Address(hop.removeprefix("pub:")), Taken(event.id))
            self._publications.pass_on(event, hop, echo=False, barrier=False, now=now)
        if not publisher.buffer:
            closing = tuple(ad for ad in publisher.closing if ad not in publisher.opening)
            for ad in closing:
                del publisher.closing[ad]
            if closing:
                self._withdraw(hop, closing, lost=False, now=now)

    def _drain(self, now: Micros) -> None:
        """Emits what has become ready, and goes on with what waited for that."""
        self._publications.release()
        for key in list(self._handshakes):
            self._examine(key, now)
        for hop, publisher in list(self._publishers.items()):
            if publisher.buffer:
                self._admit(hop, now)

    # -- advertisements (section 7.1)

    def _on_adv(self, message: Adv, now: Micros) -> None:
        source, ad = message.source, message.ad
        is_broker = source in self._links
        hop = source if is_broker else f"pub:{source}"
        is_known = ad in self._tables.ads
        if not is_broker:
            count = sum(1 for other in self._tables.ads.values() if other.hop == hop)
            reason = why_not_routed(source, ad, message.filter, is_known, count, self._config.routes_per_client_max)
            if reason is None and not is_own(source, message.publisher):
                reason = f"{source} cannot advertise for {message.publisher}"
            if reason is not None:
                self._deny(source, ad, reason)
                return
        elif is_known:
            self._later_ads.setdefault(ad, []).append(message)
            return
        self._tables.add_ad(ad, hop, message.publisher, message.filter)
        missing: dict[Address, int] = {}
        for peer, link in self._links.items():
            if peer != source:
                turn = self._announce(peer, link, ad)
                # Towards a link that is still joining, saying Open waits for the confirmation instead of us.
                if link.said_open:
                    missing[peer] = turn
                else:
                    link.announced[ad] = turn
        if is_broker and self._links[source].is_open:
            self._tell_of(source, self._links[source].forwarding.take(self._tables, self._tables.subs))
        elif not is_broker:
            self._publishers.setdefault(hop, Publisher()).opening[ad] = None
        self._shake(("A", ad), Handshake(missing, message.turn), now)

    def _announce(self, peer: Address, link: Link, name: str) -> int:
        link.turns += 1
        ad = self._tables.ads[name]
        self._out.send(peer, Adv(self._me, name, ad.publisher, ad.filter, link.turns))
        return link.turns

    def _on_unadv(self, source: Address, ads: tuple[str, ...], lost: bool, now: Micros) -> None:
        hop = source if source in self._links else f"pub:{source}"
        for ad in ads:
            _forget_later(self._later_ads, ad, source)
        going = self._being_withdrawn()
        known = tuple(
            ad for ad in ads if ad in self._tables.ads and self._tables.ads[ad].hop == hop and ad not in going
        )
        if hop not in self._publishers:
            if known:
                self._withdraw(hop, known, lost, now)
            return
        for ad in known:  # buffered publications still go out first
            if ad not in self._publishers[hop].closed:
                self._publishers[hop].closing[ad] = self._publishers[hop].closed[ad] = None
        self._admit(hop, now)

    def _withdraw(self, hop: Hop, ads: tuple[str, ...], lost: bool, now: Micros) -> None:
        """Forgets advertisements once all that pends now is done: else a withdrawal overtakes a held publication."""
        self._withdrawals += 1
        self._shake(("U", str(self._withdrawals)), Handshake({}, 0, ads, lost, hop), now)

    def _being_withdrawn(self) -> dict[str, None]:
        return {ad: None for handshake in self._handshakes.values() for ad in handshake.ads}

    def _withdrawn(self, handshake: Handshake, now: Micros) -> None:
        gone = []
        for ad in handshake.ads:
            if ad in self._tables.ads:
                gone.append(self._tables.remove_ad(ad))
                if handshake.hop in self._publishers:
                    self._publishers[handshake.hop].closed.pop(ad, None)
                self._handshakes.pop(("A", ad), None)
        self._forget_publisher(handshake.hop)
        for peer, link in self._links.items():
            if peer != handshake.hop:
                self._out.send(peer, Unadv(self._me, handshake.ads, handshake.lost))
                for ad in handshake.ads:
                    link.announced.pop(ad, None)
        if handshake.lost:
            self._tell_cut([(ad.publisher, ad.last, ad.filter) for ad in gone])
        for peer in list(self._links):
            self._maybe_open(peer, now)
        for ad in handshake.ads:
            for later in self._later_ads.pop(ad, []):
                self._on_adv(later, now)  # the first is taken, the others wait on

    def _forget_publisher(self, hop: Hop) -> None:
        """A client that has gone and whose last advertisement is withdrawn."""
        publisher = self._publishers.get(hop)
        if publisher is not None and publisher.gone and not publisher.buffer and not self._tables.from_hop(hop):
            del self._publishers[hop]

    def _tell_cut(self, gone: list[Any]) -> None:
        """One notice per client: which publishers it could hear until now, and their last events seen here."""
        cut: dict[Address, dict[str, int]] = {}
        for sub in self._tables.subs.values():
            if sub.hop.startswith("sub:"):
                for publisher, last, filter in gone:
                    if sub.filter.overlaps(filter):
                        mine = cut.setdefault(Address(sub.hop.removeprefix("sub:")), {})
                        mine[publisher] = max(last, mine.get(publisher, 0))
        for client, publishers in cut.items():
            self._out.send(client, Cut(tuple(publishers.items())))

    # -- subscriptions (section 7.2)

    def _on_sub(self, message: Sub, now: Micros) -> None:
        source, name = message.source, message.sub
        is_broker = source in self._links
        hop = source if is_broker else f"sub:{source}"
        is_known = name in self._tables.subs
        if not is_broker:
            count = sum(1 for _ in self._tables.subs_of_hop(hop))
            reason = why_not_routed(source, name, message.filter, is_known, count, self._config.routes_per_client_max)
            if reason is None and not is_own(source, message.client):
                reason = f"{source} cannot subscribe for {message.client}"
            if reason is not None:
                self._deny(source, name, reason)
                return
        elif is_known:
            self._later_subs.setdefault(name, []).append(message)
            return
        self._tables.add_sub(name, hop, message.client, message.filter)
        missing: dict[Address, int] = {}
        for peer, link in self._links.items():
            if link.is_open:
                self._tell_of(peer, link.forwarding.take(self._tables, (name,)))
                if link.forwarding.awaits(name):
                    missing[peer] = 0  # `confirm` knows the turn
                    if not is_broker:
                        self._publications.inactive[name, peer] = None
        self._shake(("S", name), Handshake(missing, message.turn), now)
        if not is_broker and not missing:
            self._out.send(source, Active(name))

    def _tell_of(self, peer: Address, names: list[str]) -> None:
        forwarding = self._links[peer].forwarding
        for name in names:
            sub = self._tables.subs[name]
            self._out.send(peer, Sub(self._me, name, sub.client, sub.filter, forwarding.turn(name)))

    def _on_unsub(self, source: Address, name: str, now: Micros) -> None:
        hop = source if source in self._links else f"sub:{source}"
        _forget_later(self._later_subs, name, source)
        if name in self._tables.subs and self._tables.subs[name].hop == hop:
            self._forget_subs([name], now)

    def _forget_subs(self, names: list[str], now: Micros) -> None:
        """Together, so that one that ends is not put in the place of another."""
        for name in names:
            self._tables.remove_sub(name)
            self._handshakes.pop(("S", name), None)
        for peer, link in self._links.items():
            for name in names:
                self._publications.inactive.pop((name, peer), None)
            change = link.forwarding.forget(self._tables, names)
            self._tell_of(peer, change.told)
            for name in change.withdrawn:
                self._out.send(peer, Unsub(self._me, name))
            for name in change.settled:
                self._confirmed(name, peer, now)
        for name in names:
            for later in self._later_subs.pop(name, []):
                self._on_sub(later, now)

    # -- handshakes (section 7.3)

    def _on_ok(self, message: Ok, now: Micros) -> None:
        source, key = message.source, (message.kind, message.key)
        link = self._links.get(source)
        if link is None:
            return
        if message.kind == "S":
            for name in link.forwarding.confirm(message.key, message.turn):
                self._confirmed(name, source, now)
        elif link.announced.get(message.key) == message.turn:
            del link.announced[message.key]
            self._maybe_open(source, now)
        elif key in self._handshakes and self._handshakes[key].missing.get(source) == message.turn:
            del self._handshakes[key].missing[source]
            self._examine(key, now)

    def _confirmed(self, name: str, peer: Address, now: Micros) -> None:
        """Everything behind a neighbour knows a subscription, or one that stands for it."""
        if (name, peer) in self._publications.inactive:
            del self._publications.inactive[name, peer]
            if not any((name, other) in self._publications.inactive for other in self._links):
                self._out.send(Address(self._tables.subs[name].hop.removeprefix("sub:")), Active(name))
        if ("S", name) in self._handshakes:
            self._handshakes["S", name].missing.pop(peer, None)
            self._examine(("S", name), now)

    def _shake(self, key: tuple[str, str], handshake: Handshake, now: Micros) -> None:
        self._handshakes[key] = handshake
        self._examine(key, now)

    def _examine(self, key: tuple[str, str], now: Micros) -> None:
        handshake = self._handshakes.get(key)
        if handshake is None or handshake.missing:
            return
        if handshake.snapshot is None:
            # Taken at the last confirmation, not at the start: what a neighbour decided without the new knowledge came
            # in front of its confirmation, and must be in order here before we confirm in turn.
            handshake.snapshot = dict.fromkeys(self._publications.pending)
        if any(identity in self._publications.pending for identity in handshake.snapshot):
            return
        del self._handshakes[key]
        kind, name = key
        if kind == "U":
            self._withdrawn(handshake, now)
            return
        hop = self._tables.ads[name].hop if kind == "A" else self._tables.subs[name].hop
        if hop in self._links:
            self._out.send(Address(hop), Ok(self._me, "A" if kind == "A" else "S", name, handshake.turn))
        elif kind == "A" and hop in self._publishers:
            del self._publishers[hop].opening[name]
            self._admit(hop, now)

    # -- links that come and go (section 8)

    def _on_link_up(self, peer: Address, is_parent: bool, now: Micros) -> None:
        if peer in self._links or (is_parent and self.parent is not None):
            self._out.refuse(f"a second link to {peer}, or a second parent, would not be a tree")
            return
        link = self._links[peer] = Link(Forwarding(peer, self._config.covering))
        if is_parent:
            self._around.parent = peer
        # What is being withdrawn is not announced: it would come back to its own publishers when a lost link heals
        # before its flush is done, and nothing of it can cross the new link any more.
        going = self._being_withdrawn()
        for name in self._tables.ads:
            if name not in going:
                link.announced[name] = self._announce(peer, link, name)
        self._maybe_open(peer, now)

    def _maybe_open(self, peer: Address, now: Micros) -> None:
        link = self._links[peer]
        if not link.announced and not link.said_open:
            link.said_open = True
            self._out.send(peer, Open(self._me))
            self._opened(peer)

    def _on_open(self, source: Address, now: Micros) -> None:
        if source in self._links:
            self._links[source].heard_open = True
            self._opened(source)

    def _opened(self, peer: Address) -> None:
        link = self._links[peer]
        if link.is_open:
            told = link.forwarding.take(self._tables, self._tables.subs)
            link.forwarding.confirming.update(dict.fromkeys(told))
            self._tell_of(peer, told)

    def _on_link_down(self, peer: Address, now: Micros) -> None:
        if peer not in self._links:
            self._on_client_gone(peer, now)
            return
        del self._links[peer]
        self._publications.forget(peer)
        for name in [name for name, to in self._publications.inactive if to == peer]:
            self._confirmed(name, peer, now)  # nothing comes from there any more
        if peer == self.parent:
            self._around.parent = None
            self._publications.give_up_echoes(f"the link to {peer} was lost")
        for name in list(self._later_ads):
            _forget_later(self._later_ads, name, peer)
        for name in list(self._later_subs):
            _forget_later(self._later_subs, name, peer)
        self._forget_subs([name for name, _ in self._tables.subs_of_hop(peer)], now)
        for key, handshake in list(self._handshakes.items()):
            handshake.missing.pop(peer, None)
            self._examine(key, now)
        going = self._being_withdrawn()
        ads = tuple(name for name, ad in self._tables.ads.items() if ad.hop == peer and name not in going)
        if ads:
            self._withdraw(peer, ads, lost=True, now=now)
        self._drain(now)

    def _on_client_gone(self, client: Address, now: Micros) -> None:
        self._forget_subs([name for name, _ in self._tables.subs_of_hop(f"sub:{client}")], now)
        hop = f"pub:{client}"
        if hop in self._publishers:
            self._publishers[hop].gone = True
        ads = tuple(name for name, ad in self._tables.ads.items() if ad.hop == hop)
        self._on_unadv(client, ads, lost=False, now=now)
        self._forget_publisher(hop)


def _forget_later(later: dict[str, list[_Routed]], name: str, source: Address) -> None:
    """What a source announced and has withdrawn, or what came by a link that is lost."""
    left = [message for message in later.pop(name, []) if message.source != source]
    if left:
        later[name] = left
