"""How large timestamps are when popularity follows a power law, over topics and on the wire.

Two topics belong to one group when at least two clients subscribe to both; a timestamp has an entry per member of its
topic's group. The papers' "power law with shape a" over n topics is pmf(i) proportional to i^-(1+a); this run is the
evidence for that reading. The mean over topics, which the paper gives, hides that popular topics have nearly all
others in their group: so events are also sequenced, one after another, by a real node, and what it puts on the wire is
weighed. The first fifth does not count: there everything is news to the delta encoding.
"""

from random import Random
from statistics import fmean, pstdev
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from unisono.experiments.experiment import Experiment, Figure, ResultRow, contradiction
from unisono.machine import Broadcast
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.planning.groups import plan_groups
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Creates, Install, Stamps, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.sim.workloads import PopularityLaw

PAPER = {0.349: 46, 0.901: 17}
"""The paper's mean sizes, for 10 000 clients with 10 of 1000 topics each."""
SHAPES = (0.2, 0.349, 0.5, 0.7, 0.901, 1.1)


class TimestampSizeOptions(Struct, frozen=True):
    """The paper's workload by default; its numbers stand beside ours only there."""

    clients: Annotated[int, Meta(ge=1, description="clients")] = 10_000
    topics: Annotated[int, Meta(ge=1, description="topics to choose from")] = 1000
    per_client: Annotated[int, Meta(ge=1, description="distinct topics each client subscribes to")] = 10
    shape: Annotated[float | None, Meta(description="of the power law; without it, several")] = None
    shared_subscriptions_min: Annotated[
        int, Meta(ge=1, description="subscriptions that must share a pair: 2 total order, 1 causal")
    ] = 2
    events: Annotated[int, Meta(ge=0, description="events sequenced to weigh timestamps; 0: only count groups")] = (
        10_000
    )
    publications: Annotated[
        Literal["power-law", "uniform"], Meta(description="how events choose their topics; same shape")
    ] = "power-law"
    seed: Annotated[int, Meta(description="seed of the clients' choices")] = 0

    def __post_init__(self) -> None:
        if self.per_client > self.topics:
            raise contradiction(self, "there are not so many distinct topics", "per_client", "topics")
        if self.shared_subscriptions_min > 2 and self.events:
            raise contradiction(
                self, "no node has such groups, they can only be counted", "shared_subscriptions_min", "events"
            )


def run(options: TimestampSizeOptions) -> list[ResultRow]:
    return [_row(options, shape) for shape in (SHAPES if options.shape is None else (options.shape,))]


def _row(options: TimestampSizeOptions, shape: float) -> ResultRow:
    popularity, dice = PopularityLaw(options.topics, shape), Random(options.seed)
    choices = [popularity.draw_distinct(dice, options.per_client) for _ in range(options.clients)]
    plan = plan_groups(
        ((str(who), str(topic)) for who, own in enumerate(choices) for topic in own), options.shared_subscriptions_min
    )
    sizes = [group.size for group in plan.groups]
    sizes += [1] * (options.topics - len(sizes))  # nobody subscribes: the number alone
    ours = {"mean_size": round(fmean(sizes), 2), "std_size": round(pstdev(sizes), 2), "max_size": max(sizes)}
    if options.events:
        ours |= _weigh(options, shape, choices, "full") | _weigh(options, shape, choices, "delta")
    as_published = (options.clients, options.topics, options.per_client, options.shared_subscriptions_min) == (
        10_000,
        1000,
        10,
        2,
    )
    paper: dict[str, float] = {"mean_size": PAPER[shape]} if as_published and shape in PAPER else {}
    return ResultRow({"shape": shape}, ours, paper)


def _weigh(
    options: TimestampSizeOptions, shape: float, choices: list[list[int]], encoding: Literal["full", "delta"]
) -> dict[str, float]:
    """Mean entries (the topic's own number is one) and bytes (msgpack, as on the wire) of the timestamps of events."""
    shared_subscriptions_min: Literal[1, 2] = 1 if options.shared_subscriptions_min == 1 else 2
    config = SequencerConfig(
        early=False, encoding=encoding, shared_subscriptions_min=shared_subscriptions_min, issued_max=1
    )
    topics = tuple(Topic(i) for i in range(options.topics))
    node, start = TopicManager(Address("node"), None, (), topics, {}, config), Micros(0)
    for who, own in enumerate(choices):
        chosen = tuple(Topic(topic) for topic in own)
        for topic in chosen:
            node.handle(Install(Address(f"c{who}"), 1, (topic,), chosen), start)
    publications = PopularityLaw(options.topics, shape if options.publications == "power-law" else -1.0)
    dice, publisher, requests = Random(f"{options.seed}/publications"), Address("p"), [0] * options.topics
    entries, sizes = [], []
    for i in range(options.events):
        topic = Topic(publications.draw(dice))
        requests[topic] += 1
        for effect in node.handle(Creates(publisher, (Wanted(topic, requests[topic]),)), start):
            if i >= options.events // 5 and isinstance(effect, Broadcast) and isinstance(effect.message, Stamps):
                stamp = effect.message.runs[0].entries
                entries.append(1 + len(stamp))
                sizes.append(len(msgspec.msgpack.encode({**stamp, topic: requests[topic]})))
    return {f"{encoding}_entries": round(fmean(entries), 1), f"{encoding}_bytes": round(fmean(sizes), 1)}


def as_json(rows: list[ResultRow]) -> Any:
    """One shape: its measures. Several: a list of such objects."""
    points = [{**row.setting, **row.ours} for row in rows]
    return points[0] if len(points) == 1 else {"shapes": points}


EXPERIMENT = Experiment(
    title="Size of a timestamp",
    source="Efficient Notification Ordering for Geo-Distributed Pub/Sub Systems, figures 7 and 8 (leftmost points)",
    options=TimestampSizeOptions,
    run=run,
    figure=Figure("shape", "mean_size"),
    as_json=as_json,
)
