"""Where a new topic is born: at the home the deployment plans, or at the one that rendezvous hashing draws.

Every client computes the same home from the same deployment file. When a node is added, about one name in n is drawn to
it: topics that do not exist yet are born there, those that exist stay where they are (`desk`), and who asks the new
node for them is told so.
"""

from functools import lru_cache
from hashlib import blake2b

from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.model.ids import Address


def sequencers(deployment: Deployment) -> tuple[Address, ...]:
    return tuple(Address(node.name) for node in deployment.nodes if "sequencer" in node.roles)


def archives(deployment: Deployment) -> tuple[Address, ...]:
    return tuple(Address(node.name) for node in deployment.nodes if "archive" in node.roles)


def home_of(deployment: Deployment, topic: str) -> Address:
    for spec in deployment.topics:
        # The cells of a topic are at home where it is planned to be; without a plan they spread.
        if spec.home is not None and (spec.name == topic or (spec.grid and topic.startswith(f"{spec.name}.cell-"))):
            return Address(spec.home)
    nodes = sequencers(deployment)
    if not nodes:
        raise MisuseError(f"deployment {deployment.name!r} has no sequencer node")
    return _drawn(topic, nodes)


@lru_cache(maxsize=100_000)
def _drawn(topic: str, nodes: tuple[Address, ...]) -> Address:
    return max(nodes, key=lambda node: blake2b(topic.encode(), key=node.encode()[:64], digest_size=8).digest())


SLOTS = 1 << 16


def slot(node: Address) -> int:
    """The low 16 bits of all topics born at this node, so that nodes never give the same number to two topics."""
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
