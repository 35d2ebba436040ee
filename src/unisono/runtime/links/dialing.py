"""Where nodes listen, and how one gets there."""

from collections.abc import Sequence

from unisono.errors import PeerError, TransportError, UnisonoError
from unisono.model.address import endpoint
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.runtime.links.links import Links


def dial_node(links: Links, node: NodeSpec) -> None:
    """A node is where it says, or where its standby listens."""
    others = (endpoint(node.standby),) if node.standby is not None else ()
    links.dial(Address(node.name), *endpoint(node.reached_at), *others)


def unanswered(links: Links, nodes: Sequence[NodeSpec]) -> UnisonoError:
    """Why none of these brokers is connected; the first is the one to start. One that is there and does not let us in
    is to be told, not to be started."""
    for node in nodes:
        rejected = links.rejections.get(Address(node.name))
        if rejected is not None:
            return PeerError(f"broker {node.name} at {node.reached_at}: {rejected}", rejected.code)
    where = ", ".join(f"{node.name} at {node.reached_at}" for node in nodes[:3])
    return TransportError(f"no broker answers ({where}). Start one with: unisono node FILE {nodes[0].name}")
