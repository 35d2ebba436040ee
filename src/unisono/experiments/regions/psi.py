"""What psi does: how many direct connections, what they gain, and what they cost (paper 004, figure 8).

40 subscribers at the leaves of a binary tree with three levels, each interested in 20 of 200 values; one publisher in
the other region. A low psi reaches the subscribers themselves, a high one nobody.
"""

from statistics import fmean
from typing import Annotated, Any

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, ResultRow
from unisono.experiments.regions.latency import latencies_ms, two_regions
from unisono.model.journal import Journal
from unisono.protocols.regions.client import RegionClient
from unisono.sim.scenario import play, stage, with_options

PSIS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)


class RegionsPsiOptions(Struct, frozen=True):
    """The paper's setting by default."""

    subscribers: Annotated[int, Meta(ge=1, description="at the leaves of the tree")] = 40
    rate: Annotated[int, Meta(ge=1, description="events per second")] = 50
    seconds: Annotated[float, Meta(gt=0, description="virtual time that is published in")] = 4.0
    psi: Annotated[float, Meta(ge=0, le=1, description="one value instead of all; 0: all")] = 0.0
    seed: int = 0


def run(options: RegionsPsiOptions) -> list[ResultRow]:
    rows = [_row(options, psi) for psi in ([options.psi] if options.psi else PSIS)]
    return [_row(options, None), *rows]


def _row(options: RegionsPsiOptions, psi: float | None) -> ResultRow:
    scenario = with_options(
        two_regions(),
        {
            "options.levels": 2,
            "options.fan": 2,
            "options.width": 20,
            "options.config.closeness": psi if psi is not None else 1.0,
            "options.config.connections_max": 64 if psi is not None else 0,
            "workload.clients": options.subscribers,
            "workload.rate_per_s": float(options.rate),
            "workload.duration": f"{options.seconds:g}s",
        },
    )
    world = stage(scenario, options.seed)
    world.run(until=scenario.workload.begin + scenario.workload.duration)
    found = [_client(host.machine) for host in world.hosts.values()]
    direct = [len(client.publisher.sessions) for client in found if client is not None and client.publisher.last]
    journal: Journal = play(scenario, options.seed)
    ours = {"latency_ms": fmean(latencies_ms(journal)), "connections": float(sum(direct))}
    return ResultRow({"psi": psi if psi is not None else "overlay only"}, ours)


def _client(machine: Any) -> RegionClient | None:
    inside = machine.inside.inside
    return inside if isinstance(inside, RegionClient) else None


EXPERIMENT = Experiment("What psi does", "paper 004, figure 8", RegionsPsiOptions, run, Figure("psi", "latency_ms"))
