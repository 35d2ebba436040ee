"""What order costs between sites: mean end-to-end latency as a ratio to the direct, unordered path, hold-back included.

Every scheme orders the same crowd's events in the same world. `ratio` compares the mean over all deliveries with that
of the same deliveries on the direct path; `one_site_ratio` looks at the subscribers whose topics all belong to their
own site; `stuck` is the share of deliveries that never happen; `bound` is the ratio that no safe protocol can beat for
this crowd (`bound`). The rows of clocks are played with beats of 5 ms, and computed as if beats cost nothing.

geo: 2 % of subscriptions and publications are for topics of other sites, popularity has shape 0.901. spray: all sites
alike, shape 0.349. The sweep turns the share of remote interest from none to all, with the shape of spray.
"""

from statistics import fmean
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from unisono.experiments.experiment import Experiment, Figure, ResultRow, Value, contradiction
from unisono.experiments.sequencer.bound import direct_and_bound_us
from unisono.experiments.sequencer.schemes import DIRECT, SCHEMES, play
from unisono.experiments.sequencer.sites import Crowd, Habits, Sites, draw_crowd, find_sites
from unisono.model.region import LatencyTable
from unisono.planning.leans import plan_leans
from unisono.sim.world import World

SITES = ("A", "B5", "B10")
GEO_REMOTE, GEO_SHAPE, SPRAY_SHAPE = 0.02, 0.901, 0.349
SWEEP = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
MODELLED = ("clock, leans, beats for nothing", "clock, no leans, beats for nothing")
"""Computed, not played: the programme that finds leans, over the very crowd."""
SWEPT = (
    "star, early, placed",
    "clock, leans",
    "clock, no leans",
    "clock, leans, beats for nothing",
    "clock, no leans, beats for nothing",
    "star, early",
    "one central sequencer",
    "per-topic order only",
    "clock merge",
)


class WanLatencyOptions(Struct, frozen=True):
    """The whole table and the sweep by default; options choose a part, or another size."""

    sites: Annotated[
        Literal["A", "B5", "B10", "all"],
        Meta(description="the paper's five sites, five or ten public cloud regions; the sweep wants B5"),
    ] = "all"
    workload: Annotated[
        Literal["geo", "spray", "both", "sweep", "all"],
        Meta(description="interest mostly local, everywhere, both; the sweep of remote interest; all of it"),
    ] = "all"
    events: Annotated[int, Meta(ge=1, description="publications in each run")] = 500
    subscribers: Annotated[int, Meta(ge=1, description="subscribers at each site")] = 60
    topics: Annotated[int, Meta(ge=1, description="topics of each site")] = 10
    per_client: Annotated[int, Meta(ge=1, description="topics of each subscriber")] = 5
    rate: Annotated[float, Meta(gt=0, description="publications per second, of all sites together")] = 1000.0
    jitter: Annotated[float, Meta(ge=0, description="mean of the exponential jitter, as a share of each latency")] = 0.0
    seed: Annotated[int, Meta(description="seed of the crowd and of the world")] = 0

    def __post_init__(self) -> None:
        if self.per_client > self.topics:
            raise contradiction(self, "a subscriber may want topics of one site only", "per_client", "topics")
        if self.workload == "sweep" and self.sites not in ("B5", "all"):
            raise contradiction(self, "the sweep is of B5", "workload", "sites")


def parts(options: WanLatencyOptions) -> list[WanLatencyOptions]:
    """Sites and workloads one by one; the sweep last, as it is only of B5."""
    names = SITES if options.sites == "all" else (options.sites,)
    kinds: tuple[Literal["geo", "spray"], ...] = ("geo", "spray")
    if options.workload in kinds:
        kinds = (options.workload,)
    elif options.workload == "sweep":
        kinds = ()
    found = [replace(options, sites=name, workload=kind) for name in names for kind in kinds]
    if options.workload in ("sweep", "all") and "B5" in names:
        found.append(replace(options, sites="B5", workload="sweep"))
    return found


def run(options: WanLatencyOptions) -> list[ResultRow]:
    return [row for part in parts(options) for row in (_sweep(part) if part.workload == "sweep" else _table(part))]


def _table(part: WanLatencyOptions) -> list[ResultRow]:
    sites = find_sites(part.sites)
    everywhere = 1 - 1 / len(sites.names)
    habits = (GEO_REMOTE, GEO_SHAPE) if part.workload == "geo" else (everywhere, SPRAY_SHAPE)
    setting: dict[str, Value] = {"sites": part.sites, "interest": part.workload}
    return _compare(part, sites, habits, (*SCHEMES, *MODELLED), setting)


