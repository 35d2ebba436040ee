"""How long a node remembers who is away: exactly as long as subscribers believe (decision 16).

A client whose connection ends has a lease from then on; if it comes back before that is over, nothing has happened.
Then everything that it has registered lapses, and its address is dead: whoever comes under it is turned away, and has
to begin anew, also when the node has been started again meanwhile (`protocols.sequencer.lives` keeps what lapsed).
Whom a restart has found in the log, or who came with a topic, has a lease, too, and may never come. A party with a name
of its own may come back whenever it likes.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from unisono.machine import CancelTimer, Deliver, Effect, Fired, SetTimer
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.structures.hosting import Forget, Lapse

FORGOTTEN_MAX = 100_000
"""Addresses that are kept as dead."""
IDLE_MAX = 10_000
"""Clients that are away and have registered nothing; for a further one the first of them is forgotten, and may come
back: whoever connects under one name after the other would be remembered with each."""
LEASE = "lease "


class Here(Struct, frozen=True, tag="Here"):
    """From the driver: a connection of this client stands."""

    client: Address


class Away(Struct, frozen=True, tag="Away"):
    """From the driver: its connection has ended."""

    client: Address


class ClientGone(Struct, frozen=True, tag="Gone"):
    """From the driver: its connection has ended, and nothing of it is kept."""

    client: Address


class Registered(Struct, frozen=True, tag="Registered"):
    """From the driver: under this address of a client something is registered, or will be."""

    sid: Address


class Remembered(Struct, frozen=True, tag="Remembered"):
    """From the driver: the machine remembers these, whether or not they are here."""

    sids: tuple[Address, ...]


class Lapsed(Struct, frozen=True, tag="Lapsed"):
    """From the driver: in an earlier life of the node this lapsed; the addresses of these clients stay dead."""

    sids: tuple[Address, ...]


class LeaseEnded(Struct, frozen=True, tag="LeaseEnded"):
    """To the driver: this client is forgotten; what it has registered lapses next. `missed` is nobody who has said
    goodbye, or has only asked something."""

    client: Address
    missed: bool = False


class ClientLeases:
    """Who is here, who is away and until when, and whose address is dead."""

    def __init__(
        self, lease_us: Micros, owner: Callable[[Address], Address], is_named: Callable[[Address], bool]
    ) -> None:
        """`owner`: the client of an address. `is_named`: whether it may always come back."""
        self.sids: dict[Address, dict[Address, None]] = {}
        """Per client the addresses that have spoken to the machine."""
        self.here: dict[Address, None] = {}
        self.away: dict[Address, None] = {}
        """Those that are remembered until their lease ends."""
        self._idle: dict[Address, None] = {}  # of these, who has registered nothing
        self._lease_us, self._owner, self._is_named = lease_us, owner, is_named
        self._forgotten: dict[Address, None] = {}

    def is_forgotten(self, client: Address) -> bool:
        return client in self._forgotten

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Registered(sid=sid):
                self.sids.setdefault(self._owner(sid), {})[sid] = None
                return []
            case Forget(client=sid):
                self.sids.get(self._owner(sid), {}).pop(sid, None)
                return []
            case Here(client=client):
                self.here[client] = None
                self._idle.pop(client, None)
                return [CancelTimer(LEASE + client)] if self.away.pop(client, 0) is None else []
            case Away(client=client):
                self.here.pop(client, None)
                return self._begin(client, now)
            case ClientGone(client=client):
                self.here.pop(client, None)
                return []
            case Remembered(sids=sids):
                return self._remember(sids, now)
            case Lapsed(sids=sids):
                for sid in sids:
                    self._bury(self._owner(sid))
                return []
            case Fired(key=key):
                return self._expire(Address(key.removeprefix(LEASE)))
            case _:
                return []

    def _remember(self, sids: Iterable[Address], now: Micros) -> list[Effect]:
        effects: list[Effect] = []
        for sid in sids:
            client = self._owner(sid)
            self.sids.setdefault(client, {})[sid] = None
            if client not in self.here and client not in self.away:
                effects += self._begin(client, now)
        return effects

    def _begin(self, client: Address, now: Micros) -> list[Effect]:
        if self._is_named(client):
            return []
        self.away[client] = None
        effects: list[Effect] = [SetTimer(LEASE + client, Micros(now + self._lease_us))]
        if not self.sids.get(client):
            self._idle[client] = None
            if len(self._idle) > IDLE_MAX:
                effects += self._forget_idle(next(iter(self._idle)))
        return effects

    def _forget_idle(self, client: Address) -> list[Effect]:
        self._idle.pop(client)
        self.away.pop(client)
        self.sids.pop(client, None)
        return [CancelTimer(LEASE + client), Deliver(LeaseEnded(client))]

    def _expire(self, client: Address) -> list[Effect]:
        self.away.pop(client, None)
        self._idle.pop(client, None)
        self._bury(client)
        sids = self.sids.pop(client, {})
        return [Deliver(LeaseEnded(client, missed=bool(sids))), *(Deliver(Lapse(sid)) for sid in sids)]

    def _bury(self, client: Address) -> None:
        """From now on its address is dead."""
        self._forgotten[client] = None
        if len(self._forgotten) > FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]
