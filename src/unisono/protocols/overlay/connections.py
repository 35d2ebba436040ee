"""Connections: which life of a link a message belongs to.

The protocol wants links that report their own loss, and nothing from a lost link after the news of it (decision 8). A
link is therefore one connection, under a number of its own at each end: what comes from an older one is dropped, and
what goes to a peer names the connection it was meant for, so that the driver does not put it on the next.
"""

from typing import Any

from msgspec import Struct

from unisono.machine import Effect, Machine, Send
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.overlay.messages import LinkDown, LinkUp


class Carried(Struct, frozen=True, tag=True):
    """A message on a connection."""

    connection: int
    source: Address
    message: Any


class Connected(Struct, frozen=True, tag=True):
    """To one end: there is a new connection to a peer; `link_up` if the peer is a broker."""

    connection: int
    peer: Address
    link_up: LinkUp | None = None


class Connections:
    """A machine whose peers are reached over connections."""

    def __init__(self, inside: Machine, me: Address) -> None:
        self.inside = inside
        self._me = me
        self._current: dict[Address, int] = {}

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Connected(connection=connection, peer=peer, link_up=link_up):
                self._current[peer] = connection
                return self._wrap(self.inside.handle(link_up, now)) if link_up is not None else []
            case Carried(connection=connection, source=source, message=inner):
                if self._current.get(source) != connection:
                    return []
                if isinstance(inner, LinkDown):
                    del self._current[source]
                return self._wrap(self.inside.handle(inner, now))
            case _:
                return self._wrap(self.inside.handle(message, now))

    def _wrap(self, effects: list[Effect]) -> list[Effect]:
        wrapped: list[Effect] = []
        for effect in effects:
            match effect:
                case Send(to=to, message=inner):
                    if to in self._current:
                        wrapped.append(Send(to, Carried(self._current[to], self._me, inner)))
                case _:
                    wrapped.append(effect)
        return wrapped
