"""How a deployment configures the brokers of its overlay."""

from unisono.model.deployment import Deployment
from unisono.model.time import Micros
from unisono.protocols.overlay.config import BrokerConfig


def broker_config(deployment: Deployment) -> BrokerConfig:
    how = deployment.overlay
    held = Micros(round(how.held_ms * 1000)) if how.held_ms is not None else None
    cost = deployment.limits.filter_cost_max
    return BrokerConfig(detection=how.detection, covering=how.covering, held_us_max=held, filter_cost_max=cost)
