"""What a node lets through to its machine, and when it shows how far its log is (docs/reference/durability.md).

A node that keeps a log may have lost some of it. So it *listens* before it serves: what is said to it is held until
those who know more of it have had the time to connect and to hand back what they were shown (`lives`). From then on it
shows its height, sealed, to whomever it sends something, and to all who are connected when it has grown.

A node that is reborn has forgotten what it numbered. It numbers nothing for a client that has not shown that it knows
of this incarnation: what such a client asks for may have been numbered before, by an earlier one.

Nothing here is kept: a node that starts again listens again. A life that ends before its first show, since its data
was too old, is shown to nobody: the newest data, put back, does not know it.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from unisono.machine import Deliver, Effect, Fired, Send, SetTimer
from unisono.model.ids import Address
from unisono.model.time import SECOND, Micros
from unisono.protocols.sequencer.lives import Began, Height, Lives, Reminds, Seal, Witness
from unisono.structures.hosting import Lapse
from unisono.structures.sessions import Forgotten, Handled


class AdmissionConfig(Struct, frozen=True):
    """How long a node listens, and how often it shows itself."""

    listen_us: Micros = Micros(2 * SECOND)
    """A node that keeps a log numbers nothing for this long after it listens: peers and clients dial again after at
    most a second and a half. None know a new directory, or an emptied one, from the other, so both wait."""
    show_us: Micros = Micros(1 * SECOND)
    """So often everybody who is connected is told how high the log is, if it has grown."""
    held_max: int = 20_000
    """Inputs that are held meanwhile; whoever asked further ones asks again."""


class Listens(Struct, frozen=True, tag="Listens"):
    """From the driver: whoever knows us can reach us from now on."""


class PartyConnected(Struct, frozen=True, tag="Connected"):
    """From the driver: a connection to this party stands; nothing of it has been heard over it yet."""

    party: Address


class Disconnected(Struct, frozen=True, tag="Disconnected"):
    """From the driver: it does not any more."""

    party: Address


class Reached(Struct, frozen=True, tag="Reached"):
    """From the driver: in this turn letters have left to these parties."""

    parties: tuple[Address, ...]


class Serving(Struct, frozen=True, tag="Serving"):
    """To the driver: from now on we number; what was held follows."""


class HasForgotten(Struct, frozen=True, tag="HasForgotten"):
    """To the driver: our data is older than what we have told others; nothing more of us may be seen."""

    why: str


class Admission:
    """In front of the machine of a node; what it delivers is for the machine, but for what is for the driver."""

    def __init__(
        self,
        lives: Lives,
        seal: Seal,
        life: str,
        height: Callable[[], int] | None,
        owner: Callable[[Address], Address],
        witness: Witness,
        asks: Callable[[Any], Address | None],
        config: AdmissionConfig = AdmissionConfig(),
    ) -> None:
        """`height` of the log; None: there is none, and nothing that could be lost. `owner`: the client of an address.
        `witness`: what other nodes have shown to this one. `asks`: the publisher that asks for numbers by a message."""
        self._lives, self._seal, self._life, self._height, self._owner = lives, seal, life, height, owner
        self._witness, self._asks = witness, asks
        self._config = config
        self._held: list[Any] | None = [] if height is not None else None
        self._is_alive = False  # once our life is in the log
        self._shows = False
        self._shown = 0
        self._knows: dict[Address, None] = {}  # clients that have shown that they know of this incarnation
        self._parties: dict[Address, None] = {}

    @property
    def is_full(self) -> bool:
        return self._held is not None and len(self._held) >= self._config.held_max

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Reached(parties=parties):
                return self._show(parties) if self._shows else []
            case PartyConnected(party=party):
                self._parties[party] = None
                reminder = self._witness.reminder(party, self._seal.node)
                reminded: list[Effect] = [Send(party, reminder)] if reminder is not None else []
                return reminded + (self._show((party,)) if self._shows else [])
            case Height():
                self._witness.note(message)
                return []
            case Disconnected(party=party):
                self._parties.pop(party, None)
                return []
            case Listens():
                waits = self._held is not None and self._config.listen_us > 0
                return [SetTimer("listen", Micros(now + self._config.listen_us))] if waits else self._serve(now)
            case Fired(key="listen"):
                return self._serve(now)
            case Fired(key="show"):
                return self._show_all(now)
            case Began():
                self._is_alive = True
                return []
            case Forgotten(peer=peer, what=what):
                return [Deliver(HasForgotten(f"{peer} knows of {what}"))]
            case Reminds():
                return self._reminded(message)
            case Lapse(client=client):
                self._knows.pop(self._owner(client), None)
        if self._lives.incarnation and (publisher := self._asks(message)) is not None:
            client = self._owner(publisher)
            if client not in self._knows:
                return self._show((client,)) if self._shows else []
        if self._held is None or isinstance(message, Handled):
            return [Deliver(message)]
        if not self.is_full:
            self._held.append(message)
        return []

    def _serve(self, now: Micros) -> list[Effect]:
        """Whoever could know better has had the time to say so."""
        held, self._held = self._held, None
        return [Deliver(Serving()), *map(Deliver, held or ()), *self._show_all(now)]

    def _show_all(self, now: Micros) -> list[Effect]:
        """To everybody who is connected, if it is news: they know it, should we forget it."""
        if self._height is None:
            return []
        again: list[Effect] = [SetTimer("show", Micros(now + self._config.show_us))]
        self._shows = self._is_alive
        if not self._shows or self._height() == self._shown:
            return again
        self._shown = self._height()
        return again + self._show(tuple(self._parties))

    def _show(self, parties: tuple[Address, ...]) -> list[Effect]:
        height = self.shown()
        return [Send(party, height) for party in parties]

    def shown(self) -> Height:
        """What we show now."""
        assert self._height is not None
        return self._seal.put(self._lives.incarnation, self._life, self._height())

    def _reminded(self, message: Reminds) -> list[Effect]:
        """Somebody was shown something by us: if our log does not know it, nothing more of us may be seen."""
        if self._height is None or not self._seal.is_ours(message.shown):
            return []
        client = self._owner(message.client)
        if message.shown.incarnation < self._lives.incarnation and self._is_alive:
            self._knows.pop(client, None)
            return [Send(message.client, self.shown())]
        self._knows[client] = None
        what = self._lives.forgotten(message.shown, self._height())
        return [Deliver(HasForgotten(f"{message.client} was shown {what}"))] if what is not None else []
