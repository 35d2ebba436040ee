"""What a node knows of one stream; the rules that change it are `ports`."""

from typing import Literal, Protocol

from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.messages import StreamGap, StreamItem

PortMode = Literal["O", "W", "D", "V", "U", "R", "RD"]
DIRECT: tuple[PortMode, ...] = ("W", "D", "V", "RD")


class StreamPort:
    """What a node knows of one stream."""

    __slots__ = (
        "acked", "below", "buffer", "dialer", "epoch", "final", "first", "floor", "heard", "is_ready", "last", "missed",
        "mode", "opened", "pruned", "session", "src", "stream", "token",
    )  # fmt: skip

    def __init__(self, stream: Address) -> None:
        self.stream = stream
        self.mode: PortMode = "U"
        self.epoch = 0
        self.last: int | None = None  # number of the last item accepted; None: never heard of it
        self.missed = 0  # up to here has been told as a gap since the last item
        self.src: Address | None = None  # the neighbour it comes from
        self.below = False  # it comes from below: items go up as well
        self.acked = 0  # what its root has accepted, as far as we know
        self.final: int | None = None  # its publisher has said goodbye, and this was its last item
        self.floor: tuple[int, int | None] | None = None  # never heard of it, but fed before: since when; what is new
        self.buffer: list[StreamItem | StreamGap] = []
        self.token = 0
        self.session = 0
        self.dialer: Address | None = None  # the other end of the direct connection
        self.first: int | None = None  # in W: the first item that comes directly
        self.is_ready = False  # in V: the overlay's stream is open, and buffered
        self.opened: dict[Address, None] = {}  # links that are fed without a hole since we said Open there
        self.pruned: dict[Address, int] = {}  # links that take it directly, with the session
        self.heard: dict[str, int] = {}  # publisher name -> sequence of its last event

    @property
    def is_whole(self) -> bool:
        """Its publisher has said goodbye, and nothing that it said before is missing."""
        return self.final is not None and self.last is not None and self.last >= self.final

    def take(self, upto: int | None = None) -> list[StreamItem | StreamGap]:
        """What waits up to a number, in order; it waits no more."""
        taken = [m for m in self.buffer if upto is None or _place(m) <= (upto, 1)]
        self.buffer = [m for m in self.buffer if upto is not None and _place(m) > (upto, 1)]
        return sorted(taken, key=_place)


def _place(m: StreamItem | StreamGap) -> tuple[int, int]:
    """Items in order, a gap after the item before it."""
    return (m.number, 0) if isinstance(m, StreamItem) else (m.first - 1, 1)


class Tombstones:
    """How far a node had come with streams that were closed, for as long as somebody may bring one back."""

    __slots__ = ("_config", "_ports")

    def __init__(self, config: RegionsConfig) -> None:
        self._config = config
        self._ports: dict[Address, tuple[StreamPort, Micros]] = {}

    def remember(self, port: StreamPort, now: Micros) -> None:
        self._ports[port.stream] = port, now
        while self._ports and self._is_stale(next(iter(self._ports)), now):
            del self._ports[next(iter(self._ports))]

    def revived(self, stream: Address, now: Micros) -> StreamPort:
        """A new port, which goes on where the earlier one ended."""
        port = StreamPort(stream)
        earlier, at = self._ports.pop(stream, (None, now))
        if earlier is not None and now - at <= self._config.tombstone_us:
            port.epoch, port.last, port.heard = earlier.epoch, earlier.last, earlier.heard
        return port

    def _is_stale(self, stream: Address, now: Micros) -> bool:
        is_old = now - self._ports[stream][1] > self._config.tombstone_us
        return is_old or len(self._ports) > self._config.tombstones_max


class StreamEars(Protocol):
    """Who takes what ports accept in this node: a subscriber, or a broker that counts."""

    def on_item(self, item: StreamItem) -> None: ...

    def on_gap(self, port: StreamPort, gap: StreamGap) -> None: ...

    def on_gone(self, port: StreamPort, left: bool) -> None: ...


class PortCounters:
    """What the ports have seen; read by drivers, never by the protocol."""

    __slots__ = ("accepted", "dropped", "gaps", "handovers", "opened", "recoveries")

    def __init__(self) -> None:
        self.accepted = self.dropped = self.gaps = self.handovers = self.opened = self.recoveries = 0
