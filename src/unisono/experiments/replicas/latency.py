"""What a timestamp costs over the number of topics (thesis, figure 4.5): the chain grows with them, a coalition not."""

from typing import Annotated

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, ResultRow
from unisono.experiments.replicas.world import ReplicaScheme, play_replicas

TOPICS = (1, 5, 10, 15, 20, 30)


class ReplicasLatencyOptions(Struct, frozen=True):
    """The thesis' setting by default."""

    operations: Annotated[int, Meta(ge=10, description="operations per run")] = 300
    rate: Annotated[int, Meta(ge=1, description="operations per second")] = 25
    seed: int = 0


def run(options: ReplicasLatencyOptions) -> list[ResultRow]:
    rows: list[ResultRow] = []
    for topics in TOPICS:
        for scheme in (ReplicaScheme("TO", topics=topics), ReplicaScheme("UEC k=1", sequencers=1, topics=topics)):
            played = play_replicas(scheme, options.rate, options.operations, options.seed)
            rows.append(ResultRow({"scheme": scheme.name, "topics": topics}, ours={"latency_ms": played.latency_ms}))
    return rows


EXPERIMENT = Experiment(
    title="Latency of replicated databases over the number of topics",
    source="thesis, section 4.3.2, figure 4.5",
    options=ReplicasLatencyOptions,
    run=run,
    figure=Figure("topics", "latency_ms", series="scheme"),
)
