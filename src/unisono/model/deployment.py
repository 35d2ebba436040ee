"""The deployment file: one TOML text that describes regions, nodes, topics, brokers and security.

It drives `unisono up` (local, delays emulated), `unisono node` (real), is written by `unisono init` and
`unisono plan`, and is named by scenarios. Parsing checks everything that can be known without a network and says
in one line what is wrong and where.

    version = 1
    [[regions]]
    name = "eu"
    [round_trip_ms]
    "eu us" = 80.5
    [[nodes]]
    name = "hub"
    region = "us"
    listen = "127.0.0.1:7474"
    [[nodes]]
    name = "eu-1"
    region = "eu"
    listen = "127.0.0.1:7475"
    parent = "hub"
    [[topics]]
    name = "trades"
    home = "eu-1"
"""

import tomllib
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from unisono.errors import FormatError, MisuseError
from unisono.model.grid import Axis, Grid
from unisono.model.interest import check_topic_name
from unisono.model.limits import Limits
from unisono.model.region import LatencyTable

DEPLOYMENT_VERSION = 1

Role = Literal["sequencer", "broker", "archive", "overlay"]
BrokerKind = Literal["embedded", "memory", "nats", "jetstream", "udp"]
Foreign = Literal["adopt", "tag", "refuse"]


class Region(Struct, frozen=True, forbid_unknown_fields=True):
    """A place; the time between two of them is in the deployment's round_trip_ms."""

    name: str


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


class TopicSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A topic that exists from the start; others are born on first use at their hashed home."""

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
    drop: float = 0.0
    """`udp`: this share of all datagrams is thrown away before it leaves, to rehearse a bad network."""
    drop_burst: float = 2.0
    """How many in a row on average."""


class Security(Struct, frozen=True, forbid_unknown_fields=True):
    """Names of files and of environment variables; never a secret itself."""

    certificate: str | None = None
    key: str | None = None
    authority: str | None = None
    """Whom those who dial trust: a file, or `system` for the authorities this machine trusts."""
    token_variable: str | None = None
    """What clients show; nodes too, unless they have their own."""
    node_token_variable: str | None = None
    """With it only who shows this token is a node: joins the tree, publishes control. Clients need not know it."""


class Sequencing(Struct, frozen=True, forbid_unknown_fields=True):
    """How order is made; the defaults are the measured best."""

    early: bool = True
    encoding: Literal["delta", "full"] = "delta"
    order: Literal["pairwise", "global", "causal"] = "pairwise"
    """pairwise: no two subscribers disagree. global: one order explains all of them, for larger groups. causal: as
    global, and no effect before its cause; publishers wait between topics."""


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


class Deployment(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that is known before anything runs."""

    version: int
    name: str = "unisono"
    regions: tuple[Region, ...] = ()
    round_trip_ms: dict[str, float] = {}
    nodes: tuple[NodeSpec, ...] = ()
    topics: tuple[TopicSpec, ...] = ()
    broker: BrokerSpec = BrokerSpec()
    sequencing: Sequencing = Sequencing()
    security: Security = Security()
    archive: ArchiveSpec = ArchiveSpec()
    log: LogSpec = LogSpec()
    overlay: OverlaySpec = OverlaySpec()
    limits: Limits = Limits()

    @property
    def root(self) -> NodeSpec:
        return next(node for node in self.nodes if node.parent is None)

    @property
    def is_overlay(self) -> bool:
        return any("overlay" in node.roles for node in self.nodes)

    def node(self, name: str) -> NodeSpec:
        for node in self.nodes:
            if node.name == name:
                return node
        raise FormatError("deployment", f"no node {name!r}: it has {', '.join(n.name for n in self.nodes) or 'none'}")

    def children(self, name: str) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.parent == name)

    def latencies(self) -> LatencyTable:
        """One-way latencies between all regions; pairs that are not given count as zero."""
        names = tuple(region.name for region in self.regions)
        table = [[0] * len(names) for _ in names]
        for pair, milliseconds in self.round_trip_ms.items():
            a, b = (names.index(name) for name in pair.split())
            table[a][b] = table[b][a] = round(milliseconds * 500)
        return LatencyTable(names, tuple(tuple(row) for row in table))


def parse_deployment(text: str) -> Deployment:
    """Reads a deployment from TOML text; raises FormatError with the place."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FormatError("deployment", str(error)) from None
    return check_deployment(raw)


def load_deployment(path: Path) -> Deployment:
    """Reads a deployment file; raises FormatError with the file's name and the place."""
    try:
        return parse_deployment(path.read_text())
    except OSError as error:
        raise FormatError(str(path), error.strerror or str(error)) from None
    except FormatError as error:
        raise FormatError(f"{path}: {error.where}", error.problem) from None


def check_deployment(raw: object) -> Deployment:
    """Makes a deployment of decoded TOML, checking what belongs together."""
    _check_gone(raw)
    try:
        deployment = msgspec.convert(raw, Deployment)
    except msgspec.ValidationError as error:
        raise FormatError("deployment", str(error)) from None
    if deployment.version != DEPLOYMENT_VERSION:
        raise FormatError("version", f"{deployment.version} is unknown, this is version {DEPLOYMENT_VERSION}")
    _check_regions(deployment)
    _check_tree(deployment)
    _check_topics(deployment)
    _check_overlay(deployment)
    _check_archive(deployment)
    return deployment


def _check_gone(raw: object) -> None:
    """Settings of earlier releases, and what to do about them."""
    sequencing = raw.get("sequencing") if isinstance(raw, dict) else None
    if isinstance(sequencing, dict) and "mode" in sequencing:
        todo = "remove the line; payloads always leave at once and their numbers follow"
        if sequencing["mode"] == "ticket":
            todo += ", and give nodes that ran with it new data directories"
        raise FormatError("sequencing.mode", f"{sequencing['mode']!r}: there is one way left to publish: {todo}")


