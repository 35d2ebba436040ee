"""The numbers of a node, read where they are counted when somebody asks: for `status`, `topics` and `/metrics`."""

import os
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import msgspec

from unisono.model.health import GroupSeen, Health, StamperSeen, TopicSeen
from unisono.model.interest import covers
from unisono.model.metrics import Sample, expose, of_topics
from unisono.model.settings import NodeSpec
from unisono.runtime.brokers.connection import BrokerCounters
from unisono.runtime.brokers.udp.adapter import UdpEns
from unisono.runtime.driver.host import Host
from unisono.runtime.links import control
from unisono.runtime.links.refusals import Refusals
from unisono.runtime.node.content import FATES, CausalRole, RegionsRole
from unisono.runtime.node.parts import NodeParts

TOPICS_MAX = 100
"""Topics with lines of their own in `/metrics`: those with the highest values; all others are one line."""
LOOKED_AT_MAX = 10_000
"""With more topics than this at home only how many there are is shown: looking at each stops other work."""
GROUPS_MAX = 1_000


class ObservedNode(NodeParts, Protocol):
    """What is looked at."""

    @property
    def spec(self) -> NodeSpec: ...

    @property
    def failure(self) -> Exception | None: ...

    @property
    def refusals(self) -> Refusals: ...

    @property
    def host(self) -> Host | None: ...


def report(node: ObservedNode, health: Health | None) -> control.NodeReport:
    """What `unisono status` shows."""
    broker = node.sequencer.broker if node.sequencer is not None else None
    counters = {
        "links": _plain(node.links.counters),
        "broker": _plain(broker.counters if broker is not None else BrokerCounters()),
        "refused": refused(node),
    }
    if node.host is not None:
        counters["sequencer"] = _plain(node.host.counters)
    if node.overlay is not None:
        counters[node.deployment.kind] = node.overlay.report()
    if isinstance(node.overlay, RegionsRole):
        counters["direct"] = node.overlay.direct()
        counters["entourages"] = node.overlay.entourages()
    if node.archivist is not None:
        counters["archive"] = _plain(node.archivist.counters)
    if node.host is not None and broker is not None and isinstance(broker.ens, UdpEns):
        counters["datagrams"] = broker.ens.counters
    return control.NodeReport(
        node.me,
        counters,
        tuple(node.topic_names.at_home) if node.topic_names is not None else (),
        tuple(address for hello in node.links.parties() for address in hello.addresses),
        str(node.failure) if node.failure is not None else None,
        health,
        node.placing.report() if node.placing is not None else None,
        stamper(node),
        node.placing.leans() if node.placing is not None else None,
    )


def stamper(node: ObservedNode) -> StamperSeen | None:
    """Of a node where clocks order."""
    role = node.sequencer
    if role is None or role.host is None:
        return None
    seen, skew = role.ordering.report(role.host.clock.now(), role.topic_names.names), node.lookout.skew_us()
    return msgspec.structs.replace(seen, skew_us=skew[0]) if seen is not None and skew is not None else seen


def refused(node: ObservedNode) -> dict[str, int]:
    """By code, with those of the overlay's broker."""
    counts = dict(node.refusals.counts)
    for code, count in node.overlay.broker.refusals.items() if node.overlay is not None else ():
        counts[code] = counts.get(code, 0) + count
    return counts


def survey(node: ObservedNode, pattern: str) -> control.Surveyed:
    """Topics at home here whose names match, and the groups of the archive."""
    now = time.time_ns() // 1000
    names = [name for name in node.topic_names.at_home if covers(pattern, name)] if node.topic_names is not None else []
    seen = tuple(found for name in names[: control.SURVEYED_MAX] if (found := topic_seen(node, name)) is not None)
    more = max(0, len(names) - control.SURVEYED_MAX)
    return control.Surveyed(node.me, now, seen, more, groups(node))


def topic_seen(node: ObservedNode, name: str) -> TopicSeen | None:
    """None: it was created here and has moved away."""
    if node.sequencer is None or node.topic_names is None:
        return None
    topic = node.topic_names.number_of(name)
    seen = node.sequencer.ordering.seen(topic) if topic is not None else None
    return TopicSeen(name, *seen) if seen is not None else None


def groups(node: ObservedNode) -> tuple[GroupSeen, ...]:
    return node.archivist.groups_seen()[:GROUPS_MAX] if node.archivist is not None else ()


def metrics(node: ObservedNode, health: Health) -> str:
    """The page that Prometheus reads."""
    return expose([*_of_itself(node), *_of_surroundings(node, health), *_of_broker(node), *_of_work(node)])


def _of_itself(node: ObservedNode) -> Iterable[Sample]:
    labels = (node.deployment.name, str(node.me), node.spec.region, version("unisono"))
    yield Sample("unisono_node_info", 1, labels)
    times = os.times()
    yield Sample("unisono_process_cpu_seconds_total", times.user + times.system)
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        yield Sample("unisono_process_memory_bytes", pages * os.sysconf("SC_PAGE_SIZE"))
        yield Sample("unisono_process_handles", len(os.listdir("/proc/self/fd")))
    for code, count in refused(node).items():
        yield Sample("unisono_refusals_total", count, (code,))
    yield Sample("unisono_clients", node.clients.here_count)
    yield Sample("unisono_clients_away", node.clients.away_count)
    yield Sample("unisono_client_leases_ended_total", node.lookout.leases_ended)
    if node.lookout.free_bytes is not None:
        yield Sample("unisono_log_free_bytes", node.lookout.free_bytes)


