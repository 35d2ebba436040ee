"""What holding back is worth (thesis, figure 4.6): rollbacks and latency of TO over the size of the buffer."""

from typing import Annotated

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, ResultRow
from unisono.experiments.replicas.world import ReplicaScheme, play_replicas

SIZES = (0, 10, 20, 40, 70, 100)
SHARE_IN_THE_THESIS, ENOUGH_IN_THE_THESIS = 0.21, 70
"""The one number of its text: beyond 70 events a buffer does not help TO, which rolls back 21 % on average."""


class ReplicasBufferOptions(Struct, frozen=True):
    """The thesis' setting by default: 50 operations a second, 5 topics, at most a second in the buffer."""

    operations: Annotated[int, Meta(ge=10, description="operations per run")] = 300
    rate: Annotated[int, Meta(ge=1, description="operations per second")] = 50
    hold_ms: Annotated[int, Meta(ge=1, description="the longest an operation is held back")] = 1000
    seed: int = 0


def run(options: ReplicasBufferOptions) -> list[ResultRow]:
    rows: list[ResultRow] = []
    for size in SIZES:
        for name, sequencers, sync in (("TO", 0, False), ("UEC k=3", 3, False), ("UEC k=3 SYNC", 3, True)):
            hold_us = options.hold_ms * 1000 if size else 0
            scheme = ReplicaScheme(name, sequencers, sync, hold_us=hold_us, hold_max=size, eager=True)
            played = play_replicas(scheme, options.rate, options.operations, options.seed)
            share = played.rollbacks.with_undo / max(played.rollbacks.arrivals, 1)
            ours = {"rb_ops": share, "latency_ms": played.latency_ms}
            paper = {"rb_ops": SHARE_IN_THE_THESIS} if name == "TO" and size >= ENOUGH_IN_THE_THESIS else {}
            rows.append(ResultRow({"scheme": name, "buffer": size}, ours=ours, paper=paper))
    return rows


EXPERIMENT = Experiment(
    title="Rollbacks and latency over the size of the buffer",
    source="thesis, section 4.3.2, figure 4.6",
    options=ReplicasBufferOptions,
    run=run,
    figure=Figure("buffer", "rb_ops", series="scheme"),
)
