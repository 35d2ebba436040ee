"""`unisono init`: write a deployment file to start from, short enough to be read.

On a terminal, and without --region, it asks. The file has the settings that every deployment needs, one line each.
"""

import os
import secrets
import sys
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from msgspec import Struct
from rich.prompt import Prompt

from unisono.cli.options import Json
from unisono.cli.screen import screen
from unisono.errors import MisuseError
from unisono.model.address import host_port
from unisono.model.deployment import Deployment, parse_deployment
from unisono.model.region import public_cloud
from unisono.model.settings import Kind, OrderedBy

Carrier = Literal["embedded", "nats", "jetstream", "udp"]
ANYWHERE, ANYWHERE_6 = "0.0.0.0", "::"


class RegionPlan(Struct, frozen=True):
    """A region of the new deployment, and where its node is reached from elsewhere; None: this machine only."""

    region: str
    host: str | None = None

    @property
    def node(self) -> str:
        return f"{self.region}-1"


class Plan(Struct, frozen=True):
    """What was asked for, on the command line or by answers."""

    name: str
    places: tuple[RegionPlan, ...]
    kind: Kind
    broker: Carrier
    servers: tuple[str, ...]
    round_trip_ms: dict[str, float]
    port: int
    by: OrderedBy = "tree"


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("deployment.toml"),
    region: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=HOST]",
            help="A region, and its node's host if not this machine; may be repeated. The first has the root.",
        ),
    ] = None,
    distance: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B=MS", help="The round trip between two regions in ms; may be repeated."),
    ] = None,
    name: Annotated[str, typer.Option(help="The deployment's name: several may share one broker.")] = "unisono",
    port: Annotated[
        int, typer.Option(min=1, max=64_000, help="Port of the first node; the others on its host follow.")
    ] = 7474,
    kind: Annotated[
        Kind,
        typer.Option(
            help="Who orders: sequencers over a broker, brokers of an overlay or of regions, or a causal mesh."
        ),
    ] = "sequencer",
    by: Annotated[OrderedBy, typer.Option(help="How sequencers order: by homes in a tree, or by clocks.")] = "tree",
    broker: Annotated[Carrier | None, typer.Option(help="What carries the events.")] = None,
    server: Annotated[list[str] | None, typer.Option(help="A NATS server, nats://host:port; may be repeated.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    as_json: Json = False,
) -> None:
    """Write a deployment file: one node per region, in a star. Asks three questions if it is told nothing.

    Example: unisono init deployment.toml --region eu-central-1 --region us-east-1
    Example: unisono init --region eu=eu.example.com --region us=us.example.com --distance eu,us=88 --server nats://n:4222
    """
    if file.exists() and not force:
        raise MisuseError(f"{file} exists; --force overwrites it")
    distances = dict(_distance(text) for text in distance or ())
    carrier: Carrier = broker or ("nats" if server else "embedded")
    if kind != "sequencer" and by == "clock":
        raise MisuseError("--by clock is for --kind sequencer")
    if kind != "sequencer" and carrier != "embedded":
        raise MisuseError(f"--broker {carrier}: nodes of kind {kind} carry the events themselves; leave it out")
    if region or broker or server or kind != "sequencer" or not sys.stdin.isatty():
        places = tuple(_place(text) for text in region or ["local"])
        plan = Plan(name, places, kind, carrier, tuple(server or ()), distances, port, by)
    else:
        plan = msgspec.structs.replace(_ask(name, distances, port), by=by)
    if plan.broker in ("nats", "jetstream") and not plan.servers:
        raise MisuseError(f"--broker {plan.broker} wants at least one --server nats://host:port")
    plan = msgspec.structs.replace(plan, round_trip_ms=_known(plan.places) | plan.round_trip_ms)
    named = [place.region for place in plan.places]
    if len({*named}) < len(named):
        twice = next(each for each in named if named.count(each) > 1)
        raise MisuseError(f"--region {twice} is named twice: one node per region is written, add others to the file")
    text = compose(plan)
    deployment = parse_deployment(text)
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        beside.replace(file)  # whole, or not at all
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise MisuseError(f"{file} cannot be written: {error.strerror}; name another FILE") from None
    if as_json:
        names, unknown = [node.name for node in deployment.nodes], _unknown(plan.places, plan.round_trip_ms)
        sys.stdout.write(
            msgspec.json.encode({"file": str(file), "nodes": names, "unknown_distances": unknown}).decode() + "\n"
        )
    else:
        _tell(file, plan, deployment)


def _place(text: str) -> RegionPlan:
    region, equals, host = text.partition("=")
    if not region or (equals and not host) or any(c.isspace() for c in text):
        raise MisuseError(f"--region {text!r} is not NAME or NAME=HOST")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return RegionPlan(region, host or None)


def _distance(text: str) -> tuple[str, float]:
    pair, _, milliseconds = text.partition("=")
    a, _, b = pair.partition(",")
    try:
        number = float(milliseconds)
    except ValueError:
        number = -1.0
    if not (a and b and 0 <= number < 1e6):
        raise MisuseError(f"--distance {text!r} is not A,B=MS, like eu,us=88.5")
    return f"{a} {b}", number


def _ask(name: str, distances: dict[str, float], port: int) -> Plan:
    """Three questions, and one more for each distance that nobody knows."""
    console = screen(stderr=True)

    def question(text: str, default: str) -> str:
        return Prompt.ask(text, console=console, default=default)

    console.print("Enter takes what is in parentheses; the file can be changed later.")
    regions = question("1. Regions, the first with the root; add =HOST where a node is on another machine", "local")
    carried = question(
        "2. What carries the events: embedded, udp, or your NATS servers (nats://host:port …)", "embedded"
    )
    called = question("3. The deployment's name", name)
    places = tuple(_place(text) for text in regions.replace(",", " ").split())
    words = carried.replace(",", " ").split()
    if words not in (["embedded"], ["udp"]) and not all(word.startswith(("nats://", "tls://")) for word in words):
        raise MisuseError(f"{carried!r}: answer embedded, udp, or nats://host:port")
    broker: Carrier = "embedded" if words == ["embedded"] else "udp" if words == ["udp"] else "nats"
    known = _known(places) | distances
    for a, b in _unknown(places, known):
        answer = question(f"   Round trip between {a} and {b} in ms", "unknown")
        if answer != "unknown":
            distances |= dict([_distance(f"{a},{b}={answer}")])
    return Plan(called, places, "sequencer", broker, tuple(words) if broker == "nats" else (), distances, port)


def _known(places: tuple[RegionPlan, ...]) -> dict[str, float]:
    """Measured round trips of the regions that the table of public clouds has."""
    table = public_cloud()
    known = [place.region for place in places if place.region in table.regions]
    return {f"{a} {b}": table.between(a, b) / 500 for a, b in combinations(known, 2) if table.between(a, b)}


def _unknown(places: tuple[RegionPlan, ...], known: dict[str, float]) -> list[tuple[str, str]]:
    pairs = combinations([place.region for place in places], 2)
    return [(a, b) for a, b in pairs if f"{a} {b}" not in known and f"{b} {a}" not in known]


def compose(plan: Plan) -> str:
    """The file: a line per region, distance and node, and comments where a reader would ask."""
    root = plan.places[0].node
    carries = f"kind = {_quote(plan.broker)}"
    if plan.servers:
        carries += f", servers = [{', '.join(map(_quote, plan.servers))}]"
    line = f"broker = {{ {carries} }}  # what carries the events: embedded, nats, jetstream or udp"
    if plan.kind != "sequencer":
        line = f"kind = {_quote(plan.kind)}  # its nodes carry the events themselves"
    identity = secrets.token_hex(6)
    if plan.kind == "causal":
        line += f"\n{_mesh(plan, identity)}"
    lines = [
        "# A unisono deployment; docs/reference/deployment.md has every setting. The same file goes to every machine.",
        "version = 1",
        f"name = {_quote(plan.name)}",
        f"id = {_quote(identity)}  # whose data directories are these: never change it",
        line,
        f"regions = [{', '.join(f'{{ name = {_quote(place.region)} }}' for place in plan.places)}]",
    ]
    for pair, milliseconds in plan.round_trip_ms.items():
        lines.append(f"round_trip_ms.{_quote(pair)} = {milliseconds!r}")
    if plan.by == "clock":
        lines.append('sequencing.by = "clock"  # one global order; docs/reference/clock.md says what it costs')
    keeps = "  # data: the directory of a node's log, beside this file; it must outlive the process"
    lines.append("nodes = [" + (keeps if plan.kind == "sequencer" else ""))
    ports: dict[str | None, int] = {}
    for place in plan.places:
        port = ports.get(place.host, plan.port)
        ports[place.host] = port + 2  # an embedded broker takes the one between
        fields = {"name": place.node, "region": place.region}
        listens = "127.0.0.1" if not place.host else ANYWHERE_6 if ":" in place.host else ANYWHERE
        fields["listen"] = host_port(listens, port)
        if place.host:
            fields["advertise"] = host_port(place.host, port)
        if place.node != root and plan.kind not in ("regions", "causal"):
            fields["parent"] = root
        row = ", ".join(f"{key} = {_quote(value)}" for key, value in fields.items())
        if plan.kind == "sequencer":
            row += ', roles = ["sequencer", "broker"]' if place.node == root and plan.broker == "embedded" else ""
            row += ', data = "data"'
        lines.append(f"  {{ {row} }},")
    return "\n".join([*lines, "]", ""])


def _mesh(plan: Plan, identity: str) -> str:
    """How long events live goes by the distances; a multicast address of its own keeps two deployments apart."""
    farthest_ms = max(plan.round_trip_ms.values(), default=0.0)
    preset = "local" if farthest_ms < 5 else "region" if farthest_ms < 100 else "planet"
    group = f"239.255.{int(identity[:2], 16)}.{int(identity[2:4], 16)}:7490"
    return (
        f"causal = {{ preset = {_quote(preset)}, multicast = {_quote(group)} }}  # between brokers, where it is carried"
    )


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _tell(file: Path, plan: Plan, deployment: Deployment) -> None:
    console, errors = screen(), screen(stderr=True)
    for a, b in _unknown(plan.places, plan.round_trip_ms):
        errors.print(
            f"warning: the distance between {a} and {b} is not known, and will be measured when both are used: until "
            f'then add round_trip_ms."{a} {b}" = MILLISECONDS to {file}, or give --distance {a},{b}=MILLISECONDS'
        )
    if len(plan.places) > 1 and any((place.host is None) != (plan.places[0].host is None) for place in plan.places):
        errors.print("warning: some nodes are on this machine only (127.0.0.1) and some elsewhere: give each a HOST")
    console.print(f"wrote {file}; start its nodes, each in a terminal of its own, with")
    for node in deployment.nodes:
        console.print(f"  unisono node {file} {node.name}")
    console.print(f"and see how they are with\n  unisono status {file}")
