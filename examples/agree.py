"""Do two subscribers of two topics see one order? Over plain NATS they do not; through unisono they do.

Two real nats-servers, `west` and `east`, form a cluster; a user-space proxy delays everything between them. At each
server somebody publishes on the topics `trades` and `quotes`, and somebody subscribes to both. The same load runs twice
over the same servers: with plain NATS clients, and through unisono, whose two sequencer nodes (processes of their own,
one per site) give one order. What every subscriber was told is written into two journals and judged from these alone.
Then the pipeline: the node at `west` has archived the run; Spark reads the archive and judges it together with the
journal, as one more subscriber that must have been told the same.

    python examples/agree.py            # or: make run

Exit status: 0 if the judges of unisono's journal are content and the raw journal could be judged, 1 if not, 2 if
something could not run.
"""

import argparse
import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from rich.console import Console
from rich.table import Table
from rich.text import Text

import unisono
from unisono.audit import Report, examine, read, write_jsonl
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.journal import Header, Record
from unisono.model.settings import BrokerSpec, NodeSpec, Region, Role
from unisono.model.time import Micros
from unisono.runtime.archiving.archivist import archive_directory
from unisono.runtime.driver.loop import run
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.nats_server import NatsCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SITES = ("west", "east")
TOPICS = ("trades", "quotes")
PROMISES = ("pairwise-order", "exactly-once", "fifo", "complete")
UNISONO = Path(sys.executable).with_name("unisono")
"""The command of this installation."""
ARCHIVE = "archive"
EXCERPT = 10
PATIENCE_S = 60.0
"""How long to wait for the last event before what is missing counts as missing."""


class Load(msgspec.Struct, frozen=True):
    """What is published in each of the two runs."""

    events: int
    """Of each publisher, on both topics in turn."""
    per_second: float
    """Of each publisher."""
    delay_ms: float
    """One way, between the sites."""


class Trade(msgspec.Struct):
    """What travels: who published it on which topic as which, and when."""

    publisher: str
    topic: str
    number: int
    at_us: int

    @property
    def id(self) -> str:
        return f"{self.publisher}.{self.topic}.{self.number}"


class Scribe:
    """Writes down what publishers said and subscribers were told, in the words of the journal."""

    def __init__(self, load: Load) -> None:
        self.records: list[Record] = []
        self.told: dict[str, list[Trade]] = {site: [] for site in SITES}
        self.all_told = asyncio.Event()
        self._expected = load.events * len(SITES)
        self._missed = dict.fromkeys(SITES, 0)

    def subscribe(self, site: str) -> None:
        now = now_us()
        for topic in TOPICS:
            self.records.append(Record("subscribe", now, site, site, topic=topic, published_us=now))

    def publish(self, site: str, number: int) -> Trade:
        """The next event of a publisher: topics take turns, and numbers count per topic."""
        topic, count = TOPICS[number % len(TOPICS)], number // len(TOPICS) + 1
        trade = Trade(site, topic, count, now_us())
        who = f"{site}.{topic}"
        self.records.append(
            Record("publish", trade.at_us, who, event=trade.id, topic=topic, publisher=who, publisher_seq=count)
        )
        return trade

    def deliver(self, site: str, payload: bytes) -> None:
        trade, now, told = msgspec.json.decode(payload, type=Trade), now_us(), self.told[site]
        told.append(trade)
        self.records.append(
            Record(
                "deliver",
                now,
                site,
                site,
                trade.id,
                len(told),
                trade.topic,
                publisher=f"{trade.publisher}.{trade.topic}",
                publisher_seq=trade.number,
                published_us=trade.at_us,
                delivered_us=now,
            )
        )
        self._look_for_end()

    def miss(self, site: str, gap: unisono.Gap) -> None:
        """unisono says when something will not come."""
        self._missed[site] += gap.last - gap.first + 1
        self._look_for_end()

    def _look_for_end(self) -> None:
        if all(len(self.told[site]) + self._missed[site] >= self._expected for site in SITES):
            self.all_told.set()

    def keep(self, path: Path, promises: tuple[str, ...], note: str) -> Report:
        """Writes the journal and has it judged from the file."""
        write_jsonl(path, Header(promises=promises, note=note), [*self.records, Record("end", now_us())])
        return examine(read(path))


def now_us() -> int:
    return time.monotonic_ns() // 1000


