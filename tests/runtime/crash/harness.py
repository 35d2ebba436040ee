"""Crash tests: real processes under load, killed and paused at random moments, judged by their journals.

A run starts a NATS server, three sequencer nodes in a star, two subscribers of both topics and two publishers; then
faults drawn from the seed: kill -9 and restart of a node, of the NATS server or of a client, a pause of any of them, or
a disk that is full under a node's log. The publishers go on until the last fault is over. When everything is quiet, all
journals become one, and the judges read it. On a broker that keeps payloads no gap is excused.
"""

import asyncio
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

import unisono
from tests.runtime.test_cluster import free_ports
from unisono.audit import Trace, Verdict, judge_trace
from unisono.model.deployment import BrokerSpec, Deployment, NodeSpec, TopicSpec, dump_deployment
from unisono.model.journal import Header, Journal, Record
from unisono.runtime.nats_server import NatsServer, NatsServerConfig

PATHS = os.pathsep.join([str(Path(__file__).parents[3]), str(Path(unisono.__file__).parents[1])])
TOPICS = ("trades", "quotes")
NODES = ("hub", "east", "west")
JUDGES = ("pairwise-order", "acyclic", "publisher-order", "exactly-once", "complete", "kept")
VICTIMS = (*NODES, "nats", "subscriber", "publisher", "pause", "disk")
AWAY = "published while this subscription was away"
PATIENCE_S = 240.0
"""How long a run may take beside its faults, on a machine that has other things to do."""


class Plan(Struct, frozen=True):
    """What one run does; everything else is drawn from the seed."""

    seed: int
    faults: int = 3
    victims: tuple[str, ...] = VICTIMS
    broker: Literal["nats", "jetstream"] = "nats"
    interval_us: int = 10_000
    """Between two events of a publisher."""
    away_s: tuple[float, float] = (0.2, 3.0)
    """How long what was killed stays away."""
    pause_s: tuple[float, float] = (1.0, 30.0)
    """How long a paused process stands still; short pauses are as frequent as long ones."""


def drawn_plan(seed: int) -> Plan:
    """One run of the campaign: half are on a broker that keeps payloads, and one in ten has long pauses only."""
    broker: Literal["nats", "jetstream"] = "jetstream" if seed % 2 else "nats"
    if seed % 10 == 9:
        broker = "jetstream" if seed % 20 == 9 else "nats"
        return Plan(seed, faults=2, victims=("pause",), broker=broker, pause_s=(29.0, 30.0))
    return Plan(seed, faults=4, broker=broker)


