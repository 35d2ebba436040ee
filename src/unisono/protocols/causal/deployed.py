"""How a deployment configures its causal mesh."""

from collections.abc import Mapping
from math import ceil

from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.model.time import Micros, format_span
from unisono.protocols.causal.config import CausalConfig, check_causal
from unisono.protocols.causal.grouping import CausalGroups
from unisono.protocols.causal.mesh import seeds_of
from unisono.protocols.causal.messages import CausalMember

INCARNATIONS = 2**16
"""As many as a frame has room for."""


def causal_config(deployment: Deployment) -> CausalConfig:
    """The constants that all members share; raises MisuseError if they contradict each other."""
    how = deployment.causal
    base = {"local": CausalConfig.local, "region": CausalConfig.region, "planet": CausalConfig.planet}[how.preset]()
    tick = Micros(round(how.tick_ms * 1000)) if how.tick_ms is not None else base.tick_us
    if tick <= 0:
        raise MisuseError(f"causal.tick_ms: {how.tick_ms} is no span of time")

    def ticks(milliseconds: float | None, otherwise: int) -> int:
        return otherwise if milliseconds is None else ceil(milliseconds * 1000 / tick)

    life, longest = ticks(how.life_ms, base.life_ticks), ticks(how.deadline_ms_max, base.deadline_ticks_max)
    if life > longest:
        raise MisuseError(
            f"causal.deadline_ms_max: {format_span(Micros(longest * tick))} is less than the life of events,"
            f" {format_span(Micros(life * tick))} (causal.life_ms)"
        )
    return check_causal(
        CausalConfig(
            tick_us=tick,
            eps_ticks=ticks(how.eps_ms, base.eps_ticks),
            life_ticks=life,
            spread_ticks=min(base.spread_ticks, life),
            deadline_ticks_max=longest,
            late=how.late,
            view_max=how.view,
            fanout=how.fanout,
        )
    )


def brokers_near(deployment: Deployment, region: str | None, near: str | None) -> list[NodeSpec]:
    """Where a client publishes, in this order: who was named, those of its region, all others."""
    return sorted(deployment.nodes, key=lambda node: (near is None or node.reached_at != near, node.region != region))


def incarnation_of(deployment: Deployment, name: str, now: Micros) -> int:
    """The name in frames of a broker that begins now: of two lives that begin in different ticks it is different, until
    65 536 / brokers ticks later, when nothing is left of the first."""
    tick, brokers = now // causal_config(deployment).tick_us, len(deployment.nodes)
    place = [node.name for node in deployment.nodes].index(name)
    return tick % (INCARNATIONS // brokers) * brokers + place


def seeds_at(deployment: Deployment, addresses: Mapping[str, Address]) -> tuple[CausalMember, ...]:
    """The brokers whose addresses are known, by name."""
    known = [node for node in deployment.nodes if node.name in addresses]
    return seeds_of(tuple((addresses[node.name], node.region) for node in known))


def causal_groups(deployment: Deployment) -> CausalGroups:
    return CausalGroups(deployment.causal.groups)