async def publish(load: Load, scribe: Scribe, site: str, send: Callable[[Trade, bytes], Awaitable[None]]) -> None:
    """One publisher: an even stream of events on both topics."""
    begin = time.monotonic()
    for number in range(load.events):
        await asyncio.sleep(max(0.0, begin + number / load.per_second - time.monotonic()))
        trade = scribe.publish(site, number)
        await send(trade, msgspec.json.encode(trade))


async def wait_for_all(scribe: Scribe) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            await scribe.all_told.wait()
    except TimeoutError:
        pass  # the judges will see what is missing


# The first run: plain NATS clients.


async def run_raw(load: Load, cluster: NatsCluster) -> Scribe:
    scribe = Scribe(load)
    clients = {site: await nats.connect(server.url) for site, server in zip(SITES, cluster.servers)}
    for site, client in clients.items():

        async def on_message(message: Msg, site: str = site) -> None:
            scribe.deliver(site, message.data)

        await wait_until_heard(client, list(clients.values()))
        for topic in TOPICS:
            await client.subscribe(topic, cb=on_message)
        # NATS spreads subscriptions in line: when a later one is known everywhere, so are these.
        await wait_until_heard(client, list(clients.values()))
        scribe.subscribe(site)

    async def publish_at(site: str, client: Client) -> None:
        await publish(load, scribe, site, lambda trade, payload: client.publish(trade.topic, payload))

    await asyncio.gather(*(publish_at(site, client) for site, client in clients.items()))
    await wait_for_all(scribe)
    for client in clients.values():
        await client.close()
    return scribe


async def wait_until_heard(client: Client, others: list[Client]) -> None:
    """Returns when what anybody publishes reaches this client: without waiting, first events are lost."""
    for number, other in enumerate(others):
        heard = asyncio.Event()
        subject = f"probe.{id(client)}.{number}.{time.monotonic_ns()}"

        async def on_probe(_: Msg, heard: asyncio.Event = heard) -> None:
            heard.set()

        probe = await client.subscribe(subject, cb=on_probe)
        while not heard.is_set():
            await other.publish(subject, b"")
            await other.flush()
            await asyncio.sleep(0.01)
        await probe.unsubscribe()


# The second run: the same load through unisono.


async def run_unisono(load: Load, views: dict[str, Deployment]) -> Scribe:
    scribe = Scribe(load)
    async with AsyncExitStack() as stack:
        sessions, listeners = {}, []
        for site in SITES:
            session = await stack.enter_async_context(unisono.connect(views[site], region=site, timeout=30))
            stream = await stack.enter_async_context(session.subscribe(*TOPICS, order="total"))
            scribe.subscribe(site)
            sessions[site] = session
            listeners.append(asyncio.create_task(listen(scribe, site, stream)))

        async def publish_at(site: str, session: unisono.Session) -> None:
            publishers = {topic: await session.publisher(topic) for topic in TOPICS}
            await publish(load, scribe, site, lambda trade, payload: publishers[trade.topic].send(payload))

        await asyncio.gather(*(publish_at(site, session) for site, session in sessions.items()))
        await wait_for_all(scribe)
        for listener in listeners:
            listener.cancel()
    return scribe


async def listen(scribe: Scribe, site: str, stream: unisono.Stream) -> None:
    async for event in stream:
        if event.gap is not None:
            scribe.miss(site, event.gap)
        elif event.stalled is None:
            scribe.deliver(site, event.payload)


@asynccontextmanager
async def deployment(load: Load, cluster: NatsCluster, out: Path) -> AsyncIterator[dict[str, Deployment]]:
    """A sequencer node per site, `west` the root of the tree; yields the deployment as each site sees it.

    Who is at the other site reaches a node through a proxy, so between the sites everything takes `delay_ms`.
    """
    listen_at = {site: f"127.0.0.1:{port}" for site, port in zip(SITES, free_ports(len(SITES)))}
    servers = tuple(server.url for server in cluster.servers)
    views, processes = {}, []
    async with AsyncExitStack() as stack:
        for here in SITES:
            nodes = []
            for there in SITES:
                address = listen_at[there]
                if there != here:
                    proxy = DelayProxy(Micros(round(load.delay_ms * 1000)))
                    stack.push_async_callback(proxy.stop)
                    address = f"127.0.0.1:{await proxy.start(('127.0.0.1', int(address.rpartition(':')[2])))}"
                parent = None if there == SITES[0] else SITES[0]
                roles: tuple[Role, ...] = ("sequencer", "archive") if there == SITES[0] else ("sequencer",)
                nodes.append(NodeSpec(there, there, address, parent, roles, data=f"{there}-log"))
            views[here] = Deployment(
                1,
                "agree",
                regions=tuple(Region(site) for site in SITES),
                round_trip_ms={" ".join(SITES): 2 * load.delay_ms},
                nodes=tuple(nodes),
                broker=BrokerSpec("nats", servers),
            )
            file = out / f"{here}.toml"
            file.write_text(dump_deployment(views[here]))
            with (out / f"{here}.log").open("wb") as log:
                processes.append(subprocess.Popen([UNISONO, "node", file, here], stdout=log, stderr=log))
        try:
            yield views
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                await asyncio.to_thread(process.wait)


