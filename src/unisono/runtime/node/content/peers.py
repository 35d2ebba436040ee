"""Who is connected with a broker: other brokers by their links, clients by the party that connected.

A client is an address of a party (`c7/2` of `c7`), and all of a party are gone with its connection. Whoever comes back
has a new connection, under a number of its own: what was meant for the one before never goes out on it.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from unisono.model.ids import Address
from unisono.runtime.driver.host import Host
from unisono.runtime.links.control import OverLimit
from unisono.runtime.links.links import Links, owner
from unisono.structures.connections import Carried, Connected


class PeerCounters(Struct):
    """What the driver adds to the counters of a broker."""

    links: int = 0
    links_lost: int = 0
    clients: int = 0
    dropped: int = 0


class BrokerPeers:
    """Posts the broker's host who has come and who is gone."""

    def __init__(self, host: Host, links: Links, clients_max: int, link_down: Callable[[Address], Any]) -> None:
        """`link_down`: what the protocol is told when a peer is gone."""
        self.counters = PeerCounters()
        self._host, self._links, self._clients_max, self._link_down = host, links, clients_max, link_down
        self._opened = 0
        self._current: dict[Address, int] = {}  # whoever can be reached, and over which connection
        self._clients: dict[Address, dict[Address, None]] = {}  # party -> its addresses

    def connection(self, peer: Address) -> int | None:
        """The one that is in use."""
        return self._current.get(peer)

    def link(self, broker: Address, link_up: Any) -> None:
        """Another broker can be reached; `link_up` is what the protocol is told, if anything."""
        self.counters.links += 1
        self._open(broker, link_up)

    def unlink(self, broker: Address) -> None:
        self.counters.links -= 1
        self.counters.links_lost += 1
        self.lose(broker)

    def admit(self, client: Address) -> int | None:
        """The connection of a new client; None: its party has too many, and was told so."""
        party = owner(client)
        clients = self._clients.setdefault(party, {})
        if len(clients) >= self._clients_max:
            self.counters.dropped += 1
            reason = f"{party} has {self._clients_max} streams and publishers, which is the most"
            self._links.refusals.count("subscriptions", reason)
            self._links.send(party, OverLimit("subscriptions", reason, client))
            return None
        clients[client] = None
        self.counters.clients += 1
        return self._open(client, None)

    def take_clients(self, party: Address) -> list[Address]:
        """Those of a party whose connection is lost; each still has to be lost."""
        clients = list(self._clients.pop(party, {}))
        self.counters.clients -= len(clients)
        return clients

    def take_client(self, client: Address) -> bool:
        """Whether one that has said goodbye was here; it still has to be lost."""
        is_known = self._clients.get(owner(client), {}).pop(client, client) is None
        self.counters.clients -= is_known
        return is_known

    def lose(self, peer: Address) -> None:
        """The last thing read from its connection has been posted before."""
        self._host.post(Carried(self._current.pop(peer), peer, self._link_down(peer)))

    def _open(self, peer: Address, link_up: Any) -> int:
        self._opened += 1
        self._current[peer] = self._opened
        self._host.post(Connected(self._opened, peer, link_up))
        return self._opened
