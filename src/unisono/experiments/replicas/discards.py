"""What replicas discard when messages take them time (thesis, figure 4.4): gossip brings an operation several times."""

from typing import Annotated

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, ResultRow
from unisono.experiments.replicas.world import ReplicaScheme, play_replicas

RATES = (1, 10, 25, 50, 100)
SCHEMES = (
    ReplicaScheme("UEC k=1", sequencers=1),
    ReplicaScheme("UEC k=2", sequencers=2),
    ReplicaScheme("UEC k=3", sequencers=3),
    ReplicaScheme("TO"),
)
COPIES_IN_THE_THESIS = 5.0
"""Its text: an event of UEC is sent almost five times more than one of TO."""


class ReplicasDiscardsOptions(Struct, frozen=True):
    """The thesis names the rates, not what a message cost its machines."""

    operations: Annotated[int, Meta(ge=10, description="operations per run")] = 300
    service_us: Annotated[int, Meta(ge=1, description="what a message costs a replica; it has room for 100")] = 5000
    seed: int = 0


def run(options: ReplicasDiscardsOptions) -> list[ResultRow]:
    return [_row(options, scheme, rate) for scheme in SCHEMES for rate in RATES]


def _row(options: ReplicasDiscardsOptions, scheme: ReplicaScheme, rate: int) -> ResultRow:
    played = play_replicas(scheme, rate, options.operations, options.seed, options.service_us)
    ours = {"discarded": played.overflowed, "missing": played.discarded, "copies": played.copies}
    paper = {"copies": COPIES_IN_THE_THESIS if scheme.sequencers else 1.0}
    return ResultRow({"scheme": scheme.name, "rate": rate}, ours={**ours, "latency_ms": played.latency_ms}, paper=paper)


EXPERIMENT = Experiment(
    title="What replicas discard over the rate",
    source="thesis, section 4.3.2, figure 4.4",
    options=ReplicasDiscardsOptions,
    run=run,
    figure=Figure("rate", "discarded", series="scheme", log_x=True),
)
