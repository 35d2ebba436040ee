"""What stands in a deployment file, part by part: regions, nodes, topics, brokers, security, and how each kind works.

`model/deployment.py` puts the parts together, and checks what they say of each other.
"""

from typing import Literal

from msgspec import Struct

from unisono.model.grid import Axis
from unisono.model.interest import covers

CELL = ".cell-"

Kind = Literal["sequencer", "overlay", "regions", "causal"]
Role = Literal["sequencer", "broker", "archive", "overlay", "regions", "causal"]
BrokerKind = Literal["embedded", "memory", "nats", "jetstream", "udp"]
Foreign = Literal["adopt", "tag", "refuse"]

ROLES: dict[Kind, tuple[Role, ...]] = {
    "sequencer": ("sequencer", "broker", "archive"),
    "overlay": ("overlay",),
    "regions": ("regions", "sequencer"),
    "causal": ("causal",),
}
"""The roles that nodes of a kind may have; the first is that of a node which names none."""


class Region(Struct, frozen=True, forbid_unknown_fields=True):
    """A place; the time between two of them is in the deployment's round_trip_ms."""

    name: str


def _above(listen: str) -> str | None:
    """On loopback, 1000 above the port of an address; None if there is no such port."""
    port = listen.rpartition(":")[2]
    return f"127.0.0.1:{int(port) + 1000}" if port.isdecimal() and 0 < int(port) <= 64_535 else None


class NodeSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One process. The node without a parent is the root of the sequencing tree."""

    name: str
    region: str = "local"
    listen: str = "127.0.0.1:0"
    parent: str | None = None
    roles: tuple[Role, ...] = ("sequencer",)
    data: str | None = None
    """Directory of its log; None keeps everything in memory (and forgets it with the process)."""
    log: Literal["file", "jetstream"] = "file"
    """`jetstream`: its log is a replicated stream (see `[log]`), so another process can take over."""
    standby: str | None = None
    """Where `unisono node --standby` listens once it has taken over."""
    advertise: str | None = None
    """`host:port` where others reach it, if not where it listens: in a container, or with translated addresses."""

    observe: str | None = None
    """`host:port` of /healthz, /readyz and /metrics, or `off`; None: on loopback, 1000 above the port of `listen`."""

    @property
    def observed_at(self) -> str | None:
        """Where the node serves its metrics; None: nowhere."""
        if self.observe is not None:
            return None if self.observe == "off" else self.observe
        return _above(self.listen)

    @property
    def standby_observed_at(self) -> str | None:
        """The same of its standby, which may run on this very machine."""
        return None if self.observe == "off" else _above(self.standby or "")

    @property
    def reached_at(self) -> str:
        """Where others dial."""
        return self.advertise or self.listen


class TopicSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """With a home the topic exists from the start; without one, as all others, it is created where it is first used."""

    name: str
    home: str | None = None
    foreign: Foreign = "tag"
    """Events of publishers that do not use unisono: number them, deliver them marked, or drop them."""
    grid: tuple[Axis, ...] = ()
    """Cuts the topic's content into cells, each a topic of its own, so that subscribers hear the cells they ask for."""


class BrokerSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """What carries payloads. `embedded` lives in the nodes with the role `broker`, `udp` in all who take part."""

    kind: BrokerKind = "embedded"
    servers: tuple[str, ...] = ()
    """`nats://host:port` per server, the one of each region first for clients there. `udp`: `host:port` of the seeds;
    none means the addresses that sequencer nodes listen at."""
    credentials: str | None = None
    """NATS: a `.creds` file, or one with a user's nkey seed; its path is relative to the deployment file."""
    node_credentials: str | None = None
    """The same for nodes, which publish control; without it they take `credentials`."""
    authority: str | None = None
    """NATS over TLS: whom to trust, if not whom the machine trusts."""
    certificate: str | None = None
    """NATS over TLS: what is shown to servers that ask for it, and its key."""
    key: str | None = None
    drop: float = 0.0
    """`udp`: this share of all datagrams is thrown away before it leaves, to rehearse a bad network."""
    drop_burst: float = 2.0
    """How many in a row on average."""

    @property
    def keeps(self) -> bool:
        """Whether the broker keeps what it confirms, so that publications can be `stored`."""
        return self.kind == "jetstream"


class Security(Struct, frozen=True, forbid_unknown_fields=True):
    """Names of files and of environment variables; never a secret itself."""

    certificate: str | None = None
    key: str | None = None
    authority: str | None = None
    """Whom those who dial trust: a file, or `system` for the authorities this machine trusts."""
    token_variable: str | None = None
    """What clients show; nodes too, unless they have their own."""
    token_file: str | None = None
    """The same in a file, such as a mounted secret; blanks at its ends do not count."""
    node_token_file: str | None = None
    node_token_variable: str | None = None
    """With it only who shows this token is a node: joins the tree, publishes control. Clients need not know it."""


