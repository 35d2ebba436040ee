"""The clients of a node: what each has registered, what it watches for, and how much of it.

How long one may stay away before it is forgotten is decided by `structures.leases`.
"""

import hmac
from collections.abc import Callable, Iterable
from typing import Any

from unisono.model.ids import Address
from unisono.model.interest import covers
from unisono.model.limits import Limits
from unisono.protocols.naming import messages as naming
from unisono.protocols.sequencer.deployed import CLIENT_LEASE_US
from unisono.protocols.sequencer.messages import Collect, Install, Update
from unisono.runtime.driver.door import Door
from unisono.runtime.links import control
from unisono.runtime.links.frames import Rejected
from unisono.runtime.links.links import is_named, owner
from unisono.structures.hosting import Forget, Lapse
from unisono.structures.leases import Away, ClientGone, ClientLeases, Here, Lapsed, LeaseEnded, Registered, Remembered


class Clients:
    """Who has connected, and who has left."""

    def __init__(
        self,
        me: Address,
        send: Callable[[Address, Any], None],
        forget: Callable[[Lapse], None],
        limits: Limits,
        ended: Callable[[Address], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`send` reaches a client; `forget` is told of every registration of one that stayed away, and `ended` of it
        if it had any."""
        self.leases = ClientLeases(CLIENT_LEASE_US, owner, is_named)
        self._door = Door(self.leases, self._lapsed, send, failed)
        self._me, self._send, self._forget, self._ended = me, send, forget, ended
        self._limits = limits
        self._watchers: dict[Address, dict[Address, dict[str, None]]] = {}  # client -> its addresses -> patterns
        self._asked: dict[Address, dict[str, None]] = {}  # client -> topics that were not there when it asked for them
        self._secrets: dict[Address, bytes] = {}
        self._regions: dict[Address, control.ClientAt] = {}

    def heard(self, message: Any) -> control.OverLimit | None:
        """A message to the machine: whoever it is from is registered there, until it says goodbye; or why not."""
        sid = control.claims(message)
        if isinstance(message, Forget):
            self._door.post(message)
        elif sid is not None and sid != self._me:
            known = self.leases.sids.get(owner(sid), {})
            if sid not in known:
                most = self._limits.client_subscriptions_max
                if len(known) >= most:
                    reason = f"{owner(sid)} has {most} streams and publishers, which is the most"
                    return control.OverLimit("subscriptions", reason, sid)
                self._door.post(Registered(sid))
            if isinstance(message, Collect | Install | Update) and len(message.topics) > self._limits.topics_max:
                reason = f"a subscription has at most {self._limits.topics_max} topics"
                return control.OverLimit("topics", reason, sid)
        return None

    def is_at(self, message: control.ClientAt) -> None:
        """It says in which region it is, and how far others are from there."""
        if owner(message.client) in self.leases.here:
            self._regions[owner(message.client)] = message

    def region_of(self, sid: Address) -> str | None:
        """None: it has not said so."""
        said = self._regions.get(owner(sid))
        return said.region if said is not None else None

    def round_trips_us(self) -> dict[str, dict[str, int]]:
        """Region of clients -> region of nodes -> the least that any of them has measured."""
        least: dict[str, dict[str, int]] = {}
        for said in self._regions.values():
            own = least.setdefault(said.region, {})
            for region, span in said.round_trips_us.items():
                own[region] = min(span, own.get(region, span))
        return least

    def asked(self, client: Address, new: Iterable[str]) -> control.OverLimit | None:
        """It wants these topics to be created."""
        names, most = self._asked.setdefault(owner(client), {}), self._limits.client_topics_max
        for name in new:
            if name not in names and len(names) >= most:
                reason = f"{owner(client)} has had {most} topics created here, which is the most"
                return control.OverLimit("topics", reason, name)
            names[name] = None
        return None

    def inherited(self, sids: Iterable[Address]) -> None:
        """The machine remembers these; those that are not here have a lease from now on."""
        self._door.post(Remembered(tuple(sids)))

    def lapsed_before(self, sids: Iterable[Address]) -> None:
        """In earlier lives of this node; whoever comes under these addresses has to begin anew."""
        self._door.post(Lapsed(tuple(sids)))

    # topics that are created

    def watch(self, client: Address, pattern: str) -> control.OverLimit | None:
        streams, most = self._watchers.setdefault(owner(client), {}), self._limits.client_watches_max
        patterns = streams.get(client, {})
        if pattern not in patterns and sum(len(each) for each in streams.values()) >= most:
            return control.OverLimit("watches", f"{owner(client)} watches {most} patterns, which is the most", pattern)
        streams.setdefault(client, {})[pattern] = None
        return None

    def born(self, topics: naming.TopicsBorn) -> None:
        """Those who watch are told."""
        for streams in self._watchers.values():
            for client, patterns in streams.items():
                if any(covers(pattern, name) for pattern in patterns for name in topics.names):
                    self._send(client, topics)

    # connections

    @property
    def here_count(self) -> int:
        return len(self.leases.here)

    @property
    def away_count(self) -> int:
        """Those that are remembered until their lease ends."""
        return len(self.leases.away)

    def why_not(self, address: Address, secret: bytes) -> Rejected | None:
        """The reason not to let a client of this name in."""
        if self.leases.is_forgotten(address):
            return Rejected("this session has been forgotten: connect again with a new one", "forgotten")
        known = self._secrets.get(address, secret)
        if not is_named(address) and not hmac.compare_digest(known, secret):
            return Rejected(f"{address!r} is somebody else's, who may come back", "address-taken")
        return None

    def up(self, address: Address, secret: bytes) -> None:
        """It is back, or new."""
        self._secrets[address] = secret
        self._door.post(Here(address))

    def down(self, address: Address) -> None:
        """Its connection is lost."""
        self._watchers.pop(address, None)
        if is_named(address):
            self._regions.pop(address, None)
            self._secrets.pop(address, None)
        self._door.post(Away(address))

    def gone(self, address: Address) -> None:
        """Its connection is lost, and nothing of it is kept: whoever comes under this name begins anew."""
        self._secrets.pop(address, None)
        self._door.post(ClientGone(address))

    def _lapsed(self, item: Any) -> None:
        match item:
            case LeaseEnded(client=client, missed=missed):
                self._secrets.pop(client, None)
                self._asked.pop(client, None)
                self._regions.pop(client, None)
                if missed:
                    self._ended(client)
            case Lapse():
                self._forget(item)

    def stop(self) -> None:
        self._door.stop()
