"""The roles that carry events in a node: a broker of an overlay, of regions, or of a causal mesh."""

from unisono.runtime.node.content.causal import FATES, CausalRole
from unisono.runtime.node.content.overlay import OverlayRole
from unisono.runtime.node.content.regions import RegionsRole
from unisono.runtime.node.content.role import ContentRole, content_role, dialled_by

__all__ = ["FATES", "CausalRole", "ContentRole", "OverlayRole", "RegionsRole", "content_role", "dialled_by"]
