"""How a deployment orders by clocks: what all its nodes and clients have to agree on."""

from collections.abc import Callable

from msgspec import structs

from unisono.model.deployment import Deployment
from unisono.model.homes import SLOTS, sequencers, slot
from unisono.model.ids import Address, Topic
from unisono.model.time import MILLISECOND, Micros
from unisono.protocols.clock.config import ClockConfig


def clock_config(deployment: Deployment) -> ClockConfig:
    """Waiting times by the longest round trip between regions; the rest as it is."""
    longest_us = round(max(deployment.round_trip_ms.values(), default=0.0) * MILLISECOND)
    how = deployment.sequencing
    config = ClockConfig(tolerance_us=Micros(round(how.tolerance_ms * MILLISECOND)), causal=not how.leans_lanes)
    return structs.replace(config, resend_us=Micros(max(config.resend_us, 2 * longest_us)))


def stampers(deployment: Deployment) -> tuple[Address, ...]:
    """All of them; a stamper's number is its place here, and stays what it is when nodes are added at the end."""
    return sequencers(deployment)


def keepers(deployment: Deployment) -> Callable[[Topic], int | None]:
    """The number of a topic's keeper: the node where it was created, which its number tells."""
    numbers = {slot(node): number for number, node in enumerate(stampers(deployment))}
    return lambda topic: numbers.get(topic % SLOTS)
