"""`unisono init`: write a deployment file to start from."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from unisono.errors import MisuseError
from unisono.model.deployment import BrokerSpec, Deployment, NodeSpec, Region, Role, dump_deployment
from unisono.model.region import public_cloud


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("deployment.toml"),
    region: Annotated[list[str] | None, typer.Option(help="A region; may be repeated. The first has the root.")] = None,
    port: Annotated[int, typer.Option(help="Port of the first node; the others follow.")] = 7474,
    broker: Annotated[Literal["embedded", "nats", "udp"], typer.Option(help="What carries the events.")] = "embedded",
    server: Annotated[list[str] | None, typer.Option(help="A NATS server, nats://host:port; may be repeated.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
) -> None:
    """Write a deployment file: one node per region, in a star.

    Example: unisono init deployment.toml --region eu-central-1 --region us-east-1
    """
    if file.exists() and not force:
        raise MisuseError(f"{file} exists; --force overwrites it")
    if broker == "nats" and not server:
        raise MisuseError("--broker nats wants at least one --server nats://host:port")
    regions = region or ["local"]
    deployment = _star(regions, port, broker, tuple(server or ()))
    file.write_text(dump_deployment(deployment))
    console = Console()
    console.print(f"wrote {file}; start its nodes with", highlight=False)
    for each in deployment.nodes:
        console.print(f"  unisono node {file} {each.name}", highlight=False)


def _star(
    regions: list[str], port: int, broker: Literal["embedded", "nats", "udp"], servers: tuple[str, ...]
) -> Deployment:
    names = [f"{name}-1" for name in regions]
    nodes = []
    for i, name in enumerate(names):
        roles: tuple[Role, ...] = ("sequencer", "broker") if i == 0 and broker == "embedded" else ("sequencer",)
        parent = names[0] if i else None
        nodes.append(NodeSpec(name, regions[i], f"127.0.0.1:{port + 2 * i}", parent, roles, data="data"))
    return Deployment(
        1,
        regions=tuple(Region(name) for name in regions),
        round_trip_ms=_round_trips(regions),
        nodes=tuple(nodes),
        broker=BrokerSpec(broker, servers),
    )


def _round_trips(regions: list[str]) -> dict[str, float]:
    """Measured round trips of the regions the table knows; others have to be written into the file."""
    table = public_cloud()
    known = [name for name in regions if name in table.regions]
    return {
        f"{a} {b}": table.between(a, b) / 500
        for i, a in enumerate(known)
        for b in known[i + 1 :]
        if table.between(a, b)
    }
