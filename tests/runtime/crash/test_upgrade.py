"""A rolling upgrade: nodes of the commit in `tests/golden/previous` are replaced one by one under load, on their data.

Sessions are of today. Every event that was accepted is heard by both subscribers, in one order.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import unisono
from unisono.audit.files import read
from unisono.audit.judges.table import judge
from unisono.machine import Accepted
from unisono.model.journal import Journal
from unisono.runtime.tools.ports import free_ports

ROOT = Path(__file__).parents[3]
PREVIOUS = (ROOT / "tests" / "golden" / "previous").read_text(encoding="utf-8").strip()


def sources_of(commit: str, into: Path) -> Path:
    """What stood below src/ then."""
    if not (ROOT / ".git").exists():
        pytest.skip("these sources have no history")
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False)
    assert archive.returncode == 0, archive.stderr.decode()
    into.mkdir()
    subprocess.run(["tar", "-x", "-C", str(into)], input=archive.stdout, check=True)
    return into / "src"


class Nodes:
    """Processes of nodes, each of the one release or the other."""

    def __init__(self, file: Path, old: Path) -> None:
        self.file, self.old = file, old
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, old: bool) -> None:
        environment = {**os.environ, "PYTHONPATH": str(self.old if old else ROOT / "src")}
        command = [sys.executable, "-m", "unisono", "node", str(self.file), name]
        with (self.file.parent / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (self.file.parent / f"{name}.log").read_text()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    old = sources_of(PREVIOUS, tmp_path / "old")
    hub, leaf, broker = free_ports(3)
    file = tmp_path / "deployment.toml"
    file.write_text(
        'version = 1\nname = "shop"\nid = "0123456789ab"\n[broker]\nkind = "embedded"\n'
        f'servers = ["127.0.0.1:{broker}"]\n'
        f'[[nodes]]\nname = "hub"\nlisten = "127.0.0.1:{hub}"\nobserve = "off"\ndata = "data"\n'
        'roles = ["sequencer", "broker"]\n'
        f'[[nodes]]\nname = "leaf"\nparent = "hub"\nlisten = "127.0.0.1:{leaf}"\nobserve = "off"\ndata = "data"\n'
        '[[topics]]\nname = "trades"\nhome = "leaf"\n[[topics]]\nname = "quotes"\nhome = "hub"\n'
    )
    made = Nodes(file, old)
    yield made
    for process in made.running.values():
        process.kill()
        process.wait()


@pytest.mark.campaign
def test_nodes_of_the_previous_release_are_replaced_one_by_one_under_load(nodes: Nodes, tmp_path: Path) -> None:
    async def main() -> None:
        nodes.start("hub", old=True)
        nodes.start("leaf", old=True)
        accepted: list[str] = []
        heard: list[list[str]] = [[], []]
        over, entered = asyncio.Event(), list[int]()

        async def listen(into: list[str]) -> None:
            async with (
                unisono.connect(nodes.file, timeout=60, journal=tmp_path / "journal") as session,
                session.subscribe("trades", "quotes", deadline="60s") as stream,
            ):
                entered.append(1)
                async for event in stream:
                    into += [f"{event.topic} {event.data}"] if event.event is not None else []

        async def publish() -> None:
            async with unisono.connect(nodes.file, timeout=60) as session:
                number = 0
                while not over.is_set():
                    number += 1
                    topic = ("trades", "quotes")[number % 2]
                    if isinstance(await session.publish(topic, number), Accepted):
                        accepted.append(f"{topic} {number}")

        async def reached(count: int) -> None:
            while len(accepted) < count or min(map(len, heard)) < 1:
                await asyncio.sleep(0.05)

        async with asyncio.timeout(240):
            listening = [asyncio.ensure_future(listen(each)) for each in heard]
            while len(entered) < 2:
                await asyncio.sleep(0.05)
            publishing = asyncio.ensure_future(publish())
            await reached(50)
            for name in ("leaf", "hub"):
                await asyncio.to_thread(nodes.stop, name)
                nodes.start(name, old=False)
                await reached(len(accepted) + 50)
            over.set()
            await publishing
            while any(not set(accepted) <= set(each) for each in heard):
                await asyncio.sleep(0.1)
            for each in listening:
                each.cancel()
            await asyncio.wait(listening)
        assert heard[0] == heard[1]
        assert set(accepted) <= set(heard[0])

    asyncio.run(main())
    records = [record for path in sorted((tmp_path / "journal").glob("*.jsonl")) for record in read(path).records]
    verdicts = judge(Journal(read(next((tmp_path / "journal").glob("*.jsonl"))).header, records), ("pairwise-order",))
    assert [verdict.holds for verdict in verdicts] == [True]
