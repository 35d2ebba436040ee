"""The metrics of nodes and sessions: one catalogue, and the text format that Prometheus reads.

What is exposed is in the catalogue, and what is in the catalogue is documented: docs/reference/metrics.md is made from
it, and the dashboard in deploy/grafana is checked against it. Nothing here counts: counters live where things happen.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from unisono.errors import InvariantError

Kind = Literal["counter", "gauge"]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHERS = "(others)"
"""As the label `topic`: all topics beyond those that have lines of their own."""


class Metric(Struct, frozen=True):
    """One row of the catalogue."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


class Sample(Struct, frozen=True):
    """One number: which metric, the values of its labels in their order, and the value."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"unisono_{name}", "gauge", labels, help)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"unisono_{name}_total", "counter", labels, help)


OF_NODES = (
    _gauge(
        "node_info",
        "Always 1; its labels say which node of which deployment this is.",
        "deployment",
        "node",
        "region",
        "version",
    ),
    _gauge("ready", "1 if this check of /readyz passes, else 0.", "check"),
    _gauge("peer_up", "1 if the neighbour is connected and answers, else 0.", "peer"),
    _gauge("peer_round_trip_seconds", "To the neighbour and back, the last time it was asked.", "peer"),
    _gauge(
        "peer_clock_ahead_seconds",
        "By how much the neighbour's clock is ahead of ours, give or take half of the round trip.",
        "peer",
    ),
    _counter(
        "peer_bytes",
        "Bytes to (`out`) and from (`in`) a neighbour; those of all clients under `clients`.",
        "peer",
        "direction",
    ),
    _gauge("clients", "Clients that are connected."),
    _gauge("clients_away", "Clients that are remembered and not connected; each is forgotten when its lease ends."),
    _counter("client_leases_ended", "Clients that were forgotten with what they had registered: they stayed away."),
    _gauge("broker_up", "1 while the node is connected to the broker, else 0."),
    _gauge("broker_server_up", "1 if this server of the broker answers the node, else 0.", "server"),
    _gauge("broker_server_round_trip_seconds", "Until this server of the broker answers.", "server"),
    _counter("broker_published", "Items given to the broker."),
    _counter("broker_confirmed", "Items that the broker has taken."),
    _counter("broker_heard", "Items heard from the broker."),
    _counter("broker_rejected", "Items that the broker has refused."),
    _counter("broker_losses", "Times that items may have passed us by: a reconnect, or the broker found us too slow."),
    _gauge("broker_waiting", "Items that wait for the broker to confirm them."),
    _counter("inputs", "Messages and timers that the node's machine has handled."),
    _counter("turns", "Turns of the machine; each handles all that has arrived."),
    _counter("commits", "Turns made durable in the log."),
    _counter("snapshots", "Snapshots of the log."),
    _gauge("queue", "Inputs that wait for the machine."),
    _gauge("log_free_bytes", "Room left on the disk of the log."),
    _counter("refusals", "What was refused, by the codes of docs/reference/limits.md.", "code"),
    _gauge("topics", "Topics at home here."),
    _counter("home_moves", "Homes of topics that this node, as the root, has ordered to move."),
    _counter("topic_numbered", "Events of a topic at home here that have a number.", "topic"),
    _gauge("topic_climbing", "Runs of events whose timestamps are on their way through the tree.", "topic"),
    _gauge("topic_subscribers", "Subscriptions to the topic.", "topic"),
    _gauge("clock_skew_seconds", "By clock: how far ours is ahead of the median of all stampers'."),
    _gauge("clock_error_seconds", "Real-time order: how far our clock may be from that of all."),
    _gauge("clock_ahead_seconds", "Our stamps stand ahead of our clock, after a restart or a correction."),
    _gauge("clock_lanes", "Topics that we may stamp on."),
    _gauge("clock_waiting", "Publishers whose events wait for a lane, a lease or the clock."),
    _gauge("clock_heard_seconds", "A stamper's last promise, from our clock: below 0 while it is on its way.", "peer"),
    _gauge("mesh_members", "Causal mesh: members that the broker knows."),
    _counter("mesh_frames", "Causal mesh: what became of frames; `emitted` are our own.", "fate"),
    _counter("mesh_bytes", "Causal mesh: bytes of datagrams that left, to the own region, to others, multicast.", "to"),
    _counter("mesh_turned_away", "Causal mesh: datagrams that were, by reason.", "reason"),
    _gauge("topic_group", "Topics that this one is ordered against.", "topic"),
    _counter("archive_rows", "Rows that the archive has kept."),
    _gauge("group_lag_events", "Events that the consumer group has not committed yet.", "group"),
    _gauge("group_lag_seconds", "Since when there are such events, about.", "group"),
    _counter("process_cpu_seconds", "Processor time of the process."),
    _gauge("process_memory_bytes", "Resident memory of the process."),
    _gauge("process_handles", "Open files and sockets of the process."),
)
OF_SESSIONS = (
    _counter("published", "Events whose outcome is known, by outcome: accepted, refused, unknown.", "outcome"),
    _gauge("publishing", "Events that are published and have no outcome yet."),
    _counter("subscription_delivered", "Events delivered in order.", "subscription"),
    _counter("subscription_late", "Events delivered out of order, marked so.", "subscription"),
    _counter("subscription_overdue", "Events delivered after their own deadlines, marked so.", "subscription"),
    _counter("subscription_gaps", "Gaps told.", "subscription"),
    _counter(
        "subscription_missing", "Events that gaps said will not come, by their deadlines as a rule.", "subscription"
    ),
    _counter("subscription_stalls", "Times a topic stalled.", "subscription"),
    _gauge(
        "subscription_held",
        "Events that have arrived and wait for their order; divided by those delivered a second, the mean wait.",
        "subscription",
    ),
    _gauge("subscription_unread", "Notifications that the program has not read yet.", "subscription"),
)
CATALOGUE = {metric.name: metric for metric in (*OF_NODES, *OF_SESSIONS)}


def expose(samples: Iterable[Sample]) -> str:
    """The samples as Prometheus reads them, metric by metric; one that is not in the catalogue is our own mistake."""
    grouped: dict[str, list[Sample]] = {}
    for sample in samples:
        metric = CATALOGUE.get(sample.name)
        if metric is None or len(metric.labels) != len(sample.labels):
            raise InvariantError(f"{sample.name} with {len(sample.labels)} labels is not in the catalogue of metrics")
        grouped.setdefault(sample.name, []).append(sample)
    lines = []
    for name, several in grouped.items():
        metric = CATALOGUE[name]
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        for sample in several:
            labels = ",".join(f'{key}="{_escape(value)}"' for key, value in zip(metric.labels, sample.labels))
            lines.append(f"{name}{{{labels}}} {_number(sample.value)}" if labels else f"{name} {_number(sample.value)}")
    return "\n".join([*lines, ""])


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def of_topics(values: Mapping[str, float], name: str, most: int) -> list[Sample]:
    """A line for each of the topics with the highest values, and one for all others: no label grows without bound."""
    ranked = sorted(values, key=lambda topic: (-values[topic], topic))
    samples = [Sample(name, values[topic], (topic,)) for topic in sorted(ranked[:most])]
    if len(ranked) > most:
        samples.append(Sample(name, sum(values[topic] for topic in ranked[most:]), (OTHERS,)))
    return samples
