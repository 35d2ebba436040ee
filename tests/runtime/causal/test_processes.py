"""A mesh of processes with wrong clocks on a network that loses: members and brokers are killed and come back."""

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from tests.runtime.causal.test_causal import mesh
from unisono.audit import Trace, judge_trace
from unisono.model.deployment import dump_deployment
from unisono.model.journal import Header, Journal, Record
from unisono.protocols.causal.deployed import causal_config

JUDGES = ("causal", "publisher-order", "exactly-once", "timely")
ROOT = Path(__file__).parents[3]
PATIENCE_S = 300.0


class Plan(Struct, frozen=True):
    """What one run does; the rest is drawn from the seed."""

    seed: int = 0
    brokers: int = 4
    processes: int = 6
    sessions: int = 5
    """In each process."""
    kills: int = 3
    heard: int = 150
    """Events that each session hears on average between two kills."""


class Process:
    """One of them, and what it has said."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name, self.heard, self.is_ready = name, 0, threading.Event()
        self.more = threading.Condition()
        paths = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.causal.member", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith("ready") or "listens on port" in line:
                self.is_ready.set()
            elif line.startswith('{"heard"'):
                with self.more:
                    self.heard = json.loads(line)["heard"]
                    self.more.notify_all()
            else:
                self.said.append(line)

    def wait_ready(self) -> None:
        assert self.is_ready.wait(PATIENCE_S), f"{self.name}: {''.join(self.said[-20:])}"

    def wait_heard(self, count: int) -> None:
        with self.more:
            heard = self.more.wait_for(lambda: self.heard >= count, PATIENCE_S)
        assert heard, f"{self.name} heard {self.heard} of {count}: {''.join(self.said[-20:])}"

    def end(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write("end\n")
        self.popen.stdin.flush()
        assert self.popen.wait(PATIENCE_S) == 0, "".join(self.said[-20:])

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self._reader.join()
        for each in (self.popen.stdin, self.popen.stdout):
            if each is not None:
                each.close()


def play(directory: Path, plan: Plan) -> Journal:
    """All journals as one: brokers and members killed in turn, while everybody speaks."""
    dice = random.Random(plan.seed)
    regions = [f"r{number % 2}" for number in range(plan.brokers)]
    deployment = mesh(*regions, preset="planet", drop=0.05)
    config = causal_config(deployment)
    within_ms = config.eps_ticks * config.tick_us / 2000
    file, journals = directory / "deployment.toml", directory / "journals"
    file.write_text(dump_deployment(deployment))

    def skew() -> str:
        return f"{dice.uniform(-0.9, 0.9) * within_ms:.1f}"

    def broker(name: str) -> Process:
        return Process(name, str(file), "node", skew(), name)

    def member(name: str) -> Process:
        return Process(name, str(file), str(plan.sessions), skew(), str(journals))

    running: dict[str, Process] = {}
    try:
        for node in deployment.nodes:
            running[node.name] = broker(node.name)
        for process in running.values():
            process.wait_ready()
        members = [f"m{number}" for number in range(plan.processes)]
        for name in members:
            running[name] = member(name)
        for name in members:
            running[name].wait_ready()
        for number in range(plan.kills):
            for name in members:
                running[name].wait_heard(running[name].heard + plan.heard * plan.sessions)
            brokers = [node.name for node in deployment.nodes]
            for victim, make in ((dice.choice(members), member), (dice.choice(brokers), broker)):
                if make is broker and number % 2:
                    continue
                running[victim].kill()
                running[victim] = make(victim)
                running[victim].wait_ready()
        for name in members:
            running[name].wait_heard(running[name].heard + plan.heard * plan.sessions)
        for name in members:
            assert running[name].popen.stdin is not None
        for name in members:
            running[name].end()
    finally:
        for process in running.values():
            process.kill()
    records: list[Record] = []
    skew_us = 0
    for path in sorted(journals.glob("*.jsonl")):
        first, *lines = path.read_bytes().splitlines()
        skew_us = msgspec.json.decode(first, type=Header).skew_us
        records += [msgspec.json.decode(line, type=Record) for line in lines]
    records.sort(key=lambda record: record.at_us)
    return Journal(Header(promises=JUDGES, skew_us=skew_us), [*records, Record("end", records[-1].at_us)])


def ratio(journal: Journal) -> float:
    """Delivered by the deadline, of what was accepted while a subscriber was there from before it to after its life."""
    there: dict[str, tuple[int, int]] = {}
    told: dict[str, set[str]] = {}
    for record in journal.records:
        name = record.subscriber
        if name is None:
            continue
        if record.kind == "subscribe" and name not in there:
            there[name] = record.at_us, record.at_us
        elif record.kind in ("deliver", "tag", "gap") and name in there:
            there[name] = there[name][0], record.at_us
        if record.kind == "deliver" and record.event is not None:
            told.setdefault(name, set()).add(record.event)
    accepted = {r.event for r in journal.records if r.kind == "outcome" and (r.note or "").startswith("accepted")}
    owed = got = 0
    for record in journal.records:
        if record.kind != "publish" or record.event not in accepted or record.deadline_us is None:
            continue
        for name, (first, last) in there.items():
            if first + 1_000_000 < record.at_us and record.deadline_us < last:
                owed += 1
                got += record.event in told.get(name, ())
    return got / max(1, owed)


def check(directory: Path, plan: Plan) -> None:
    journal = play(directory, plan)
    for verdict in judge_trace(Trace(journal), JUDGES):
        assert verdict.holds, f"seed {plan.seed}: {verdict.judge}: {verdict.witness}"
    kinds = [record.kind for record in journal.records]
    share = ratio(journal)
    print(f"{kinds.count('publish')} published, {kinds.count('deliver')} delivered, ratio {share:.4f}")
    assert share > 0.5


@pytest.mark.campaign  # eight processes, and a minute
def test_two_brokers_and_four_members_keep_the_order_through_a_kill(tmp_path: Path) -> None:
    check(tmp_path, Plan(brokers=2, processes=2, sessions=2, kills=1, heard=6))


@pytest.mark.campaign  # ten processes for some minutes
def test_four_brokers_and_thirty_subscribers_keep_the_order_through_kills_and_rejoins(tmp_path: Path) -> None:
    check(tmp_path, Plan())
