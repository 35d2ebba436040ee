"""The regions role of a node: one broker of a hierarchy on a host, its links, its clients, its direct connections.

A link is one connection: when it is lost the protocol is told, and a new one begins anew. So nothing is kept for a peer
that is away, nothing is logged, and a broker that comes back is a new broker. It dials every broker that could be above
it and is attached to one of them; when that link is lost it goes on at another. Of two roots the first by name dials. A
client is an address of the party that connected (`c7/2` of `c7`); a publisher's direct connection is the same thing.
"""

from collections.abc import Callable
from typing import Any

from msgspec import structs

from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.protocols.regions.broker import RegionBroker
from unisono.protocols.regions.deployed import member_of, regions_config, view_of
from unisono.protocols.regions.groups import GroupView
from unisono.protocols.regions.messages import (
    Attach,
    DirectConnect,
    DirectLost,
    OpenStream,
    RegionLinkDown,
    RegionLinkUp,
    RegionSaid,
    Side,
)
from unisono.runtime.driver.host import Host, LinksOnly
from unisono.runtime.links.links import Links, owner
from unisono.runtime.node.content.peers import BrokerPeers
from unisono.structures.connections import Carried, Connections
from unisono.turns import TurnBounds

STRANGER_MAX = 1_000
"""Messages kept of a node that has connected before we know of its place."""
SHOWN_MAX = 100
"""Publishers of which a report tells."""


