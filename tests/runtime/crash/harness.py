"""Crash tests: real processes under load, in trouble at random moments, judged by their journals.

A run has a broker (one NATS server, with or without JetStream, or a cluster of two, 20 ms apart), three sequencer nodes
in a star, two subscribers of both topics and two publishers, each a process of its own; whatever one of them dials, it
reaches by a proxy. Faults come from the menu (`menu`). The publishers go on until the last fault is over and healed.
When everything is quiet, all journals become one, and the judges read it (`verdicts`).
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

import unisono
from tests.runtime.crash import wrong_clock
from tests.runtime.crash.broker import DEPLOYMENT, make_stream, read_back
from tests.runtime.crash.disks import Disks
from tests.runtime.crash.journals import Journals
from tests.runtime.crash.network import Network
from tests.runtime.crash.prepared import LEASE_VARIABLE, MOVES_VARIABLE
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.journal import Record
from unisono.model.settings import BrokerSpec, NodeSpec, OrderedBy, Region, Sequencing, TopicSpec
from unisono.runtime.tools.nats_server import NatsCluster, NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

PATHS = os.pathsep.join([str(Path(__file__).parents[3]), str(Path(unisono.__file__).parents[1])])
TOPICS = ("trades", "quotes")
NODES = ("hub", "east", "west")
NODE = ("-m", "tests.runtime.crash.prepared", "node")
INCARNATION = "--new-incarnation"
TOLD_TO_COME_BACK = 3
"""How a client ends whose session or subscription has ended (`worker`)."""
BOUND_S = 100.0
"""How long a run may take beside its pauses, on a machine that has other things to do. Who takes longer hangs."""
AWAY_S = (0.2, 2.0)


class Plan(Struct, frozen=True):
    """What one run does; everything else is drawn from the seed."""

    seed: int
    faults: tuple[str, ...] = ()
    """Names from the menu."""
    broker: Literal["nats", "jetstream", "cluster"] = "nats"
    by: OrderedBy = "tree"
    """How nodes order."""
    own_streams: bool = False
    """JetStream: the topics have streams that the user made, so that control has streams of its own."""
    interval_us: int = 10_000
    """Between two events of a publisher."""
    away_s: tuple[float, float] = AWAY_S
    """How long what was killed or cut stays away; short spans are as frequent as long ones. Pauses take twice that."""
    lease_s: float | None = None
    """Clients are forgotten after so long; None leaves it at ten minutes."""


class Run:
    """One run in a directory of its own."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory, self.plan = directory, plan
        self.story: list[str] = []
        self.problems: list[str] = []
        self.phase = "start"
        self.began = {"start": time.monotonic()}
        """Its phases, and when."""
        self.journals = Journals(directory)
        self.network = Network()
        self.disks = Disks()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.emptied: dict[str, None] = {}
        """Topics of which the broker has lost what it had kept."""
        self.moves = 0
        """Orders to move a home that the root has given."""
        self.nodes = list(NODES)
        self.file = directory / "lead.toml"
        """The deployment as the harness sees it, past all proxies."""
        self._ports: dict[str, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._starts: dict[str, int] = {}
        self._said: dict[str, int] = {}  # node -> where in its log it was started last
        self._stamps: dict[str, Path] = {}
        config = NatsServerConfig(jetstream=plan.broker == "jetstream", jetstream_sync="2m")
        self.cluster = NatsCluster(directory / "nats", config=config) if plan.broker == "cluster" else None
        self.servers = self.cluster.servers if self.cluster else [NatsServer(directory / "nats", config)]

    # life

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.began[phase] = time.monotonic()

    async def begin(self, publishers: int = 2) -> None:
        """Returns when everything runs."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if "full-disk" in self.plan.faults:
            for name in NODES:
                self.disks.mount(self.data(name))
        for server in self.servers:
            server.port, server.cluster_port = free_ports(2)
        if self.cluster is not None:
            await self.cluster.start()
        else:
            await self.servers[0].start()
        if self.plan.own_streams:
            for topic in TOPICS:
                await make_stream(self.servers[0].url, topic)
        self._ports.update(zip(NODES, free_ports(len(NODES))))
        await self.write_files()
        for name in NODES:
            self.start_node(name)
        await asyncio.gather(*(self.start_subscriber(number) for number in (1, 2)))
        await asyncio.gather(*(self.start_publisher(number + 1) for number in range(publishers)))

    async def finish(self) -> None:
        """The publishers end, everybody is told everything, and what still runs stops when it is asked to."""
        await self.bring_back()
        self.enter("publishers drain")
        clients = [name for name in self.processes if name.startswith(("publisher", "churner"))]
        await asyncio.gather(*(self.end(name) for name in clients))
        self.enter("subscribers are told the rest")
        await self.quiet()

    async def bring_back(self) -> None:
        """Clients that were told to come back, by a node that has lost what it knew of them, do so."""
        for name, process in list(self.processes.items()):
            if process.poll() == TOLD_TO_COME_BACK and any(INCARNATION in line for line in self.story):
                self.story.append(f"{name} connects again")
                self.close_pipes(process)
                if name.startswith("subscriber"):
                    self.journals.crashed[self.process(name)] = None
                    await self.start_subscriber(int(name[-1]))
                elif name == "churner":
                    await self.start_churner()
                else:
                    await self.start_publisher(int(name[-1]))

    async def end_all(self) -> None:
        """Asks who is left to stop; nobody may refuse."""
        self.enter("everybody stops")
        await asyncio.gather(*(self.end(name) for name in self.processes if name.startswith("subscriber")))
        await asyncio.gather(*(self.end(name) for name in self.nodes))

    async def stop(self) -> None:
        """Whatever still runs does not any more."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.close_pipes(process)
        for server in self.servers:
            server.resume()
            server.kill()
        if self.cluster is not None:
            for proxy in self.cluster.proxies:
                await proxy.stop()
        await self.network.stop()
        self.disks.unmount()

    # who knows what of the deployment

    async def write_files(self) -> None:
        """A file for every party: what it dials, it dials through its own proxies."""
        self.file.write_text(dump_deployment(self._deployment()))
        for party in (*self.nodes, "publisher-1", "publisher-2", "subscriber-1", "subscriber-2", "churner"):
            self.path(party).write_text(dump_deployment(await self._seen_by(party)))

    def data(self, node: str) -> Path:
        return self.directory / "data" / node

    def port(self, node: str) -> int:
        return self._ports[node]

    def path(self, party: str) -> Path:
        return self.directory / f"{party}.toml"

    def _deployment(self) -> Deployment:
        parent = {name: "hub" for name in self.nodes if name != "hub"}
        regions = ("near", "far") if self.cluster is not None else ("local",)
        nodes = [
            NodeSpec(
                name,
                region=regions[index % len(regions)],
                listen=f"127.0.0.1:{self._ports[name]}",
                parent=parent.get(name),
                data=str(self.directory / "data"),
            )
            for index, name in enumerate(self.nodes)
        ]
        return Deployment(
            1,
            DEPLOYMENT,
            regions=tuple(Region(name) for name in regions) if self.cluster is not None else (),
            round_trip_ms={"near far": 40.0} if self.cluster is not None else {},
            nodes=tuple(nodes),
            topics=(TopicSpec("trades", "east"), TopicSpec("quotes", "west")),
            broker=BrokerSpec(
                "jetstream" if self.plan.broker == "jetstream" else "nats", tuple(server.url for server in self.servers)
            ),
            sequencing=Sequencing(by=self.plan.by),
        )

    async def _seen_by(self, party: str) -> Deployment:
        real = self._deployment()
        nodes = [
            node
            if node.name == party
            else structs.replace(
                node,
                listen=f"127.0.0.1:{await self.network.way(party, node.name, self._ports[node.name])}",
                observe="off",  # else the port 1000 above this one may not be a proxy's
            )
            for node in real.nodes
        ]
        servers = [
            f"nats://127.0.0.1:{await self.network.way(party, server.config.name, server.port)}"
            for server in self.servers
        ]
        return structs.replace(real, nodes=tuple(nodes), broker=BrokerSpec(real.broker.kind, tuple(servers)))

    async def add_node(self, name: str) -> None:
        """A new node appears in everybody's file; who runs knows it after a restart."""
        (self._ports[name],) = free_ports(1)
        self.nodes.append(name)
        await self.write_files()

    # processes

    @asynccontextmanager
    async def hold(self, *parties: str) -> AsyncGenerator[None, None]:
        """Nobody else does anything to these parties meanwhile."""
        locks = [self._locks.setdefault(party, asyncio.Lock()) for party in sorted(parties)]
        for lock in locks:
            await lock.acquire()
        try:
            yield
        finally:
            for lock in locks:
                lock.release()

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": PATHS, "PYTHONUNBUFFERED": "1"}
        if self.plan.lease_s is not None:
            environment[LEASE_VARIABLE] = str(round(self.plan.lease_s * 1e6))
        if "move-homes" in self.plan.faults:
            environment[MOVES_VARIABLE] = "1"
        if "clock-step" in self.plan.faults:
            stamp = self._stamps.setdefault(name, self.directory / f"{name}.clock")
            if not stamp.exists():
                stamp.write_text("+0\n")
            environment |= wrong_clock.environment(self.directory, stamp)
        log = self.log(name)
        self._said[name] = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def said(self, name: str) -> str:
        """What a process has said since it was started."""
        return self.log(name).read_bytes()[self._said[name] :].decode(errors="replace")

    def set_clock(self, name: str, wrong_s: int) -> None:
        """Sets the clock of a process wrong, also of one that runs; all of them may be if the plan has `clock-step`."""
        stamp = self._stamps[name]
        new = stamp.with_suffix(".new")
        new.write_text(f"{wrong_s:+d}\n")
        new.replace(stamp)

    def start_node(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        return self.start(name, *NODE, str(self.path(name)), name, "--journal", "all", "--log-level", "info", *options)

    async def until_up(self, name: str) -> bool:
        """Whether a node that was started serves; False when it has ended instead."""
        while "listens on port" not in self.said(name):
            if self.processes[name].poll() is not None:
                return False
            await asyncio.sleep(0.02)
        return True

    async def start_publisher(self, number: int) -> None:
        await self._start_client(f"publisher-{number}", "publish", str(self.plan.interval_us), *TOPICS)

    async def start_subscriber(self, number: int) -> None:
        reliability = "reliable" if self.plan.broker == "jetstream" else "best-effort"
        state = str(self.directory / "state" / f"subscriber-{number}")
        await self._start_client(f"subscriber-{number}", "subscribe", state, f"s{number}", reliability, *TOPICS)

    async def start_churner(self) -> None:
        await self._start_client("churner", "churn", str(self.plan.seed), *TOPICS)

    async def _start_client(self, name: str, what: str, *arguments: str) -> None:
        self._starts[name] = self._starts.get(name, 0) + 1
        journal = self.journals.clients / self.process(name)
        if name in self._stamps:
            self.journals.clocks[journal.name] = int(self._stamps[name].read_text()) * 1_000_000
        worker = ("-m", "tests.runtime.crash.worker", what, str(self.path(name)), str(journal), *arguments)
        process = self.start(name, *worker)
        assert process.stdout is not None
        line = await asyncio.get_running_loop().run_in_executor(None, process.stdout.readline)
        if line == b"ready\n":
            return
        code = await asyncio.get_running_loop().run_in_executor(None, process.wait)
        if code != TOLD_TO_COME_BACK or "connect again" not in self.said(name):
            raise AssertionError(f"{name} did not start: {self.said(name)[-500:]}")
        self.story.append(f"{name} connects again")  # a node has forgotten what others told it
        await self._start_client(name, what, *arguments)

    def process(self, name: str) -> str:
        """Which of the processes that were this client is it now? Each has a journal of its own."""
        return f"{name}.{self._starts[name]}"

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.processes[name]
        process.kill()
        process.wait()
        self.close_pipes(process)
        if name.startswith("subscriber"):
            self.journals.crashed[self.process(name)] = None

    @staticmethod
    def close_pipes(process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    async def end(self, name: str) -> None:
        """Asks a process to stop, and waits; it has to end well."""
        process = self.processes[name]
        process.terminate()
        code = await self.until_ended(process)
        if code:
            self.problems.append(f"{name} ended with {code}: {self.said(name)[-300:]}")

    async def refuses(self, name: str, why: str) -> None:
        """A node has to end by itself, with status 2 and a line that says why."""
        code = await self.until_ended(self.processes[name])
        said = self.said(name)
        if code != 2 or why not in said:
            self.problems.append(f"{name} ended with {code}, and not with 2 and {why!r}: {said[-300:]}")

    async def until_ended(self, process: subprocess.Popen[bytes]) -> int:
        while process.poll() is None:
            await asyncio.sleep(0.02)
        return process.returncode

    def show_stacks(self) -> None:
        """Whoever runs writes into its log where it stands."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGUSR1)

    # the end

    async def read_back(self) -> list[Record]:
        """What the broker keeps of the topics of which it has lost nothing."""
        if self.plan.broker != "jetstream":
            return []
        return await read_back(self.servers[0].url, [topic for topic in TOPICS if topic not in self.emptied])

    async def quiet(self) -> None:
        """Waits until the subscribers that live have been told of every number issued.

        One more event per topic comes first: what publishers that have ended left on its way to a home has its number
        before.
        """
        last = str(self.journals.clients / "last")
        async with unisono.connect(self.file, journal=last, timeout=BOUND_S) as session:
            for topic in TOPICS:
                while not isinstance(await session.publish(topic, "the last"), unisono.Accepted):
                    await asyncio.sleep(0.05)
        while not self._is_quiet():
            await self.bring_back()  # a paused one hears of it last
            await asyncio.sleep(0.2)

    def _is_quiet(self) -> bool:
        issued = dict.fromkeys(TOPICS, 0)
        for record in self.journals.of_nodes():
            if record.kind == "timestamp" and record.topic in issued:
                issued[record.topic] = max(issued[record.topic], record.number or 0)
        for name in ("subscriber-1", "subscriber-2"):
            told = dict.fromkeys(TOPICS, -1)
            for record in self.journals.of(self.process(name)):
                if record.kind in ("subscribe", "deliver", "gap") and record.topic in told:
                    last = record.last_number if record.last_number is not None else record.number or 0
                    told[record.topic] = max(told[record.topic], last)
            if any(told[topic] < issued[topic] for topic in TOPICS):
                return False
        return True
