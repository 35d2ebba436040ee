"""Which node to ask for a topic, and so where a new one is created: at its planned home, else near who asks.

Who first publishes or subscribes asks a node of its own region; several nodes of a region share the names by rendezvous
hashing. Whoever comes later, from wherever, is told by any node where the topic lives: a name is created once.
"""

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from itertools import combinations

from msgspec import structs

from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec


def sequencers(deployment: Deployment) -> tuple[Address, ...]:
    return tuple(Address(node.name) for node in deployment.nodes if "sequencer" in node.roles)


def sequencing_part(deployment: Deployment) -> Deployment:
    """The nodes that order, as one tree: each is below the nearest above it that does, and the first of those that have
    none is the root. It is what it was unless brokers of regions draw several trees."""
    if deployment.kind != "regions":
        return deployment
    parents = {node.name: node.parent for node in deployment.nodes}
    root: str | None = None
    nodes: list[NodeSpec] = []
    able = {node.name for node in deployment.nodes if "sequencer" in node.roles}
    for node in deployment.nodes:
        if node.name not in able:
            continue
        above = node.parent
        while above is not None and above not in able:
            above = parents[above]
        if above is None and root is None:
            root = node.name
        elif above is None:
            above = root
        nodes.append(structs.replace(node, parent=above))
    return structs.replace(deployment, nodes=tuple(nodes))


def archives(deployment: Deployment) -> tuple[Address, ...]:
    return tuple(Address(node.name) for node in deployment.nodes if "archive" in node.roles)


def planned_home(deployment: Deployment, topic: str) -> Address | None:
    for spec in deployment.topics:
        # The cells of a topic are at home where it is planned to be; without a plan they spread.
        if spec.home is not None and (spec.name == topic or (spec.grid and topic.startswith(f"{spec.name}.cell-"))):
            return Address(spec.home)
    return None


def home_of(
    deployment: Deployment,
    topic: str,
    region: str | None = None,
    is_up: Callable[[Address], bool] = lambda node: True,
) -> Address:
    """Whom somebody in this region asks for a topic: its planned home, or one of the nodes there; if none is up there,
    one that is. All who are in one region ask the same node, as long as they can reach the same ones."""
    planned = planned_home(deployment, topic)
    if planned is not None:
        return planned
    nodes = sequencers(deployment)
    if not nodes:
        raise MisuseError(f"deployment {deployment.name!r} has no sequencer node")
    near = tuple(node for node in nodes if deployment.node(node).region == region)
    for some in (near, nodes):
        able = tuple(node for node in some if is_up(node))
        if able:
            return _drawn(topic, able)
    return _drawn(topic, near or nodes)


@lru_cache(maxsize=100_000)
def _drawn(topic: str, nodes: tuple[Address, ...]) -> Address:
    return max(nodes, key=lambda node: blake2b(topic.encode(), key=node.encode()[:64], digest_size=8).digest())


SLOTS = 1 << 16


def slot(node: Address) -> int:
    """The low 16 bits of all topics created at this node, so that nodes never give the same number to two topics."""
    return int.from_bytes(blake2b(node.encode(), digest_size=2).digest(), "big")


def birthplace(deployment: Deployment, topic: str, place: int) -> Address:
    """The node with this slot."""
    for node in sequencers(deployment):
        if slot(node) == place:
            return node
    raise MisuseError(
        f"topic {topic!r} is at home at a node that this deployment does not have: is there a newer deployment file?"
    )


def check_slots(deployment: Deployment) -> None:
    """Refuses the one deployment in some thousand in which two node names draw the same slot."""
    taken: dict[int, Address] = {}
    for node in sequencers(deployment):
        other = taken.setdefault(slot(node), node)
        if other != node:
            raise MisuseError(f"nodes {other!r} and {node!r} draw the same slot {slot(node)}: rename one of them")


def unknown_distances(deployment: Deployment) -> list[tuple[str, str]]:
    """Pairs of regions with nodes that are ordered by homes, and of which `round_trip_ms` says nothing."""
    known = {frozenset(pair.split()) for pair in deployment.round_trip_ms}
    regions = dict.fromkeys(deployment.node(name).region for name in sequencers(deployment))
    return [pair for pair in combinations(regions, 2) if frozenset(pair) not in known]
