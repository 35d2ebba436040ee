"""Does a sequencer node's memory stay what it was? Resident size after a million events and after ten million.

One node process over one nats-server, two subscriptions to both of its topics, so that every number gets a timestamp;
eight publishers ask for numbers through a real socket, a hundred at a time on both topics in turn, and wait for their
answers. The log is on disk, synced, and takes its snapshots. Payloads never pass a node, so none are published.
"""

import argparse
import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any

import unisono
from unisono.errors import UnisonoError
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.ids import Address, Topic
from unisono.model.settings import BrokerSpec, NodeSpec, TopicSpec
from unisono.protocols.sequencer.messages import Creates, Taken, Wanted
from unisono.runtime.driver.loop import run as run_loop
from unisono.runtime.links import control
from unisono.runtime.links.connection import Connection
from unisono.runtime.links.dialing import endpoint
from unisono.runtime.links.frames import Codec, Hello, Letter
from unisono.runtime.tools.nats_server import NatsServer

TOPICS = ("trades", "quotes")
PUBLISHERS = 8
ITEMS = 100
IN_FLIGHT = 4
"""Messages of one publisher that wait for their answer."""
NODE = Address("n1")
ME = Address("cmemory")


class Driver:
    """All publishers, over one connection to the node."""

    def __init__(self, topics: tuple[Topic, ...], until: int) -> None:
        self.topics, self.until = topics, until
        self.asked = self.taken = 0
        self.reached = asyncio.Event()
        self.problem: UnisonoError | None = None
        self.connection: Connection | None = None
        self._next = dict.fromkeys(self.publishers, 1)
        self._upto = {(publisher, topic): 0 for publisher in self.publishers for topic in topics}

    @property
    def publishers(self) -> list[Address]:
        return [Address(f"{ME}/p{i}") for i in range(PUBLISHERS)]

    async def open(self, address: str) -> None:
        def closed(connection: Connection, error: UnisonoError | None) -> None:
            self.problem = error
            self.reached.set()

        hello = Hello("client", (ME,))
        loop = asyncio.get_running_loop()
        _, self.connection = await loop.create_connection(
            lambda: Connection(Codec(control.Letters), hello, True, lambda *_: None, self._receive, closed),
            *endpoint(address),
        )

    def go_on(self, until: int) -> None:
        self.until = until
        self.reached.clear()
        for publisher in self.publishers:
            self._ask(publisher)

    def _ask(self, publisher: Address) -> None:
        """Both topics have the same requests, so the least answered one tells how many messages are under way."""
        assert self.connection is not None
        per_topic = ITEMS // len(self.topics)
        while self.asked < self.until:
            first = self._next[publisher]
            settled = min(self._upto[publisher, topic] for topic in self.topics)
            if first - 1 - settled >= IN_FLIGHT * per_topic:
                return
            self._next[publisher] = first + per_topic
            numbers = range(first, first + per_topic)
            items = tuple(Wanted(topic, n, 1, settled + 1) for n in numbers for topic in self.topics)
            self.connection.post(Letter(NODE, Creates(publisher, items)))
            self.asked += ITEMS

    def _receive(self, connection: Connection, letters: list[Letter[Any]]) -> None:
        for letter in letters:
            if isinstance(letter.message, Taken):
                for topic, upto in letter.message.upto.items():
                    key = (letter.to, topic)
                    self.taken += upto - self._upto[key]
                    self._upto[key] = upto
                self._ask(letter.to)
        if self.taken >= self.until:
            self.reached.set()


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


async def measure(marks: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = []
    async with AsyncExitStack() as stack:
        Path("out").mkdir(exist_ok=True)
        directory = Path(stack.enter_context(TemporaryDirectory(dir="out", prefix="bench-memory-"))).absolute()
        server = NatsServer(directory / "nats")
        stack.push_async_callback(server.stop)
        await server.start()
        # The port above the broker's is free as likely as any, and known before the node starts.
        spec = NodeSpec(NODE, listen=f"127.0.0.1:{server.port + 1}", data="data")
        deployment = Deployment(
            1,
            "memory",
            nodes=(spec,),
            topics=tuple(TopicSpec(name, NODE) for name in TOPICS),
            broker=BrokerSpec("nats", (server.url,)),
        )
        file = directory / "deployment.toml"
        file.write_text(dump_deployment(deployment))
        process = Popen([Path(sys.executable).with_name("unisono"), "node", file, NODE, "--journal", "off"])
        stack.callback(process.wait)
        stack.callback(process.terminate)
        session = await stack.enter_async_context(unisono.connect(deployment, timeout=60))
        for _ in range(2):
            await stack.enter_async_context(session.subscribe(*TOPICS))
        for name in TOPICS:  # registered they stay; hearing stamps without payloads would only make them ask
            session.broker.ens.unsubscribe(name)
            session.broker.ens.unsubscribe(name, control=True)
        topics = await session.open_topics(list(TOPICS))
        driver = Driver(tuple(topics.values()), 0)
        await driver.open(spec.listen)
        began = time.monotonic()
        for events in marks:
            driver.go_on(events)
            await driver.reached.wait()
            if driver.problem is not None:
                raise driver.problem
            log_mb = sum(path.stat().st_size for path in (directory / "data").rglob("*") if path.is_file()) / 2**20
            counters = (await session.status(NODE)).counters["sequencer"]
            rows.append(
                {
                    "case": f"after {events} events",
                    "resident_mb": round(resident_mb(process.pid), 1),
                    "log_mb": round(log_mb, 1),
                    "snapshots": counters["snapshots"],
                    "commits": counters["commits"],
                    "events_per_s": round(events / (time.monotonic() - began)),
                }
            )
        assert driver.connection is not None
        driver.connection.close()
    for row in rows[1:]:
        row["resident_to_first"] = round(row["resident_mb"] / rows[0]["resident_mb"], 3)
    return rows


def run(marks: tuple[int, ...] = (1_000_000, 10_000_000)) -> list[dict[str, Any]]:
    return run_loop(measure(marks))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--marks", type=int, nargs="+", default=[1_000_000, 10_000_000])
    for row in run(tuple(parser.parse_args().marks)):
        sys.stdout.write(json.dumps(row) + "\n")
