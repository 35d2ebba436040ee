"""What a broker remembers besides its tables: neighbours, handshakes, local publishers, counters."""

from msgspec import Struct

from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.protocols.overlay.forwarding import Forwarding
from unisono.protocols.overlay.tables import Hop


class Counters(Struct):
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

    __slots__ = ("announced", "forwarding", "heard_open", "said_open", "turns")

    def __init__(self, forwarding: Forwarding) -> None:
        self.forwarding = forwarding
        self.turns = 0  # advertisements announced so far
        self.announced: dict[str, int] = {}  # not confirmed while the link was joining, each with its turn
        self.said_open = False
        self.heard_open = False

    @property
    def is_open(self) -> bool:
        return self.said_open and self.heard_open


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


class Publisher:
    """A local publisher: advertisements not yet open, and publications waiting for one."""

    __slots__ = ("buffer", "closed", "closing", "gone", "last", "opening")

    def __init__(self) -> None:
        self.closed: dict[str, None] = {}  # withdrawn by the publisher, still known here
        self.opening: dict[str, None] = {}
        self.closing: dict[str, None] = {}
        self.buffer: list[Event] = []
        self.last: dict[str, int] = {}  # per name it publishes under
        self.gone = False