def archive_of(out: Path) -> Path:
    """What the node at the first site has kept of the run."""
    return archive_directory(out, f"{SITES[0]}-log", SITES[0])


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


# What is shown.


def show_excerpt(console: Console, raw: Scribe, ours: Scribe) -> None:
    table = Table(title=f"The first {EXCERPT} events, as each subscriber was told of them", title_justify="left")
    table.add_column("", justify="right")
    for name in ("raw NATS", "unisono"):
        for site in SITES:
            table.add_column(f"{name}\nat {site}")
    for i in range(EXCERPT):
        cells = []
        for scribe in (raw, ours):
            row = [scribe.told[site][i] if i < len(scribe.told[site]) else None for site in SITES]
            differ = len({trade.id for trade in row if trade is not None}) > 1
            for trade in row:
                style = "bold red" if differ else "cyan" if trade and trade.publisher == SITES[0] else "green"
                cells.append(Text(f"{trade.publisher} {trade.topic} {trade.number}" if trade else "", style))
        table.add_row(str(i + 1), *cells)
    console.print(table)


def show_comparison(console: Console, raw: Scribe, ours: Scribe, reports: tuple[Report, Report]) -> None:
    table = Table("", "raw NATS", "unisono", title="The same load, twice", title_justify="left")
    table.add_row("events published", *(f"{sum(r.kind == 'publish' for r in s.records)}" for s in (raw, ours)))
    table.add_row("notifications", *(str(report.deliveries) for report in reports))
    counts = []
    for report in reports:
        share, events = report.metrics["inverted_share"], report.metrics["events"]
        counts.append(Text(f"{round(share * events)} ({share:.1%})", "red" if share else "green"))
    table.add_row("events in an inverted pair", *counts)
    means: tuple[list[float], list[float]] = ([], [])
    for source in SITES:
        for target in SITES:
            cells = []
            for scribe, mean in zip((raw, ours), means):
                mean_ms, p50, p99 = late_ms(scribe, source, target)
                mean.append(mean_ms)
                cells.append(f"{mean_ms:.1f} / {p50:.1f} / {p99:.1f}")
            table.add_row(f"{source} to {target}, mean / p50 / p99 ms", *cells)
    table.add_row("mean of all four ms", *(f"{sum(mean) / len(mean):.1f}" for mean in means))
    table.add_row("least mean of any protocol that gives one order, ms", "", f"{bound_ms(means[0]):.1f}")
    console.print(table)


def bound_ms(direct: list[float]) -> float:
    """What any order costs (ordering spec, section 16): where both hear both, the two near latencies sum to no less
    than the two far ones."""
    near, far = direct[0] + direct[3], direct[1] + direct[2]
    return (max(near, far) + far) / len(direct)


