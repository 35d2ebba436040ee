"""The clients of a node: what each has registered, what it watches for, and how long it may stay away.

A client that stays away for `CLIENT_LEASE_US` is forgotten: its registrations stop costing, and its address is dead. So
are those that a restart has found in the log, or that came with a topic, and that never come themselves.
Clients with a name of their own may come back whenever they like.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from unisono.model.ids import Address
from unisono.model.interest import covers
from unisono.model.time import SECOND
from unisono.protocols.sequencer.inputs import Forget, Lapse
from unisono.runtime import edge
from unisono.runtime.links import is_named, owner
from unisono.runtime.sequencing import CLIENT_LEASE_US

PATTERNS_MAX = 100
"""Patterns that one client may watch."""
FORGOTTEN_MAX = 100_000
"""Addresses that are kept as dead."""


class Clients:
    """Who has connected, and who has left."""

    def __init__(
        self,
        me: Address,
        send: Callable[[Address, Any], None],
        forget: Callable[[Lapse], None],
    ) -> None:
        """`send` reaches a client; `forget` is told of every registration of one that stayed away."""
        self.sids: dict[Address, dict[Address, None]] = {}
        """Per client the addresses that have spoken to the machine."""
        self._me, self._send, self._forget = me, send, forget
        self._watchers: dict[Address, list[str]] = {}
        self._leases: dict[Address, asyncio.TimerHandle] = {}
        self._forgotten: dict[Address, None] = {}
        self._here: dict[Address, None] = {}

    def heard(self, message: Any) -> None:
        """A message to the machine: whoever it is from is registered there, until it says goodbye."""
        sid = edge.claims(message)
        if isinstance(message, Forget):
            self.sids.get(owner(message.client), {}).pop(message.client, None)
        elif sid is not None and sid != self._me:
            self.sids.setdefault(owner(sid), {})[sid] = None

    def inherited(self, sids: Iterable[Address]) -> None:
        """The machine remembers these; those that are not here have a lease from now on."""
        for sid in sids:
            client = owner(sid)
            self.sids.setdefault(client, {})[sid] = None
            if client not in self._here and client not in self._leases:
                self._begin_lease(client)

    # topics that are born

    def watch(self, client: Address, pattern: str) -> None:
        patterns = self._watchers.setdefault(client, [])
        if pattern not in patterns and len(patterns) < PATTERNS_MAX:
            patterns.append(pattern)

    def born(self, topics: edge.TopicsBorn) -> None:
        """Those who watch are told."""
        for client, patterns in self._watchers.items():
            if any(covers(pattern, name) for pattern in patterns for name in topics.names):
                self._send(client, topics)

    # connections

    def is_forgotten(self, address: Address) -> bool:
        return address in self._forgotten

    def up(self, address: Address) -> None:
        """It is back, or new."""
        self._here[address] = None
        lease = self._leases.pop(address, None)
        if lease is not None:
            lease.cancel()

    def down(self, address: Address) -> None:
        """Its connection is lost."""
        self._here.pop(address, None)
        for client in [client for client in self._watchers if owner(client) == address]:
            del self._watchers[client]
        self._begin_lease(address)

    def _begin_lease(self, client: Address) -> None:
        if not is_named(client):
            loop = asyncio.get_running_loop()
            self._leases[client] = loop.call_later(CLIENT_LEASE_US / SECOND, self._expire, client)

    def _expire(self, client: Address) -> None:
        self._leases.pop(client, None)
        self._forgotten[client] = None
        if len(self._forgotten) > FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]
        for sid in self.sids.pop(client, {}):
            self._forget(Lapse(sid))

    def stop(self) -> None:
        for lease in self._leases.values():
            lease.cancel()