class Run:
    """One run in a directory of its own."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory, self.plan = directory, plan
        self.dice = random.Random(plan.seed)
        self.story: list[str] = []
        self.journals = directory / "journals"
        self.nats = NatsServer(
            directory / "nats", NatsServerConfig(jetstream=plan.broker == "jetstream", jetstream_sync="2m")
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.crashed: dict[str, None] = {}
        self.file = directory / "deployment.toml"
        self._clients = 0

    async def play(self) -> list[Verdict]:
        """Everything, from the first process to the verdicts."""
        self.directory.mkdir(parents=True, exist_ok=True)
        await self.nats.start()
        self.file.write_text(dump_deployment(self.deployment()))
        try:
            for name in NODES:
                self.start_node(name)
            async with asyncio.timeout(PATIENCE_S + self.plan.faults * self.plan.pause_s[1]):
                await asyncio.gather(*(self.start_subscriber(number) for number in (1, 2)))
                await asyncio.gather(*(self.start_publisher(number) for number in (1, 2)))
                for _ in range(self.plan.faults):
                    await asyncio.sleep(self.dice.uniform(0.05, 0.6))
                    await self.fault()
                await asyncio.gather(*(self.end_publisher(number) for number in (1, 2)))
                await self.quiet()
        finally:
            self.stop()
        return judge_trace(Trace(self.journal()))

    def broken_promises(self) -> list[str]:
        """Events accepted as `stored` that a subscriber, subscribed before they were published and living to the end,
        was told it will not get."""
        if self.plan.broker != "jetstream":
            return []
        records = self._records()
        accepted = {r.event: None for r in records if r.kind == "outcome" and r.note == "accepted stored"}
        published = {r.event: r.at_us for r in records if r.kind == "publish" and r.event in accepted}
        numbers = {(r.topic, r.number): r.event for r in records if r.kind == "timestamp"}
        since = {(r.subscriber, r.topic): r.at_us for r in records if r.kind == "subscribe"}
        broken = []
        for gap in records:
            if gap.kind != "gap" or self._is_dead(gap.subscriber) or gap.note == AWAY:
                continue
            for number in range(gap.number or 0, (gap.last_number or gap.number or 0) + 1):
                event = numbers.get((gap.topic, number))
                if published.get(event, 0) > since[gap.subscriber, gap.topic]:
                    broken.append(f"{event} is stored, and {gap.subscriber} was told: {gap.note}")
        return broken

    def deployment(self) -> Deployment:
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
            broker=BrokerSpec(self.plan.broker, (self.nats.url,)),
        )

    # processes

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        log = (self.directory / f"{name}.log").open("ab")
        environment = {**os.environ, "PYTHONPATH": PATHS}
        process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True
        )
        log.close()
        self.processes[name] = process
        return process

    def start_node(self, name: str) -> subprocess.Popen[bytes]:
        main = "from unisono.cli.main import main; main()"
        return self._start(name, "-c", main, "node", str(self.file), name, "--journal", "all", "--verbose")

    async def start_publisher(self, number: int) -> None:
        worker = ("publish", str(self.file), str(self.journals / f"p{number}"), str(self.plan.interval_us))
        await self._start_worker(f"publisher-{number}", *worker, *TOPICS)

    async def start_subscriber(self, number: int) -> None:
        reliability = "reliable" if self.plan.broker == "jetstream" else "best-effort"
        worker = ("subscribe", str(self.file), str(self.journals / f"s{number}"), f"s{number}", reliability)
        await self._start_worker(f"subscriber-{number}", *worker, *TOPICS)

    async def _start_worker(self, name: str, *arguments: str) -> None:
        process = self._start(name, "-m", "tests.runtime.crash.worker", *arguments)
        assert process.stdout is not None
        line = await asyncio.get_running_loop().run_in_executor(None, process.stdout.readline)
        assert line == b"ready\n", f"{name} did not start: see {self.directory}"

    async def end_publisher(self, number: int) -> None:
        """Stops publishing and waits until everything has its outcome."""
        process = self.processes[f"publisher-{number}"]
        process.terminate()
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
        away = self.dice.uniform(*self.plan.away_s)
        number = self.dice.choice((1, 2))
        if victim == "pause":
            await self._pause(number)
            return
        self.story.append(f"{victim} {away:.2f} s")
        if victim == "nats":
            self.nats.kill()
            await asyncio.sleep(away)
            await self.nats.start()
        elif victim == "subscriber":
            self.kill(f"subscriber-{number}")
            self._mark_crashed(number)
            await asyncio.sleep(away)
            await self.start_subscriber(number)
        elif victim == "publisher":
            self.kill(f"publisher-{number}")
            await asyncio.sleep(away)
            await self.start_publisher(number)
        elif victim == "disk":
            await self._fill_disk(self.dice.choice(NODES), away)
        else:
            self.kill(victim)
            await asyncio.sleep(away)
            self.start_node(victim)

    async def _pause(self, number: int) -> None:
        low, high = self.plan.pause_s
        span = low * (high / low) ** self.dice.random()
        name = self.dice.choice((*NODES, "nats", f"subscriber-{number}", f"publisher-{number}"))
        self.story.append(f"pause {name} {span:.2f} s")
        pid = self.nats.pid if name == "nats" else self.processes[name].pid
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(span)
        os.kill(pid, signal.SIGCONT)

    async def _fill_disk(self, name: str, away: float) -> None:
        """The node may write a few more kilobytes, and stops by itself when they are used up. The limit is one for all
        its files, so it begins a new journal, lest that be full before its log is."""
        self.kill(name)
        size = max(path.stat().st_size for path in (self.directory / "data" / name).iterdir())
        journal = self.directory / "data" / "journal" / f"{name}.jsonl"
        journal.rename(journal.with_name(f"{name}-{len(self.story)}.jsonl"))
        node = self.start_node(name)
        room = size + self.dice.randrange(1 << 12, 1 << 14)
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (room, room))
        code = await asyncio.get_running_loop().run_in_executor(None, node.wait)
        assert code == 2, f"{name} ended with {code} on a full disk: see {self.directory}"
        await asyncio.sleep(away)
        self.start_node(name)

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _mark_crashed(self, number: int) -> None:
        for path in (self.journals / f"s{number}").glob("*.jsonl"):
            self.crashed[path.stem] = None

    # the end

    async def quiet(self, patience_s: float = 150.0, subscriptions: int = 2 * len(TOPICS)) -> None:
        """Waits until the subscribers that live have been told of every number issued, or for as long as is fair."""
        await self._publish_last()
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
            alive = [key for key in told if not self._is_dead(key[0])]
            if len(alive) == subscriptions and all(told[key] >= issued.get(key[1], 0) for key in alive):
                return

    async def _publish_last(self) -> None:
        """One more event per topic: what publishers that have ended left on its way to a home has its number before."""
        async with unisono.connect(self.file, journal=self.journals / "last", timeout=PATIENCE_S) as session:
            for topic in TOPICS:
                while not isinstance(await session.publish(topic, "the last"), unisono.Accepted):
                    pass

    def _is_dead(self, subscriber: str | None) -> bool:
        return subscriber is None or subscriber.partition("/")[0] in self.crashed

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
        seen: dict[tuple[str | None, int | None, str | None], None] = {}
        unique: list[Record] = []
        for record in sorted(self._records(), key=lambda record: record.at_us):
            if record.kind == "timestamp":  # a home repeats its stamps after a restart
                if (record.topic, record.number, record.event) in seen:
                    continue
                seen[record.topic, record.number, record.event] = None
            unique.append(record)
        end = unique[-1].at_us if unique else 0
        return Journal(Header(promises=JUDGES), [*unique, Record("end", end)])