def late_ms(scribe: Scribe, source: str, target: str) -> tuple[float, float, float]:
    """Mean, p50 and p99 of the time from publication to notification."""
    spans = sorted(
        (record.delivered_us or 0) - (record.published_us or 0)
        for record in scribe.records
        if record.kind == "deliver" and record.who == target and (record.publisher or "").startswith(source)
    )
    if not spans:
        return 0.0, 0.0, 0.0
    return sum(spans) / len(spans) / 1000, spans[len(spans) // 2] / 1000, spans[len(spans) * 99 // 100] / 1000


def show_verdicts(console: Console, paths: tuple[Path, Path], reports: tuple[Report, Report]) -> None:
    for path, report in zip(paths, reports):
        words = Text(f"{path}: ")
        for verdict in report.verdicts:
            word = "holds" if verdict.holds else f"violated ({verdict.violations})"
            words.append(f"{verdict.judge} {word}  ", "green" if verdict.holds else "red")
        console.print(words)
        for verdict in report.verdicts:
            if verdict.judge == "pairwise-order" and not verdict.holds:
                console.print(f"  {verdict.witness}", highlight=False)
    console.print("Judge them again with:")
    for path in paths:
        console.print(f"  {os.path.relpath(UNISONO)} audit {path}", highlight=False, soft_wrap=True)


def judge_archive(console: Console, archive: Path, journal: Path) -> bool:
    """The pipeline, where there is a Spark; True if the judges are content or could not be asked."""
    if os.environ.get("UNISONO_SPARK") == "0":
        console.print("The archive is not read by Spark: UNISONO_SPARK=0.")
        return True
    try:
        from unisono.spark.session import local_session
    except ModuleNotFoundError as error:
        console.print(f"The archive is not read by Spark: {error.name} is not installed (the extra 'spark' brings it).")
        return True
    console.print(f"Spark reads the archive of the run, {archive}, and judges it with the journal …")
    try:
        spark = local_session("agree")
    except unisono.MisuseError as error:
        console.print(f"… not here: {error}.")
        return True
    try:
        return show_pipeline(console, spark, archive, journal)
    finally:
        spark.stop()


def show_pipeline(console: Console, spark: "SparkSession", archive: Path, journal: Path) -> bool:
    from pyspark.sql import functions as F

    from unisono.spark.audits import load, report

    events = spark.read.format("unisono").load(str(archive))
    trade = F.from_json(F.col("payload").cast("string"), "publisher STRING, topic STRING, number BIGINT")
    publisher = F.concat_ws(".", "trade.publisher", "trade.topic")
    kept = events.select("seq", trade.alias("trade")).select(
        F.lit(ARCHIVE).alias("subscriber"),
        F.concat_ws(".", publisher, "trade.number").alias("event"),
        F.col("seq").alias("position"),
        "trade.topic",
        publisher.alias("publisher"),
        F.col("trade.number").alias("publisher_seq"),
    )
    told = load(spark, journal).where("kind = 'deliver'").select(*kept.columns)
    found = report(kept.unionByName(told))
    title = f"{kept.count()} events of the archive and what both subscribers were told, judged by Spark"
    table = Table("judge", "", "violations", title=title, title_justify="left")
    for verdict in found.verdicts:
        word = Text("holds", "green") if verdict.holds else Text("violated", "red")
        table.add_row(verdict.judge, word, str(verdict.violations))
        if not verdict.holds:
            console.print(f"  {verdict.witness}", highlight=False)
    console.print(table)
    holds = {verdict.judge: verdict.holds for verdict in found.verdicts}
    return found.subscribers == len(SITES) + 1 and all(holds.get(name, False) for name in PROMISES)


async def play(load: Load, out: Path, console: Console) -> tuple[Scribe, Scribe]:
    cluster = NatsCluster(out / "nats", len(SITES), Micros(round(load.delay_ms * 1000)))
    try:
        await cluster.start()
        console.print(f"Two nats-servers on this machine, {load.delay_ms:g} ms apart: {SITES[0]} and {SITES[1]}.")
        async with deployment(load, cluster, out) as views:
            console.print(f"{load.events} events at each, {load.per_second:g}/s: plain NATS …")
            raw = await run_raw(load, cluster)
            console.print("… and through unisono.")
            return raw, await run_unisono(load, views)
    finally:
        await cluster.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=2000, help="events per publisher")
    parser.add_argument("--per-second", type=float, default=400.0, help="events per publisher and second")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="one way between the sites")
    parser.add_argument("--out", type=Path, default=Path("out/agree"), help="directory for journals and logs")
    asked = parser.parse_args()
    out: Path = asked.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    console = Console()
    try:
        raw, ours = run(play(Load(asked.events, asked.per_second, asked.delay_ms), out, console))
    except unisono.UnisonoError as error:
        console.print(f"Could not run: {error} (logs are in {out})")
        return 2
    paths = (out / "raw.jsonl", out / "unisono.jsonl")
    reports = (
        raw.keep(paths[0], ("pairwise-order",), "two topics over plain NATS"),
        ours.keep(paths[1], PROMISES, "two topics through unisono"),
    )
    show_excerpt(console, raw, ours)
    show_comparison(console, raw, ours, reports)
    show_verdicts(console, paths, reports)
    kept = {verdict.judge: verdict.holds for verdict in reports[1].verdicts}
    judged = reports[0].deliveries > 0 and any(verdict.judge == "pairwise-order" for verdict in reports[0].verdicts)
    agreed = (
        judged and all(kept.get(name, False) for name in PROMISES) and judge_archive(console, archive_of(out), paths[1])
    )
    console.print(Text("unisono's subscribers agree." if agreed else "Something does not hold.", "bold"))
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
