"""Where nodes listen, and how one gets there."""

from unisono.errors import MisuseError
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.runtime.links.links import Links


def endpoint(text: str) -> tuple[str, int]:
    """`host:port` as it stands in a deployment; IPv6 in brackets, `[::1]:7474`."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise MisuseError(f"{text!r}: write an IPv6 address in brackets, like [{host}]:{port}")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise MisuseError(f"{text!r} is not host:port, like 127.0.0.1:7474")
    return host, int(port)


def dial_node(links: Links, node: NodeSpec) -> None:
    """A node is where it says, or where its standby listens."""
    others = (endpoint(node.standby),) if node.standby is not None else ()
    links.dial(Address(node.name), *endpoint(node.reached_at), *others)
