"""`unisono status`: draw a deployment and ask each node how it is."""

import asyncio
import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from unisono.errors import TransportError
from unisono.model.deployment import Deployment, NodeSpec
from unisono.runtime.asking import ask_node
from unisono.runtime.connect import find_deployment
from unisono.runtime.edge import Inquire, Report
from unisono.runtime.loop import run
from unisono.runtime.security import client_context, token_of


def status(
    where: Annotated[str, typer.Argument(metavar="WHERE", help="unisono://host:port or a deployment file.")],
    token: Annotated[str | None, typer.Option(help="The deployment's token.", envvar="UNISONO_TOKEN")] = None,
    authority: Annotated[
        str | None, typer.Option(help="Speak TLS with whom this file (or 'system') trusts.", envvar="UNISONO_AUTHORITY")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for a node.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Draw a deployment and ask each node for its counters. Exit 0 if all answer, 1 if some do not.

    Example: unisono status deployment.toml
    """
    deployment, reports = run(_ask_all(where, token, authority, timeout))
    if as_json:
        answer = {"deployment": deployment.name, "nodes": reports}
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    else:
        Console().print(_draw(deployment, deployment.root.name, reports))
    if any(report is None or report.failure is not None for report in reports.values()):
        raise typer.Exit(1)


async def _ask_all(
    where: str, token: str | None, authority: str | None, timeout: float
) -> tuple[Deployment, dict[str, Report | None]]:
    deployment, base = await find_deployment(where, token or "", timeout, authority)
    secret = token if token is not None else token_of(deployment.security)
    tls = client_context(deployment.security, base)

    async def ask(node: NodeSpec) -> Report | None:
        try:
            return await ask_node(node.listen, secret, Inquire, Report, timeout, tls)
        except TransportError:
            return None

    reports = await asyncio.gather(*(ask(node) for node in deployment.nodes))
    return deployment, {node.name: report for node, report in zip(deployment.nodes, reports, strict=True)}


def _sequencer_line(report: Report) -> str:
    sequencer = report.counters.get("sequencer", {})
    line = (
        f"{len(report.topics)} topics, {len(report.peers)} connections, "
        f"{sequencer.get('inputs', 0)} inputs in {sequencer.get('commits', 0)} commits"
    )
    if "datagrams" in report.counters:
        datagrams = report.counters["datagrams"]
        line += f", {datagrams.get('sent', 0)} datagrams to {datagrams['peers']} peers"
    return line


def _broker_line(report: Report) -> str:
    """What order costs a broker: how often a conflict was possible, and how long the echo took."""
    counters = report.counters["overlay"]
    echo_ms = counters["echo_us"] / 1000 / max(1, counters["echoes"])
    return (
        f"{counters['links']} links, {counters['clients']} clients, {counters['publications']} publications: "
        f"{counters['detections']} waited for an echo ({echo_ms:.1f} ms on average, "
        f"{counters['false_positives']} needlessly), {counters['held']} behind one, "
        f"{counters['dropped']} dropped, {counters['pending']} wait now"
    )


def _draw(deployment: Deployment, name: str, reports: dict[str, Report | None]) -> Tree:
    node, report = deployment.node(name), reports[name]
    label = Text(f"{name}  {node.region}  {node.listen}  {', '.join(node.roles)}  ")
    if report is None:
        label.append("does not answer", style="red")
    elif report.failure is not None:
        label.append(f"has stopped: {report.failure}", style="red")
    else:
        label.append("up", style="green")
        label.append(f"  {_broker_line(report) if 'overlay' in report.counters else _sequencer_line(report)}")
    tree = Tree(label)
    for child in deployment.children(name):
        tree.add(_draw(deployment, child, reports))
    return tree
