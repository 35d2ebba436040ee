"""Brokers as real processes on a chain, over TLS; one is killed under load, stays away, and comes back.

The clients live in the test's own process, each with a session of its own at one broker, and write journals. Moments
are chosen by what has been heard, never by the clock. At the end every publisher says a last word that all filters
select: behind it nothing more of that publisher can come. Then the judges read all journals as one.
"""

import asyncio
import os
import random
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import trustme
from msgspec import Struct, structs

import unisono
from tests.runtime.overlay.test_overlay import chain, until
from unisono.audit import Trace, Verdict, judge_trace
from unisono.machine import CutOff
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.journal import Header, Journal, Record
from unisono.model.settings import Security
from unisono.runtime.client.publishing.publisher import Publisher
from unisono.runtime.client.session import Session
from unisono.runtime.client.subscription.stream import Stream

JUDGES = ("pairwise-order", "fifo", "exactly-once", "complete")
TOKEN = "UNISONO_OVERLAY_TEST_TOKEN"
PATIENCE_S = 240.0
SOURCE = Path(__file__).parents[3] / "src"


class Plan(Struct, frozen=True):
    """What one run does; the rest is drawn from the seed."""

    seed: int = 0
    brokers: int = 4
    victim: int = 1
    before: int = 60
    """Events that everybody has heard from every publisher when the broker is killed."""
    away: int = 60
    """Events that each publisher adds while it is away."""
    crashes: int = 1


class Listener:
    """A subscriber and everything it was told."""

    def __init__(self, name: str, broker: int, where: str) -> None:
        self.name, self.broker, self.where = name, broker, where
        self.heard: dict[str, list[int]] = {}
        self.cuts: list[CutOff] = []
        self.before_cut: dict[str, int] = {}
        self.ended: unisono.UnisonoError | None = None

    async def listen(self, session: Session, ready: asyncio.Event) -> None:
        try:
            async with session.subscribe("trades", "quotes", where=self.where) as stream:
                ready.set()
                await self._read(stream)
        except unisono.TransportError as error:
            self.ended = error

    async def _read(self, stream: Stream) -> None:
        async for told in stream:
            if told.cut is not None:
                self.cuts.append(told.cut)
                self.before_cut = {publisher: max(numbers) for publisher, numbers in self.heard.items()}
            elif told.event is not None:
                self.heard.setdefault(told.event.publisher, []).append(told.event.sequence)

    def has_heard(self, publisher: str, count: int) -> bool:
        return len(self.heard.get(publisher, [])) >= count


class Speaker:
    """A publisher that says numbers, in both topics, until it is stopped."""

    def __init__(self, broker: int, dice: random.Random) -> None:
        self.broker, self._dice = broker, dice
        self.said = 0
        self.lanes: dict[str, int] = {}
        self._publishers: list[Publisher] = []
        self._stop = False
        self._task: asyncio.Task[None] | None = None

    async def start(self, session: Session) -> None:
        self._publishers = [await session.publisher(topic) for topic in ("trades", "quotes")]
        self._task = asyncio.create_task(self._speak(), name=f"speaker at b{self.broker}")

    @property
    def names(self) -> list[str]:
        """The publishers of its events, one per topic."""
        return list(self.lanes)

    async def _speak(self) -> None:
        while not self._stop:
            await self._say(self._publishers[self.said % 2], {"x": self._dice.randrange(10)})
            await asyncio.sleep(self._dice.uniform(0.0, 0.01))
            if self.said % 20 == 0:
                await self._publishers[0].drain()  # no faster than the machine lets the broker be

    async def _say(self, publisher: Publisher, data: dict[str, int | bool]) -> None:
        await publisher.send(data)
        lane = publisher._topic_window
        self.lanes[lane.publisher] = lane.sequence
        self.said += 1

    async def finish(self) -> None:
        """The last words, one per topic, then all outcomes."""
        self._stop = True
        assert self._task is not None
        await self._task
        for publisher in self._publishers:
            await self._say(publisher, {"x": 0, "last": True})
            await publisher.drain()
            assert publisher.failures == []


def start_broker(file: Path, name: str) -> subprocess.Popen[bytes]:
    """`unisono node FILE NAME` of this source tree; what it says is in NAME.log beside the file."""
    main = "from unisono.cli.main import main; main()"
    with (file.parent / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", main, "node", str(file), name, "--log-level", "info"],
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            start_new_session=True,
        )


async def whole(top: Session, low: Session, above: Stream, below: Stream) -> int:
    """Returns when both subscribers have heard both publishers, with the number of events of each."""
    number, heard = 0, {above: set[int](), below: set[int]()}
    while not all({1, 2} <= seen for seen in heard.values()):
        number += 1
        for who, session in ((1, top), (2, low)):
            await session.publish("t", who)
        for stream, seen in heard.items():
            while stream.waiting:
                seen.add((await anext(stream)).data)
        await asyncio.sleep(0.01)
    return number


