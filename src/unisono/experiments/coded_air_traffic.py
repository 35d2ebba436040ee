"""The thesis' air traffic setting in the simulator: what each style of recovery delivers, when, and at which price."""

from statistics import fmean, pstdev
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, Row, Value
from unisono.machine import Broadcast, Effect, Send
from unisono.protocols.coded.messages import Piece
from unisono.sim.scenario import load, stage, with_options

SUBSCRIBERS, ROWS = 39, 16

Setting = tuple[str, bool, int, int]
"""Style, coded or plain, redundancy, fanout."""
SETTINGS: tuple[Setting, ...] = (
    ("none", True, 2, 1),
    ("none", True, 8, 1),
    ("push", False, 0, 2),
    ("push", False, 0, 10),
    ("push", True, 2, 2),
    ("push", True, 2, 12),
    ("push-pull", False, 0, 2),
    ("push-pull", False, 0, 10),
    ("push-pull", True, 2, 2),
    ("push-pull", True, 2, 10),
    ("pull", False, 0, 2),
    ("pull", False, 0, 11),
    ("pull", True, 2, 2),
    ("pull", True, 2, 9),
    ("need", False, 0, 1),
    ("need", True, 0, 1),
    ("need", True, 1, 1),
    ("need", True, 2, 1),
    ("need", True, 2, 2),
    ("need", True, 4, 1),
)


class Options(Struct, frozen=True):
    """How long, over which multicast."""

    events: Annotated[int, Meta(description="publications, one a second")] = 100
    ens: Annotated[Literal["direct", "scribe"], Meta(description="a star, or a Scribe tree that loses per hop")] = (
        "direct"
    )
    polarized: Annotated[bool, Meta(description="prefer partners near the publisher that serve")] = True
    seed: Annotated[int, Meta(description="seed of the run")] = 0


def run(options: Options) -> list[Row]:
    return [_row(options, setting) for setting in SETTINGS]


def _row(options: Options, setting: Setting) -> Row:
    style, coded, redundancy, fanout = setting
    scenario = with_options(
        load("coded/air-traffic"),
        {
            "workload.duration": options.events * 1_000_000,
            "ens.kind": options.ens,
            "options.style": style,
            "options.coded": coded,
            "options.redundancy": redundancy,
            "options.fanout": fanout,
            "options.fan_in": 1,
            "options.polarized": options.polarized,
        },
    )
    world = stage(scenario, options.seed)
    packets = control = 0

    def count(effect: Effect) -> None:
        nonlocal packets, control
        if isinstance(effect, Send | Broadcast):
            copies = SUBSCRIBERS if isinstance(effect, Broadcast) else 1
            if isinstance(effect.message, Piece):
                packets += copies
            else:
                control += copies

    world.run(until=scenario.workload.begin - 1)  # joining is not part of the price
    for host in world.hosts.values():
        host.on_effect = count
    world.run(until=scenario.workload.begin + options.events * 1_000_000 + 30_000_000)
    published = sum(record.kind == "publish" for record in world.records)
    latencies = [_latency_ms(record) for record in world.records if record.kind == "deliver"]
    owed = published * SUBSCRIBERS
    shown: dict[str, Value] = {
        "style": style,
        "content": "coded" if coded else "plain",
        "redundancy": redundancy,
        "fanout": fanout,
    }
    ours = {
        "success": round(len(latencies) / owed, 5),
        "overhead": round(packets / (owed * ROWS), 3),
        "control": round(control / owed, 2),
        "latency_ms": round(fmean(latencies), 1),
        "deviation_ms": round(pstdev(latencies), 1),
        "longest_ms": round(max(latencies), 1),
    }
    return Row(shown, ours=ours)


def _latency_ms(record: Any) -> float:
    return float(record.delivered_us - record.published_us) / 1000


EXPERIMENT = Experiment(
    title="Styles of recovery in the air traffic setting: 23 KB events, 39 subscribers, 50 ms, PLR .05, ABL 2",
    source="thesis, section 5.5, figures 5.11 to 5.23",
    options=Options,
    run=run,
    figure=Figure("fanout", "success", "style"),
)