class RegionsRole(LinksOnly):
    """A running broker of a hierarchy; the outside of its machine and the sink of what comes for it."""

    said = (RegionSaid,)
    why_idle: str | None = None

    def __init__(
        self,
        deployment: Deployment,
        spec: NodeSpec,
        links: Links,
        config: TurnBounds,
        refused: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.me = Address(spec.name)
        self.broker = RegionBroker(self.me, spec.parent is None, regions_config(deployment))
        self.host = Host(spec.name, Connections(self.broker, self.me, RegionLinkDown), self, bounds=config)
        self._peers = BrokerPeers(self.host, links, deployment.limits.client_subscriptions_max, RegionLinkDown)
        self.counters = self._peers.counters
        self.heard: Callable[[Address, Any], Any] | None = None
        """What a client may hear of what is said to it; None: everything."""
        self.refused, self.failed, self._links = refused, failed, links
        self._me = member_of(spec, "")
        self.dials: dict[Address, str] = {}
        """Whom this node dials, and where."""
        self._above: list[Address] = []
        self._sides: dict[Address, Side] = {}
        self._nodes: dict[Address, None] = {}
        self._strangers: dict[Address, list[Any]] = {}  # connected nodes that no view of ours places near us
        self.view = GroupView()
        self.follow(view_of(deployment))
        self._parent: Address | None = None
        self._attached: dict[Address, None] = {}  # addresses of clients that are more than direct connections

    async def start(self) -> None:
        await self.host.start()

    async def stop(self) -> None:
        await self.host.stop()

    def follow(self, view: GroupView) -> None:
        """Who belongs to which group has changed."""
        self.view = view
        mine = structs.replace(self._me, life=(view.find(self.me) or self._me).life)
        others = [each for each in view.members if each.name != self.me]
        above = [each for each in view.parents(mine) if each.name != self.me]
        beside = [each for each in others if each.parent is None] if mine.parent is None else []
        below = [each for each in others if mine in view.parents(each)]
        self._above = [Address(each.name) for each in above]
        self._sides = {
            **{Address(each.name): "peer" for each in beside},
            **{Address(each.name): "broker" for each in below},
        }
        dialled = [*above, *(each for each in beside if self.me < each.name)]
        self.dials = {Address(each.name): each.address for each in dialled}
        self._nodes |= dict.fromkeys(Address(each.name) for each in view.members)
        for peer in [peer for peer in self._strangers if peer in self._sides or peer in self._above]:
            said = self._strangers[peer]
            self.up(peer)
            for message in said:
                self.post(message)

    @property
    def neighbours(self) -> list[Address]:
        """Whom it has a link with, if they are there: all that could be above it, those beside it, and those below."""
        return [*self._above, *(peer for peer in self._sides if peer not in self._above)]

    def is_beside(self, node: Address) -> bool:
        """Whether that one and we are linked as brokers."""
        return node in self._sides or node in self._above

    # connections, as the node hears of them

    def up(self, peer: Address) -> None:
        """A node has connected, or has been reached."""
        if peer not in self._sides and peer not in self._above:
            self._strangers[peer] = []
            return
        self._strangers.pop(peer, None)
        if self._peers.connection(peer) is not None:
            self.down(peer)
        side = self._sides.get(peer)
        self._peers.link(peer, RegionLinkUp(peer, side) if side is not None else None)
        self._attach()

    def _attach(self) -> None:
        """To the first of those above that can be reached."""
        reached = [peer for peer in self._above if self._peers.connection(peer) is not None]
        if self._parent is None and reached:
            self._parent = reached[0]
            self.host.post(RegionLinkUp(self._parent, "parent"))

    def down(self, party: Address) -> None:
        """The last thing read from a lost connection has been posted before."""
        self._strangers.pop(party, None)
        if self._peers.connection(party) is not None and party in self._nodes:
            self._peers.unlink(party)
            if party == self._parent:
                self._parent = None
                self._attach()
        for client in self._peers.take_clients(party):
            self._gone(client)

    def forget(self, client: Address) -> None:
        """A client has said goodbye, its party stays."""
        if self._peers.take_client(client):
            self._gone(client)

    def _gone(self, client: Address) -> None:
        self._attached.pop(client, None)
        self.host.post(DirectLost(client))
        self._peers.lose(client)

    # a sink for what is said to the broker

    def post(self, message: Any) -> None:
        source: Address = message.source
        connection = self._peers.connection(source)
        if connection is None:
            party = owner(source)
            waiting = self._strangers.get(party)
            if waiting is not None and len(waiting) < STRANGER_MAX:
                waiting.append(message)  # its view is newer than ours: we shall know what it is to us
                return
            if party in self._nodes or not isinstance(message, Attach | OpenStream | DirectConnect):
                self.counters.dropped += 1
                return
            connection = self._peers.admit(source)
            if connection is None:
                return
        if isinstance(message, Attach | OpenStream) and source not in self._nodes and source not in self._attached:
            self._attached[source] = None
            self.host.post(RegionLinkUp(source, "client"))
        self.host.post(Carried(connection, source, message))

    def report(self) -> dict[str, int]:
        """Counters of the broker, of its host and of this role, as one table."""
        ports, counts = self.broker.ports, self.broker.counters
        counters: dict[str, int] = {
            "inputs": self.host.counters.inputs,
            "streams": len(ports),
            "direct": len(self.direct()),
            "waiting": len(self.broker.waiting),
            "asking": sum(1 for port in ports.values() if port.mode in ("U", "R", "RD")),
            "members": len(self.view.members),
            "view": self.view.version,
            "attached": int(self.broker.is_root or self._parent is not None),
        }
        counters |= {name: getattr(counts, name) for name in counts.__slots__}
        counters |= {name: getattr(self.counters, name) for name in self.counters.__struct_fields__}
        return counters

    def direct(self) -> dict[str, int]:
        """Streams that come here directly, each with its last number."""
        ports = self.broker.ports.items()
        return {stream: port.last or 0 for stream, port in ports if port.mode in ("D", "V")}

    def entourages(self) -> dict[str, int]:
        """Publishers connected here with the reason for the direct connections they have, and how many those are."""
        told = list(self.broker.entourages.items())[:SHOWN_MAX]
        return {f"{stream}: {said.reason}": said.connections for stream, said in told}

    # the outside of the machine

    def send(self, to: Address, message: Any) -> None:
        if self._peers.connection(to) == message.connection:
            said = self.heard(to, message.message) if self.heard is not None else message.message
            if said is not None:
                self._links.send(to, said)

    def deliver(self, item: Any) -> None:
        pass

    def end_turn(self) -> None:
        pass
