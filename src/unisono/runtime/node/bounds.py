"""The bounds of a node's connections and of its broker, as its deployment says."""

from msgspec import structs

from unisono.model.limits import Limits
from unisono.runtime.brokers.embedded.server import EmbeddedBrokerConfig
from unisono.runtime.driver.descriptors import connections_room
from unisono.runtime.links.links import LinksConfig

DOORS = 2
"""Of a node: its own, and that of an embedded broker."""


def connections_max(limits: Limits) -> int:
    """Of one door: what the deployment says, if this process may have as many files open."""
    return min(limits.connections_max, connections_room(DOORS))


def links_config(limits: Limits, base: LinksConfig) -> LinksConfig:
    """The bounds of a node's connections, as its deployment says."""
    return structs.replace(
        base,
        connections_max=connections_max(limits),
        connections_unknown_max=limits.connections_unknown_max,
        hello_addresses_max=limits.hello_addresses_max,
        questions_per_s=limits.client_questions_per_s,
        bytes_max=limits.bytes_max,
        wire=structs.replace(
            base.wire,
            frame_bytes_max=limits.frame_bytes_max,
            waiting_bytes_max=limits.waiting_bytes_max,
            hello_s=limits.hello_s,
            hello_bytes_max=limits.hello_bytes_max,
        ),
    )


def embedded_config(limits: Limits, client_token: str, node_token: str) -> EmbeddedBrokerConfig:
    """The bounds of an embedded broker, as its deployment says."""
    return EmbeddedBrokerConfig(
        client_token=client_token,
        node_token=node_token,
        channels_max=2 * limits.client_topics_max,
        connections_max=connections_max(limits),
        connections_unknown_max=limits.connections_unknown_max,
        hello_s=limits.hello_s,
        hello_bytes_max=limits.hello_bytes_max,
    )
