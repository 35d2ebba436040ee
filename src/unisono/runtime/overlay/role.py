"""The overlay role of a node: one broker on a host, its links, its clients.

A link between brokers is one connection: when it is lost the protocol is told, and a new one begins anew (decision 8).
So nothing is kept for a peer that is away, nothing is logged, and a broker that comes back is a new broker. A client is
an address of the party that connected (`c7/2` of `c7`); all of them are gone with its connection.
"""

import logging
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from unisono.errors import InvariantError
from unisono.machine import Broadcast
from unisono.model.deployment import Deployment, NodeSpec
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.overlay.broker import Broker
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.connections import Carried, Connected, Connections
from unisono.protocols.overlay.messages import LinkDown, LinkUp
from unisono.runtime.edge import Refused
from unisono.runtime.host import Host, HostConfig
from unisono.runtime.links import Links, owner
from unisono.structures.matching import INDEX_FROM, warm_up

logger = logging.getLogger(__name__)


class RoleCounters(Struct):
    """What the driver adds to the counters of the broker."""

    links: int = 0
    links_lost: int = 0
    clients: int = 0
    dropped: int = 0


class OverlayRole:
    """A running broker; the outside of its machine and the sink of what comes for it."""

    def __init__(
        self,
        deployment: Deployment,
        spec: NodeSpec,
        links: Links,
        config: HostConfig,
        refused: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.me = Address(spec.name)
        self.broker = Broker(self.me, broker_config(deployment))
        self.host = Host(spec.name, Connections(self.broker, self.me), self, config=config)
        self.counters = RoleCounters()
        self._refused, self._failed = refused, failed
        self._clients_max = deployment.limits.client_subscriptions_max
        self._links = links
        self._parent = Address(spec.parent) if spec.parent is not None else None
        self._nodes = {Address(node.name) for node in deployment.nodes}
        neighbours = (self._parent, *(Address(child) for child in deployment.children(spec.name)))
        self._neighbours = tuple(each for each in neighbours if each is not None)
        self._is_warm = False  # brokers with few subscriptions need no compiled matching
        self._opened = 0
        self._current: dict[Address, int] = {}  # whoever can be reached, and over which connection
        self._clients: dict[Address, dict[Address, None]] = {}  # party -> its addresses

    # connections, as the node hears of them

    def up(self, peer: Address) -> None:
        """A node has connected, or has been reached."""
        if peer not in self._neighbours:
            return
        if peer in self._current:
            self.down(peer)
        self.counters.links += 1
        self.host.post(Connected(self._open(peer), peer, LinkUp(peer, is_parent=peer == self._parent)))

    def down(self, party: Address) -> None:
        """The last thing read from a lost connection has been posted before."""
        if party in self._current:
            self.counters.links -= 1
            self.counters.links_lost += 1
            self._lose(party)
        for client in self._clients.pop(party, {}):
            self.counters.clients -= 1
            self._lose(client)

    def forget(self, client: Address) -> None:
        """A client has said goodbye, its party stays."""
        if self._clients.get(owner(client), {}).pop(client, client) is None:
            self.counters.clients -= 1
            self._lose(client)

    def _open(self, peer: Address) -> int:
        self._opened += 1
        self._current[peer] = self._opened
        return self._opened

    def _lose(self, peer: Address) -> None:
        self.host.post(Carried(self._current.pop(peer), peer, LinkDown(peer)))

    # a sink for what is said to the broker

    def post(self, message: Any) -> None:
        source: Address = message.source
        connection = self._current.get(source)
        if connection is None:
            party = owner(source)
            clients = self._clients.setdefault(party, {}) if party not in self._nodes else {}
            if party in self._nodes:
                self.counters.dropped += 1
                return
            if len(clients) >= self._clients_max:
                self.counters.dropped += 1
                self._links.refusals.count("subscriptions")
                reason = f"{party} has {self._clients_max} streams and publishers, which is the most"
                self._links.send(party, Refused("subscriptions", reason, source))
                return
            clients[source] = None
            self.counters.clients += 1
            connection = self._open(source)
            self.host.post(Connected(connection, source))
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
        if self._current.get(to) == message.connection:
            self._links.send(to, message.message)

    def broadcast(self, effect: Broadcast) -> None:
        raise InvariantError("a broker of an overlay stands on nothing")

    def join(self, topic: Topic) -> None:
        raise InvariantError("a broker of an overlay stands on nothing")

    def leave(self, topic: Topic) -> None:
        raise InvariantError("a broker of an overlay stands on nothing")

    def deliver(self, item: Any) -> None:
        pass

    def refused(self, reason: str) -> None:
        self._refused(reason)

    def end_turn(self) -> None:
        if not self._is_warm and self.broker.subscriptions >= INDEX_FROM:
            self._is_warm = True
            warm_up()

    def failed(self, error: Exception) -> None:
        self._failed(error)


def broker_config(deployment: Deployment) -> BrokerConfig:
    how = deployment.overlay
    held = Micros(round(how.held_ms * 1000)) if how.held_ms is not None else None
    cost = deployment.limits.filter_cost_max
    return BrokerConfig(detection=how.detection, covering=how.covering, held_us_max=held, filter_cost_max=cost)
