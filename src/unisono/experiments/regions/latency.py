"""Latency of entourages: overlay, direct leaf brokers, direct subscribers (paper 004, figure 6).

Played in the simulator: two regions with three roots and two levels each, a publisher in one, subscribers in the other.
A host is busy with each message it sends, which is what bounds direct connections (K_p = 1 / (rate x copy)); links take
1 ms inside a region and 40 ms between them. The paper's machines were small ones of 2013: what compares are ratios.
"""

from pathlib import Path
from statistics import fmean, pstdev
from typing import Annotated, Any

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, ResultRow, Value
from unisono.model.journal import Journal
from unisono.sim.scenario import Scenario, play, with_options
from unisono.sim.scenario import parse as parse_scenario

TWO_REGIONS = """
protocol = "regions"
[deployment]
version = 1
regions = [{ name = "east" }, { name = "west" }]
round_trip_ms = { "east west" = 80.0 }
[options]
fan = 2
levels = 1
at_leaves = true
publishers_in = "east"
subscribers_in = "west"
[options.config]
count_gap_us = 100000
discovery_us = 400000
cpu_share_max = 1.0
connect_us = 2000000
[links]
latency = { kind = "regions", within_us = "1ms", jitter = 0.05 }
[workload]
attributes = { x = 200 }
publishers = 1
topics = 1
topics_per_client = 1
arrivals = "fixed"
begin = "2s"
"""
SETTLED_US = 3_500_000
"""What was published before is not measured: connections are still being made."""
WAYS: dict[str, dict[str, Any]] = {
    "overlay": {"options.config.connections_max": 0},
    "roots": {"options.config.connections_max": 3},
    "leaf brokers": {"options.direct_clients": False},
    "subscribers": {"options.direct_clients": True, "options.config.cpu_share_max": 100.0},
}
"""The last one connects beyond K_p, too, to show what that costs. Three connections are enough for the roots alone:
each has two brokers below, as one with a single broker below is no node of the graph."""
PAPER_LESS = {(50, 10): 0.11, (200, 10): 0.31}
"""By how much direct connections to subscribers lower the latency of the overlay."""
PAPER_MOST = {50: 50.0, 200: 26.0}


class RegionsLatencyOptions(Struct, frozen=True):
    """The paper's setting by default."""

    subscribers: Annotated[
        int, Meta(ge=1, description="one number of subscribers instead of 10 to 35; 1: all of these")
    ] = 1
    rate: Annotated[int, Meta(ge=0, description="one rate per second instead of 50 and 200; 0: both")] = 0
    copy_us: Annotated[int, Meta(ge=1, description="how long a host is busy with each message it sends")] = 150
    seed: int = 0


def two_regions() -> Scenario:
    return parse_scenario(TWO_REGIONS, "two regions", Path())


def latencies_ms(journal: Journal) -> list[float]:
    """From publication to delivery."""
    return [
        (record.delivered_us - record.published_us) / 1000
        for record in journal.records
        if record.kind == "deliver" and record.published_us is not None and record.delivered_us is not None
        and record.published_us >= SETTLED_US
    ]  # fmt: skip


def run(options: RegionsLatencyOptions) -> list[ResultRow]:
    rows = []
    for rate in [options.rate] if options.rate else sorted(PAPER_MOST):
        for count in [options.subscribers] if options.subscribers > 1 else range(10, 36, 5):
            rows += _point(rate, count, options)
    return rows


def _point(rate: int, count: int, options: RegionsLatencyOptions) -> list[ResultRow]:
    found: dict[str, list[float]] = {}
    for way, changes in WAYS.items():
        scenario = with_options(
            two_regions(),
            {
                "options.roots": 3,
                "options.content": False,
                "options.copy_us": options.copy_us,
                "options.config.copy_us": float(options.copy_us),
                "workload.clients": count,
                "workload.rate_per_s": float(rate),
                "workload.duration": "3s",
                **changes,
            },
        )
        found[way] = latencies_ms(play(scenario, options.seed))
    overlay = fmean(found["overlay"])
    rows = []
    for way, values in found.items():
        less = PAPER_LESS.get((rate, count)) if way == "subscribers" else None
        ours = {"latency_ms": fmean(values), "deviation_ms": pstdev(values), "less": 1 - fmean(values) / overlay}
        ours["K_p"] = 1_000_000 / (rate * options.copy_us)
        paper = {"K_p": PAPER_MOST[rate]} if rate in PAPER_MOST else {}
        setting: dict[str, Value] = {"rate": rate, "subscribers": count, "way": way}
        rows.append(ResultRow(setting, ours, {**paper, **({"less": less} if less is not None else {})}))
    return rows


EXPERIMENT = Experiment(
    "Latency of entourages",
    "paper 004, figure 6",
    RegionsLatencyOptions,
    run,
    Figure("subscribers", "latency_ms", "way"),
)
