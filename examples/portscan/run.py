"""The whole case study in one program: sites, order, archive, Spark, and the blacklist back at the sites.

    python examples/portscan/run.py [DIRECTORY]

Six sites publish the handshakes they saw, pseudonymised, through a node; the node's archive keeps them in one order;
Spark reads the archive as a stream and publishes whom it finds out on `blacklist`, once each; a site listens to it.
Minutes of traffic pass in seconds. The time from the packet that was the last evidence to the moment the
sites know is printed; the thesis asks for a few seconds.
"""

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from evaluate import KEY, score
from traffic import SECOND, Traffic, generate, prepare, pseudonym

import unisono
from unisono.model.deployment import Deployment
from unisono.model.settings import ArchiveSpec, NodeSpec
from unisono.runtime.archiving.archivist import archive_directory
from unisono.runtime.node.node import Node
from unisono.spark.portscan import ObservedPacket, Rule, blacklist
from unisono.spark.session import local_session

PORT = 17474
SPEED = 20
"""Virtual seconds per real one."""
PATIENCE_S = 90


@contextmanager
def hub(directory: Path) -> Iterator[Path]:
    """A node in a thread of its own; gives the directory of its archive."""
    spec = NodeSpec("hub", listen=f"127.0.0.1:{PORT}", roles=("sequencer", "broker", "archive"), data="data")
    deployment = Deployment(1, "portscan", nodes=(spec,), archive=ArchiveSpec(seal_s=0.5))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> Node:
        node = Node(deployment, "hub", directory)
        await node.start()
        return node

    node = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    archive = archive_directory(directory, spec.data, spec.name)
    archive.mkdir(parents=True, exist_ok=True)
    try:
        yield archive
    finally:
        asyncio.run_coroutine_threadsafe(node.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


async def publish(packets: list[ObservedPacket], began: float, published: dict[int, float]) -> None:
    """Every site publishes its packets at the pace of the traffic."""

    async def one_site(site: str, session: unisono.Session) -> None:
        publisher = await session.publisher(f"packets.{site}")
        for packet in packets:
            if packet.site == site:
                await asyncio.sleep(max(0.0, began + packet.t / SECOND / SPEED - time.time()))
                published[packet.t] = time.time()
                await publisher.send(packet)
        await publisher.drain()

    async with unisono.connect(f"unisono://127.0.0.1:{PORT}") as session, asyncio.TaskGroup() as group:
        for site in sorted({packet.site for packet in packets}):
            group.create_task(one_site(site, session))


def main(directory: Path) -> None:
    traffic = Traffic(flows=1500, scanners=8, duration_us=600 * SECOND)
    packets, scanners = generate(traffic)
    told = prepare(packets, KEY)
    planted = {pseudonym(KEY, name) for name in scanners}
    spark = local_session("portscan")
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # a task costs more than the traffic of six sites
    with (
        hub(directory) as archive,
        unisono.connect_sync(f"unisono://127.0.0.1:{PORT}") as session,
        session.subscribe("blacklist") as site,
    ):
        published: dict[int, float] = {}
        topics = ",".join(f"packets.{name}" for name in sorted({packet.site for packet in told}))
        events = spark.readStream.format("unisono").option("topics", topics).load(str(archive))
        query = (
            blacklist(events, Rule(lateness_us=SPEED * SECOND // 2))  # half a real second for clocks and queues
            .writeStream.format("unisono")
            .option("url", f"unisono://127.0.0.1:{PORT}")
            .option("publisher", "portscan")
            .option("topic", "blacklist")
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        while query.lastProgress is None and query.isActive:  # the JVM and its workers are warm
            time.sleep(0.2)
        sites = threading.Thread(target=lambda: asyncio.run(publish(told, time.time(), published)), daemon=True)
        sites.start()
        found: dict[str, float] = {}
        until = time.monotonic() + PATIENCE_S
        while set(found) != planted and time.monotonic() < until and query.isActive:
            for event in site.take(1, timeout=1.0):
                for name in event.data["blacklist"]:
                    found.setdefault(name, time.time() - published[event.data["t"]])
        sites.join(PATIENCE_S)
        query.stop()
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
    precision, recall = score(set(found), planted)
    late = sorted(found.values())
    print(f"{len(told)} packets of {traffic.sites} sites, {len(planted)} planted scanners, {len(found)} blacklisted")
    print(f"precision {precision:.3f}, recall {recall:.3f}")
    if late:
        print(f"from evidence to blacklist: median {late[len(late) // 2]:.2f} s, worst {late[-1]:.2f} s")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
