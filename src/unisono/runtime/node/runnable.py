"""What would not work, said before anything runs."""

from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.protocols.regions.deployed import unkept_group


def check_runnable(deployment: Deployment, name: str) -> None:
    """Says before anything runs what would not work."""
    deployment.node(name)
    unkept = unkept_group(deployment) if deployment.kind == "regions" else None
    if unkept is not None:
        raise MisuseError(unkept)
    if deployment.broker.kind == "memory" and len(deployment.nodes) > 1:
        raise MisuseError("the memory broker lives in one process: use embedded or nats for several nodes")
