"""Connections: which life of a link a message belongs to.

Some protocols want links that report their own loss, and nothing from a lost link after the news of it (decision 8). A
link is therefore one connection, under a number of its own at each end: what comes from an older one is dropped, and
what goes to a peer names the connection it was meant for, so that the driver does not put it on the next.
"""

from typing import Any

from msgspec import Struct

from unisono.machine import Effect, Machine, Send
from unisono.model.ids import Address
from unisono.model.time import Micros


class Carried(Struct, frozen=True, tag="Carried"):
    """A message on a connection."""

    connection: int
    source: Address
    message: Any


class Connected(Struct, frozen=True, tag="Connected"):
    """To one end: there is a new connection to a peer; `link_up` is what the machine is told of it, if anything.

    Two parties may have several connections for different purposes: then `peer` names this one at our end, `me`
    the name at the other, and what is sent on it goes `to` the party.
    """

    connection: int
    peer: Address
    link_up: Any = None
    to: Address | None = None
    me: Address | None = None


class Connections:
    """A machine whose peers are reached over connections; a message of the type `ends` is the last of one."""

    def __init__(self, inside: Machine, me: Address, ends: type[Any] | tuple[type[Any], ...]) -> None:
        self.inside = inside
        self._me = me
        self._ends = ends
        self._current: dict[Address, int] = {}
        self._names: dict[Address, tuple[Address, Address]] = {}  # peer -> where it is, and who we are to it

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Connected(connection=connection, peer=peer, link_up=link_up, to=to, me=me):
                self._current[peer] = connection
                self._names[peer] = (to or peer, me or self._me)
                return self._wrap(self.inside.handle(link_up, now)) if link_up is not None else []
            case Carried(connection=connection, source=source, message=inner):
                if self._current.get(source) != connection:
                    return []
                if isinstance(inner, self._ends):
                    del self._current[source], self._names[source]
                return self._wrap(self.inside.handle(inner, now))
            case _:
                return self._wrap(self.inside.handle(message, now))

    def connection(self, peer: Address) -> int | None:
        """The connection that is in use."""
        return self._current.get(peer)

    def _wrap(self, effects: list[Effect]) -> list[Effect]:
        wrapped: list[Effect] = []
        for effect in effects:
            match effect:
                case Send(to=to, message=inner):
                    if to in self._current:
                        party, me = self._names[to]
                        wrapped.append(Send(party, Carried(self._current[to], me, inner)))
                case _:
                    wrapped.append(effect)
        return wrapped
