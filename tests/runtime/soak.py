"""A soak: two nodes over a NATS server at half of what they can do, restarted in turns, watched for what grows.

`python -m tests.runtime.soak --seconds 600` prints what was measured; the campaign takes an hour. First everything is
published that is taken, for a while: that is the maximum, of this machine with all that runs on it now. Then half of
it, while the nodes are stopped and started again one after the other. Two subscribers that live all the time are told
two topics whose homes are two nodes; what the one is told is compared with what the other is told, event by event.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import unisono
from unisono.runtime.client.publishing.publisher import Publisher
from unisono.runtime.client.session import Session
from unisono.runtime.client.subscription.event_stream import EventStream
from unisono.runtime.tools.nats_server import NatsServer
from unisono.runtime.tools.ports import free_ports

ROOT = Path(__file__).parents[2]
NODES = ("hub", "leaf")
TOPICS = ("trades", "quotes")
PAYLOAD = b"x" * 100
PEOPLE = "clients"
"""The publishers and subscribers, all in the process that measures."""
SAMPLES = 60
RESTARTS = 12
MAXIMUM_S = 20.0
TICK_S = 0.02
SETTLED_S = 240.0
"""Seconds until the last events have to be told, with a machine full of other work."""
CLOSED_S = 30.0
"""Seconds until the subscribers and sessions have to be closed."""


class Sample(NamedTuple):
    """A process at a moment: what it holds."""

    at_s: float
    memory: int
    handles: int
    log: int


class Grown(NamedTuple):
    """The highest of the second quarter of the run, the highest of the last, and what that is per hour."""

    early: float
    late: float
    per_hour: float


class Soaked(NamedTuple):
    """What a soak has found."""

    seconds: float
    maximum_per_s: float
    rate_per_s: float
    accepted: int
    unknown: int
    compared: int
    inversions: int
    missing: int
    gaps: dict[str, int]
    """Events that were skipped at either subscriber, by the reason it was told."""
    late: int
    losses: int
    """How often a broker said that something may have passed a session by."""
    stood_s: float
    """The longest time for which a subscriber was told nothing while something was to be told."""
    restarts: int
    grown: dict[str, dict[str, Grown]]
    unfinished: tuple[str, ...] = ()
    """What did not come to its end within its time."""
    blocks: tuple[int, int] = (0, 0)
    """Pieces of memory that the clients held when all was told, before the hour and after it. What a process has from
    the system does not shrink, and follows the longest time for which a subscriber was late; these do shrink."""

    def problems(self) -> list[str]:
        """What is not flat: more than a fifth and a fixed allowance above what it was."""
        allowed = {"memory": 16 << 20, "handles": 8, "log": 4 << 20}
        found = [
            f"{what} of {who} grew from {grown.early:.0f} to {grown.late:.0f}"
            for who, things in self.grown.items()
            for what, grown in things.items()
            if grown.late > 1.2 * grown.early + allowed[what]
        ]
        before, after = self.blocks
        found += [f"clients held {before} blocks at rest, and then {after}"] if after > 1.2 * before + 20_000 else []
        found += [f"{self.inversions} inversions"] if self.inversions else []
        found += [f"{self.missing} accepted events were not told"] if self.missing else []
        return [*found, *self.unfinished]


def blocks_held() -> int:
    """How many pieces of memory this process holds, without what only waits to be collected."""
    gc.collect()
    return sys.getallocatedblocks()


def growth(samples: Sequence[Sample], what: str) -> Grown:
    """Peaks are compared, since logs and memory are saws; the first quarter is for filling up."""
    first, last = samples[0].at_s, samples[-1].at_s
    quarter = (last - first) / 4
    second = [getattr(each, what) for each in samples if quarter <= each.at_s - first <= 2 * quarter]
    fourth = [getattr(each, what) for each in samples if each.at_s - first >= 3 * quarter]
    early, late = float(max(second)), float(max(fourth))
    return Grown(early, late, (late - early) / max(1e-9, 2 * quarter) * 3600)


class Compared:
    """Two streams side by side: heads that are the same go; a head that the other was told will not come goes, too."""

    def __init__(self) -> None:
        self.waiting: tuple[deque[tuple[str, int]], ...] = (deque(), deque())
        self.same = 0
        self._gone: tuple[dict[str, deque[tuple[int, int]]], ...] = ({}, {})

    def skip(self, place: int, topic: str, first: int, last: int) -> None:
        """The stream was told that these will not come."""
        self._gone[place].setdefault(topic, deque()).append((first, last))

    def _is_gone(self, place: int, topic: str, number: int) -> bool:
        """Asked in the order of the numbers of a topic: what lies before is forgotten."""
        gone = self._gone[place].setdefault(topic, deque())
        while gone and gone[0][1] < number:
            gone.popleft()
        return bool(gone) and gone[0][0] <= number

    def match(self) -> None:
        a, b = self.waiting
        while a and b:
            if a[0] == b[0]:
                a.popleft()
                b.popleft()
                self.same += 1
            elif self._is_gone(1, *a[0]):
                a.popleft()
            elif self._is_gone(0, *b[0]):
                b.popleft()
            else:
                return

    @property
    def is_inverted(self) -> bool:
        """Nothing more may come: heads that differ were told in two orders."""
        self.match()
        return all(self.waiting)


class BrokerNotices(logging.Handler):
    """What sessions log about their broker, counted."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.losses = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.losses += text.startswith("items may have passed")
        if text.startswith(("items may have passed", "the broker is")):
            print(text, file=sys.stderr)


