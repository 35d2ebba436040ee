"""Which role carries events in a node, if one does: a broker of an overlay, of regions, or of a causal mesh."""

from collections.abc import Callable

from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.runtime.links.links import Links
from unisono.runtime.node.content.causal import CausalRole
from unisono.runtime.node.content.overlay import OverlayRole
from unisono.runtime.node.content.regions import RegionsRole
from unisono.runtime.node.ordering import dials
from unisono.runtime.node.rights import Rights
from unisono.turns import TurnBounds

ContentRole = OverlayRole | RegionsRole | CausalRole


def content_role(
    deployment: Deployment,
    spec: NodeSpec,
    links: Links,
    bounds: TurnBounds,
    token: str,
    refused: Callable[[str], None],
    failed: Callable[[Exception], None],
    rights: Rights,
) -> ContentRole | None:
    if "overlay" in spec.roles:
        overlay = OverlayRole(deployment, spec, links, bounds, refused, failed)
        overlay.may_hear = rights.may_hear
        return overlay
    if "causal" in spec.roles:
        return CausalRole(deployment, spec, links, bounds, token, refused, failed)
    if "regions" not in spec.roles:
        return None
    regions = RegionsRole(deployment, spec, links, bounds, refused, failed)
    if deployment.rights:
        regions.heard = rights.heard
    return regions


def dialled_by(
    deployment: Deployment, ordering: Deployment, spec: NodeSpec, role: ContentRole | None
) -> list[NodeSpec]:
    """Its parent, by clock some of the other stampers; brokers of regions dial each other as their groups say.

    One that orders also dials who is above it in `ordering`, unless they are linked as brokers.
    """
    if not isinstance(role, RegionsRole):
        return [deployment.node(name) for name in dials(deployment, spec.name)]
    parent = ordering.node(spec.name).parent if "sequencer" in spec.roles else None
    return [] if parent is None or role.is_beside(Address(parent)) else [deployment.node(parent)]
