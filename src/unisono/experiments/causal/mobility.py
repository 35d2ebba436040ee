"""What moving costs in a causal mesh: clients that change their broker while they publish and are told.

The context of a client is its own, so a new broker needs nothing of the old one: what costs is the publication that was
under way, which is unknown, and what comes after it, which waits for it. Played in the simulator over the scenario
`causal/mobile`, whose links lose; at 0 moves the same without moving.
"""

from typing import Annotated

from msgspec import Meta, Struct

from unisono.experiments.causal.groups import measured
from unisono.experiments.experiment import Experiment, Figure, ResultRow
from unisono.sim.scenario import load, with_options

MOVES = (0.0, 2.0, 10.0, 50.0)
"""Per second, of all clients together."""


class MobilityOptions(Struct, frozen=True):
    """The scenario as it is."""

    rate: Annotated[float, Meta(gt=0, description="publications per second of all clients")] = 60.0
    seed: int = 0


def run(options: MobilityOptions) -> list[ResultRow]:
    base = load("causal/mobile")
    rows = []
    for moves in MOVES:
        scenario = with_options(base, {"options.moves_per_s": moves, "workload.rate_per_s": options.rate})
        rows.append(ResultRow({"moves": moves}, measured(scenario, options.seed)))
    return rows


EXPERIMENT = Experiment(
    "Moving between brokers of a causal mesh", "paper 003, section 1", MobilityOptions, run, Figure("moves", "mean_ms")
)
