"""What it costs to watch: a journal of deliveries, a journal of everything, and a node that is asked how it is.

Recording: one process publishes on two topics and reads both streams back over the memory broker, in bursts of 200;
microseconds of processor time per event, the least of three rounds, whose kinds take turns. Observing: two nodes of
one process look at each other, their broker and their disk, and do nothing else, with 100 topics at home; one of them
is asked for its metrics once a second, as Prometheus does. Their share of one core does not grow with the load.
Metrics: what one question costs, asker included, and the same beside work: a node with 100 topics and its log on disk
orders as much as it can, asked once a second and with its pages off in turns; the median of the ratios of neighbours.
"""

import asyncio
import statistics
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import unisono
from unisono.model.deployment import Deployment
from unisono.model.settings import BrokerSpec, NodeSpec, TopicSpec
from unisono.runtime.node.node import Node, NodeConfig
from unisono.runtime.tools.ports import free_ports

EVENTS = 10_000
BURST = 200
SECONDS = 20.0
ORDER_S = 5.0
TURNS = 9
QUESTIONS = 50
KINDS = {"no journal": None, "deliveries": "deliveries", "everything": "all"}


async def publish_and_read(record: str | None, directory: Path) -> float:
    """Processor seconds per event."""
    kept: Any = {} if record is None else {"journal": directory, "record": record}
    async with (
        unisono.connect(f"memory://{directory.name}", **kept) as session,
        session.subscribe("trades", "quotes") as stream,
    ):
        publishers = [await session.publisher(topic) for topic in ("trades", "quotes")]
        began = time.process_time()
        for _ in range(0, EVENTS, BURST):
            for number in range(BURST):
                await publishers[number % 2].send(b"0123456789")
            heard = 0
            async for batch in stream.batches():
                heard += len(batch)
                if heard == BURST:
                    break
        return (time.process_time() - began) / EVENTS


async def observe(directory: Path) -> float:
    """Processor seconds per second."""
    topics = tuple(TopicSpec(f"t{number}", "a") for number in range(100))
    first, second, broker = (f"127.0.0.1:{port}" for port in free_ports(3))
    nodes = (
        NodeSpec("a", listen=first, roles=("sequencer", "broker"), data="data"),
        NodeSpec("b", listen=second, parent="a", data="data"),
    )
    deployment = Deployment(1, "watched", nodes=nodes, topics=topics, broker=BrokerSpec("embedded", (broker,)))
    config = NodeConfig(witness_s=0, observe="127.0.0.1:0")
    loop = asyncio.get_running_loop()
    async with Node(deployment, "a", directory, config) as a, Node(deployment, "b", directory, config):
        page = f"http://127.0.0.1:{a.pages.port}/metrics"
        began, until = time.process_time(), loop.time() + SECONDS
        while loop.time() < until:
            await loop.run_in_executor(None, lambda: urllib.request.urlopen(page, timeout=10).read())
            await asyncio.sleep(1.0)
        return (time.process_time() - began) / SECONDS


async def order(directory: Path, asked: bool) -> tuple[float, float]:
    """Processor seconds per event ordered, and per question."""
    topics = tuple(TopicSpec(f"t{number}", "a") for number in range(100))
    where, broker = (f"127.0.0.1:{port}" for port in free_ports(2))
    node = NodeSpec("a", listen=where, roles=("sequencer", "broker"), data="data")
    deployment = Deployment(1, "ordered", nodes=(node,), topics=topics, broker=BrokerSpec("embedded", (broker,)))
    config = NodeConfig(witness_s=0, observe="127.0.0.1:0" if asked else None)
    loop = asyncio.get_running_loop()
    async with (
        Node(deployment, "a", directory, config) as working,
        unisono.connect(f"unisono://{where}") as session,
        session.subscribe("t0", "t1") as stream,
    ):

        def ask() -> None:
            urllib.request.urlopen(f"http://127.0.0.1:{working.pages.port}/metrics", timeout=10).read()

        async def keep_asking() -> None:
            while True:
                await loop.run_in_executor(None, ask)
                await asyncio.sleep(1.0)

        publishers = [await session.publisher(topic) for topic in ("t0", "t1")]
        asking = asyncio.ensure_future(keep_asking()) if asked else None
        began, until, heard = time.process_time(), loop.time() + ORDER_S, 0
        while loop.time() < until:
            for publisher in publishers:
                await publisher.send_all([b"0123456789" * 10] * (BURST // 2))
            told = 0
            async for batch in stream.batches():
                told += len(batch)
                if told == BURST:
                    break
            heard += told
        spent = time.process_time() - began
        if asking is None:
            return spent / heard, 0.0
        asking.cancel()
        began = time.process_time()
        for _ in range(QUESTIONS):
            await loop.run_in_executor(None, ask)
        return spent / heard, (time.process_time() - began) / QUESTIONS


def beside_work(place: Path) -> list[dict[str, Any]]:
    """Turns of both kinds; neighbours are compared."""
    ratios, without, questions = [], [], []
    for turn in range(TURNS):
        kinds = (False, True) if turn % 2 else (True, False)
        found = {asked: asyncio.run(order(place / f"{turn}-{asked}", asked)) for asked in kinds}
        ratios.append(found[True][0] / found[False][0])
        without.append(found[False][0])
        questions.append(found[True][1])
    return [
        {"case": "metrics: a question", "cpu_us": round(min(questions) * 1e6, 1)},
        {
            "case": "metrics: ordering, asked once a second",
            "cpu_us_per_event": round(min(without) * 1e6, 3),
            "share": round(statistics.median(ratios) - 1, 4),
            "lowest_share": round(min(ratios) - 1, 4),
            "highest_share": round(max(ratios) - 1, 4),
        },
    ]


def run() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as place:
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for round_ in range(3):
            for kind, record in KINDS.items():
                directory = Path(place) / f"{kind.replace(' ', '-')}-{round_}"
                found[kind].append(asyncio.run(publish_and_read(record, directory)))
        for kind, times in found.items():
            rows.append({"case": f"recording: {kind}", "cpu_us_per_event": round(min(times) * 1e6, 2)})
        rows += beside_work(Path(place))
        share = asyncio.run(observe(Path(place) / "observed"))
        rows.append({"case": "observing two idle nodes", "share_of_a_core": round(share, 5)})
    return rows
