"""`unisono plan`: what a set of subscriptions means for order, and where things should live."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from unisono.cli.context import Destination, reach
from unisono.cli.options import Authority, Token
from unisono.cli.screen import screen
from unisono.errors import FormatError, MisuseError, said
from unisono.model.deployment import dump_deployment, load_deployment
from unisono.model.region import LatencyTable, parse_round_trips, public_cloud
from unisono.model.time import parse_span
from unisono.planning.files import read_rates, read_rows, read_subscriptions
from unisono.planning.groups import GroupPlan, plan_groups
from unisono.planning.leans import LeanDemand, plan_leans
from unisono.planning.placement import Demand, demand_from_rows, place, to_deployment
from unisono.planning.regions import count_demand, plan_regions, regions_deployment

COPY_US = 40.0
"""What one copy costs a broker; measured by `unisono bench regions`."""

plan = typer.Typer(no_args_is_help=True, help="Plan groups and placement from subscriptions and rates.")


@plan.callback()
def _plan() -> None:
    """Plan from files of subscriptions."""


@plan.command()
def groups(
    file: Annotated[
        Path, typer.Argument(metavar="SUBSCRIPTIONS", help="Rows of subscriber and topic: .csv, .jsonl, .parquet.")
    ],
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
    if not found.subscribers:
        raise MisuseError(f"{file} has no subscriptions: a row is a subscriber and a topic")
    if as_json:
        typer.echo(msgspec.json.encode(to_json(found)))
        return
    console = screen()
    table = Table(
        box=None,
        pad_edge=False,
        title=f"{len(found.groups)} topics, {found.subscribers} subscribers",
        title_justify="left",
    )
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
    subscriptions: Annotated[
        Path | None,
        typer.Argument(metavar="SUBSCRIPTIONS", help="Rows of subscriber, topic, region: .csv, .jsonl, .parquet."),
    ] = None,
    rates: Annotated[
        Path | None, typer.Argument(metavar="RATES", help="Rows of topic, region, rate (events per second).")
    ] = None,
    distances: Annotated[
        Path | None, typer.Option(help="CSV of round trips in ms between regions; default: ten public cloud regions.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan as a deployment file.")] = None,
    running: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Plan for what this deployment is asked for.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="With --running: move the homes now.")] = False,
    token: Token = None,
    authority: Authority = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object.")] = False,
) -> None:
    """Homes of topics and the tree of nodes that keep expected latency lowest.

    Example: unisono plan placement subscriptions.csv rates.csv --out deployment.toml
    Example: unisono plan placement --running deployment.toml --apply
    """
    if running is not None:
        _plan_running(reach(running, token, authority), apply, as_json)
        return
    if subscriptions is None or rates is None:
        raise MisuseError("a plan is made from SUBSCRIPTIONS and RATES, or for a deployment: --running WHERE")
    table = _distances(distances)
    demand = _demand(subscriptions, rates)
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
    console = screen()
    shown = Table(box=None, pad_edge=False, title=f"{found.tree.name}: {len(found.homes)} topics", title_justify="left")
    for title in ("home", "topics"):
        shown.add_column(title)
    for region in dict.fromkeys(found.homes.values()):
        shown.add_row(region, ", ".join(topic for topic, home in found.homes.items() if home == region))
    console.print(shown)
    console.print(
        f"expected latency {found.latency_us / 1000:.1f} ms; the payloads alone take {found.direct_us / 1000:.1f} ms"
    )


@plan.command()
def regions(
    subscriptions: Annotated[
        Path, typer.Argument(metavar="SUBSCRIPTIONS", help="Rows of subscriber, topic, region: .csv, .jsonl, .parquet.")
    ],
    rates: Annotated[Path, typer.Argument(metavar="RATES", help="Rows of topic, region, rate (events per second).")],
    copy_us: Annotated[float, typer.Option(help="CPU time of a broker for one copy of an event, in us.")] = COPY_US,
    share: Annotated[float, typer.Option(help="The share of a CPU that a broker may spend on sending.")] = 0.5,
    distances: Annotated[
        Path | None, typer.Option(help="CSV of round trips in ms between regions; default: ten public cloud regions.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan as a deployment file.")] = None,
    on: Annotated[str, typer.Option(help="Where: local, spark, spark://host:port or sc://host:port.")] = "local",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object.")] = False,
) -> None:
    """Trees of brokers, kind = "regions": how deep, how wide, and how many copies publishers would send directly.

    Example: unisono plan regions subscriptions.csv rates.csv --out deployment.toml
    """
    if on == "local":
        rows = read_rows(subscriptions, ("subscriber", "topic", "region"))
        demand = count_demand((subscriber, topic, region) for subscriber, topic, region in rows)
    else:
        from unisono.spark import planning, session  # Spark is an extra, and slow to import

        demand = planning.count_demand(planning.load(session.session_on(on, "unisono plan"), subscriptions, True))
    table = _distances(distances)
    found = plan_regions(demand, read_rates(rates), copy_us, share)
    if out is not None:
        out.write_text(dump_deployment(regions_deployment(found, table)))
    if as_json:
        typer.echo(msgspec.json.encode(found))
        return
    console = screen()
    shown = Table(
        box=None,
        pad_edge=False,
        title=f"a broker sends up to {found.copies_per_s_max:.0f} copies per second",
        title_justify="left",
    )
    for title in ("region", "events/s", "notifications/s", "brokers by level", "fan-out", "busiest"):
        shown.add_column(title, justify="left" if title in ("region", "brokers by level") else "right")
    for tree in found.trees:
        levels = " / ".join(map(str, tree.levels))
        numbers = (f"{tree.events_per_s:.0f}", f"{tree.notifications_per_s:.0f}", levels)
        shown.add_row(tree.region, *numbers, str(tree.fan_out), f"{tree.busiest:.0%}")
    console.print(shown)
    most = max(found.direct.values(), default=0)
    console.print(f"direct connections would take up to {most} copies of an event (entourage.connections_max)")


def _plan_running(at: Destination, apply: bool, as_json: bool) -> None:
    from unisono.cli.move import ask_root  # links are slow to import, and plans from files need none
    from unisono.runtime.driver.loop import run
    from unisono.runtime.links.control import HomesPlanned, PlanHomes

    found = run(ask_root(at, 10.0, lambda me: PlanHomes(me, apply), HomesPlanned))
    if as_json:
        typer.echo(msgspec.json.encode(found))
        return
    console = screen()
    if found.expected_us is None or found.possible_us is None:
        console.print("nothing has been asked for lately, or too few regions are heard: there is nothing to plan for")
        return
    for move in found.moves:
        console.print(f"{move.topic}: {move.at} → {move.to}")
    moved = (
        f"{len(found.moves)} homes {'move' if apply else 'would move'}"
        if found.moves
        else "homes are where they should be"
    )
    console.print(
        f"{moved}; events take {found.expected_us / 1000:.1f} ms on average, {found.possible_us / 1000:.1f} ms then"
    )


@plan.command()
def leans(
    subscriptions: Annotated[
        Path, typer.Argument(metavar="SUBSCRIPTIONS", help="Rows of subscriber, topic, region: .csv, .jsonl, .parquet.")
    ],
    rates: Annotated[Path, typer.Argument(metavar="RATES", help="Rows of topic, region, rate (events per second).")],
    distances: Annotated[
        Path | None, typer.Option(help="CSV of round trips in ms between regions; default: ten public cloud regions.")
    ] = None,
    beat: Annotated[str, typer.Option(help="How often clocks are told between regions.")] = "5ms",
    on: Annotated[str, typer.Option(help="Where: local, spark, spark://host:port or sc://host:port.")] = "local",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object.")] = False,
) -> None:
    """How far ahead or behind each lane of the clock order should lean, so that expected latency is lowest.

    Example: unisono plan leans subscriptions.csv rates.csv
    """
    table = _distances(distances)
    share = 1.0
    if on == "local":
        demand = LeanDemand.of(_demand(subscriptions, rates))
    else:
        from unisono.spark import planning, session  # Spark is an extra, and slow to import

        people = planning.load(session.session_on(on, "unisono plan"), subscriptions, True)
        demand, share = planning.lean_demand(people, read_rates(rates))
    found = plan_leans(demand, table, beat_us=parse_span(beat, "--beat"))
    if as_json:
        lanes = [{"topic": topic, "region": region, "us": us} for (topic, region), us in found.leans_us.items()]
        means = {
            "share": share,
            "latency_us": found.latency_us,
            "unplanned_us": found.unplanned_us,
            "direct_us": found.direct_us,
        }
        typer.echo(msgspec.json.encode({"leans": lanes, **means}))
        return
    console = screen()
    shown = Table(box=None, pad_edge=False, title=f"{len(found.leans_us)} lanes", title_justify="left")
    for title in ("topic", "stamped in", "leans by, ms"):
        shown.add_column(title, justify="right" if "ms" in title else "left")
    for (topic, region), us in found.leans_us.items():
        shown.add_row(topic, region, f"{us / 1000:+.1f}")
    console.print(shown)
    console.print(
        f"expected latency {found.latency_us / 1000:.1f} ms, without leans {found.unplanned_us / 1000:.1f} ms; "
        f"the payloads alone take {found.direct_us / 1000:.1f} ms"
    )
    if share < 1:
        console.print(f"planned for those with most to hear, {share:.0%} of all deliveries")


def _distances(file: Path | None) -> LatencyTable:
    """Those of the file, or of the public cloud."""
    if file is None:
        return public_cloud()
    try:
        return parse_round_trips(file.read_text())
    except UnicodeDecodeError as error:
        raise FormatError(str(file), said(error)) from None


def _demand(subscriptions: Path, rates: Path) -> Demand:
    rows = list(read_rows(subscriptions, ("subscriber", "topic", "region")))
    return demand_from_rows(
        ((subscriber, topic) for subscriber, topic, _ in rows),
        {subscriber: region for subscriber, _, region in rows},
        read_rates(rates),
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
