"""The thesis' air traffic setting in the simulator: what each style of recovery delivers, when, and at which price."""

from statistics import fmean, pstdev
from typing import Annotated, Any

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, ResultRow, Value
from unisono.machine import Effect, Send
from unisono.protocols.coded.messages import PacketPiece
from unisono.sim.scenario import load, stage, with_options

SUBSCRIBERS, ROWS = 39, 16

Setting = tuple[str, str, bool, int, int]
"""Over a star, a SCRIBE tree, or one whose interior nodes recode; style, coded or plain, redundancy, fanout."""
SETTINGS: tuple[Setting, ...] = (
    ("star", "none", True, 2, 1),
    ("star", "none", True, 8, 1),
    ("star", "push", False, 0, 2),
    ("star", "push", False, 0, 10),
    ("star", "push", True, 2, 2),
    ("star", "push", True, 2, 12),
    ("star", "push-pull", False, 0, 2),
    ("star", "push-pull", False, 0, 10),
    ("star", "push-pull", True, 2, 2),
    ("star", "push-pull", True, 2, 10),
    ("star", "pull", False, 0, 2),
    ("star", "pull", False, 0, 11),
    ("star", "pull", True, 2, 2),
    ("star", "pull", True, 2, 9),
    ("star", "need", False, 0, 1),
    ("star", "need", True, 0, 1),
    ("star", "need", True, 1, 1),
    ("star", "need", True, 2, 1),
    ("star", "need", True, 2, 2),
    ("star", "need", True, 4, 1),
    *(
        (over, style, True, redundancy, 1)
        for style, redundancy in (("none", 2), ("none", 8), ("need", 0), ("need", 1), ("need", 2), ("need", 4))
        for over in ("tree", "recoding tree")
    ),
)


class AirTrafficOptions(Struct, frozen=True):
    """How long, with whom."""

    events: Annotated[int, Meta(ge=1, description="publications, one a second")] = 100
    polarized: Annotated[bool, Meta(description="prefer partners near the publisher that serve")] = True
    seed: Annotated[int, Meta(description="seed of the run")] = 0


def run(options: AirTrafficOptions) -> list[ResultRow]:
    return [_row(options, setting) for setting in SETTINGS]


def _row(options: AirTrafficOptions, setting: Setting) -> ResultRow:
    over, style, coded, redundancy, fanout = setting
    scenario = with_options(
        load("coded/air-traffic"),
        {
            "workload.duration": options.events * 1_000_000,
            "ens.kind": "direct" if over == "star" else "scribe",
            "options.style": style,
            "options.coded": coded,
            "options.redundancy": redundancy,
            "options.fanout": fanout,
            "options.fan_in": 1,
            "options.polarized": options.polarized,
            "options.recode": over == "recoding tree",
        },
    )
    world = stage(scenario, options.seed)
    packets = control = 0

    def count(message: Any, copies: int) -> None:
        nonlocal packets, control
        if isinstance(message, PacketPiece):
            packets += copies
        else:
            control += copies

    def count_send(effect: Effect) -> None:
        if isinstance(effect, Send):
            count(effect.message, 1)

    world.run(until=scenario.workload.begin - 1)  # joining is not part of the price
    world.ens.on_copies = count
    for host in world.hosts.values():
        host.on_effect = count_send
    world.run(until=scenario.workload.begin + options.events * 1_000_000 + 30_000_000)
    published = sum(record.kind == "publish" for record in world.records)
    latencies = [_latency_ms(record) for record in world.records if record.kind == "deliver"]
    owed = published * SUBSCRIBERS
    shown: dict[str, Value] = {
        "over": over,
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
    return ResultRow(shown, ours=ours)


def _latency_ms(record: Any) -> float:
    return float(record.delivered_us - record.published_us) / 1000


EXPERIMENT = Experiment(
    title="Styles of recovery in the air traffic setting: 23 KB events, 39 subscribers, 50 ms, PLR .05, ABL 2",
    source="thesis, section 5.5, figures 5.11 to 5.23",
    options=AirTrafficOptions,
    run=run,
    figure=Figure("fanout", "success", "style"),
)