def _of_surroundings(node: ObservedNode, health: Health) -> Iterable[Sample]:
    for check in health.checks:
        yield Sample("unisono_ready", int(check.passed), (check.name,))
    for peer in health.peers:
        yield Sample("unisono_peer_up", int(peer.up), (peer.node,))
        if peer.round_trip_us is not None:
            yield Sample("unisono_peer_round_trip_seconds", peer.round_trip_us / 1e6, (peer.node,))
        if peer.ahead_us is not None:
            yield Sample("unisono_peer_clock_ahead_seconds", peer.ahead_us / 1e6, (peer.node,))
    for name, (come, gone) in node.links.traffic().items():
        yield Sample("unisono_peer_bytes_total", come, (name, "in"))
        yield Sample("unisono_peer_bytes_total", gone, (name, "out"))
    for server in health.servers:
        yield Sample("unisono_broker_server_up", int(server.up), (server.server,))
        if server.round_trip_us is not None:
            yield Sample("unisono_broker_server_round_trip_seconds", server.round_trip_us / 1e6, (server.server,))


def _of_broker(node: ObservedNode) -> Iterable[Sample]:
    if node.sequencer is None:
        return
    broker = node.sequencer.broker
    counters = broker.counters
    yield Sample("unisono_broker_up", int(node.lookout.is_broker_up))
    yield Sample("unisono_broker_published_total", counters.published)
    yield Sample("unisono_broker_confirmed_total", counters.confirmed)
    yield Sample("unisono_broker_heard_total", counters.heard)
    yield Sample("unisono_broker_rejected_total", counters.rejected)
    yield Sample("unisono_broker_losses_total", counters.losses)
    yield Sample("unisono_broker_waiting", broker.ens.open_count if broker.stands else 0)


def _of_work(node: ObservedNode) -> Iterable[Sample]:
    host = node.overlay.host if node.overlay is not None else node.host
    if host is not None:
        yield Sample("unisono_inputs_total", host.counters.inputs)
        yield Sample("unisono_turns_total", host.counters.turns)
        yield Sample("unisono_commits_total", host.counters.commits)
        yield Sample("unisono_snapshots_total", host.counters.snapshots)
        yield Sample("unisono_queue", host.waiting)
    if node.topic_names is not None:
        yield Sample("unisono_topics", len(node.topic_names.at_home))
        if len(node.topic_names.at_home) <= LOOKED_AT_MAX:
            yield from _of_topics(node, node.topic_names.at_home)
    if node.placing is not None:
        yield Sample("unisono_home_moves_total", node.placing.moves)
    if isinstance(node.overlay, CausalRole):
        yield from _of_mesh(node.overlay.report())
    seen = stamper(node)
    if seen is not None:
        if seen.skew_us is not None:
            yield Sample("unisono_clock_skew_seconds", seen.skew_us / 1e6)
        if seen.error_us is not None:
            yield Sample("unisono_clock_error_seconds", seen.error_us / 1e6)
        yield Sample("unisono_clock_ahead_seconds", seen.ahead_us / 1e6)
        yield Sample("unisono_clock_lanes", len(seen.lanes))
        yield Sample("unisono_clock_waiting", seen.waiting)
        for name, behind_us in seen.heard_us.items():
            yield Sample("unisono_clock_heard_seconds", behind_us / 1e6, (name,))
    if node.archivist is not None:
        yield Sample("unisono_archive_rows_total", node.archivist.counters.rows)
        for group in groups(node):
            yield Sample("unisono_group_lag_events", group.lag_events, (group.name,))
            yield Sample("unisono_group_lag_seconds", group.lag_s, (group.name,))


def _of_mesh(counters: dict[str, int]) -> Iterable[Sample]:
    yield Sample("unisono_mesh_members", counters["members"])
    for fate in ("emitted", *FATES):
        yield Sample("unisono_mesh_frames_total", counters.get(fate, 0), (fate,))
    for to in ("near", "far", "multicast"):
        yield Sample("unisono_mesh_bytes_total", counters.get(f"bytes_{to}", 0), (to,))
    for name, count in counters.items():
        if name.startswith("refused_"):
            yield Sample("unisono_mesh_turned_away_total", count, (name.removeprefix("refused_"),))


def _of_topics(node: ObservedNode, names: list[str]) -> Iterable[Sample]:
    topics = [seen for name in names if (seen := topic_seen(node, name)) is not None]
    yield from of_topics({seen.name: seen.number for seen in topics}, "unisono_topic_numbered_total", TOPICS_MAX)
    yield from of_topics({seen.name: seen.climbing for seen in topics}, "unisono_topic_climbing", TOPICS_MAX)
    yield from of_topics({seen.name: seen.subscribers for seen in topics}, "unisono_topic_subscribers", TOPICS_MAX)
    yield from of_topics({seen.name: len(seen.group) for seen in topics}, "unisono_topic_group", TOPICS_MAX)


def _plain(counters: msgspec.Struct) -> dict[str, int]:
    return {name: getattr(counters, name) for name in counters.__struct_fields__}
