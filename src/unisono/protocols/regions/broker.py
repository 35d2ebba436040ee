"""A broker of a hierarchy: subscriptions go up, publications up and down, and what is direct is cut out below.

Every region has one or more trees of brokers; their roots are all connected with each other. A publication climbs to
the root above its publisher, goes down from every broker it passes to whoever wants it, and from the root to every
other root that wants it. Publishers count who is interested (`discovery`) and connect to some of those directly; a
broker that is such a target takes the stream from there (`ports`).

Assumed: links are FIFO and reliable and report their own loss; nothing of a lost link is handled after the news of it.
A broker that restarts is a new broker. Promised: each publisher in its order, nothing twice, and nothing missing
without a word, through crashes, moves and every change between overlay and direct connections.

Here is what a broker is told; how streams pass it is `ports`, who wants what `interests`, who is counted `discovery`.
"""

from typing import Any

from unisono.errors import MisuseError
from unisono.machine import Effect, Fired
from unisono.model.ids import Address
from unisono.model.predicate import Filter, canonical
from unisono.model.time import Micros
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.discovery import Discovery
from unisono.protocols.regions.interests import CHURN, TIDY, RegionInterests
from unisono.protocols.regions.messages import (
    Attach,
    Attached,
    Churn,
    CloseStream,
    CountEntourage,
    CountReply,
    DirectLost,
    DirectSaid,
    EntourageTold,
    OpenStream,
    RegionLinkDown,
    RegionLinkUp,
    RegionSaid,
    Reopen,
    ReplayStream,
    StreamGap,
    StreamItem,
    StreamSaid,
)
from unisono.protocols.regions.neighbours import RegionAround, RegionOutbox
from unisono.protocols.regions.ports import StreamPorts
from unisono.protocols.regions.streams import PortCounters, StreamPort
from unisono.structures.content import is_own, why_not


