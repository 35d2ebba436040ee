"""Filters over a topic broker: a grid of cells beneath the order, against filtering after delivery.

One topic whose events have two attributes, drawn evenly; every subscriber wants a random box. Without a grid (one cell)
all of them hear everything and drop what does not match. With a grid they join the cells their boxes meet: the finer,
the fewer messages a narrow subscriber hears, and the more topics its events are ordered against, which is paid in
entries of timestamps and, where the numbers of two cells come from two nodes, in waiting.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from unisono.audit.trace import Trace
from unisono.experiments.experiment import Experiment, Figure, ResultRow
from unisono.model.journal import Header, Journal
from unisono.sim.scenario import Scenario, stage
from unisono.sim.spec import read

VALUES = 64


class ContentGridOptions(Struct, frozen=True):
    """Three nodes in a line, links of 20 ms."""

    subscribers: Annotated[int, Meta(ge=1, description="clients, each with a filter of its own")] = 24
    rate_per_s: Annotated[float, Meta(gt=0, description="events of all publishers together")] = 100.0
    seconds: Annotated[int, Meta(ge=1, description="how long they publish")] = 4
    seed: int = 0


def run(options: ContentGridOptions) -> list[ResultRow]:
    return [_row(options, width, cuts) for width in (0.05, 0.2, 0.5, 1.0) for cuts in (0, 1, 3, 7)]


def _row(options: ContentGridOptions, width: float, cuts: int) -> ResultRow:
    world = stage(scenario(options, width, cuts), options.seed)
    world.run()
    heard: dict[str, int] = {}
    events = stamps = entries = delivered = joins = 0
    for record in world.records:
        match record.kind:
            case "arrive" if (record.who or "").startswith("c"):
                if record.event is not None:
                    events += 1
                elif record.note == "Heard":
                    heard[record.who or ""] = heard.get(record.who or "", 0) + 1
            case "timestamp":
                stamps += 1
                entries += 1 + len(record.clock or {})
            case "deliver":
                delivered += 1
            case "subscribe" if record.topic != "t0" or not cuts:
                joins += 1
            case _:
                pass
    trace = Trace(Journal(Header(), world.records))
    latencies = [trace.latency_us(record) or 0 for record in world.records if record.kind == "deliver"]
    ours = {
        "cells_per_subscriber": round(joins / options.subscribers, 1),
        "messages_per_subscriber": round(sum(heard.values()) / options.subscribers, 1),
        "events_heard_per_delivered": round(events / max(1, delivered), 2),
        "delivered_per_subscriber": round(delivered / options.subscribers, 1),
        "entries_per_timestamp": round(entries / max(1, stamps), 2),
        "latency_ms_mean": round(sum(latencies) / max(1, len(latencies)) / 1000, 1),
    }
    return ResultRow({"filter_width": width, "cells": (cuts + 2) ** 2 if cuts else 1}, ours)


def scenario(options: ContentGridOptions, width: float, cuts: int) -> Scenario:
    at = [VALUES * (i + 1) // (cuts + 1) for i in range(cuts)]
    topic: dict[str, Any] = {"name": "t0"}
    if cuts:
        topic["grid"] = [{"attribute": name, "cuts": at} for name in "xy"]
    nodes = [{"name": "n0"}, {"name": "n1", "parent": "n0"}, {"name": "n2", "parent": "n1"}]
    latency = {"kind": "uniform", "least_us": "15ms", "most_us": "25ms"}
    raw = {
        "name": "content_grid",
        "protocol": "sequencer",
        "deployment": {"version": 1, "nodes": nodes, "topics": [topic]},
        "links": {"latency": latency},
        "ens": {"kind": "direct", "latency": latency},
        "options": {"content": True, "width": width},
        "trace": True,
        "workload": {
            "clients": options.subscribers,
            "publishers": 4,
            "topics": 1,
            "topics_per_client": 1,
            "rate_per_s": options.rate_per_s,
            "duration": options.seconds * 1_000_000,
            "attributes": {"x": VALUES, "y": VALUES},
        },
    }
    return read(raw, Scenario, "content_grid")


EXPERIMENT = Experiment(
    title="A grid beneath the order, or filtering after delivery",
    source="paper 000, section 3.3: a mapping layer for content over topics; the paper has no figure of it",
    options=ContentGridOptions,
    run=run,
    figure=Figure("cells", "messages_per_subscriber", series="filter_width", log_x=True),
)
