"""How many topics a topic's sequencing group has when popularity follows a power law.

Two topics belong to one group when at least two clients subscribe to both. The papers' "power law with shape a" over n
topics is pmf(i) proportional to i^-(1+a); this run is the evidence for that reading.
"""

from random import Random
from statistics import mean
from typing import Annotated

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, Row
from unisono.sim.workloads import Popularity, sequencing_group_sizes

PAPER = {0.349: 46, 0.901: 17}
"""The paper's mean sizes, for 10 000 clients with 10 of 1000 topics each."""


class Options(Struct, frozen=True):
    """The paper's workload by default; its numbers stand beside ours only there."""

    clients: Annotated[int, Meta(description="clients")] = 10_000
    topics: Annotated[int, Meta(description="topics to choose from")] = 1000
    each: Annotated[int, Meta(description="distinct topics each client subscribes to")] = 10
    seed: Annotated[int, Meta(description="seed of the clients' choices")] = 0


def run(options: Options) -> list[Row]:
    as_published = (options.clients, options.topics, options.each) == (10_000, 1000, 10)
    rows = []
    for shape in (0.2, 0.349, 0.5, 0.7, 0.901, 1.1):
        popularity, dice = Popularity(options.topics, shape), Random(options.seed)
        choices = [popularity.draw_distinct(dice, options.each) for _ in range(options.clients)]
        size = mean(sequencing_group_sizes(choices, options.topics))
        paper: dict[str, float] = {"mean_size": PAPER[shape]} if as_published and shape in PAPER else {}
        rows.append(Row({"shape": shape}, ours={"mean_size": round(size, 2)}, paper=paper))
    return rows


EXPERIMENT = Experiment(
    title="Mean size of a sequencing group",
    source="Efficient Notification Ordering for Geo-Distributed Pub/Sub Systems, figure 7 (leftmost points)",
    options=Options,
    run=run,
    figure=Figure("shape", "mean_size"),
)
