"""`unisono status`: draw a deployment and ask each node how it is."""

import asyncio
import sys
from collections.abc import Collection
from typing import Annotated

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from unisono.cli.asking import ask_all, shown
from unisono.cli.context import Destination, reach
from unisono.cli.options import Authority, Json, Timeout, Token, Where
from unisono.cli.screen import screen
from unisono.errors import TransportError
from unisono.model.deployment import Deployment
from unisono.runtime.driver.loop import run, stop_signal
from unisono.runtime.links.control import AskReport, NodeReport

Reports = dict[str, NodeReport | TransportError]
AGAIN_S = 1.0
ENTOURAGES_SHOWN = 10
MOVES_SHOWN = 5
MESH_ENDS = (
    *("delivered", "late", "late_blocked", "successor_delivered", "before_subscription", "not_subscribed", "overflow"),
    *("future", "malformed"),
)


def status(
    where: Where,
    token: Token = None,
    authority: Authority = None,
    timeout: Timeout = 2.0,
    watch: Annotated[bool, typer.Option("--watch", help="Ask again every second, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Ask every node of a deployment how it is, and what it sees of others.

    A node that does not answer, one that is not ready, and every neighbour and server of the broker that a node does
    not reach are named. Exit 0 if all is well, 1 if not. With --watch --json: a line per second.

    Example: unisono status deployment.toml --watch
    """
    at = reach(where, token, authority)
    well = run(_watch(at, timeout, as_json)) if watch else run(_once(at, timeout, as_json))
    if not well:
        raise typer.Exit(1)


async def _once(at: Destination, timeout: float, as_json: bool) -> bool:
    deployment, reports = await ask_all(at, timeout, AskReport, NodeReport)
    if as_json:
        sys.stdout.write(_as_json(deployment, reports))
    else:
        screen().print(_draw(deployment, reports))
    return not problems(reports)


async def _watch(at: Destination, timeout: float, as_json: bool) -> bool:
    stop, well = asyncio.ensure_future(stop_signal().wait()), True
    live = None if as_json else Live(console=screen(), auto_refresh=False)
    if live is not None:
        live.start()
    try:
        while not stop.done():
            deployment, reports = await ask_all(at, timeout, AskReport, NodeReport)
            well = not problems(reports)
            if live is None:
                sys.stdout.write(_as_json(deployment, reports))
                sys.stdout.flush()
            else:
                live.update(_draw(deployment, reports), refresh=True)
            await asyncio.wait([stop], timeout=AGAIN_S)
    finally:
        if live is not None:
            live.stop()
    return well


def problems(reports: Reports) -> list[str]:
    """What is wrong, each thing once."""
    away = [f"node {name} does not answer: {report}" for name, report in reports.items() if not _answers(report)]
    return [*away, *seen_by_nodes(reports)]


def seen_by_nodes(reports: Reports, servers_away: Collection[str] = ()) -> list[str]:
    """What nodes that answer say of themselves and of others, and which of them say it. A node that does not answer is
    not also blamed by its neighbours, nor is one of `servers_away`, which are known to be so; and a broker or parent
    that is away is not a fault of the node that misses it."""
    seen: dict[str, dict[str, list[str]]] = {}  # what -> how it looks -> from where
    for name, report in reports.items():
        if isinstance(report, TransportError):
            continue
        if report.failure is not None:
            seen.setdefault(f"node {name} has stopped: {report.failure}", {})
        health = report.health
        if health is None:
            continue
        for check in health.checks if report.failure is None else ():
            if not check.passed and check.name not in ("parent", "broker"):
                seen.setdefault(f"node {name}: {check.name}: {check.detail}", {})
        for peer in health.peers:
            if not peer.up and _answers(reports.get(peer.node)):
                seen.setdefault(f"node {peer.node} is not reached", {}).setdefault(peer.detail, []).append(name)
        servers = [server for server in health.servers if not server.up]
        for server in servers:
            if server.server in servers_away:
                continue
            what = f"server {server.server} does not answer"
            seen.setdefault(what, {}).setdefault(server.detail, []).append(name)
        lost = next((check for check in health.checks if check.name == "broker" and not check.passed), None)
        if lost is not None and not servers:
            seen.setdefault(f"node {name} has lost the broker: {lost.detail}", {})
    by = {what: [f"{', '.join(names)}: {detail}" for detail, names in looks.items()] for what, looks in seen.items()}
    return [f"{what} (seen by {'; '.join(looks)})" if looks else what for what, looks in by.items()]


def _answers(report: NodeReport | TransportError | None) -> bool:
    return isinstance(report, NodeReport)


def _as_json(deployment: Deployment, reports: Reports) -> str:
    nodes = {name: None if isinstance(report, TransportError) else shown(report) for name, report in reports.items()}
    answer = {"deployment": deployment.name, "problems": problems(reports), "nodes": nodes}
    return msgspec.json.encode(answer).decode() + "\n"


def _sequencer_line(report: NodeReport) -> str:
    sequencer = report.counters.get("sequencer", {})
    counts = {"topic": len(report.topics), "connection": len(report.peers), "commit": sequencer.get("commits", 0)}
    line = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items())
    if "datagrams" in report.counters:
        datagrams = report.counters["datagrams"]
        line += f", {datagrams.get('sent', 0)} datagrams to {datagrams['peers']} peers"
    return line


def _many(counters: dict[str, int], what: str) -> str:
    count = counters[f"{what}s"]
    return f"{count} {what}{'' if count == 1 else 's'}"


def _broker_line(report: NodeReport) -> str:
    """What order costs a broker: how often a conflict was possible, and how long the echo took."""
    counters = report.counters["overlay"]
    echo_ms = counters["echo_us"] / 1000 / max(1, counters["echoes"])
    return (
        f"{_many(counters, 'link')}, {_many(counters, 'client')}, {_many(counters, 'publication')}: "
        f"{counters['detections']} waited for an echo ({echo_ms:.1f} ms on average, "
        f"{counters['false_positives']} needlessly), {counters['held']} after one that waited, "
        f"{counters['dropped']} dropped, {counters['pending']} wait now"
    )


def _regions_line(report: NodeReport) -> str:
    """What comes over the hierarchy, what directly, and what is being made up for."""
    counters, direct = report.counters["regions"], report.counters.get("direct", {})
    line = (
        f"{_many(counters, 'link')}, {_many(counters, 'client')}, {_many(counters, 'stream')}: "
        f"{counters['accepted']} items, {counters['handovers']} hand-overs, {counters['recoveries']} recoveries, "
        f"{counters['gaps']} gaps"
    )
    if counters["view"]:
        line += f", view {counters['view']} of {counters['members']} brokers"
    if not counters["attached"]:
        line += ", no broker above it"
    return line + (f", directly from {', '.join(sorted(direct))}" if direct else "")


def _mesh_line(report: NodeReport) -> str:
    """What became of frames, what order costs in bytes, and what was turned away."""
    counters = report.counters["causal"]
    vector = counters.get("emitted_vector_bytes", 0) / max(1, counters.get("emitted", 0))
    ends = [f"{counters[name]} {name.replace('_', '-')}" for name in MESH_ENDS if counters.get(name)]
    bad = {name.removeprefix("refused_"): n for name, n in counters.items() if name.startswith("refused_")}
    return (
        f"{counters['members']} members known, {counters.get('emitted', 0)} frames of"
        f" {counters.get('emitted_events', 0)} events emitted, vectors of {vector:.0f} bytes; frames: "
        f"{', '.join(ends) or 'none'}; {counters.get('bytes_near', 0)} bytes to the own region,"
        f" {counters.get('bytes_far', 0)} to others"
        + (f"; turned away: {', '.join(f'{n} {name}' for name, n in bad.items())}" if bad else "")
    )


def _line(report: NodeReport) -> str:
    if "causal" in report.counters:
        return _mesh_line(report)
    if "overlay" in report.counters:
        return _broker_line(report)
    if "regions" in report.counters:
        return _regions_line(report)
    return _sequencer_line(report) + _stamper_line(report)


def _stamper_line(report: NodeReport) -> str:
    """Clocks: how far ours is from the others', and what it stamps."""
    seen = report.stamper
    if seen is None:
        return ""
    skew = f"{seen.skew_us / 1000:+.1f} ms" if seen.skew_us is not None else "not known"
    line = f", clock {skew} from the median, {len(seen.lanes)} lanes"
    leaning = [lane for lane in seen.lanes if lane.lean_us]
    if leaning:
        most = max(leaning, key=lambda lane: abs(lane.lean_us))
        line += f", {len(leaning)} lean, {most.topic} by {most.lean_us / 1000:+.1f} ms"
    if seen.heard_us:
        name, behind_us = min(seen.heard_us.items(), key=lambda item: item[1])
        line += f", hears {name} {-behind_us / 1000:.0f} ms late"
    if not seen.is_warm:
        line += ", waits for the other clocks"
    elif seen.waiting:
        line += f", {seen.waiting} publishers wait"
    return line


def _draw(deployment: Deployment, reports: Reports) -> Group:
    wrong = problems(reports)
    lines = [Text(f"- {problem}", style="red") for problem in wrong] or [Text("all is well", style="green")]
    roots = [node.name for node in deployment.nodes if node.parent is None]
    return Group(
        *(_draw_node(deployment, root, reports) for root in roots), *_draw_homes(reports), *_draw_leans(reports), *lines
    )


def _draw_homes(reports: Reports) -> list[Text]:
    """Which homes have moved lately, and why."""
    found = [report.homes for report in reports.values() if isinstance(report, NodeReport) and report.homes is not None]
    lines = []
    for homes in found:
        expected = (
            f", events take {homes.expected_us / 1000:.1f} ms on average" if homes.expected_us is not None else ""
        )
        if expected or homes.moves or homes.advice():
            how = "move by themselves" if homes.placement == "auto" else "are fixed"
            lines.append(Text(f"homes of topics {how}{expected}"))
        lines += [Text(f"  {advice}", style="yellow") for advice in homes.advice()]
        lines += [Text(f"  {move.topic}: {move.at} → {move.to} ({move.reason})") for move in homes.moves[-MOVES_SHOWN:]]
    return lines


def _draw_leans(reports: Reports) -> list[Text]:
    """Whether lanes lean by themselves, and what that brings."""
    found = [report.leans for report in reports.values() if isinstance(report, NodeReport) and report.leans is not None]
    lines = []
    for leans in found:
        line = f"leans: {leans.leans}"
        if leans.expected_us is not None:
            line += f", events take {leans.expected_us / 1000:.1f} ms on average"
        if leans.changes:
            line += f", changed {leans.changes} times"
        lines.append(Text(f"{line}; {leans.problem}" if leans.problem else line))
    return lines


def _draw_node(deployment: Deployment, name: str, reports: Reports) -> Tree:
    node, report = deployment.node(name), reports[name]
    label = Text(f"{name}  {node.region}  {node.reached_at}  {', '.join(node.roles)}  ")
    if isinstance(report, TransportError):
        label.append("does not answer", style="red")
    elif report.failure is not None:
        label.append(f"has stopped: {report.failure}", style="red")
    else:
        health = report.health
        ready = health is None or health.is_ready
        label.append("up" if ready else "not ready", style="green" if ready else "yellow")
        label.append(f"  {_line(report)}")
        if health is not None and health.servers:
            up = sum(server.up for server in health.servers)
            style = "" if up == len(health.servers) else "red"
            label.append(f", {up} of {len(health.servers)} broker servers up", style=style)
    tree = Tree(label)
    if not isinstance(report, TransportError):
        told = report.counters.get("entourages", {})
        for said, connections in list(told.items())[:ENTOURAGES_SHOWN]:
            tree.add(Text(f"{connections} direct connections of {said}", style="dim"))
        if len(told) > ENTOURAGES_SHOWN:
            tree.add(Text(f"… and {len(told) - ENTOURAGES_SHOWN} publishers more", style="dim"))
    for child in deployment.children(name):
        tree.add(_draw_node(deployment, child, reports))
    return tree
