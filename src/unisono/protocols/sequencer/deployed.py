"""How a deployment sequences: what all its nodes and clients have to agree on."""

from msgspec import structs

from unisono.model.deployment import Deployment
from unisono.model.time import MILLISECOND, SECOND, Micros
from unisono.protocols.sequencer.config import SequencerConfig, local, ordered, planet, region

CLIENT_LEASE_US = Micros(600 * SECOND)
"""How long a node remembers a client that stays away. One number for all: subscribers count on it (decision 16), and a
node that forgot sooner would let two of them disagree."""

TOLD_OF_LOSSES_US = Micros(200 * MILLISECOND)
"""Marks come no sooner where the broker itself tells its subscribers what they may have missed: every mark is a message
for every subscriber."""


def sequencer_config(deployment: Deployment) -> SequencerConfig:
    """Waiting times by the longest round trip between regions; the rest as the deployment says."""
    longest_ms = max(deployment.round_trip_ms.values(), default=0.0)
    preset = local() if longest_ms < 5 else region() if longest_ms < 150 else planet()
    how = deployment.sequencing
    config = structs.replace(preset, early=how.early, encoding=how.encoding, subscriber_lease_us=CLIENT_LEASE_US)
    if deployment.broker.kind == "embedded":
        config = structs.replace(config, mark_us=max(config.mark_us, TOLD_OF_LOSSES_US))
    return ordered(config, how.order)
