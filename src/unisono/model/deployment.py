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

import math
import re
import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from unisono.errors import FormatError, MisuseError
from unisono.model.address import endpoint
from unisono.model.explained import explain
from unisono.model.grid import Grid
from unisono.model.interest import FILE_NAME, check_interest, check_topic_name
from unisono.model.limits import Limits
from unisono.model.mesh import CausalSpec, check_mesh
from unisono.model.region import LatencyTable
from unisono.model.settings import (
    ROLES,
    ArchiveSpec,
    BrokerSpec,
    EntourageSpec,
    Kind,
    LogSpec,
    MembershipSpec,
    NodeSpec,
    OverlaySpec,
    Region,
    Right,
    Security,
    Sequencing,
    TopicSpec,
)

DEPLOYMENT_VERSION = 1

NO_SCHEME = re.compile(r"(?:[a-z+]+:)?/{0,2}((?:\[[0-9a-f:]+\]|[\w.\-]+):\d+|\d+(?:\.\d+){3})")
"""An address as somebody writes it who forgets the scheme, or half of it."""
URL = re.compile(r"[a-z+]+:/")
WORD = re.compile(r"[A-Za-z0-9_\-]+")
REPLICAS_MAX = 5
"""Of a stream or a bucket of JetStream."""
IN_PROCESS = "memory"
"""Where a node listens that only its own process reaches."""


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
    entourage: EntourageSpec = EntourageSpec()
    membership: MembershipSpec = MembershipSpec()
    causal: CausalSpec = CausalSpec()
    limits: Limits = Limits()
    rights: tuple[Right, ...] = ()
    """With any, clients that show none of their tokens, nor that of `[security]`, stay outside."""
    kind: Kind = "sequencer"
    """Who orders: sequencer nodes over a broker, or the brokers of an overlay. A file that names no kind is of the kind
    that has the roles of its nodes."""
    id: str = ""
    """Drawn when the file was made, and never changed: data of another deployment of the same name is refused."""

    @property
    def root(self) -> NodeSpec:
        return next(node for node in self.nodes if node.parent is None)

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
        return _placed(parse_deployment(path.read_text()), path.parent)
    except FileNotFoundError:
        todo = f"write one with: unisono init {path}"
        meant = NO_SCHEME.fullmatch(str(path))
        if URL.match(str(path)) is not None:
            todo = "an address is no answer here: the deployment file itself is read"
        elif meant is not None:
            where = meant[1] if ":" in meant[1] else f"{meant[1]}:7474"
            todo = f"the address of a node is unisono://{where}, of a NATS server nats://{meant[1]}"
        raise FormatError(str(path), f"No such file; {todo}") from None
    except OSError as error:
        raise FormatError(str(path), error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise FormatError(str(path), "not a text file; write one with: unisono init") from None
    except FormatError as error:
        raise FormatError(f"{path}: {error.where}", error.problem) from None


BROKER_FILES = ("credentials", "node_credentials", "authority", "certificate", "key")


def _placed(deployment: Deployment, base: Path) -> Deployment:
    """With the files of its broker where they are."""
    broker = deployment.broker
    paths = {
        name: str((base / path).absolute()) for name in BROKER_FILES if (path := getattr(broker, name)) is not None
    }
    return msgspec.structs.replace(deployment, broker=msgspec.structs.replace(broker, **paths)) if paths else deployment


def check_deployment(raw: object) -> Deployment:
    """Makes a deployment of decoded TOML, checking what belongs together."""
    _check_gone(raw)
    _check_numbers(raw, "")
    try:
        deployment = msgspec.convert(_with_kind(raw), Deployment)
    except msgspec.ValidationError as error:
        where, problem = explain(error, raw, Deployment)
        raise FormatError(where or "deployment", problem) from None
    if deployment.version != DEPLOYMENT_VERSION:
        raise FormatError("version", f"{deployment.version} is unknown, this is version {DEPLOYMENT_VERSION}")
    _check_names(deployment)
    _check_regions(deployment)
    _check_addresses(deployment)
    _check_sequencing(deployment)
    if deployment.kind == "causal":
        _check_mesh(deployment)
    else:
        _check_tree(deployment)
    _check_topics(deployment)
    _check_kind(deployment)
    _check_overlay(deployment)
    _check_entourage(deployment)
    _check_archive(deployment)
    _check_broker(deployment)
    _check_kept(deployment)
    _check_security(deployment)
    return deployment


def _check_gone(raw: object) -> None:
    """Settings of earlier releases, and what to do about them."""
    sequencing = raw.get("sequencing") if isinstance(raw, dict) else None
    if isinstance(sequencing, dict) and "mode" in sequencing:
        todo = "remove the line; payloads always leave at once and their numbers follow"
        if sequencing["mode"] == "ticket":
            todo += ", and give nodes that ran with it new data directories"
        raise FormatError("sequencing.mode", f"{sequencing['mode']!r}: there is one way left to publish: {todo}")


def _check_numbers(raw: object, where: str) -> None:
    """TOML can write what is no number, and no end; no setting is either."""
    if isinstance(raw, float) and not math.isfinite(raw):
        raise FormatError(where, f"{raw} is no number that can be counted with; leave it out for the default")
    if isinstance(raw, dict):
        for name, value in raw.items():
            _check_numbers(value, f"{where}.{name}" if where else str(name))
    elif isinstance(raw, list):
        for value in raw:
            _check_numbers(value, where)


def _with_kind(raw: object) -> object:
    """The file with what it leaves out: its kind, which roles tell, and roles, which its kind tells."""
    nodes = raw.get("nodes", []) if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        return raw
    lists = [node["roles"] for node in nodes if isinstance(node.get("roles"), list)]
    named = [
        each for each in reversed(ROLES) if any(each in roles for roles in lists)
    ]  # sequencers may be beside others
    kind = raw.get("kind", named[0] if named else "sequencer")
    if kind not in ROLES:
        return raw
    return {**raw, "kind": kind, "nodes": [{"roles": [ROLES[kind][0]], **node} for node in nodes]}


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
        if deployment.round_trip_ms[pair] < 0:
            raise FormatError(f"round_trip_ms.{pair}", f"{deployment.round_trip_ms[pair]} is no time to travel")
    for node in deployment.nodes:
        if names and node.region not in names:
            raise FormatError(f"nodes.{node.name}", f"region {node.region!r} is not among {', '.join(names)}")


def _check_names(deployment: Deployment) -> None:
    if not deployment.name:
        raise FormatError("name", "is empty; leave it out to call the deployment unisono")
    _unique("nodes", [node.name for node in deployment.nodes])
    for node in deployment.nodes:
        if FILE_NAME.fullmatch(node.name) is None:
            raise FormatError("nodes", f"{node.name!r} is no name for a node: use letters, digits, '_', '-' and '.'")


def _check_addresses(deployment: Deployment) -> None:
    """Each is one, others can dial the nodes, and no two things listen at the same place."""
    taken: dict[tuple[str, int], str] = {}
    for node in deployment.nodes:
        place = f"nodes.{node.name}"
        if node.listen == IN_PROCESS:
            continue
        host, port = _address(f"{place}.listen", node.listen)
        if node.standby is not None:
            _address(f"{place}.standby", node.standby)
        if node.advertise is not None:
            host, port = _address(f"{place}.advertise", node.advertise)
            if port == 0:
                raise FormatError(f"{place}.advertise", f"nobody can dial port 0 of {host}")
        if host in ("0.0.0.0", "::") and len(deployment.nodes) > 1:
            todo = f'say where others reach the node: advertise = "its-host:{port}"'
            raise FormatError(place, f"nobody can dial {node.reached_at}; {todo}")
        uses = [(f"{place}.{'listen' if node.advertise is None else 'advertise'}", port)]
        if node.observe not in (None, "off"):
            try:
                endpoint(str(node.observe))
            except MisuseError:
                raise FormatError(f"{place}.observe", f'{node.observe!r} is neither "host:port" nor "off"') from None
        if node.advertise is None:  # else ports inside are not those outside, and may well be the same for all
            if node.observed_at is not None:
                uses.append((f"{place}.observe", endpoint(node.observed_at)[1]))
            if "broker" in node.roles and deployment.broker.kind == "embedded" and not deployment.broker.servers:
                uses.append((f"the embedded broker of {node.name}, one above its node", port + 1 if port else 0))
        for what, at in uses:
            other = taken.setdefault((host, at), what) if at else what
            if other != what:
                raise FormatError(what, f"port {at} of {host} is taken by {other}: give each its own")


def _address(setting: str, text: str) -> tuple[str, int]:
    try:
        return endpoint(text)
    except MisuseError as error:
        raise FormatError(setting, str(error)) from None


def _check_tree(deployment: Deployment) -> None:
    parents = {node.name: node.parent for node in deployment.nodes}
    roots = [name for name, parent in parents.items() if parent is None]
    if (parents and not roots) or (len(roots) > 1 and deployment.kind != "regions"):
        raise FormatError("nodes", f"a deployment has one root (a node without parent), not {len(roots)}")
    for name, parent in parents.items():
        if parent is not None and parent not in parents:
            raise FormatError(f"nodes.{name}", f"its parent {parent!r} is not a node of this deployment")
        above, steps = parent, 0
        while above is not None:
            above, steps = parents.get(above), steps + 1
            if steps > len(parents):
                raise FormatError(f"nodes.{name}", "its parents form a circle")


def _check_sequencing(deployment: Deployment) -> None:
    """Whatever orders, all that is in the file is kept."""
    how = deployment.sequencing
    if how.by != "clock":
        if how.tolerance_ms or how.clock_bound_ms is not None or how.leans != "auto":
            raise FormatError("sequencing", 'tolerance_ms, clock_bound_ms and leans are for by = "clock"')
        return
    if how.tolerance_ms < 0 or (how.clock_bound_ms is not None and how.clock_bound_ms < 0):
        raise FormatError("sequencing", "tolerance_ms and clock_bound_ms are not negative")
    if how.tolerance_ms and how.clock_bound_ms is not None and 2 * how.clock_bound_ms >= how.tolerance_ms:
        bound = f"{how.clock_bound_ms:g} ms"
        raise FormatError("sequencing.tolerance_ms", f"has to be above twice clock_bound_ms, and that is {bound}")
    if deployment.kind != "sequencer":
        raise FormatError("sequencing.by", f'"clock" is for kind = "sequencer", not {deployment.kind!r}')
    if deployment.rights:
        raise FormatError("rights", 'all clients have the same rights with sequencing.by = "clock": use "tree"')
    for node in deployment.nodes:
        parent = next((other for other in deployment.nodes if other.name == node.parent), None)
        if parent is not None and "sequencer" not in parent.roles:
            raise FormatError(f"nodes.{node.name}", f"its parent {parent.name} is no sequencer, and keeps no names")


def _check_mesh(deployment: Deployment) -> None:
    """Brokers of a mesh are all alike, keep nothing, and are found by a host and port."""
    for node in deployment.nodes:
        if node.parent is not None:
            raise FormatError(f"nodes.{node.name}", "brokers of kind causal gossip with each other: remove its parent")
        if node.standby is not None or node.log != "file":
            raise FormatError(f"nodes.{node.name}", "a causal broker keeps nothing that another could take over")
    for topic in deployment.topics:
        if topic.home is not None or topic.grid:
            raise FormatError(f"topics.{topic.name}", 'topics have homes and grids in deployments of kind "sequencer"')
    if deployment.rights:
        raise FormatError("rights", 'all members of a causal mesh pass all events on: take kind = "overlay"')
    if deployment.security.certificate is not None:
        raise FormatError(
            "security.certificate",
            'datagrams of kind "causal" are signed with the token, not encrypted: take "overlay"',
        )
    check_mesh(deployment.causal, len(deployment.nodes))


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


def _check_kind(deployment: Deployment) -> None:
    """A deployment is of one kind: whoever else ordered or routed its events would contradict it."""
    allowed = ROLES[deployment.kind]
    for node in deployment.nodes:
        strange = [role for role in node.roles if role not in allowed]
        if strange or not node.roles:
            has = f"the role {strange[0]}" if strange else "no role"
            others = [kind for kind, roles in ROLES.items() if strange and strange[0] in roles]
            raise FormatError(
                f"nodes.{node.name}",
                f"a deployment of kind {deployment.kind} has nodes with the roles {', '.join(allowed)}; this one has"
                f" {has}" + (f', which is for kind = "{others[0]}"' if others else ""),
            )


def _check_overlay(deployment: Deployment) -> None:
    """A broker of an overlay keeps nothing, and lets events wait for some time or for ever."""
    for node in deployment.nodes if deployment.kind == "overlay" else ():
        if node.standby is not None or node.log != "file":
            raise FormatError(f"nodes.{node.name}", "a broker of an overlay keeps nothing that another could take over")
    if deployment.overlay.held_ms is not None and deployment.overlay.held_ms <= 0:
        raise FormatError("overlay.held_ms", f"{deployment.overlay.held_ms} is no time to wait")


def _check_entourage(deployment: Deployment) -> None:
    """Brokers of a hierarchy keep nothing, and do not look at topics when they let a client in."""
    how = deployment.entourage
    if not 0.0 <= how.psi <= 1.0:
        raise FormatError("entourage.psi", f"{how.psi} is no share between 0 and 1")
    if how.bandwidth_bytes_per_s is not None and how.bandwidth_bytes_per_s < 0:
        raise FormatError("entourage.bandwidth_bytes_per_s", f"{how.bandwidth_bytes_per_s} is less than nothing")
    if how.connections_max < 0 or how.discovery_s < 0 or how.gone_s <= 0:
        raise FormatError("entourage", "connections_max and discovery_s are not negative, and gone_s is above 0")
    if deployment.membership.patience_s <= 0:
        raise FormatError("membership.patience_s", f"{deployment.membership.patience_s} is no time to wait")
    if deployment.kind != "regions":
        return
    for node in deployment.nodes:
        if "regions" not in node.roles:
            raise FormatError(f"nodes.{node.name}", "it is no broker: sequencers of regions have the role regions, too")
        if node.standby is not None or node.log != "file":
            raise FormatError(f"nodes.{node.name}", "a broker of regions keeps nothing that another could take over")
        above = deployment.node(node.parent) if node.parent is not None else None
        if above is not None and above.region != node.region:
            raise FormatError(f"nodes.{node.name}", f"its parent {above.name} is elsewhere: roots connect regions")


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


def _check_broker(deployment: Deployment) -> None:
    broker = deployment.broker
    named = [name for name in BROKER_FILES if getattr(broker, name) is not None]
    if named and broker.kind not in ("nats", "jetstream"):
        raise FormatError(f"broker.{named[0]}", f"broker.kind = {broker.kind!r} has none: it is for nats")
    if broker.key is not None and broker.certificate is None:
        raise FormatError("broker.key", "name the certificate that it belongs to: broker.certificate")
    if deployment.kind != "sequencer" or broker.kind == "memory":
        return
    if broker.kind in ("embedded", "udp"):
        for server in broker.servers:
            _address("broker.servers", server)
        return
    if not broker.servers:
        raise FormatError("broker.servers", f'broker.kind = "{broker.kind}" needs them: ["nats://host:4222"]')
    if WORD.fullmatch(deployment.name) is None:
        what = f"{deployment.name!r} stands in subjects of NATS: write one word of letters, digits, '_' and '-'"
        raise FormatError("name", what)
    _check_nats("broker.servers", broker.servers)


def _check_nats(setting: str, servers: tuple[str, ...]) -> None:
    for server in servers:
        if not server.startswith(("nats://", "tls://")):
            shown = without_credentials(server)
            raise FormatError(setting, f"{shown!r}: write nats://host:port or tls://host:port")


def _check_kept(deployment: Deployment) -> None:
    """What JetStream keeps for nodes: logs, the view of brokers of regions, an archive."""
    keeping: tuple[tuple[str, LogSpec | MembershipSpec | ArchiveSpec], ...]
    keeping = ("log", deployment.log), ("membership", deployment.membership), ("archive", deployment.archive)
    for name, kept in keeping:
        _check_nats(f"{name}.servers", kept.servers)
        if not 1 <= kept.replicas <= REPLICAS_MAX:
            raise FormatError(f"{name}.replicas", f"JetStream keeps 1 to {REPLICAS_MAX} copies, not {kept.replicas}")


def _check_security(deployment: Deployment) -> None:
    security = deployment.security
    for what in ("token", "node_token"):
        if getattr(security, f"{what}_variable") is not None and getattr(security, f"{what}_file") is not None:
            raise FormatError(f"security.{what}_file", f"{what}_variable names a secret, too: keep one of them")
    _unique("rights", [right.name for right in deployment.rights])
    for right in deployment.rights:
        place = f"rights.{right.name}"
        if (right.token_variable is None) == (right.token_file is None):
            raise FormatError(place, "name its secret: token_variable or token_file, one of them")
        for pattern in (*right.publish, *right.subscribe):
            try:
                check_interest(pattern)
            except MisuseError as error:
                raise FormatError(place, str(error)) from None
        if deployment.broker.kind in ("udp", "memory") and deployment.kind == "sequencer":
            todo = "take embedded, nats or jetstream"
            raise FormatError(place, f"over broker.kind = {deployment.broker.kind!r} all have the same rights: {todo}")


def check_inhabited(deployment: Deployment) -> None:
    """A scenario brings nodes of its own; for anything else there has to be one."""
    if not deployment.nodes:
        raise FormatError("nodes", f"deployment {deployment.name!r} has none: add [[nodes]] with a name")


def for_clients(deployment: Deployment) -> Deployment:
    """What is told to whoever asks where everything is: without the credentials that only nodes need.

    Those in `broker.servers` are the clients' own: it is with them that they reach the broker.
    """
    return msgspec.structs.replace(
        deployment,
        log=msgspec.structs.replace(deployment.log, servers=tuple(map(without_credentials, deployment.log.servers))),
        membership=msgspec.structs.replace(
            deployment.membership, servers=tuple(map(without_credentials, deployment.membership.servers))
        ),
        archive=msgspec.structs.replace(
            deployment.archive, servers=tuple(map(without_credentials, deployment.archive.servers))
        ),
        broker=msgspec.structs.replace(deployment.broker, **dict.fromkeys(BROKER_FILES)),
        rights=tuple(Right(f"{number}") for number, _ in enumerate(deployment.rights)),
    )


def without_credentials(url: str) -> str:
    """`nats://user:password@host` as it may be shown."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def dump_deployment(deployment: Deployment) -> str:
    """TOML text that `parse_deployment` reads back to an equal deployment."""
    lines = [f"version = {deployment.version}", f"name = {_quote(deployment.name)}", f'kind = "{deployment.kind}"']
    for region in deployment.regions:
        lines += ["", "[[regions]]", *_fields(region)]
    if deployment.round_trip_ms:
        lines += ["", "[round_trip_ms]", *(f"{_quote(k)} = {float(v)!r}" for k, v in deployment.round_trip_ms.items())]
    for node in deployment.nodes:
        lines += ["", "[[nodes]]", *_fields(node)]
    for topic in deployment.topics:
        lines += ["", "[[topics]]", *_fields(topic)]
    for right in deployment.rights:
        lines += ["", "[[rights]]", *_fields(right)]
    for title, part in (
        ("broker", deployment.broker),
        ("sequencing", deployment.sequencing),
        ("security", deployment.security),
        ("archive", deployment.archive),
        ("log", deployment.log),
        ("overlay", deployment.overlay),
        ("entourage", deployment.entourage),
        ("membership", deployment.membership),
        ("causal", deployment.causal),
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
