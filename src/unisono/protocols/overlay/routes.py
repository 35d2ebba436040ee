"""Who knows of which advertisement and subscription: announcing, confirming, withdrawing (section 7).

Nothing is in force before everybody who has to has confirmed it, and nobody confirms before what was pending is in
order (section 7.3): else a broker could decide without the new knowledge behind one that has it. A link joins by the
same handshakes: each end says Open when all that it announced is confirmed (section 8).
"""

from typing import TypeVar

from unisono.model.ids import Address
from unisono.model.predicate import Filter
from unisono.model.time import Micros
from unisono.protocols.overlay.admission import size_of, why_not_routed
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.local import LocalPublishers
from unisono.protocols.overlay.messages import (
    Active,
    Adv,
    HeardAgain,
    Ok,
    OverlayDenied,
    OverlayOpen,
    Sub,
    Unadv,
    Unsub,
)
from unisono.protocols.overlay.notices import Notices
from unisono.protocols.overlay.publications import Publications
from unisono.protocols.overlay.state import BrokerEffects, Handshake, Link, Neighbours
from unisono.protocols.overlay.tables import Hop, Tables

_Routed = TypeVar("_Routed", Adv, Sub)


class Routes:
    """The handshakes of one broker."""

    def __init__(
        self,
        me: Address,
        config: BrokerConfig,
        tables: Tables,
        around: Neighbours,
        publications: Publications,
        local: LocalPublishers,
        out: BrokerEffects,
    ) -> None:
        self._me, self._config, self._tables, self._links = me, config, tables, around.links
        self._publications, self._local, self._out = publications, local, out
        self._notices = Notices(tables, out)
        self._handshakes: dict[tuple[str, str], Handshake] = {}
        self._flushing: dict[tuple[str, str], None] = {}  # those that wait for publications only
        self._bytes: dict[Hop, int] = {}  # what the filters of our clients take
        self._withdrawals = 0
        # What arrived by a new way before the old way was withdrawn waits for that; there may be several new ways,
        # some of which will be withdrawn themselves.
        self._later_ads: dict[str, list[Adv]] = {}
        self._later_subs: dict[str, list[Sub]] = {}

    @property
    def is_busy(self) -> bool:
        """Something is being agreed on."""
        return bool(self._handshakes or self._later_ads or self._later_subs)

    def go_on(self, now: Micros) -> None:
        """With what waited for publications that have been emitted since."""
        for key in list(self._flushing):
            self._examine(key, now)
        for hop in self._local.waiting():
            self.admit(hop, now)

    def admit(self, hop: Hop, now: Micros) -> None:
        """Goes on with a local publisher: its buffer, then the advertisements that it has withdrawn."""
        closing = self._local.admit(hop, now)
        if closing:
            self._withdraw(hop, closing, lost=False, now=now)

    def _admits(self, message: Adv | Sub, name: str, own: str, hop: Hop, is_known: bool, count: int) -> bool:
        """Whether a client's announcement is taken; if not, the client is told why."""
        held = self._bytes.get(hop, 0)
        refusal = why_not_routed(message, name, own, is_known, count, held, self._config)
        if refusal is None:
            self._bytes[hop] = held + size_of(message.filter)
            return True
        self._out.send(message.source, OverlayDenied(name, refusal.reason, refusal.code))
        self._out.refuse(refusal.reason, refusal.code)
        return False

    def _release(self, hop: Hop, filter: Filter) -> None:
        if hop in self._bytes:
            self._bytes[hop] -= size_of(filter)
            if not self._bytes[hop]:
                del self._bytes[hop]

    # -- advertisements (section 7.1)

    def on_adv(self, message: Adv, now: Micros) -> None:
        source, ad = message.source, message.ad
        is_broker = source in self._links
        hop = source if is_broker else f"pub:{source}"
        is_known = ad in self._tables.ads
        if not is_broker:
            if not self._admits(message, ad, message.publisher, hop, is_known, len(self._tables.ads_of_hop(hop))):
                return
        elif is_known:
            self._later_ads.setdefault(ad, []).append(message)
            return
        last = message.last
        if not is_broker:
            last = self._local.advertise(hop, ad, message.publisher, message.filter)
        elif not self._links[source].is_heard:
            last = self._notices.last_of(message.publisher)
        self._tables.add_ad(ad, hop, message.publisher, message.filter, last)
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
        self._shake(("A", ad), Handshake(missing, message.turn), now)

    def _announce(self, peer: Address, link: Link, name: str) -> int:
        link.turns += 1
        ad = self._tables.ads[name]
        self._out.send(peer, Adv(self._me, name, ad.publisher, ad.filter, link.turns, ad.progress.last))
        return link.turns

    def on_unadv(self, source: Address, ads: tuple[str, ...], lost: bool, now: Micros) -> None:
        hop = source if source in self._links else f"pub:{source}"
        for ad in ads:
            _forget_later(self._later_ads, ad, source)
        going = self._being_withdrawn()
        known = tuple(
            ad for ad in ads if ad in self._tables.ads and self._tables.ads[ad].hop == hop and ad not in going
        )
        if hop not in self._local:
            if known or (lost and source in self._links):
                self._withdraw(hop, known, lost, now)
            return
        self._local.close(hop, known)
        self.admit(hop, now)

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
                self._release(handshake.hop, gone[-1].filter)
                self._local.withdrawn(handshake.hop, ad)
                self._handshakes.pop(("A", ad), None)
        self._local.forget(handshake.hop)
        for peer, link in self._links.items():
            if peer != handshake.hop:
                self._out.send(peer, Unadv(self._me, handshake.ads, handshake.lost))
                for ad in handshake.ads:
                    link.announced.pop(ad, None)
        if handshake.lost:
            self._notices.cut(gone)
        for peer in list(self._links):
            self._maybe_open(peer, now)
        for ad in handshake.ads:
            for later in self._later_ads.pop(ad, []):
                self.on_adv(later, now)  # the first is taken, the others wait on

    # -- subscriptions (section 7.2)

    def on_sub(self, message: Sub, now: Micros) -> None:
        source, name = message.source, message.sub
        is_broker = source in self._links
        hop = source if is_broker else f"sub:{source}"
        is_known = name in self._tables.subs
        if not is_broker:
            if not self._admits(message, name, message.client, hop, is_known, len(self._tables.subs_of_hop(hop))):
                return
        elif is_known:
            self._later_subs.setdefault(name, []).append(message)
            return
        self._tables.add_sub(name, hop, message.client, message.filter).since = self._notices.cuts
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

    def on_unsub(self, source: Address, name: str, now: Micros) -> None:
        hop = source if source in self._links else f"sub:{source}"
        _forget_later(self._later_subs, name, source)
        if name in self._tables.subs and self._tables.subs[name].hop == hop:
            self._forget_subs([name], now)

    def _forget_subs(self, names: list[str], now: Micros) -> None:
        """Together, so that one that ends is not put in the place of another."""
        for name in names:
            gone = self._tables.remove_sub(name)
            self._release(gone.hop, gone.filter)
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
            self._maybe_heard(peer)
        for name in names:
            for later in self._later_subs.pop(name, []):
                self.on_sub(later, now)

    # -- handshakes (section 7.3)

    def on_ok(self, message: Ok, now: Micros) -> None:
        source, key = message.source, (message.kind, message.key)
        link = self._links.get(source)
        if link is None:
            return
        if message.kind == "S":
            for name in link.forwarding.confirm(message.key, message.turn):
                self._confirmed(name, source, now)
            self._maybe_heard(source)
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
        self._flushing.pop(key, None)
        if handshake is None or handshake.missing:
            return
        if handshake.snapshot is None:
            # Taken at the last confirmation, not at the start: what a neighbour decided without the new knowledge came
            # in front of its confirmation, and must be in order here before we confirm in turn.
            handshake.snapshot = dict.fromkeys(self._publications.pending)
        if any(identity in self._publications.pending for identity in handshake.snapshot):
            self._flushing[key] = None
            return
        del self._handshakes[key]
        kind, name = key
        if kind == "U":
            self._withdrawn(handshake, now)
            return
        hop = self._tables.ads[name].hop if kind == "A" else self._tables.subs[name].hop
        if hop in self._links:
            self._out.send(Address(hop), Ok(self._me, "A" if kind == "A" else "S", name, handshake.turn))
        elif kind == "A" and hop in self._local:
            self._local.opened(hop, name)
            self.admit(hop, now)

    # -- links and clients that come and go (section 8)

    def join(self, peer: Address, now: Micros) -> None:
        """Announces what is advertised to a new neighbour."""
        link = self._links[peer]
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
            self._out.send(peer, OverlayOpen(self._me))
            self._opened(peer)

    def on_open(self, source: Address, now: Micros) -> None:
        if source in self._links:
            self._links[source].heard_open = True
            self._opened(source)

    def _opened(self, peer: Address) -> None:
        link = self._links[peer]
        if link.is_open:
            told = link.forwarding.take(self._tables, self._tables.subs)
            link.forwarding.confirming.update(dict.fromkeys(told))
            self._tell_of(peer, told)
            self._maybe_heard(peer)

    def _maybe_heard(self, peer: Address) -> None:
        """When a link has opened and we are deaf to it no longer, all on our side learn whom they can hear."""
        link = self._links[peer]
        if link.is_open and not link.forwarding.confirming and not link.is_heard:
            link.is_heard = True
            self._tell_heard(peer, tuple(self._tables.ads_of_hop(peer)))

    def on_heard_again(self, source: Address, ads: tuple[str, ...]) -> None:
        if source in self._links:
            self._tell_heard(source, ads)

    def _tell_heard(self, source: Address, ads: tuple[str, ...]) -> None:
        behind = self._tables.ads_of_hop(source)
        known = tuple(ad for ad in ads if ad in behind)
        if known:
            self._notices.heard_again(self._tables.ads[ad] for ad in known)
            for peer in self._links:
                if peer != source:
                    self._out.send(peer, HeardAgain(self._me, known))

    def wait_no_more(self, peer: Address, now: Micros) -> None:
        """For the confirmations of a neighbour whose link is lost: of subscriptions, without which nobody hears."""
        for name in [name for name, to in self._publications.inactive if to == peer]:
            self._confirmed(name, peer, now)  # nothing comes from there any more

    def lose(self, peer: Address, was_heard: bool, now: Micros) -> None:
        """Forgets all that came by a link that is lost; if nothing had been heard over it, nobody has to be told."""
        for name in list(self._later_ads):
            _forget_later(self._later_ads, name, peer)
        for name in list(self._later_subs):
            _forget_later(self._later_subs, name, peer)
        self._forget_subs(list(self._tables.subs_of_hop(peer)), now)
        for key, handshake in list(self._handshakes.items()):
            handshake.missing.pop(peer, None)
            self._examine(key, now)
        going = self._being_withdrawn()
        ads = tuple(name for name in self._tables.ads_of_hop(peer) if name not in going)
        if ads or was_heard:
            self._withdraw(peer, ads, lost=was_heard, now=now)

    def client_gone(self, client: Address, now: Micros) -> None:
        self._forget_subs(list(self._tables.subs_of_hop(f"sub:{client}")), now)
        hop = f"pub:{client}"
        self._local.leave(hop)
        ads = tuple(self._tables.ads_of_hop(hop))
        self.on_unadv(client, ads, lost=False, now=now)
        self._local.forget(hop)


def _forget_later(later: dict[str, list[_Routed]], name: str, source: Address) -> None:
    """What a source announced and has withdrawn, or what came by a link that is lost."""
    left = [message for message in later.pop(name, []) if message.source != source]
    if left:
        later[name] = left
