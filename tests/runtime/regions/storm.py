"""Runs of real regions in trouble: brokers, primaries and publishers are killed with kill -9 under load, and judged.

Every region has two roots (a group, of which the first by name is where others attach) and brokers below them; the
way to every broker is as long as its region is far. Publishers connect directly to whom they find. What is killed comes
back as another; publishers that are killed do not. When everything is quiet the journals of all become one, and the
judges read it: also who was killed has been told, or is told of, everything.

    python -m tests.runtime.regions.storm --seeds 0..49 [--regions 5]
"""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import unisono
from tests.runtime.crash.journals import Journals
from unisono.audit import Trace, judge_trace
from unisono.model.deployment import Deployment, dump_deployment
from unisono.model.settings import EntourageSpec, MembershipSpec, NodeSpec, Region
from unisono.model.time import Micros
from unisono.runtime.tools.delay import DelayProxy
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

PATHS = os.pathsep.join([str(Path(__file__).parents[3]), str(Path(unisono.__file__).parents[1])])
NODE = ("-c", "from unisono.cli.main import main; main()", "node")
WORKER = ("-m", "tests.runtime.regions.worker")
REGIONS = ("eu", "us", "ap", "sa", "af")
AWAY_MS = (2, 40, 90, 60, 75)
"""One way to a broker of each region."""
JUDGES = ("publisher-order", "exactly-once", "complete", "kept")
READY_S = 120.0
QUIET_S = 90.0


