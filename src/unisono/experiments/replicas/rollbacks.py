"""How often replicas roll back, over the rate of operations (thesis, figure 4.3), counted in all three ways."""

from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from unisono.experiments.experiment import Experiment, Figure, ResultRow
from unisono.experiments.replicas.world import ReplicaScheme, play_replicas

RATES = (1, 10, 25, 50, 100)
SCHEMES = (
    ReplicaScheme("UEC k=1", sequencers=1),
    ReplicaScheme("UEC k=2", sequencers=2),
    ReplicaScheme("UEC k=3", sequencers=3),
    ReplicaScheme("UEC k=3 SYNC", sequencers=3, sync=True),
    ReplicaScheme("UEC k=3 SYNC, held 100 ms", sequencers=3, sync=True, hold_us=100_000),
    ReplicaScheme("TO", topics=5),
    ReplicaScheme("TO, held 100 ms", topics=5, hold_us=100_000),
)


class ReplicasRollbacksOptions(Struct, frozen=True):
    """The thesis' setting by default; it ran five minutes three times."""

    operations: Annotated[int, Meta(ge=10, description="operations per run")] = 300
    rate: Annotated[int, Meta(ge=0, description="one rate per second instead of all; 0: all")] = 0
    topics: Annotated[int, Meta(ge=1, description="topics of TO")] = 5
    service_us: Annotated[
        int, Meta(ge=0, description="what a message costs a replica; it loses what it cannot hold")
    ] = 0
    seed: int = 0


def run(options: ReplicasRollbacksOptions) -> list[ResultRow]:
    rates = [options.rate] if options.rate else RATES
    return [_row(options, scheme, rate) for scheme in SCHEMES for rate in rates]


def _row(options: ReplicasRollbacksOptions, scheme: ReplicaScheme, rate: int) -> ResultRow:
    scheme = structs.replace(scheme, topics=options.topics)
    played = play_replicas(scheme, rate, options.operations, options.seed, options.service_us)
    counts, arrivals = played.rollbacks, max(played.rollbacks.arrivals, 1)
    return ResultRow(
        {"scheme": scheme.name, "rate": rate},
        ours={
            "rb_ops": counts.with_undo / arrivals,
            "rb_txn": counts.undone / arrivals,
            "rb_undo": counts.undos / arrivals,
            "latency_ms": played.latency_ms,
            "discarded": played.discarded,
            "equal": float(played.agree),
        },
    )


def parts(options: ReplicasRollbacksOptions) -> list[Any]:
    return [structs.replace(options, rate=rate) for rate in ([options.rate] if options.rate else RATES)]


EXPERIMENT = Experiment(
    title="Rollbacks of replicated databases over the rate",
    source="thesis, section 4.3.2, figure 4.3",
    options=ReplicasRollbacksOptions,
    run=run,
    figure=Figure("rate", "rb_ops", series="scheme", log_x=True),
)