class Run:
    """One run in a directory of its own."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory, self.plan = directory, plan
        self.dice = random.Random(plan.seed)
        self.file = directory / "deployment.toml"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        ends = (0, plan.brokers - 1)
        self.speakers = [Speaker(broker, random.Random(f"{plan.seed} {broker}")) for broker in ends]
        wheres = ["x < 6 or last = true", "x >= 3 or last = true", "x in (1, 3, 5, 7) or last = true", "true"]
        self.listeners = [
            Listener(f"s{number}", broker, self.dice.choice(wheres))
            for number, broker in enumerate([0, plan.victim, *range(2, plan.brokers), plan.brokers - 1])
        ]
        self.again: list[Listener] = []
        self._records: list[Record] = []

    async def play(self) -> list[Verdict]:
        """Everything, from the first process to the verdicts."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.deployment = self._deployment()
        self.file.write_text(dump_deployment(self.deployment))
        try:
            for node in self.deployment.nodes:
                self._start(node.name)
            async with AsyncExitStack() as stack:
                await self._play(stack)
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()
        return judge_trace(Trace(self.journal()), JUDGES)

    async def _play(self, stack: AsyncExitStack) -> None:
        await self._until_whole()
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = []
        for listener in self.listeners:
            session = await stack.enter_async_context(self._connect(listener.broker))
            tasks.append(await self._listen(group, listener, session))
        for speaker in self.speakers:
            await speaker.start(await stack.enter_async_context(self._connect(speaker.broker)))
        for _ in range(self.plan.crashes):
            await self._crash(group, stack, tasks)
        for speaker in self.speakers:
            await speaker.finish()
        last = {name: number for speaker in self.speakers for name, number in speaker.lanes.items()}
        alive = [each for each in (*self.listeners, *self.again) if each.ended is None]
        await until(
            lambda: all(last[name] in each.heard.get(name, [])[-1:] for each in alive for name in last), PATIENCE_S
        )
        self._records = self._read()  # before the subscriptions end: afterwards nobody is owed anything
        for task in tasks:
            task.cancel()

    async def _until_whole(self) -> None:
        """A broker serves its clients before it has found its neighbours; who subscribes then is owed its piece only,
        and the judges know nothing of pieces. What passes between the ends has passed every link both ways."""
        first, last = "r0", f"r{self.plan.brokers - 1}"
        async with (
            asyncio.timeout(PATIENCE_S),
            unisono.connect(self.file, region=first, timeout=PATIENCE_S) as top,
            unisono.connect(self.file, region=last, timeout=PATIENCE_S) as low,
            top.subscribe("t") as above,
            low.subscribe("t") as below,
        ):
            await whole(top, low, above, below)

    async def _crash(self, group: asyncio.TaskGroup, stack: AsyncExitStack, tasks: "list[asyncio.Task[None]]") -> None:
        """The broker is killed while everybody speaks, and is back when each side has spoken alone for a while."""
        victim = f"b{self.plan.victim}"
        alive = [each for each in (*self.listeners, *self.again) if each.ended is None]
        count = self.plan.before // 4 + self.dice.randrange(self.plan.before // 4)
        names = [name for speaker in self.speakers for name in speaker.names]
        marks = {(each.name, name): len(each.heard.get(name, [])) for each in alive for name in names}
        await until(
            lambda: (
                all(
                    each.has_heard(name, marks.get((each.name, name), 0) + count)
                    for each in alive
                    for speaker in self.speakers
                    for name in speaker.names
                )
                and all(len(speaker.names) == 2 for speaker in self.speakers)
            ),
            PATIENCE_S,
        )
        told = {each.name: len(each.cuts) for each in alive}
        self.processes[victim].kill()
        self.processes[victim].wait()
        here = [each for each in alive if each.broker == self.plan.victim]
        behind = [each for each in alive if each.broker != self.plan.victim]
        await until(lambda: all(len(each.cuts) > told[each.name] for each in behind), PATIENCE_S)
        await until(lambda: all(each.ended is not None for each in here), PATIENCE_S)
        goal = [speaker.said + self.plan.away for speaker in self.speakers]
        await until(lambda: all(s.said >= wanted for s, wanted in zip(self.speakers, goal)), PATIENCE_S)
        self._start(victim)
        far = {each.name: self.far_of(each) for each in behind}
        heard = {each.name: {name: len(each.heard[name]) for name in far[each.name]} for each in behind}
        # A subscription made while the overlay is in pieces hears its own piece only, and nobody could tell it more.
        await until(
            lambda: all(each.has_heard(name, heard[each.name][name] + 1) for each in behind for name in far[each.name]),
            PATIENCE_S,
        )
        for each in here:
            anew = Listener(f"{each.name}'", each.broker, each.where)
            session = await stack.enter_async_context(self._connect(each.broker))
            tasks.append(await self._listen(group, anew, session))
            self.again.append(anew)

    def far_of(self, listener: Listener) -> list[str]:
        """The publishers on the other side of the broker that is killed."""
        is_low = listener.broker < self.plan.victim
        return [name for s in self.speakers if (s.broker < self.plan.victim) != is_low for name in s.names]

    async def _listen(self, group: asyncio.TaskGroup, listener: Listener, session: Session) -> "asyncio.Task[None]":
        ready = asyncio.Event()
        task = group.create_task(listener.listen(session, ready), name=listener.name)
        async with asyncio.timeout(PATIENCE_S):
            await ready.wait()
        return task

    def _connect(self, broker: int):  # type: ignore[no-untyped-def]
        journals = self.directory / "journals"
        return unisono.connect(self.file, region=f"r{broker}", journal=journals, timeout=PATIENCE_S)

    def _deployment(self) -> Deployment:
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_and_cert_chain_pem.write_to_path(str(self.directory / "node.pem"))
        authority.cert_pem.write_to_path(str(self.directory / "ca.pem"))
        security = Security(certificate="node.pem", authority="ca.pem", token_variable=TOKEN)
        return structs.replace(chain(self.plan.brokers), security=security)

    def _start(self, name: str) -> None:
        self.processes[name] = start_broker(self.file, name)

    def journal(self) -> Journal:
        """All journals as one, in the order of time, ended by `end`."""
        return Journal(Header(promises=JUDGES), [*self._records, Record("end", self._records[-1].at_us)])

    def _read(self) -> list[Record]:
        records: list[Record] = []
        for path in (self.directory / "journals").glob("*.jsonl"):
            lines = path.read_bytes().splitlines()[1:]
            records += [msgspec.json.decode(line, type=Record) for line in lines]
        return sorted(records, key=lambda record: record.at_us)
