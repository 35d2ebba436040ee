"""What groups of topics cost and save in a causal mesh: waiting against bytes.

With one group for all topics vectors are shortest, and a subscriber waits for lost frames of topics that it never asked
for; with a group per topic it waits for its own alone, and vectors have an entry per sender and group. Played in the
simulator: 8 brokers and 24 clients by gossip alone, each subscribed to one of 8 topics, one datagram in ten lost.
"""

from pathlib import Path
from statistics import fmean
from typing import Annotated

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, ResultRow
from unisono.protocols.causal.broker import CausalBroker
from unisono.sim.scenario import Scenario, stage, with_options
from unisono.sim.scenario import parse as parse_scenario

TOPICS = 8
MESH = """
protocol = "causal"
settle = "2s"
[options]
brokers = 8
multicast = false
[links]
latency = { kind = "uniform", least_us = "500us", most_us = "12ms" }
fifo = false
[workload]
clients = 24
topics = 8
topics_per_client = 1
duration = "3s"
"""


class GroupsOptions(Struct, frozen=True):
    """A busy mesh that loses much."""

    loss: Annotated[float, Meta(ge=0, lt=1, description="share of datagrams that are lost")] = 0.1
    rate: Annotated[float, Meta(gt=0, description="publications per second of all clients")] = 120.0
    seed: int = 0


def run(options: GroupsOptions) -> list[ResultRow]:
    base = parse_scenario(MESH, "groups", Path())
    return [_point(base, count, options) for count in (1, 2, 4, 8)]


def _point(base: Scenario, count: int, options: GroupsOptions) -> ResultRow:
    """`count` groups: topics are spread over them, the first is for what no pattern covers."""
    patterns = [f"g{place % count}.t{place}" for place in range(TOPICS)]
    scenario = with_options(
        base,
        {
            "deployment": {
                "version": 1,
                "kind": "causal",
                "nodes": [{"name": f"b{place}", "listen": f"127.0.0.1:{9000 + place}"} for place in range(8)],
                "topics": [{"name": name} for name in patterns],
            },
            "options.groups": [f"g{group}.>" for group in range(1, count)],
            "workload.topics": TOPICS,
            "workload.rate_per_s": options.rate,
            "links.loss": {"rate": options.loss, "burst": 2.0},
        },
    )
    return ResultRow({"groups": count}, measured(scenario, options.seed))


def measured(scenario: Scenario, seed: int) -> dict[str, float]:
    """How long events took, what was lost on the way, and what order cost in bytes."""
    world = stage(scenario, seed)
    last = scenario.workload.begin + scenario.workload.duration
    world.run(until=last + scenario.settle)
    waits = [
        (record.delivered_us - record.published_us) / 1000
        for record in world.records
        if record.kind == "deliver" and record.delivered_us is not None and record.published_us is not None
    ]
    outcomes = [str(record.note).partition(" ")[0] for record in world.records if record.kind == "outcome"]
    gaps = sum(record.kind == "gap" for record in world.records)
    brokers = [host.machine for host in world.hosts.values() if isinstance(host.machine, CausalBroker)]
    frames = sum(broker.counts.get("emitted", 0) for broker in brokers)
    size = sum(broker.counts.get("emitted_vector_bytes", 0) for broker in brokers)
    slow = sorted(waits)[int(len(waits) * 0.99)]
    ours = {"mean_ms": fmean(waits), "p99_ms": slow, "vector_bytes": size / max(1, frames)}
    lost = sum(outcome != "accepted" for outcome in outcomes) / max(1, len(outcomes))
    return {**ours, "gaps": float(gaps), "delivered": float(len(waits)), "not_accepted": lost}


EXPERIMENT = Experiment(
    "Groups of a causal mesh: waiting against bytes",
    "ours; the index of vectors, specs section 3",
    GroupsOptions,
    run,
    Figure("groups", "mean_ms"),
)