class RegionBroker:
    """One broker; `is_root` says that other roots are its peers and nobody is above it."""

    def __init__(self, me: Address, is_root: bool, config: RegionsConfig = RegionsConfig()) -> None:
        self._me, self._config = me, config
        self._out = RegionOutbox()
        self._around = RegionAround(me, is_root)
        self._ports = StreamPorts(me, config, self._around, self._out, self)
        self._interests = RegionInterests(me, config, self._around, self._ports, self._out)
        self._discovery = Discovery(me, config, self._around, self._ports, self._interests, self._out)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        self._out.begin(now)
        match message:
            case DirectSaid(source=source, stream=stream):
                if source != stream:
                    self._out.refuse(f"{source} is not {stream}, and speaks for it", "forged")
                else:
                    self._from_publisher(message)
            case RegionSaid(source=source):
                if source not in self._around.links:
                    if not self._ports.replay_directly(message):
                        self._out.refuse(f"{source} is no neighbour", "protocol")
                elif not self._is_forged(message):
                    self._from_neighbour(message)
            case RegionLinkUp(peer=peer, side=side):
                self._on_link_up(peer, side)
            case RegionLinkDown(peer=peer):
                self._on_link_down(peer)
            case DirectLost(peer=peer):
                self._ports.direct_lost(peer)
            case Fired(key=key):
                self._on_fired(key)
            case _:
                self._out.refuse(f"{type(message).__name__} is nothing a broker understands")
        self._ports.flush()
        return self._out.effects

    # -- what drivers look at

    @property
    def parent(self) -> Address | None:
        return self._around.parent

    @property
    def is_root(self) -> bool:
        return self._around.is_root

    @property
    def counters(self) -> PortCounters:
        return self._ports.counters

    @property
    def refusals(self) -> dict[str, int]:
        """How often something was refused, by code."""
        return self._out.refusals

    @property
    def ports(self) -> dict[Address, StreamPort]:
        return self._ports.ports

    @property
    def links(self) -> dict[Address, str]:
        """Who is around, and what they are to us."""
        return {peer: link.side for peer, link in self._around.links.items()}

    @property
    def waiting(self) -> list[Address]:
        return self._interests.waiting

    @property
    def entourages(self) -> dict[Address, EntourageTold]:
        """What publishers that are connected here say of their direct connections."""
        return self._discovery.told

    @property
    def rounds(self) -> int:
        return len(self._discovery.rounds)

    def willing(self, is_willing: bool) -> None:
        """Whether it takes direct connections and lets itself be counted."""
        self._ports.willing = is_willing

    # -- what is said

    def _from_publisher(self, message: DirectSaid) -> None:
        if not self._ports.handle(message):
            self._out.refuse(f"{type(message).__name__} is for a publisher")

    def _from_neighbour(self, message: RegionSaid) -> None:
        match message:
            case Attach():
                self._interests.on_attach(message)
            case Attached():
                self._interests.on_attached(message)
            case Churn():
                self._interests.on_churn(message)
            case Reopen(stream=stream):
                self._ports.reopen(stream)
            case CountEntourage():
                self._discovery.on_count(message)
            case CountReply():
                self._discovery.on_reply(message)
            case EntourageTold():
                self._discovery.on_told(message)
            case StreamSaid():
                if not self._ports.handle(message):
                    self._out.refuse(f"{type(message).__name__} is nothing a broker understands")
            case _:
                self._out.refuse(f"{type(message).__name__} is nothing a broker understands")

    def _is_forged(self, message: RegionSaid) -> bool:
        """Brokers believe each other; clients speak for themselves, and within bounds."""
        source = message.source
        if not self._around.is_client(source):
            return False
        reason, code = "", "forged"
        match message:
            case OpenStream() | CloseStream() | CountEntourage() | EntourageTold() if not is_own(
                source, message.stream
            ):
                reason = f"{message.stream} is not {source}'s"
            case StreamItem() if not is_own(source, message.stream):
                reason = f"{message.stream} is not {source}'s"
            case StreamItem(event=event) if event is not None:
                if not is_own(source, event.publisher):
                    reason = f"{event.id} is not {source}'s to publish"
                else:
                    reason, code = why_not(event, self._config.limits) or "", "event"
            case StreamItem(scope=scope) if scope is not None:
                reason, code = self._why_not_filter(scope)
            case StreamGap():
                reason = f"{source} tells of gaps"
            case ReplayStream(stream=stream, items=items):
                if not is_own(source, stream) or any(
                    i.event is not None and not is_own(source, i.event.publisher) for i in items
                ):
                    reason = f"{source} replays {stream}"
            case Attach(wanted=wanted):
                reason, code = self._why_not_filter(wanted)
            case CountEntourage(round=asked):
                reason, code = self._why_not_filter(asked.advertised)
                if not reason and len(asked.samples) > self._config.samples_max:
                    reason, code = f"{len(asked.samples)} samples; {self._config.samples_max} are the most", "range"
            case CountReply() | Attached() | Churn() | Reopen():
                reason = f"{source} is no broker, and says {type(message).__name__}"
            case _:
                pass
        if reason:
            self._out.refuse(reason, code)
        return bool(reason)

    def _why_not_filter(self, wanted: Filter) -> tuple[str, str]:
        weight = sum(box.weight for box in wanted.boxes)
        if weight > self._config.filter_weight_max:
            return f"a filter of {weight} bounds; the most is {self._config.filter_weight_max}", "filter-cost"
        try:
            if canonical(wanted, self._config.filter_cost_max) == wanted:
                return "", ""
        except MisuseError as error:
            return str(error), "filter-cost"
        return "a filter that is not in its normal form", "filter"

    # -- links

    def _on_link_up(self, peer: Address, side: Any) -> None:
        is_wrong = side == "parent" and (self._around.is_root or self._around.parent is not None)
        if peer in self._around.links or is_wrong or (side == "peer" and not self._around.is_root):
            self._out.refuse(f"a second link to {peer}, or one that is none for us: {side}")
            return
        self._around.add(peer, side)
        self._interests.link_up(peer)
        if side == "client":
            self._interests.changed()
        if side == "parent":
            for stream in self._ports.ports:
                self._ports.reopen(stream)

    def _on_link_down(self, peer: Address) -> None:
        if peer not in self._around.links:
            return
        link = self._around.remove(peer)
        self._discovery.link_lost(peer)
        self._interests.link_lost(peer)
        self._ports.link_lost(peer)
        if link.side == "client":
            self._interests.changed()

    def _on_fired(self, key: str) -> None:
        what, _, stream = key.partition(" ")
        if key == TIDY:
            self._interests.tidy()
        elif key == CHURN:
            self._interests.stirred()
            self._discovery.stirred()
        elif what == "round":
            self._discovery.fired(Address(stream))
        else:
            self._ports.fired(what, Address(stream))

    # -- what ports accept here is for others

    def on_item(self, item: StreamItem) -> None:
        pass

    def on_gap(self, port: StreamPort, gap: StreamGap) -> None:
        pass

    def on_gone(self, port: StreamPort, left: bool) -> None:
        self._discovery.forget(port.stream)
