"""How a deployment configures the brokers and clients of its regions, and who could be above whom."""

from msgspec import structs

from unisono.model.deployment import Deployment
from unisono.model.settings import NodeSpec
from unisono.model.time import Micros
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.groups import GroupMember, GroupView


def regions_config(deployment: Deployment) -> RegionsConfig:
    how = deployment.entourage
    return RegionsConfig(
        closeness=how.psi,
        connections_max=how.connections_max,
        bandwidth_bytes_per_s=how.bandwidth_bytes_per_s,
        discovery_us=Micros(round(how.discovery_s * 1_000_000)),
        gone_us=Micros(round(how.gone_s * 1_000_000)),
        filter_cost_max=deployment.limits.filter_cost_max,
    )


def unkept_group(deployment: Deployment) -> str | None:
    """What is wrong if brokers stand in for each other and nobody keeps who they are."""
    if deployment.membership.servers:
        return None
    groups: dict[tuple[str, str | None], list[str]] = {}
    for node in deployment.nodes:
        groups.setdefault((node.region, node.parent), []).append(node.name)
    for (region, parent), names in groups.items():
        if len(names) > 1:
            where = f"below {parent}" if parent is not None else f"as roots of {region}"
            return (
                f"{', '.join(names)} are a group {where}, and nobody keeps who belongs to it: name NATS servers with"
                ' JetStream, [membership] servers = ["nats://host:4222"], or draw one broker per group'
            )
    return None


def member_of(spec: NodeSpec, life: str) -> GroupMember:
    return GroupMember(spec.name, spec.region, spec.parent, spec.reached_at, life)


def view_of(deployment: Deployment) -> GroupView:
    """As the file draws it: what is so where nobody keeps it."""
    return GroupView(0, tuple(member_of(node, "") for node in deployment.nodes if "regions" in node.roles))


def with_members(deployment: Deployment, view: GroupView) -> Deployment:
    """The deployment with the brokers that came later than its file."""
    known = [node.name for node in deployment.nodes]
    new = [
        NodeSpec(each.name, each.region, each.address, each.parent, ("regions",), observe="off")
        for each in view.members
        if each.name not in known
    ]
    return structs.replace(deployment, nodes=(*deployment.nodes, *new)) if new else deployment


def brokers_for(deployment: Deployment, region: str | None, near: str | None) -> list[NodeSpec]:
    """Where a client goes, in this order: who was named, the lowest of its region, its other brokers, all others."""
    above = {node.parent for node in deployment.nodes}

    def place(node: NodeSpec) -> tuple[bool, bool, bool]:
        return (near is None or node.reached_at != near, node.region != region, node.name in above)

    return sorted(deployment.nodes, key=place)