def _sweep(part: WanLatencyOptions) -> list[ResultRow]:
    rows: list[ResultRow] = []
    for remote in SWEEP:
        setting: dict[str, Value] = {"sites": part.sites, "interest": "swept", "remote": remote}
        rows += _compare(part, find_sites(part.sites), (remote, SPRAY_SHAPE), SWEPT, setting)
    return rows + worst(rows)


def worst(rows: list[ResultRow]) -> list[ResultRow]:
    """Where in the sweep each scheme is worst: `at_remote` is the share of remote interest."""
    found = []
    for scheme in SWEPT:
        swept = [row for row in rows if row.setting["scheme"] == scheme]
        peak = max(swept, key=lambda row: row.ours["ratio"])
        setting: dict[str, Value] = {"sites": "B5", "interest": "swept, worst", "scheme": scheme}
        found.append(ResultRow(setting, {"ratio": peak.ours["ratio"], "at_remote": float(peak.setting["remote"])}))
    return found


def _compare(
    options: WanLatencyOptions,
    sites: Sites,
    habits: tuple[float, float],
    schemes: tuple[str, ...],
    setting: dict[str, Value],
) -> list[ResultRow]:
    remote, shape = habits
    drawn = Habits(remote, shape, options.subscribers, options.topics, options.per_client, options.events, options.rate)
    crowd = draw_crowd(len(sites.names), drawn, options.seed)
    since = crowd.publications[0].at_us
    direct = latencies(play(DIRECT, sites, crowd, options.seed, options.jitter), since)
    least = bound(sites, crowd)
    rows = []
    for scheme in schemes:
        if scheme in MODELLED:
            rows.append(ResultRow({**setting, "scheme": scheme}, modelled(scheme, sites, crowd) | {"bound": least}))
            continue
        taken = (
            direct if scheme == DIRECT else latencies(play(scheme, sites, crowd, options.seed, options.jitter), since)
        )
        rows.append(ResultRow({**setting, "scheme": scheme}, measure(crowd, taken, direct) | {"bound": least}))
    return rows


def modelled(scheme: str, sites: Sites, crowd: Crowd) -> dict[str, float]:
    """What clocks would take that are heard at every moment, as far as ways allow: nobody waits for a beat."""
    names = sites.table.regions
    places = range(len(names))
    ways = LatencyTable(names, tuple(tuple(sites.path_us(a, b) for b in places) for a in places))
    demand = crowd.demand(names)
    busiest = {topic: max(rates, key=rates.__getitem__) for topic, rates in demand.rates.items()}
    keepers = {str(t): busiest.get(str(t), names[crowd.site_of(t)]) for t in range(crowd.topics)}
    plan = plan_leans(demand, ways, keepers)
    mean_us = plan.latency_us if scheme == MODELLED[0] else plan.unplanned_us
    return {"ratio": round(mean_us / plan.direct_us, 3), "mean_ms": round(mean_us / 1000, 1), "stuck": 0.0}


def bound(sites: Sites, crowd: Crowd) -> float:
    direct_us, least_us = direct_and_bound_us(sites, crowd)
    return round(least_us / direct_us, 3)


Latencies = dict[tuple[str, str], int]
"""(subscriber, event) -> microseconds from publication to notification."""


def latencies(world: World, since_us: int = 0) -> Latencies:
    """Of events published since then: what only warms up is not measured."""
    return {
        (r.subscriber or "", r.event or ""): (r.delivered_us or 0) - (r.published_us or 0)
        for r in world.records
        if r.kind == "deliver" and (r.published_us or 0) >= since_us
    }


def measure(crowd: Crowd, taken: Latencies, direct: Latencies) -> dict[str, float]:
    """Compares only what was delivered: what is stuck for ever has no latency."""
    at_home = {s.name for s in crowd.subscribers if crowd.is_of_one_site(s)}
    near = [key for key in taken if key[0] in at_home]
    found = {"ratio": _ratio(list(taken), taken, direct)}
    if near:
        found["one_site_ratio"] = _ratio(near, taken, direct)
    ordered = sorted(taken.values())
    return found | {
        "mean_ms": round(fmean(ordered) / 1000, 1),
        "p99_ms": round(ordered[len(ordered) * 99 // 100] / 1000, 1),
        "stuck": round(1 - len(taken) / len(direct), 3),
    }


def _ratio(keys: list[tuple[str, str]], taken: Latencies, direct: Latencies) -> float:
    return round(fmean(taken[key] for key in keys) / fmean(direct[key] for key in keys), 3)


EXPERIMENT = Experiment(
    title="Latency of ordered notification between sites, as a ratio to the direct path",
    source="Efficient Notification Ordering for Geo-Distributed Pub/Sub Systems, section 5.4, extended",
    options=WanLatencyOptions,
    run=run,
    figure=Figure("remote", "ratio", "scheme", log_y=True),
    parts=parts,
)
