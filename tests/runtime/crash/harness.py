"""Crash tests: real processes under load, killed and paused at random moments, judged by their journals.

A run starts a NATS server, three sequencer nodes in a star, two subscribers of both topics and two publishers; then
faults drawn from the seed: kill -9 and restart of a node, of the NATS server or of a subscriber, or a pause. When
the publishers are done and everything is quiet, all journals become one, and the judges read it.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.runtime.test_cluster import free_ports
from unisono.audit import Trace, Verdict, judge_trace
from unisono.model.deployment import BrokerSpec, Deployment, NodeSpec, TopicSpec, dump_deployment
from unisono.model.journal import Header, Journal, Record
from unisono.runtime.nats_server import NatsServer

TOPICS = ("trades", "quotes")
JUDGES = ("pairwise-order", "acyclic", "exactly-once", "complete")


class Plan(Struct, frozen=True):
    """What one run does; everything else is drawn from the seed."""

    seed: int
    events: int = 300
    pause_us: int = 2_000
    faults: int = 3
    victims: tuple[str, ...] = ("hub", "east", "west", "nats", "subscriber", "pause")
    pause_s: tuple[float, float] = (0.3, 1.5)


class Run:
    """One run in a directory of its own."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory, self.plan = directory, plan
        self.dice = random.Random(plan.seed)
        self.story: list[str] = []
        self.journals = directory / "journals"
        self.nats = NatsServer(directory / "nats")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.crashed: dict[str, None] = {}
        self.file = directory / "deployment.toml"
        self._clients = 0

    async def play(self) -> list[Verdict]:
        """Everything, from the first process to the verdicts."""
        self.directory.mkdir(parents=True, exist_ok=True)
        await self.nats.start()
        self.file.write_text(dump_deployment(self._deployment()))
        try:
            for name in ("hub", "east", "west"):
                self.start_node(name)
            async with asyncio.timeout(150):
                await asyncio.gather(*(self.start_subscriber(number) for number in (1, 2)))
                publishers = [self._start_publisher(number) for number in (1, 2)]
                for _ in range(self.plan.faults):
                    await asyncio.sleep(self.dice.uniform(0.05, 0.6))
                    await self.fault()
                for publisher in publishers:
                    await self._wait(publisher)
                await self.quiet()
        finally:
            self.stop()
        return judge_trace(Trace(self.journal()))

    def _deployment(self) -> Deployment:
        hub, east, west = free_ports(3)
        return Deployment(
            1,
            "crash",
            nodes=(
                NodeSpec("hub", listen=f"127.0.0.1:{hub}", data="data"),
                NodeSpec("east", listen=f"127.0.0.1:{east}", parent="hub", data="data"),
                NodeSpec("west", listen=f"127.0.0.1:{west}", parent="hub", data="data"),
            ),
            topics=(TopicSpec("trades", "east"), TopicSpec("quotes", "west")),
            broker=BrokerSpec("nats", (self.nats.url,)),
        )

    # processes

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        log = (self.directory / f"{name}.log").open("ab")
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True
        )
        log.close()
        self.processes[name] = process
        return process

    def start_node(self, name: str) -> None:
        main = "from unisono.cli.main import main; main()"
        self._start(name, "-c", main, "node", str(self.file), name, "--journal", "all", "--verbose")

    def _start_publisher(self, number: int) -> subprocess.Popen[bytes]:
        worker = ("-m", "tests.runtime.crash.worker", "publish", str(self.file), str(self.journals / f"p{number}"))
        count, pause = str(self.plan.events), str(self.plan.pause_us)
        return self._start(f"publisher-{number}", *worker, count, pause, *TOPICS)

    async def start_subscriber(self, number: int) -> None:
        worker = ("-m", "tests.runtime.crash.worker", "subscribe", str(self.file), str(self.journals / f"s{number}"))
        process = self._start(f"subscriber-{number}", *worker, f"s{number}", *TOPICS)
        assert process.stdout is not None
        line = await asyncio.get_running_loop().run_in_executor(None, process.stdout.readline)
        assert line == b"ready\n", f"subscriber {number} did not start: see {self.directory}"

    async def _wait(self, process: subprocess.Popen[bytes]) -> None:
        code = await asyncio.get_running_loop().run_in_executor(None, process.wait)
        assert code == 0, f"a publisher ended with {code}: see {self.directory}"

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.nats.resume()
        self.nats.kill()

    # faults

    async def fault(self) -> None:
        victim = self.dice.choice(self.plan.victims)
        away = self.dice.uniform(*self.plan.pause_s)
        self.story.append(f"{victim} {away:.2f} s")
        if victim == "nats":
            self.nats.kill()
            await asyncio.sleep(away)
            await self.nats.start()
        elif victim == "subscriber":
            number = self.dice.choice((1, 2))
            self._kill(f"subscriber-{number}")
            self._mark_crashed(number)
            await asyncio.sleep(away)
            await self.start_subscriber(number)
        elif victim == "pause":
            process = self.processes[self.dice.choice(("hub", "east", "west", "subscriber-1"))]
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(away)
            process.send_signal(signal.SIGCONT)
        else:
            self._kill(victim)
            await asyncio.sleep(away)
            self.start_node(victim)

    def _kill(self, name: str) -> None:
        process = self.processes[name]
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _mark_crashed(self, number: int) -> None:
        for path in (self.journals / f"s{number}").glob("*.jsonl"):
            self.crashed[path.stem] = None

    # the end

    async def quiet(self, patience_s: float = 40.0) -> None:
        """Waits until the subscribers that live have been told of every number issued, or for as long as is fair."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience_s
        while loop.time() < until:
            await asyncio.sleep(0.3)
            records = self._records()
            issued: dict[str | None, int] = {}
            told: dict[tuple[str | None, str | None], int] = {}
            for record in records:
                if record.kind == "timestamp":
                    issued[record.topic] = max(issued.get(record.topic, 0), record.number or 0)
                elif record.kind in ("subscribe", "deliver", "gap"):
                    last = record.last_number if record.last_number is not None else record.number or 0
                    key = (record.subscriber, record.topic)
                    told[key] = max(told.get(key, 0), last)
            alive = [key for key in told if key[0] is not None and key[0].partition("/")[0] not in self.crashed]
            if len(alive) == 2 * len(TOPICS) and all(told[key] >= issued.get(key[1], 0) for key in alive):
                return

    def _records(self) -> list[Record]:
        records: list[Record] = []
        for path in [*self.journals.rglob("*.jsonl"), *self.directory.glob("data/journal/*.jsonl")]:
            lines = path.read_bytes().split(b"\n")[1:-1]  # without the header and what a kill cut short
            mine = [msgspec.json.decode(line, type=Record) for line in lines]
            records += mine
            if path.stem in self.crashed:
                sids = dict.fromkeys(record.who for record in mine if record.who is not None)
                records += [Record("crash", mine[-1].at_us, who=sid) for sid in sids]
        return records

    def journal(self) -> Journal:
        """All journals as one, in the order of time, ended by `end`."""
        seen: dict[tuple[str | None, int | None], None] = {}
        unique: list[Record] = []
        for record in sorted(self._records(), key=lambda record: record.at_us):
            if record.kind == "timestamp":  # a home repeats its stamps after a restart
                if (record.topic, record.number) in seen:
                    continue
                seen[record.topic, record.number] = None
            unique.append(record)
        end = unique[-1].at_us if unique else 0
        return Journal(Header(promises=JUDGES), [*unique, Record("end", end)])