class Soak:
    """The deployment, those who use it, and what was seen."""

    def __init__(self, directory: Path, seconds: float, share: float = 0.5, deadline: str = "60s") -> None:
        """`share`: of the maximum, what is published all the time."""
        self.directory, self.seconds = directory, seconds
        self.nats = NatsServer(directory / "nats")
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.samples: dict[str, list[Sample]] = {name: [] for name in (*NODES, PEOPLE)}
        self.compared, self.gaps, self.restarts = Compared(), Counter[str](), 0
        self.told, self.over = [0, 0], False
        self.listening: list[asyncio.Future[None]] = []
        self.streams: list[EventStream] = []
        self.notices = BrokerNotices()
        self.told_at_s, self.stood_s = [0.0, 0.0], 0.0
        self.unfinished: list[str] = []
        self.blocks = (0, 0)
        self.publishers: list[Publisher] = []
        self.ended, self.maximum, self.share, self.late = asyncio.Event(), 0.0, share, 0
        self.deadline = deadline

    @property
    def file(self) -> Path:
        return self.directory / "deployment.toml"

    def write(self) -> None:
        lines = ["version = 1", 'name = "soak"', f'broker = {{ kind = "nats", servers = ["{self.nats.url}"] }}']
        for name, topic, port in zip(NODES, TOPICS, free_ports(2)):
            lines += [
                "[[nodes]]",
                f'name = "{name}"',
                f'listen = "127.0.0.1:{port}"',
                'data = "data"',
                'observe = "off"',
            ]
            lines += [f'parent = "{NODES[0]}"'] if name != NODES[0] else []
            lines += ["[[topics]]", f'name = "{topic}"', f'home = "{name}"']
        self.file.write_text("\n".join(lines) + "\n")

    def start(self, name: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-m", "unisono", "node", str(self.file), name, "--journal", "off"]
        with (self.directory / f"{name}.out").open("wb") as out:
            self.nodes[name] = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    def restart(self, name: str) -> None:
        process = self.nodes[name]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (self.directory / f"{name}.out").read_text()
        self.start(name)
        self.restarts += 1
        self.await_listening(name)

    def await_listening(self, name: str) -> None:
        until = time.monotonic() + SETTLED_S
        while "listens on port" not in (self.directory / f"{name}.out").read_text():
            assert self.nodes[name].poll() is None, (self.directory / f"{name}.out").read_text()
            assert time.monotonic() < until
            time.sleep(TICK_S)

    def look(self, at_s: float) -> None:
        for name, pid in [*((name, process.pid) for name, process in self.nodes.items()), (PEOPLE, os.getpid())]:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            data = self.directory / "data" / name
            size = sum(path.stat().st_size for path in data.rglob("*") if path.is_file()) if data.exists() else 0
            handles = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            self.samples[name].append(Sample(at_s, pages * os.sysconf("SC_PAGE_SIZE"), handles, size))

    async def listen(self, session: Session, place: int, entered: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        async with session.subscribe(*TOPICS, deadline=self.deadline, buffer=1_000_000) as stream:
            self.streams.append(stream)
            entered.set()
            async for batch in stream.batches():
                now = loop.time()
                if self.told_at_s[place]:
                    self.stood_s = max(self.stood_s, now - self.told_at_s[place])
                self.told_at_s[place] = now
                for event in batch:
                    if event.gap is not None:
                        self.gaps[event.gap.reason] += event.gap.last + 1 - event.gap.first
                        self.told[place] += event.gap.last + 1 - event.gap.first
                        self.compared.skip(place, str(event.topic), event.gap.first, event.gap.last)
                    elif event.late:
                        self.late += 1  # told as a gap before
                    elif event.number is not None and event.topic is not None:
                        self.told[place] += 1
                        self.compared.waiting[place].append((event.topic, event.number))
                self.compared.match()

    async def publish(self, publishers: list[Publisher], seconds: float, rate: float | None) -> None:
        """As much as is taken, or so many a second over both topics."""
        loop = asyncio.get_running_loop()
        began, sent = loop.time(), 0
        while (passed := loop.time() - began) < seconds:
            due = 1000 if rate is None else int(rate * passed) - sent
            for publisher in publishers:
                await publisher.send_all([PAYLOAD] * (due // 2))
            sent += due // 2 * 2
            await asyncio.sleep(0 if rate is None else TICK_S)

    async def settle(self, publishers: list[Publisher]) -> None:
        """Everything that was published has its outcome, and has been told to both; or it is said that it has not."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SETTLED_S
        drained = asyncio.gather(*(publisher.drain() for publisher in publishers))
        done, _ = await asyncio.wait([drained], timeout=SETTLED_S)
        if not done:
            drained.cancel()
            self.unfinished.append(f"publications without an outcome after {SETTLED_S:.0f} s")
        while min(self.told) < (accepted := sum(publisher.accepted for publisher in publishers)):
            if any(each.done() for each in self.listening):
                return  # it is told at the end
            if loop.time() > until:
                self.unfinished.append(f"of {accepted} accepted events {self.told} were told after {SETTLED_S:.0f} s")
                return
            await asyncio.sleep(TICK_S)

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        began, turn = loop.time(), 0
        while not self.over:
            await asyncio.sleep(self.seconds / SAMPLES)
            passed = loop.time() - began
            self.look(passed)
            held = [(stream.held, stream.waiting) for stream in self.streams]
            print(
                f"{passed:.0f} s: told {self.told}, held and unread {held}, skipped {dict(self.gaps)}, "
                f"late {self.late}, {self.restarts} restarts, {self.samples[PEOPLE][-1].memory >> 20} MiB",
                file=sys.stderr,
            )
            if passed > (turn + 1) * self.seconds / (RESTARTS + 1) and turn < RESTARTS:
                await asyncio.to_thread(self.restart, NODES[turn % 2])
                turn += 1

    async def run(self) -> Soaked:
        """There is a verdict whatever does not come to an end: a soak that hangs has found something."""
        logging.getLogger("unisono").addHandler(self.notices)
        logging.getLogger("unisono").setLevel(logging.INFO)
        await self.nats.start()
        self.write()
        try:
            for name in NODES:
                self.start(name)
            playing = asyncio.ensure_future(self.play())
            await asyncio.wait([playing, asyncio.ensure_future(self.ended.wait())], return_when="FIRST_COMPLETED")
            done, _ = await asyncio.wait([playing], timeout=CLOSED_S)
            if not done:
                self.unfinished.append(f"sessions are not closed after {CLOSED_S:.0f} s")
                playing.cancel()
            elif (error := playing.exception()) is not None:
                raise error
        finally:
            logging.getLogger("unisono").removeHandler(self.notices)
            for process in self.nodes.values():
                process.kill()
                process.wait()
            await self.nats.stop()
        return self.verdict()

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        async with (
            unisono.connect(self.file, timeout=60) as first,
            unisono.connect(self.file, timeout=60) as second,
            unisono.connect(self.file, timeout=60) as third,
        ):
            entered = [asyncio.Event(), asyncio.Event()]
            sessions = zip((first, second), range(2), entered)
            self.listening = [asyncio.ensure_future(self.listen(*each)) for each in sessions]
            for each in entered:
                await each.wait()
            self.publishers = [await third.publisher(topic) for topic in TOPICS]
            began = loop.time()
            await self.publish(self.publishers, min(MAXIMUM_S, self.seconds / 4), None)
            await self.settle(self.publishers)
            self.maximum = sum(publisher.accepted for publisher in self.publishers) / (loop.time() - began)
            self.told_at_s, self.stood_s = [0.0, 0.0], 0.0
            before = blocks_held()
            watching = asyncio.ensure_future(self.watch())
            rate = self.maximum * self.share
            publishing = asyncio.ensure_future(self.publish(self.publishers, self.seconds, rate))
            await asyncio.wait([watching, publishing], return_when="FIRST_COMPLETED")
            self.over = True
            if watching.done():
                publishing.cancel()  # a node has ended, or does not end: that is what was found
            await watching
            await self.settle(self.publishers)
            self.blocks = (before, blocks_held())
            self.unfinished += [f"a subscriber ended: {each.exception()!r}" for each in self.listening if each.done()]
            for task in self.listening:
                task.cancel()
            self.ended.set()
            await asyncio.wait(self.listening)

    def verdict(self) -> Soaked:
        accepted = sum(publisher.accepted for publisher in self.publishers)
        return Soaked(
            seconds=self.seconds,
            maximum_per_s=round(self.maximum),
            rate_per_s=round(self.maximum * self.share),
            accepted=accepted,
            unknown=sum(publisher.unknown + publisher.refused for publisher in self.publishers),
            compared=self.compared.same,
            inversions=int(self.compared.is_inverted),
            missing=max(0, accepted - min(self.told)),
            gaps=dict(self.gaps),
            late=self.late,
            losses=self.notices.losses,
            stood_s=round(self.stood_s, 1),
            restarts=self.restarts,
            grown={
                name: {what: growth(samples, what) for what in ("memory", "handles", "log")}
                for name, samples in self.samples.items()
            },
            unfinished=tuple(self.unfinished),
            blocks=self.blocks,
        )


def as_row(found: Soaked) -> dict[str, object]:
    grown = {who: {what: each._asdict() for what, each in things.items()} for who, things in found.grown.items()}
    return {**found._asdict(), "grown": grown, "problems": found.problems()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A soak of so many seconds; prints what was found.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--share", type=float, default=0.5, help="of the maximum, what is published all the time")
    parser.add_argument("--deadline", default="60s", help="of both subscriptions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        soak = Soak(Path(place), options.seconds, options.share, options.deadline)
        row = as_row(asyncio.run(soak.run()))
    print(json.dumps(row, indent=2))
    sys.exit(1 if row["problems"] else 0)