class Right(Struct, frozen=True, forbid_unknown_fields=True):
    """What clients may do that show this token: publish on, and subscribe to, topics that match."""

    name: str
    token_variable: str | None = None
    token_file: str | None = None
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()

    def may_publish(self, topic: str) -> bool:
        return _is_covered(self.publish, topic)

    def may_subscribe(self, topic: str) -> bool:
        return _is_covered(self.subscribe, topic)

    def may_see(self, topic: str) -> bool:
        return self.may_publish(topic) or self.may_subscribe(topic)


def _is_covered(patterns: tuple[str, ...], topic: str) -> bool:
    """A topic that is cut by a grid stands for its cells."""
    whole = topic.rpartition(CELL)[0] or topic
    return any(covers(pattern, topic) or covers(pattern, whole) for pattern in patterns)


OrderedBy = Literal["tree", "clock"]
"""How sequencers order."""


class Sequencing(Struct, frozen=True, forbid_unknown_fields=True):
    """How order is made; the defaults are the measured best."""

    by: OrderedBy = "tree"
    """tree: topics have homes that number events, and the nodes above them order what is shared. clock: every region
    stamps its events by its clock, and all subscribers agree on one order (docs/protocols/clock.md)."""
    tolerance_ms: float = 0.0
    """By clock, real-time order: an event published more than this after another was accepted comes after it. A node
    whose clock may be off by more than half of it orders nothing until it is not. 0: no such order."""
    clock_bound_ms: float | None = None
    """The operator's word: every node's system clock is this near to true time. None: nodes measure each other's."""
    leans: Literal["auto", "off"] = "auto"
    """By clock. auto: lanes lean as the measured demand suggests, which brings latency near what distances allow; then
    causes come before effects within a topic only. Needs scipy at the root: the extra `plan`. With order = "causal" or
    a tolerance no lane leans."""
    early: bool = True
    encoding: Literal["delta", "full"] = "delta"
    placement: Literal["auto", "fixed"] = "auto"
    """auto: homes move to where their topics are used, but for those that are named in the file. fixed: they stay."""
    order: Literal["pairwise", "global", "causal"] = "pairwise"
    """pairwise: no two subscribers disagree. global: one order explains all of them, for larger groups. causal: as
    global, and no effect before its cause; publishers wait between topics. By clock the order is always global."""

    @property
    def leans_lanes(self) -> bool:
        """Whether lanes lean: where nothing was asked for that leans would break."""
        return self.by == "clock" and self.leans == "auto" and self.order != "causal" and not self.tolerance_ms


class LogSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The logs of nodes with `log = "jetstream"`."""

    servers: tuple[str, ...] = ()
    """NATS servers with JetStream; none means those of the broker."""
    replicas: int = 3
    patience_s: float = 3.0
    """A standby takes over after this much silence of the owner."""


class OverlaySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How the nodes with the role `overlay` route and order: brokers on the tree that `parent` draws."""

    detection: Literal["clients", "always"] = "clients"
    """clients: wait for an echo where a conflict is possible. always: wherever somebody above is interested."""
    covering: bool = False
    """Brokers do not tell a neighbour of a subscription if it knows a wider one: smaller tables, a few more waits."""
    held_ms: float | None = None
    """An event that a broker has held this long is given up there, and subscribers are told; None waits for ever."""


class EntourageSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How the nodes with the role `regions` and their clients connect directly: brokers on the trees of `parent`."""

    psi: float = 0.4
    """The share of a publisher's events that whoever it connects to must want."""
    connections_max: int = 64
    """Direct connections of one publisher; 0: everything goes over the brokers."""
    bandwidth_bytes_per_s: float | None = None
    """What a publisher may send directly, all copies together; None: any amount."""
    discovery_s: float = 30.0
    """How often a publisher looks for whom it could connect to; 0: never."""
    gone_s: float = 10.0
    """A publisher that no broker has a link to for this long has gone, and subscribers are told."""


class MembershipSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Who keeps which brokers of regions belong together: a key-value bucket of JetStream."""

    servers: tuple[str, ...] = ()
    """`nats://host:port`; needed as soon as two brokers of a region have the same parent, or none."""
    replicas: int = 3
    """Of the bucket, when it is made."""
    patience_s: float = 3.0
    """A broker that has not beaten for so long is a member no more, and must be started again."""


class ArchiveSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How the nodes with the role `archive` keep what was delivered."""

    seal_s: float = 5.0
    """Rows are offered at the latest this long after they were kept; a replay that waits for them asks earlier."""
    keep_bytes: int | None = None
    """Beyond this the oldest segments are removed; None keeps everything."""
    keep_s: float | None = None
    """Segments older than this are removed."""
    stream: str | None = None
    """Rows are kept in this JetStream stream instead of files; it belongs to one node with the role archive."""
    servers: tuple[str, ...] = ()
    """NATS servers with that stream; none means those of the broker."""
    replicas: int = 3
    """Of the stream, when it is made."""
