"""The overlay role of a node: one broker on a host, its links, its clients.

A link between brokers is one connection: when it is lost the protocol is told, and a new one begins anew (decision 8).
So nothing is kept for a peer that is away, nothing is logged, and a broker that comes back is a new broker. A client is
an address of the party that connected (`c7/2` of `c7`); all of them are gone with its connection.
"""

import logging
from collections.abc import Callable
from typing import Any

from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.protocols.overlay.broker import Broker
from unisono.protocols.overlay.deployed import broker_config
from unisono.protocols.overlay.messages import LinkDown, LinkUp, OverlaySaid
from unisono.runtime.driver.host import Host, LinksOnly
from unisono.runtime.links.links import Links, owner
from unisono.runtime.node.content.peers import BrokerPeers
from unisono.structures.connections import Carried, Connections
from unisono.structures.matching import INDEX_FROM, warm_up
from unisono.turns import TurnBounds

logger = logging.getLogger(__name__)


class OverlayRole(LinksOnly):
    """A running broker; the outside of its machine and the sink of what comes for it."""

    said = (OverlaySaid,)
    """What it understands."""
    why_idle: str | None = None
    """Why it does no work, if it does none."""

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
        self.broker = Broker(self.me, broker_config(deployment))
        self.host = Host(spec.name, Connections(self.broker, self.me, LinkDown), self, bounds=config)
        self._peers = BrokerPeers(self.host, links, deployment.limits.client_subscriptions_max, LinkDown)
        self.counters = self._peers.counters
        self.refused, self.failed, self._links = refused, failed, links
        self._parent = Address(spec.parent) if spec.parent is not None else None
        self._nodes = {Address(node.name) for node in deployment.nodes}
        neighbours = (self._parent, *(Address(child) for child in deployment.children(spec.name)))
        self._neighbours = tuple(each for each in neighbours if each is not None)
        self._is_warm = False  # brokers with few subscriptions need no compiled matching
        self.may_hear: Callable[[Address, Any], bool] = lambda client, message: True
        """Whether a client's rights let it hear this."""

    async def start(self) -> None:
        await self.host.start()

    async def stop(self) -> None:
        await self.host.stop()

    # connections, as the node hears of them

    def up(self, peer: Address) -> None:
        """A node has connected, or has been reached."""
        if peer not in self._neighbours:
            return
        if self._peers.connection(peer) is not None:
            self.down(peer)
        self._peers.link(peer, LinkUp(peer, is_parent=peer == self._parent))

    def down(self, party: Address) -> None:
        """The last thing read from a lost connection has been posted before."""
        if party in self._neighbours and self._peers.connection(party) is not None:
            self._peers.unlink(party)
        for client in self._peers.take_clients(party):
            self._peers.lose(client)

    def forget(self, client: Address) -> None:
        """A client has said goodbye, its party stays."""
        if self._peers.take_client(client):
            self._peers.lose(client)

    # a sink for what is said to the broker

    def post(self, message: Any) -> None:
        source: Address = message.source
        connection = self._peers.connection(source)
        if connection is None and owner(source) in self._nodes:
            self.counters.dropped += 1
            return
        if connection is None:
            connection = self._peers.admit(source)
        if connection is not None:
            self.host.post(Carried(connection, source, message))

    def report(self) -> dict[str, int]:
        """Counters of the broker, of its host and of this role, as one table."""
        counters: dict[str, int] = {"pending": len(self.broker.pending), "inputs": self.host.counters.inputs}
        for part in (self.broker.counters, self.counters):
            counters |= {name: getattr(part, name) for name in part.__struct_fields__}
        counters |= {f"refused_{code.replace('-', '_')}": count for code, count in self.broker.refusals.items()}
        return counters

    # the outside of the machine

    def send(self, to: Address, message: Any) -> None:
        if self._peers.connection(to) == message.connection and self.may_hear(to, message.message):
            self._links.send(to, message.message)

    def deliver(self, item: Any) -> None:
        pass

    def end_turn(self) -> None:
        if not self._is_warm and self.broker.subscriptions >= INDEX_FROM:
            self._is_warm = True
            warm_up()
