"""Takeovers under load: real processes, three real NATS servers, a standby for the node that is hit.

A run starts the servers, the hub and `east` with its log on a stream of three replicas, `east` once more as a standby,
two subscribers and two publishers. A fault ends or pauses whoever of the two works; the other takes over; the one that
was hit comes back and waits. The judges read all journals, and the numbers are counted.
"""

import asyncio
import random
import signal
import subprocess
import time
from pathlib import Path

from msgspec import Struct

from tests.runtime.crash.harness import NODE, TOPICS, Plan, Run
from tests.runtime.crash.verdicts import judge
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.settings import BrokerSpec, LogSpec, NodeSpec, TopicSpec
from unisono.model.time import Micros
from unisono.runtime.tools.nats_server import NatsCluster, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

SILENCE_S = 1.5
"""After this much of it a standby takes over."""
TWINS = ("east", "east-standby")
PATIENCE_S = 240.0
"""How long a run may take beside its faults, on a machine that has other things to do."""


class Trial(Struct, frozen=True):
    """What one run does; everything else is drawn from the seed."""

    seed: int
    faults: int
    victims: tuple[str, ...]
    interval_us: int
    pause_s: tuple[float, float]
    in_turn: bool = False
    """The victims are taken one after the other instead of drawn."""


class Found(Struct):
    """What a run showed beside the verdicts."""

    takeovers: int = 0
    twice: int = 0
    """Numbers given to two events, or events with two numbers."""
    lost: int = 0
    """Events accepted (the broker is JetStream, so: stored) that a subscriber was not notified of, in line or late."""
    without_order_s: list[float] = []
    """Per fault: from the fault to the first number of the node's topic after it."""


class Takeovers(Run):
    """One run with takeovers."""

    def __init__(self, directory: Path, trial: Trial) -> None:
        super().__init__(directory, Plan(trial.seed, broker="jetstream", interval_us=trial.interval_us))
        self.trial, self.dice = trial, random.Random(trial.seed)
        self.cluster = NatsCluster(directory / "nats", 3, Micros(0), NatsServerConfig(jetstream=True))
        self.servers = self.cluster.servers
        self.found = Found(without_order_s=[])
        self._faults_at: list[int] = []

    async def play(self) -> list[str]:
        """Everything, from the first process to what is wrong."""
        self.directory.mkdir(parents=True, exist_ok=True)
        assert self.cluster is not None
        try:
            await self.cluster.start()
            self.file.write_text(dump_deployment(self._deployment()))
            async with asyncio.timeout(PATIENCE_S + self.trial.faults * (self.trial.pause_s[1] + PATIENCE_S / 4)):
                for name in ("hub", "east"):
                    self.start_node(name)
                await self._active()
                self.start_node("east-standby")
                await asyncio.gather(*(self.start_subscriber(number) for number in (1, 2)))
                await asyncio.gather(*(self.start_publisher(number) for number in (1, 2)))
                while not all(self._has_published(number) for number in (1, 2)):
                    await asyncio.sleep(0.05)
                for _ in range(self.trial.faults):
                    await asyncio.sleep(self.dice.uniform(0.2, 0.6))
                    await self.fault()
                await self.finish()
        finally:
            await self.stop()
        self._count()
        return [*self.problems, *judge(self, [])]

    def path(self, party: str) -> Path:
        return self.file  # there are no proxies here

    def _deployment(self) -> Deployment:
        hub, east, standby = free_ports(3)
        return Deployment(
            1,
            "takeover",
            nodes=(
                NodeSpec("hub", listen=f"127.0.0.1:{hub}", data="data"),
                NodeSpec(
                    "east",
                    listen=f"127.0.0.1:{east}",
                    parent="hub",
                    data="data",
                    log="jetstream",
                    standby=f"127.0.0.1:{standby}",
                ),
            ),
            topics=(TopicSpec("trades", "east"), TopicSpec("quotes", "hub")),
            broker=BrokerSpec("jetstream", tuple(server.url for server in self.servers)),
            log=LogSpec(patience_s=SILENCE_S),
        )

    def start_node(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        node, _, standby = name.partition("-")
        more = ("--standby",) if standby else ()
        return self.start(name, *NODE, str(self.file), node, "--journal", "all", "--log-level", "info", *more)

    def _has_published(self, number: int) -> bool:
        return any(record.kind == "publish" for record in self.journals.of(self.process(f"publisher-{number}")))

    def _listens(self, name: str) -> bool:
        process = self.processes.get(name)
        return process is not None and process.poll() is None and "listens on port" in self.said(name)

    async def _active(self, names: tuple[str, ...] = TWINS) -> str:
        """Which of the two works: the one that lives and listens."""
        while True:
            for name in names:
                if self._listens(name):
                    return name
            await asyncio.sleep(0.05)

    async def fault(self) -> None:
        victims, hit = self.trial.victims, await self._active()
        victim = victims[self.found.takeovers % len(victims)] if self.trial.in_turn else self.dice.choice(victims)
        other = TWINS[1 - TWINS.index(hit)]
        self.story.append(f"{victim} {hit}")
        self._faults_at.append(time.time_ns() // 1000)
        process = self.processes[hit]
        server = None
        if victim == "nats":
            server = self.dice.choice(self.servers)
            server.kill()
        if victim == "pause":
            process.send_signal(signal.SIGSTOP)
            await asyncio.gather(self._active((other,)), asyncio.sleep(self.dice.uniform(*self.trial.pause_s)))
            process.send_signal(signal.SIGCONT)
            # It wakes, finds that the log is not its own any more, and goes by itself.
            assert await self.until_ended(process) != 0
        else:
            process.kill()
            process.wait()
            await self._active((other,))
        self.found.takeovers += 1
        if server is not None:
            await server.start()
        self.kill(hit)  # it has ended; its pipes have not
        self.start_node(hit)

    def _count(self) -> None:
        numbers: dict[tuple[str | None, int | None], str | None] = {}
        places: dict[str | None, int | None] = {}
        stamped: list[int] = []
        stored: dict[str, None] = {}
        heard: dict[str, dict[str, None]] = {}
        for record in self.journals.records():
            if record.kind == "outcome" and record.note == "accepted stored" and record.event is not None:
                stored[record.event] = None
            elif record.kind in ("deliver", "tag") and record.event is not None and record.subscriber is not None:
                heard.setdefault(record.subscriber, {})[record.event] = None
            if record.kind == "timestamp":
                if record.topic == TOPICS[0]:
                    stamped.append(record.at_us)
                is_twice = numbers.setdefault((record.topic, record.number), record.event) != record.event
                is_twice = is_twice or places.setdefault(record.event, record.number) != record.number
                self.found.twice += is_twice
        self.found.lost = sum(event not in events for events in heard.values() for event in stored)
        stamped.sort()
        for at in self._faults_at:
            later = [stamp for stamp in stamped if stamp > at + 300_000]  # after what was under way
            if later:
                self.found.without_order_s.append((later[0] - at) / 1e6)
