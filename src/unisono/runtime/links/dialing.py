"""Where nodes listen, and how one gets there."""

from unisono.model.address import endpoint
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.runtime.links.links import Links


def dial_node(links: Links, node: NodeSpec) -> None:
    """A node is where it says, or where its standby listens."""
    others = (endpoint(node.standby),) if node.standby is not None else ()
    links.dial(Address(node.name), *endpoint(node.reached_at), *others)
