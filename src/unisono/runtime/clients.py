"""The clients of a node: what each has registered, what it watches for, how much of it, and how long it may stay away.

A client that stays away for `CLIENT_LEASE_US` is forgotten: its registrations stop costing, and its address is dead. So
are those that a restart has found in the log, or that came with a topic, and that never come themselves.
Clients with a name of their own may come back whenever they like.
"""

import asyncio
import hmac
from collections.abc import Callable, Iterable
from typing import Any

from unisono.model.ids import Address
from unisono.model.interest import covers
from unisono.model.limits import Limits
from unisono.model.time import SECOND
from unisono.protocols.sequencer.inputs import Forget, Lapse
from unisono.protocols.sequencer.messages import Collect, Install, Update
from unisono.runtime import edge
from unisono.runtime.frames import Rejected
from unisono.runtime.links import is_named, owner
from unisono.runtime.sequencing import CLIENT_LEASE_US

FORGOTTEN_MAX = 100_000
"""Addresses that are kept as dead."""


class Clients:
    """Who has connected, and who has left."""

    def __init__(
        self,
        me: Address,
        send: Callable[[Address, Any], None],
        forget: Callable[[Lapse], None],
        limits: Limits = Limits(),
    ) -> None:
        """`send` reaches a client; `forget` is told of every registration of one that stayed away."""
        self.sids: dict[Address, dict[Address, None]] = {}
        """Per client the addresses that have spoken to the machine."""
        self._me, self._send, self._forget = me, send, forget
        self._limits = limits
        self._watchers: dict[Address, dict[Address, dict[str, None]]] = {}  # client -> its addresses -> patterns
        self._asked: dict[Address, dict[str, None]] = {}  # client -> topics that were not there when it asked for them
        self._secrets: dict[Address, bytes] = {}
        self._leases: dict[Address, asyncio.TimerHandle] = {}
        self._forgotten: dict[Address, None] = {}
        self._here: dict[Address, None] = {}

    def heard(self, message: Any) -> edge.Refused | None:
        """A message to the machine: whoever it is from is registered there, until it says goodbye; or why not."""
        sid = edge.claims(message)
        if isinstance(message, Forget):
            self.sids.get(owner(message.client), {}).pop(message.client, None)
        elif sid is not None and sid != self._me:
            known = self.sids.setdefault(owner(sid), {})
            if sid not in known:
                most = self._limits.client_subscriptions_max
                if len(known) >= most:
                    reason = f"{owner(sid)} has {most} streams and publishers, which is the most"
                    return edge.Refused("subscriptions", reason, sid)
                known[sid] = None
            if isinstance(message, Collect | Install | Update) and len(message.topics) > self._limits.client_topics_max:
                reason = f"a subscription has at most {self._limits.client_topics_max} topics"
                return edge.Refused("topics", reason, sid)
        return None

    def asked(self, client: Address, new: Iterable[str]) -> edge.Refused | None:
        """It wants these topics to be born."""
        names, most = self._asked.setdefault(owner(client), {}), self._limits.client_topics_max
        for name in new:
            if name not in names and len(names) >= most:
                reason = f"{owner(client)} has had {most} topics born here, which is the most"
                return edge.Refused("topics", reason, name)
            names[name] = None
        return None

    def inherited(self, sids: Iterable[Address]) -> None:
        """The machine remembers these; those that are not here have a lease from now on."""
        for sid in sids:
            client = owner(sid)
            self.sids.setdefault(client, {})[sid] = None
            if client not in self._here and client not in self._leases:
                self._begin_lease(client)

    # topics that are born

    def watch(self, client: Address, pattern: str) -> edge.Refused | None:
        streams, most = self._watchers.setdefault(owner(client), {}), self._limits.client_watches_max
        patterns = streams.get(client, {})
        if pattern not in patterns and sum(len(each) for each in streams.values()) >= most:
            return edge.Refused("watches", f"{owner(client)} watches {most} patterns, which is the most", pattern)
        streams.setdefault(client, {})[pattern] = None
        return None

    def born(self, topics: edge.TopicsBorn) -> None:
        """Those who watch are told."""
        for streams in self._watchers.values():
            for client, patterns in streams.items():
                if any(covers(pattern, name) for pattern in patterns for name in topics.names):
                    self._send(client, topics)

    # connections

    def why_not(self, address: Address, secret: bytes) -> Rejected | None:
        """The reason not to let a client of this name in."""
        if address in self._forgotten:
            return Rejected("this session has been forgotten: connect again with a new one", "forgotten")
        known = self._secrets.get(address, secret)
        if not is_named(address) and not hmac.compare_digest(known, secret):
            return Rejected(f"{address!r} is somebody else's, who may come back", "address-taken")
        return None

    def up(self, address: Address, secret: bytes) -> None:
        """It is back, or new."""
        self._here[address] = None
        self._secrets[address] = secret
        lease = self._leases.pop(address, None)
        if lease is not None:
            lease.cancel()

    def down(self, address: Address) -> None:
        """Its connection is lost."""
        self._here.pop(address, None)
        self._watchers.pop(address, None)
        if is_named(address):
            self.gone(address)
        self._begin_lease(address)

    def _begin_lease(self, client: Address) -> None:
        if not is_named(client):
            loop = asyncio.get_running_loop()
            self._leases[client] = loop.call_later(CLIENT_LEASE_US / SECOND, self._expire, client)

    def gone(self, address: Address) -> None:
        """Its connection is lost, and nothing of it is kept: whoever comes under this name begins anew."""
        self._secrets.pop(address, None)
        self._here.pop(address, None)

    def _expire(self, client: Address) -> None:
        self._leases.pop(client, None)
        self._secrets.pop(client, None)
        self._asked.pop(client, None)
        self._forgotten[client] = None
        if len(self._forgotten) > FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]
        for sid in self.sids.pop(client, {}):
            self._forget(Lapse(sid))

    def stop(self) -> None:
        for lease in self._leases.values():
            lease.cancel()