def _unique(kind: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise FormatError(kind, f"{name!r} is named twice")


def _check_regions(deployment: Deployment) -> None:
    names = [region.name for region in deployment.regions]
    _unique("regions", names)
    for pair in deployment.round_trip_ms:
        if len(pair.split()) != 2 or any(name not in names for name in pair.split()):
            raise FormatError("round_trip_ms", f'{pair!r} is not two regions of this deployment: write "eu us" = 80')
    for node in deployment.nodes:
        if names and node.region not in names:
            raise FormatError(f"nodes.{node.name}", f"region {node.region!r} is not among {', '.join(names)}")


def _check_tree(deployment: Deployment) -> None:
    parents = {node.name: node.parent for node in deployment.nodes}
    _unique("nodes", [node.name for node in deployment.nodes])
    roots = [name for name, parent in parents.items() if parent is None]
    if parents and len(roots) != 1:
        raise FormatError("nodes", f"a deployment has one root (a node without parent), not {len(roots)}")
    for name, parent in parents.items():
        if parent is not None and parent not in parents:
            raise FormatError(f"nodes.{name}", f"its parent {parent!r} is not a node of this deployment")
        above, steps = parent, 0
        while above is not None:
            above, steps = parents.get(above), steps + 1
            if steps > len(parents):
                raise FormatError(f"nodes.{name}", "its parents form a circle")


def _check_topics(deployment: Deployment) -> None:
    homes = [node.name for node in deployment.nodes]
    _unique("topics", [topic.name for topic in deployment.topics])
    for topic in deployment.topics:
        check_topic_name(topic.name)
        if topic.home is not None and topic.home not in homes:
            raise FormatError(f"topics.{topic.name}", f"its home {topic.home!r} is not a node of this deployment")
        if topic.grid:
            try:
                Grid(topic.grid)
            except MisuseError as error:
                raise FormatError(f"topics.{topic.name}.grid", str(error)) from None


def _check_overlay(deployment: Deployment) -> None:
    """An overlay carries its events itself: nobody else in the deployment routes or numbers them."""
    brokers = [node for node in deployment.nodes if "overlay" in node.roles]
    for node in deployment.nodes if brokers else ():
        if node.roles != ("overlay",):
            raise FormatError(f"nodes.{node.name}", "where one node has the role overlay, all have it and no other")
        if node.standby is not None or node.log != "file":
            raise FormatError(f"nodes.{node.name}", "a broker of an overlay keeps nothing that another could take over")
    if deployment.overlay.held_ms is not None and deployment.overlay.held_ms <= 0:
        raise FormatError("overlay.held_ms", f"{deployment.overlay.held_ms} is no time to wait")


def _check_archive(deployment: Deployment) -> None:
    name = deployment.archive.stream
    if name is None:
        return
    if "." in name:
        raise FormatError("archive.stream", f"{name!r}: a stream's name is one word, without dots")
    check_topic_name(name)
    keepers = [node.name for node in deployment.nodes if "archive" in node.roles]
    if len(keepers) > 1:
        raise FormatError("archive.stream", f"one stream has one archive, not {len(keepers)}: {', '.join(keepers)}")
    if not deployment.archive.servers and deployment.broker.kind not in ("nats", "jetstream"):
        raise FormatError("archive.servers", f"broker {deployment.broker.kind!r} keeps no streams: name NATS servers")


def for_clients(deployment: Deployment) -> Deployment:
    """What is told to whoever asks where everything is: without the credentials that only nodes need.

    Those in `broker.servers` are the clients' own: it is with them that they reach the broker.
    """
    return msgspec.structs.replace(
        deployment,
        log=msgspec.structs.replace(deployment.log, servers=tuple(map(without_credentials, deployment.log.servers))),
        archive=msgspec.structs.replace(
            deployment.archive, servers=tuple(map(without_credentials, deployment.archive.servers))
        ),
    )


def without_credentials(url: str) -> str:
    """`nats://user:password@host` as it may be shown."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def dump_deployment(deployment: Deployment) -> str:
    """TOML text that `parse_deployment` reads back to an equal deployment."""
    lines = [f"version = {deployment.version}", f"name = {_quote(deployment.name)}"]
    for region in deployment.regions:
        lines += ["", "[[regions]]", *_fields(region)]
    if deployment.round_trip_ms:
        lines += ["", "[round_trip_ms]", *(f"{_quote(k)} = {float(v)!r}" for k, v in deployment.round_trip_ms.items())]
    for node in deployment.nodes:
        lines += ["", "[[nodes]]", *_fields(node)]
    for topic in deployment.topics:
        lines += ["", "[[topics]]", *_fields(topic)]
    for title, part in (
        ("broker", deployment.broker),
        ("sequencing", deployment.sequencing),
        ("security", deployment.security),
        ("archive", deployment.archive),
        ("log", deployment.log),
        ("overlay", deployment.overlay),
        ("limits", deployment.limits),
    ):
        fields = _fields(part)
        if fields:
            lines += ["", f"[{title}]", *fields]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")  # JSON leaves DEL as it is, TOML forbids it


def _fields(part: Struct) -> list[str]:
    lines = []
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if value is None:
            continue
        if name == "grid":
            if not value:
                continue
            text = "[" + ", ".join("{ " + ", ".join(_fields(axis)) + " }" for axis in value) + "]"
        elif isinstance(value, tuple):
            text = "[" + ", ".join(_quote(item) for item in value) + "]"
        elif isinstance(value, bool):
            text = "true" if value else "false"
        else:
            text = _quote(value)
        lines.append(f"{name} = {text}")
    return lines
