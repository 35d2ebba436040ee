"""How a node is, in words that `/readyz`, `unisono status`, log lines and metrics share.

A *check* is about the node itself: a node with a check that fails is not ready. *Peers* and *servers* are what it sees
of others; one that is away is named, and leaves the node ready as long as its own checks pass.
"""

from msgspec import Struct

SKEW_US_MAX = 500_000
"""A clock further from the parent's than this fails the check `clock`. Order does not depend on clocks: times in logs,
journals and archives do."""


class Checked(Struct, frozen=True):
    """One thing that has to be right for the node to do its work, and what was found."""

    name: str
    passed: bool
    detail: str


class PeerSeen(Struct, frozen=True):
    """A neighbour, as this node sees it."""

    node: str
    up: bool
    detail: str
    round_trip_us: int | None = None
    ahead_us: int | None = None
    """By how much its clock is ahead of ours, give or take half of the round trip."""


class ServerSeen(Struct, frozen=True):
    """A server of the broker, as this node sees it."""

    server: str
    """`host:port`, without credentials."""
    up: bool
    detail: str
    round_trip_us: int | None = None


class Health(Struct, frozen=True):
    """What a node knows of itself and of those around it."""

    checks: tuple[Checked, ...] = ()
    peers: tuple[PeerSeen, ...] = ()
    servers: tuple[ServerSeen, ...] = ()

    @property
    def is_ready(self) -> bool:
        return all(check.passed for check in self.checks)

    def problems(self) -> list[str]:
        """What is wrong, each thing once, the node's own first; the parent is one of the peers."""
        failed = [check for check in self.checks if not check.passed and check.name != "parent"]
        return [
            *(f"{check.name}: {check.detail}" for check in failed),
            *(f"node {peer.node}: {peer.detail}" for peer in self.peers if not peer.up),
            *(f"server {server.server}: {server.detail}" for server in self.servers if not server.up),
        ]


class TopicSeen(Struct, frozen=True):
    """A topic at its home."""

    name: str
    number: int
    """The last one given to an event."""
    climbing: int
    subscribers: int
    id: int
    """What topics are called inside the deployment."""
    group: tuple[int, ...]
    """Topics that it is ordered against, by id: their names are known where they are at home."""


class LaneSeen(Struct, frozen=True):
    """What a stamper stamps on one topic."""

    topic: str
    keeper: str
    epoch: int
    """0: it keeps the topic itself."""
    last: int
    """Entries so far."""
    watermark_us: int
    """How far its promise is ahead of its clock; below 0 as long as it was last told."""
    lean_us: int


LANES_MAX = 1_000


class StamperSeen(Struct, frozen=True):
    """The stamper of a node, where clocks order."""

    term: int
    """How often it has started."""
    is_warm: bool
    """It has heard the other clocks, and stamps."""
    ahead_us: int
    """Its clock stands and waits for its time to come: after a restart, or when it was put right."""
    error_us: int | None
    """Real-time order: how far it may be from the clock of all; None: nobody knows."""
    waiting: int
    """Publishers whose events wait for a lane, a lease, or their clock."""
    heard_us: dict[str, int]
    """Every other stamper's promise as it was heard last, from our clock: its distance, and the age of the beat."""
    lanes: tuple[LaneSeen, ...]
    """At most `LANES_MAX`."""
    skew_us: int | None = None
    """How far it is ahead of the median of all; None: not even half of them answer."""
    beats: int = 0
    """Since it started; each goes to every other stamper."""
    ticks: int = 0
    """To all who keep it awake together."""


class GroupSeen(Struct, frozen=True):
    """A consumer group at its archive."""

    name: str
    active: str
    members: int
    lag_events: int
    """Rows that it has not committed."""
    lag_s: float
    """Since when there are any, about."""
