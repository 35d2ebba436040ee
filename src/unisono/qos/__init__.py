"""From a promise to the stack of protocols that keeps it, or to the reason why none does."""

from unisono.qos.table import OVERLAY_STACKS, STACKS, DeploymentOffer, ProtocolStack, choose

__all__ = ["OVERLAY_STACKS", "STACKS", "DeploymentOffer", "ProtocolStack", "choose"]
