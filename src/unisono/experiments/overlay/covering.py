"""What covering saves in a broker overlay, and what it costs: subscriptions told and remembered, events that wait.

The topology of `overlay/costs`. Clients at the edges subscribe to intervals of one attribute, wide and narrow ones;
publishers at every fourth edge publish values of a tenth of it each. After the subscriptions have been made, a share
of the clients leaves and comes back with another interval; then everybody publishes.
"""

from random import Random
from typing import Annotated

from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, ResultRow, Value
from unisono.experiments.overlay.costs import (
    EDGES_PER_CORE,
    UNIT_US,
    Measured,
    Overlay,
    Workload,
    address,
    link_and_advertise,
    topology,
)
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import Filter, parse
from unisono.protocols.overlay.broker import Broker
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.detection import Detection
from unisono.protocols.overlay.messages import Sub, Unsub

VALUES = 1_000
SETTINGS: tuple[tuple[Detection, bool], ...] = (
    ("exact", False),
    ("exact", True),
    ("clients", False),
    ("clients", True),
)


class CoveringOptions(Struct, frozen=True):
    """Twenty edge brokers by default."""

    cores: Annotated[int, Meta(ge=1, description="core brokers in the chain, five edge brokers each")] = 4
    subscriptions: Annotated[int, Meta(ge=1, description="one per client, spread over the edges")] = 400
    leaving: Annotated[
        float, Meta(ge=0, le=1, description="the share of clients that leave and come back with another one")
    ] = 0.25
    publications: Annotated[int, Meta(ge=1, description="per publisher")] = 20
    seed: int = 0


def run(options: CoveringOptions) -> list[ResultRow]:
    rows = []
    for wide in (0.5, 0.1, 0.02):
        for detection, covering in SETTINGS:
            rows.append(ResultRow(*_measure(options, wide, detection, covering)))
    return rows


def _measure(
    options: CoveringOptions, wide: float, detection: Detection, covering: bool
) -> tuple[dict[str, Value], dict[str, float]]:
    tree = topology(options.cores)
    dice = Random(f"{options.seed}/{wide}")
    workload = _workload(options, wide, dice)
    config = BrokerConfig(detection=detection, covering=covering)
    brokers = {address(i): Broker(address(i), config) for i in range(len(tree.above))}
    overlay = Overlay(tree, brokers, workload, Random(f"{options.seed}/links"))
    link_and_advertise(overlay, tree, workload)
    overlay.measured = Measured()
    for name, at, filter in workload[1]:
        overlay.tell(address(at), Sub(Address(name), f"{name}/1", name, filter), 2)
    overlay.run()
    subscribing = overlay.measured.messages
    known = [broker.subscriptions for broker in brokers.values()]
    overlay.measured = Measured()
    moving = [each for each in workload[1] if dice.random() < options.leaving]
    for moment, (name, at, _) in enumerate(moving, start=3):
        overlay.tell(address(at), Unsub(Address(name), f"{name}/1"), moment)
        overlay.tell(address(at), Sub(Address(name), f"{name}/2", name, _interval(wide, dice)), moment)
    overlay.run()
    moved = overlay.measured.messages
    overlay.measured = Measured()
    published = 0
    for name, _, filter in workload[0]:
        low = int(filter.boxes[0].sides[0][1].numbers[0][0])
        times = sorted(dice.randrange(200 * UNIT_US) for _ in range(options.publications))
        for sequence, at in enumerate(times, start=1):
            published += 1
            event = Event(name, sequence, "t", attributes={"x": low + dice.randrange(VALUES // 10)})
            overlay.publish(name, event, 1_000 * UNIT_US + at)
    overlay.run()
    delays = overlay.measured.delays.values()
    setting: dict[str, Value] = {"widest": wide, "detection": detection, "covering": covering}
    return setting, {
        "messages_per_subscription": round(subscribing / len(workload[1]), 2),
        "messages_per_change": round(moved / max(1, len(moving)), 2),
        "known_mean": round(sum(known) / len(known), 1),
        "known_max": float(max(known)),
        "messages_per_publication": round(overlay.measured.messages / published, 2),
        "hops_mean": round(sum(delays) / max(1, len(delays)), 2),
        "deliveries": float(len(delays)),
    }


def _workload(options: CoveringOptions, wide: float, dice: Random) -> Workload:
    edges = options.cores * EDGES_PER_CORE
    first = options.cores
    ads = []
    for edge in range(0, edges, 4):
        low = dice.randrange(10) * VALUES // 10
        ads.append((f"p{edge}", first + edge, parse(f"x between {low} and {low + VALUES // 10}")))
    subs = [(f"s{i}", first + dice.randrange(edges), _interval(wide, dice)) for i in range(options.subscriptions)]
    return ads, subs


def _interval(wide: float, dice: Random) -> Filter:
    """Most are narrow, a few as wide as they may be."""
    low = dice.randrange(VALUES)
    return parse(f"x between {low} and {low + int(VALUES * wide * dice.random() ** 3)}")


EXPERIMENT = Experiment(
    title="What covering saves in a broker overlay, and what it costs",
    source="specs: content-order, section 15, where covering is argued for and not run",
    options=CoveringOptions,
    run=run,
)
