"""`unisono up`: an embedded deployment in one process, with the distances between regions emulated, and a live view."""

import asyncio
import logging
import sys
import tempfile
import time
from collections import deque
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unisono.cli.options import Port
from unisono.cli.screen import screen
from unisono.errors import MisuseError
from unisono.model.event import Scalar
from unisono.model.promise import Order
from unisono.model.region import public_cloud
from unisono.model.settings import Kind, OrderedBy, Sequencing
from unisono.runtime.client.publishing.publisher import Publisher
from unisono.runtime.client.subscription.event_stream import EventStream
from unisono.runtime.connect import connect
from unisono.runtime.driver.loop import run, stop_signal
from unisono.runtime.node.node import NodeConfig
from unisono.runtime.tools.emulate import Emulation, star_of
from unisono.runtime.tools.ports import free_ports

TOPICS = ("trades", "quotes")
NEW = NodeConfig(witness_s=0)
"""Nobody can know the nodes of a directory that was made a moment ago."""
ORDERS: dict[Kind, Order] = {"sequencer": "total", "overlay": "total", "regions": "fifo", "causal": "causal"}
WINDOW = 2_000
"""Deliveries of each subscriber that the running verdict looks at."""


def up(
    region: Annotated[list[str] | None, typer.Option(help="A region of the latency table; may be repeated.")] = None,
    rate: Annotated[float, typer.Option(min=0.001, max=100_000, help="Events per second in each region.")] = 20.0,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Stop after this many seconds, else on Ctrl-C.")
    ] = None,
    port: Port = 0,
    kind: Annotated[
        Kind,
        typer.Option(
            help="Who orders: sequencers over a broker, brokers of an overlay or of regions, or a causal mesh."
        ),
    ] = "sequencer",
    by: Annotated[OrderedBy, typer.Option(help="How sequencers order: by homes in a tree, or by clocks.")] = "tree",
    overlay: Annotated[bool, typer.Option("--overlay", help="The same as --kind overlay.")] = False,
    journal: Annotated[Path | None, typer.Option(help="Directory for the clients' journals.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="No live view; one JSON object at the end.")] = False,
) -> None:
    """Run regions in one process with real sockets and emulated distances, publish in all of them, and watch.

    Every region publishes on the same two topics and subscribes to both; on an overlay, to a part of them, by content.
    Other programs may join in: the ports are printed. Exit 0 if all subscribers agreed on the order, 1 if not.

    Example: unisono up --region eu-central-1 --region us-east-1 --seconds 10
    """
    regions = tuple(region or ("eu-central-1", "us-east-1", "ap-northeast-1"))
    table = public_cloud()
    if by == "clock" and (overlay or kind != "sequencer"):
        raise MisuseError("--by clock is for --kind sequencer")
    unknown = [name for name in regions if name not in table.regions]
    if unknown or len(regions) < 2 or len(set(regions)) < len(regions):
        raise MisuseError(f"two or more different regions of: {', '.join(table.regions)}")
    summary = run(_up(regions, rate, seconds, port, "overlay" if overlay else kind, by, journal, as_json))
    if as_json:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    if not summary.agreed:
        raise typer.Exit(1)


class RegionTally(Struct):
    """What one region has done."""

    region: str
    published: int = 0
    delivered: int = 0
    gaps: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class UpSummary(Struct):
    """What `--json` prints."""

    agreed: bool
    compared: int
    sites: list[RegionTally]


class _Player:
    """The clients of one region: they publish at a rate and subscribe to everything."""

    def __init__(self, region: str) -> None:
        self.site = RegionTally(region)
        self.heard: deque[str] = deque(maxlen=WINDOW)
        self.late_ms: deque[float] = deque(maxlen=WINDOW)
        self.speed = 0.0
        self._last = (time.monotonic(), 0)

    async def publish(self, publishers: list[Publisher], rate: float, by_content: bool) -> None:
        number = 0
        while True:
            number += 1
            moment = str(time.monotonic_ns()).encode()
            attributes: dict[str, Scalar] | None = {"px": number * 37 % 100} if by_content else None
            await publishers[number % len(publishers)].send(moment, attributes)
            self.site.published += 1
            await asyncio.sleep(1 / rate)

    async def listen(self, stream: EventStream) -> None:
        async for event in stream:
            if event.gap is not None:
                self.site.gaps += 1
            elif event.id is not None:
                self.site.delivered += 1
                self.heard.append(event.id)
                self.late_ms.append((time.monotonic_ns() - int(event.payload)) / 1e6)

    def measure(self) -> None:
        now, (then, before) = time.monotonic(), self._last
        self.speed, self._last = (self.site.delivered - before) / max(now - then, 1e-6), (now, self.site.delivered)
        late = sorted(self.late_ms)
        if late:
            self.site.p50_ms = round(late[len(late) // 2], 1)
            self.site.p99_ms = round(late[len(late) * 99 // 100], 1)


def _compare(players: list[_Player], order: Order) -> tuple[bool, int]:
    """Do all pairs of subscribers agree on the events both were told of lately? And how many were compared?

    Where they need not agree everybody is compared with the publishers.
    """
    compared = 0
    if order != "total":
        for player in players:
            last: dict[str, int] = {}
            for event in player.heard:
                publisher, _, number = event.rpartition(":")
                compared += 1
                if int(number) <= last.get(publisher, 0):
                    return False, compared
                last[publisher] = int(number)
        return True, compared
    for i, one in enumerate(players):
        for two in players[i + 1 :]:
            mine, theirs = dict.fromkeys(one.heard), dict.fromkeys(two.heard)
            common = [event for event in mine if event in theirs]
            compared += len(common)
            if common != [event for event in theirs if event in mine]:
                return False, compared
    return True, compared


async def _up(
    regions: tuple[str, ...],
    rate: float,
    seconds: float | None,
    port: int,
    kind: Kind,
    by: OrderedBy,
    journal: Path | None,
    quiet: bool,
) -> UpSummary:
    stop = stop_signal()
    ports = [port + i for i in range(len(regions) + 1)] if port else free_ports(len(regions) + 1)
    deployment = star_of(regions, public_cloud(), ports, kind=kind, sequencing=Sequencing(by=by))
    by_content = kind != "sequencer"
    order = ORDERS[kind]
    players = [_Player(region) for region in regions]
    console = screen(stderr=True)
    agreed, compared = True, 0
    async with AsyncExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world = await stack.enter_async_context(Emulation(deployment, base, NEW))
        tasks = []
        for number, player in enumerate(players):
            here = player.site.region
            session = await stack.enter_async_context(connect(world.view(here), region=here, journal=journal))
            where = f"px >= {10 * number}" if by_content else None
            stream = await stack.enter_async_context(session.subscribe(*TOPICS, where=where, order=order))
            publishers = [await session.publisher(topic) for topic in TOPICS]
            tasks.append(asyncio.create_task(player.listen(stream)))
            tasks.append(asyncio.create_task(player.publish(publishers, rate, by_content)))
        live = None if quiet else stack.enter_context(Live(console=console, refresh_per_second=4))
        until = time.monotonic() + seconds if seconds is not None else None
        while not stop.is_set() and (until is None or time.monotonic() < until):
            await asyncio.wait([asyncio.ensure_future(stop.wait())], timeout=0.5)
            still, compared = _compare(players, order)
            agreed = agreed and still
            for player in players:
                player.measure()
            for task in tasks:
                if task.done():
                    task.result()
            if live is not None:
                live.update(_view(world, players, agreed, compared))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        logging.getLogger("unisono").setLevel(logging.ERROR)  # nodes stop one after the other, and miss those before
    return UpSummary(agreed, compared, [player.site for player in players])


def _view(world: Emulation, players: list[_Player], agreed: bool, compared: int) -> Group:
    table = Table(title="unisono up", title_style="bold")
    for column in ("region", "node", "published", "delivered", "per s", "p50 ms", "p99 ms", "gaps"):
        table.add_column(column, justify="left" if column in ("region", "node") else "right")
    for player in players:
        site = player.site
        node = next(spec for spec in world.deployment.nodes if spec.region == site.region)
        role = "broker" if world.deployment.kind == "causal" else "root" if node.parent is None else "leaf"
        table.add_row(
            site.region,
            f"{node.listen} {role}",
            str(site.published),
            str(site.delivered),
            f"{player.speed:.0f}",
            f"{site.p50_ms:.1f}",
            f"{site.p99_ms:.1f}",
            str(site.gaps),
        )
    is_total = ORDERS[world.deployment.kind] == "total"
    verdict = Text("one order: " if is_total else "every publisher's order: ", style="bold")
    if agreed:
        words = f"kept ({compared} events looked at)"
        if is_total:
            words = f"all subscribers agree ({compared} common events compared)"
        verdict.append(words, style="green")
    else:
        verdict.append("subscribers disagree", style="red")
    return Group(table, verdict)