class Storm:
    """One run in a directory of its own."""

    def __init__(self, directory: Path, seed: int, regions: int, leaves: int, kills: int) -> None:
        self.directory, self.leaves, self.kills = directory, leaves, kills
        self.dice = random.Random(seed)
        self.story: list[str] = []
        self.regions = REGIONS[:regions]
        self.journals = Journals(directory)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.server = NatsServer(directory / "nats", NatsServerConfig(jetstream=True, jetstream_sync="2m"))
        self.proxies: list[DelayProxy] = []
        self.file = directory / "deployment.toml"
        self.began_s = time.monotonic()

    async def begin(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        await self.server.start()
        nodes: list[NodeSpec] = []
        for place, region in enumerate(self.regions):
            below = [f"{region}-b{number}" for number in range(1, self.leaves + 1)]
            names = (f"{region}-r1", f"{region}-r2", *below)
            for name, port in zip(names, free_ports(len(names)), strict=True):
                proxy = DelayProxy(Micros(AWAY_MS[place] * 1000))
                self.proxies.append(proxy)
                reached = await proxy.start(("127.0.0.1", port))
                parent = None if "-r" in name else names[0]
                nodes.append(
                    NodeSpec(
                        name,
                        region,
                        f"127.0.0.1:{port}",
                        parent,
                        ("regions",),
                        advertise=f"127.0.0.1:{reached}",
                        observe="off",
                    )
                )
        self.deployment = Deployment(
            1,
            "storm",
            kind="regions",
            regions=tuple(Region(name) for name in self.regions),
            nodes=tuple(nodes),
            entourage=EntourageSpec(psi=0.3, discovery_s=1.0, gone_s=5.0),
            membership=MembershipSpec((self.server.url,), 1, 2.0),
        )
        self.file.write_text(dump_deployment(self.deployment))
        for node in nodes:
            self.start(node.name, *NODE, str(self.file), node.name)
        await asyncio.gather(*(self.says(node.name, "listens on port") for node in nodes))
        self.start("subscribers", *WORKER, "subscribe", str(self.file), str(self.journals.clients), *self.regions)
        await self.says("subscribers", "ready")
        for region in self.regions:
            self.start(f"publisher-{region}", *WORKER, "publish", *self.where(f"publisher-{region}"), region, "20000")
        await asyncio.gather(*(self.says(f"publisher-{region}", "ready") for region in self.regions))

    def where(self, name: str) -> tuple[str, str]:
        return str(self.file), str(self.journals.clients / name)

    def start(self, name: str, *command: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": PATHS}
            self.processes[name] = subprocess.Popen(
                (sys.executable, *command), stdout=log, stderr=log, env=environment, start_new_session=True
            )

    async def says(self, name: str, words: str, times: int = 1) -> None:
        async with asyncio.timeout(READY_S):
            while (self.directory / f"{name}.log").read_text(errors="replace").count(words) < times:
                if self.processes[name].poll() is not None:
                    raise AssertionError(f"{name}: {(self.directory / f'{name}.log').read_text()[-2000:]}")
                await asyncio.sleep(0.05)

    async def trouble(self) -> None:
        """Kills, each followed by a while in which others may be killed, too."""
        brokers = [node.name for node in self.deployment.nodes]
        starts = dict.fromkeys(brokers, 1)
        lost = 0
        for _ in range(self.kills):
            await asyncio.sleep(self.dice.uniform(0.2, 1.5))
            living = [name for name in self.processes if name.startswith("publisher")]
            kind = self.dice.choice(("primary", "broker", "broker", "publisher"))
            if kind == "publisher" and lost < len(self.regions) - 1 and living:
                name = self.dice.choice(living)
                self.kill(name)
                self.journals.crashed[name] = None
                del self.processes[name]
                lost += 1
                continue
            roots = [name for name in brokers if name.endswith("-r1")]
            name = self.dice.choice(roots if kind == "primary" else brokers)
            self.kill(name)
            await asyncio.sleep(self.dice.uniform(0.0, 1.0))
            self.start(name, *NODE, str(self.file), name)
            starts[name] += 1
            await self.says(name, "listens on port", starts[name])

    def kill(self, name: str) -> None:
        self.story.append(f"{time.monotonic() - self.began_s:.1f} s: kill -9 {name}")
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    async def finish(self) -> None:
        """Publishers end when all they have said has its outcome; subscribers when nothing more comes."""
        for name in [name for name in self.processes if name.startswith("publisher")]:
            await self.end(name)
        quiet, before, until = 0, -1, time.monotonic() + QUIET_S
        while quiet < 8 and time.monotonic() < until:
            await asyncio.sleep(1.0)
            now = sum(len(self.journals.of(f"subscriber-{region}")) for region in self.regions)
            quiet, before = (quiet + 1 if now == before else 0), now
        await self.end("subscribers")

    async def end(self, name: str) -> None:
        process = self.processes.pop(name)
        process.terminate()
        code = await asyncio.get_running_loop().run_in_executor(None, process.wait, QUIET_S)
        if code:
            raise AssertionError(f"{name} ended with {code}: {(self.directory / f'{name}.log').read_text()[-2000:]}")

    async def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.server.kill()
        for proxy in self.proxies:
            await proxy.stop()

    def verdicts(self) -> list[str]:
        """Everything that is wrong, in words."""
        journal = self.journals.journal(JUDGES)
        found = {verdict.judge: verdict for verdict in judge_trace(Trace(journal))}
        wrong = [f"{name}: {found[name].witness}" for name in JUDGES if not found[name].holds]
        counts: dict[str, int] = {}
        for record in journal.records:
            counts[record.kind] = counts.get(record.kind, 0) + 1
        self.story.append(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
        if not counts.get("deliver"):
            wrong.append("nothing was delivered")
        return wrong


async def play(
    directory: Path, seed: int, regions: int = 5, leaves: int = 2, kills: int = 8
) -> tuple[list[str], list[str]]:
    """What is wrong, and what happened."""
    storm = Storm(directory, seed, regions, leaves, kills)
    try:
        await storm.begin()
        await storm.trouble()
        await storm.finish()
        return storm.verdicts(), storm.story
    finally:
        await storm.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="regions of real processes that are killed")
    parser.add_argument("--seeds", default="0..49", help="FIRST..LAST")
    parser.add_argument("--regions", type=int, default=5)
    parser.add_argument("--leaves", type=int, default=2, help="brokers below the roots of a region")
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="a directory for what the runs leave")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("..")
    failed = 0
    for seed in range(int(first), int(last or first) + 1):
        with TemporaryDirectory() as scratch:
            directory = options.keep / f"seed-{seed}" if options.keep is not None else Path(scratch)
            begun = time.monotonic()
            try:
                wrong, story = asyncio.run(play(directory, seed, options.regions, options.leaves, options.kills))
            except Exception as error:  # a run that breaks has failed, and the others go on
                wrong, story = [f"{type(error).__name__}: {error}"], []
            failed += bool(wrong)
            print(
                f"seed {seed}: {'; '.join(wrong) or 'holds'} ({time.monotonic() - begun:.0f} s) {story[-1:]}",
                flush=True,
            )
            if wrong:
                print("   ", *story, sep="\n    ", flush=True)
    print(f"{failed} runs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
