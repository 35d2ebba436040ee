"""What message size and the power of a publisher do to its entourage (paper 004, figure 7).

The setting of figure 6, subscribers connected directly, a publisher that sends as fast as it can: nine tenths of what
its CPU allows for so many copies. A copy costs it a fixed time and a time per KB; a medium machine is twice as fast as
a small one. The paper draws curves without numbers, so what compares are its sentences: throughput rises with the power
of the publisher and falls with the size of messages, latency grows with size, and so does its deviation.
"""

from statistics import fmean, pstdev
from typing import Annotated

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, ResultRow
from unisono.experiments.regions.latency import SETTLED_US, latencies_ms, two_regions
from unisono.sim.scenario import play, with_options

SETUPS = {"small, 4 KB": (1.0, 4), "medium, 4 KB": (0.5, 4), "small, 8 KB": (1.0, 8)}
"""How long a machine takes compared with a small one, and KB per message."""
SHARE = 0.9


class RegionsResourcesOptions(Struct, frozen=True):
    """The paper's setting by default."""

    subscribers: Annotated[int, Meta(ge=1, description="one number of subscribers instead of 10 to 40; 1: all")] = 1
    fixed_us: Annotated[int, Meta(ge=0, description="what a copy costs a small machine whatever its size")] = 50
    kb_us: Annotated[int, Meta(ge=0, description="and per KB")] = 25
    seconds: Annotated[int, Meta(ge=1, description="how long it publishes at full rate")] = 3
    seed: int = 0


def run(options: RegionsResourcesOptions) -> list[ResultRow]:
    counts = [options.subscribers] if options.subscribers > 1 else range(10, 41, 10)
    return [_point(setup, count, options) for setup in SETUPS for count in counts]


def _point(setup: str, count: int, options: RegionsResourcesOptions) -> ResultRow:
    slowness, size_kb = SETUPS[setup]
    copy_us = round(slowness * (options.fixed_us + options.kb_us * size_kb))
    rate = SHARE * 1_000_000 / (copy_us * (count + 1))  # a copy for each of them, and one for the overlay
    changes = {
        "options.roots": 3,
        "options.fan": 2,
        "options.content": False,
        "options.direct_clients": True,
        "options.copy_us": copy_us,
        "options.config.copy_us": float(copy_us),
        "options.config.cpu_share_max": 100.0,
        "workload.clients": count,
        "workload.rate_per_s": rate,
        "workload.duration": f"{2 + options.seconds}s",
    }
    journal = play(with_options(two_regions(), changes), options.seed)
    values = latencies_ms(journal)
    told = [r.at_us for r in journal.records if r.kind == "deliver" and (r.published_us or 0) >= SETTLED_US]
    span_s = max(1e-6, (max(told) - min(told)) / 1e6)
    ours = {
        "latency_ms": fmean(values),
        "deviation_ms": pstdev(values),
        "messages_per_s": len(told) / span_s,
        "kb_per_s": len(told) / span_s * size_kb,
    }
    return ResultRow({"publisher": setup, "subscribers": count}, ours, {})


EXPERIMENT = Experiment(
    "Message size and publisher capacity",
    "paper 004, figure 7",
    RegionsResourcesOptions,
    run,
    Figure("subscribers", "messages_per_s", "publisher"),
)
