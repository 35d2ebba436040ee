"""`unisono plan`: what a set of subscriptions means for order, and where things should live."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from unisono.model.deployment import dump_deployment, load_deployment
from unisono.model.region import parse_round_trips, public_cloud
from unisono.planning.files import read_rates, read_rows, read_subscriptions
from unisono.planning.groups import GroupPlan, plan_groups
from unisono.planning.placement import demand_from_rows, place, to_deployment

plan = typer.Typer(no_args_is_help=True, help="Plan groups and placement from subscriptions and rates.")


@plan.callback()
def _plan() -> None:
    """Plan from files of subscriptions."""


@plan.command()
def groups(
    file: Annotated[Path, typer.Argument(help="Subscriptions: .csv, .jsonl or .parquet with subscriber and topic.")],
    shared: Annotated[int, typer.Option(min=1, help="Subscribers that two topics must share: 2 total, 1 causal.")] = 2,
    deployment: Annotated[Path | None, typer.Option(help="Show which of its nodes a topic's requests visit.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the largest groups to print.")] = 10,
    on: Annotated[str, typer.Option(help="Where: local, spark, spark://host:port or sc://host:port.")] = "local",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Sequencing groups: what each topic must be ordered against, how large timestamps get, which nodes are visited.

    Example: unisono plan groups subscriptions.csv --deployment deployment.toml
    """
    where = load_deployment(deployment) if deployment else None
    if on == "local":
        found = plan_groups(read_subscriptions(file), shared, where)
    else:
        from unisono.spark import planning, session  # Spark is an extra, and slow to import

        planning.check_file(file)
        found = planning.plan_groups(planning.load(session.session_on(on, "unisono plan"), file), shared, where)
    if as_json:
        typer.echo(msgspec.json.encode(to_json(found)))
        return
    console = Console()
    table = Table(title=f"{len(found.groups)} topics, {found.subscribers} subscribers")
    for title in ("topic", "subscribers", "group", "ordered against", "nodes visited"):
        table.add_column(title, justify="right" if title in ("subscribers", "group") else "left")
    for group in found.groups[:top]:
        against = ", ".join(group.members[:5]) + (" …" if len(group.members) > 5 else "")
        table.add_row(group.topic, str(group.subscribers), str(group.size), against, " → ".join(group.nodes))
    console.print(table)
    if found.groups:
        console.print(
            f"group size: mean {found.mean_size:.1f}, deviation {found.std_size:.1f}; "
            f"a full timestamp: mean {found.bytes_full:.0f} bytes"
        )


@plan.command()
def placement(
    subscriptions: Annotated[Path, typer.Argument(help="Rows of subscriber, topic and region.")],
    rates: Annotated[Path, typer.Argument(help="Rows of topic, region and rate (events per second).")],
    distances: Annotated[
        Path | None, typer.Option(help="CSV of round trips in ms between regions; default: ten public cloud regions.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan as a deployment file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object.")] = False,
) -> None:
    """Homes of topics and the tree of nodes that keep expected latency lowest.

    Example: unisono plan placement subscriptions.csv rates.csv --out deployment.toml
    """
    table = parse_round_trips(distances.read_text()) if distances else public_cloud()
    rows = list(read_rows(subscriptions, ("subscriber", "topic", "region")))
    demand = demand_from_rows(
        ((subscriber, topic) for subscriber, topic, _ in rows),
        {subscriber: region for subscriber, _, region in rows},
        read_rates(rates),
    )
    used = {interest.region for interest in demand.interests} | {r for own in demand.rates.values() for r in own}
    found = place(demand, table.among(used))
    if out is not None:
        out.write_text(dump_deployment(to_deployment(found, table.among(used))))
    if as_json:
        typer.echo(
            msgspec.json.encode(
                {
                    "tree": found.tree.name,
                    "homes": found.homes,
                    "latency_us": found.latency_us,
                    "direct_us": found.direct_us,
                    "deployment": str(out) if out else None,
                }
            )
        )
        return
    console = Console()
    shown = Table(title=f"{found.tree.name}: {len(found.homes)} topics")
    for title in ("home", "topics"):
        shown.add_column(title)
    for region in dict.fromkeys(found.homes.values()):
        shown.add_row(region, ", ".join(topic for topic, home in found.homes.items() if home == region))
    console.print(shown)
    console.print(
        f"expected latency {found.latency_us / 1000:.1f} ms; the payloads alone take {found.direct_us / 1000:.1f} ms"
    )


def to_json(found: GroupPlan) -> dict[str, object]:
    """The stable shape of `plan groups --json`."""
    return {
        "topics": len(found.groups),
        "subscribers": found.subscribers,
        "subscriptions": found.subscriptions,
        "shared": found.shared_min,
        "mean_size": found.mean_size if found.groups else 0.0,
        "std_size": found.std_size if found.groups else 0.0,
        "bytes_full": found.bytes_full if found.groups else 0.0,
        "groups": [
            {
                "topic": group.topic,
                "subscribers": group.subscribers,
                "size": group.size,
                "members": group.members,
                "nodes": group.nodes,
            }
            for group in found.groups
        ],
    }
