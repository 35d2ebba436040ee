"""What a broker remembers besides its tables: neighbours, handshakes, local publishers, counters."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from unisono.machine import Effect, Refuse, Send
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import Filter
from unisono.protocols.overlay.forwarding import Forwarding
from unisono.protocols.overlay.tables import Hop
from unisono.structures.matching import MatchingIndex


class OverlayCounters(Struct):
    """What the broker has seen; read by drivers, never by the protocol."""

    publications: int = 0
    detections: int = 0
    held: int = 0
    echoes: int = 0
    echo_us: int = 0
    echo_us_max: int = 0
    false_positives: int = 0
    dropped: int = 0
    pending_max: int = 0


class Link:
    """A neighbour; joining until both ends have said Open, and deaf until our subscriptions are confirmed."""

    __slots__ = ("announced", "forwarding", "heard_open", "is_heard", "said_open", "turns")

    def __init__(self, forwarding: Forwarding) -> None:
        self.forwarding = forwarding
        self.turns = 0  # advertisements announced so far
        self.announced: dict[str, int] = {}  # not confirmed while the link was joining, each with its turn
        self.said_open = False
        self.heard_open = False
        self.is_heard = False  # open, and no longer deaf

    @property
    def is_open(self) -> bool:
        return self.said_open and self.heard_open


class Neighbours:
    """The brokers around this one, at most one of them above it."""

    __slots__ = ("links", "parent")

    def __init__(self) -> None:
        self.links: dict[Address, Link] = {}
        self.parent: Address | None = None


class BrokerEffects:
    """What the message being handled leads to."""

    __slots__ = ("effects", "refusals")

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.refusals: dict[str, int] = {}
        """How often what was refused, by code."""

    def add(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, to: Address, message: Any) -> None:
        self.effects.append(Send(to, message))

    def refuse(self, reason: str, code: str = "protocol") -> None:
        self.refusals[code] = self.refusals.get(code, 0) + 1
        self.effects.append(Refuse(reason))


class Handshake:
    """Waits for confirmations, then for everything that was pending when the last one came (section 7.3)."""

    __slots__ = ("ads", "hop", "lost", "missing", "snapshot", "turn")

    def __init__(
        self, missing: dict[Address, int], turn: int = 0, ads: tuple[str, ...] = (), lost: bool = False, hop: Hop = ""
    ) -> None:
        """`turn` is that of the announcement to be confirmed, those of `missing` are our own."""
        self.missing = missing
        self.turn = turn
        self.snapshot: dict[str, None] | None = None
        self.ads = ads
        self.lost = lost
        self.hop = hop


class LocalPublisher:
    """A local publisher: advertisements not yet open, and publications waiting for one."""

    __slots__ = ("_ads", "_names", "buffer", "buffer_bytes", "closed", "closing", "gone", "last", "opening", "passed")

    def __init__(self) -> None:
        self._ads: MatchingIndex[str] = MatchingIndex()  # one that has many must not pay for them with every event
        self._names: dict[str, str] = {}  # advertisement -> the publisher it names
        self.closed: dict[str, None] = {}  # withdrawn by the publisher, still known here
        self.opening: dict[str, None] = {}
        self.closing: dict[str, None] = {}
        self.buffer: deque[Event] = deque()
        self.buffer_bytes = 0
        self.last: dict[str, int] = {}  # per name it publishes under
        self.passed: dict[str, int] = {}  # the same, of those that left the buffer
        self.gone = False

    def advertise(self, ad: str, publisher: str, filter: Filter) -> None:
        self._ads.add(ad, filter)
        self._names[ad] = publisher
        self.opening[ad] = None

    def withdrawn(self, ad: str) -> None:
        self._ads.remove(ad)
        del self._names[ad]
        self.closed.pop(ad, None)
        self.opening.pop(ad, None)

    def advertised(self, publisher: str, attributes: Mapping[str, object]) -> list[str]:
        """Advertisements of a name in which an event lies."""
        return [ad for ad in self._ads.match(attributes) if self._names[ad] == publisher]
