"""The crash campaign: many runs with faults drawn from the menu, kept by the sources they ran on.

    python -m tests.runtime.crash.campaign [--seeds 0..199] [--jobs 2] [--without NAME,NAME] [--again]
    python -m tests.runtime.crash.campaign --faults NAME,NAME --broker KIND [--seeds 0..9]
    python -m tests.runtime.crash.campaign --by clock [--seeds 0..49]         nodes that order by clocks
    python -m tests.runtime.crash.campaign --moves [--seeds 0..49]            while homes move all the time
    python -m tests.runtime.crash.campaign --summary

A run that passed is not played again on sources that change nothing for it (`tests.ledger`), so what was stopped goes
on where it was. The directory of a run that failed is kept below `out/crash`, and the command that plays it again is
printed. Each run is a process of its own, with a bound. The summary is a page about what is known of these sources.
"""

import argparse
import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import get_args

import msgspec
from msgspec import Struct, structs

from tests.ledger import ROOT, Ledger, commit
from tests.runtime.crash.harness import BOUND_S, Plan, Run
from tests.runtime.crash.menu import MENU, Broker, drawn_plan, plan_of, play, with_moves
from unisono.model.settings import OrderedBy

SOURCES = ("tests/runtime/crash/campaign.py", "src/unisono/cli/node.py")
BELOW = ROOT / "out" / "crash"
SLOW_S = 30.0
"""A run that takes longer says what took so long."""
ENDED_S = 20.0
"""How long a run may take to end its processes when it is told to."""
COUNTED = ("publish", "deliver", "gap", "stalled")


class Told(Struct):
    """What a run tells in the end."""

    story: list[str] = []
    problems: list[str] = []
    counts: dict[str, int] = {}
    phases: dict[str, float] = {}
    """When each began, in seconds."""


class Choice(Struct, frozen=True):
    """A seed, and faults that were named instead of drawn."""

    seed: int
    faults: str = ""
    broker: str = ""
    by: OrderedBy = "tree"
    moves: bool = False

    @property
    def name(self) -> str:
        by = "clock" if self.by == "clock" else "moves" if self.moves else ""
        return "-".join(word for word in (by, self.faults.replace(",", "-"), self.broker, f"seed-{self.seed}") if word)

    @property
    def options(self) -> list[str]:
        by = ["--by", self.by] if self.by != "tree" else []
        return [
            *by,
            *(["--moves"] if self.moves else []),
            *(["--faults", self.faults, *(["--broker", self.broker] if self.broker else [])] if self.faults else []),
        ]

    def plan(self) -> Plan:
        plan = structs.replace(self._plan(), by=self.by)
        return with_moves(plan) if self.moves else plan

    def _plan(self) -> Plan:
        if not self.faults:
            return drawn_plan(self.seed)
        names = self.faults.split(",")
        broker: Broker = msgspec.convert(self.broker or MENU[names[0]].brokers[0], Broker)
        return plan_of(self.seed, names, broker)


running: dict[Choice, subprocess.Popen[bytes]] = {}


def play_here(choice: Choice) -> int:
    """One run in this process; says what happened as one line of JSON."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes of a run end with it
    run = Run(BELOW / choice.name, choice.plan())
    problems = asyncio.run(play(run))
    counts = Counter(record.kind for record in run.journals.records() if record.kind in COUNTED)
    first = run.began["start"]
    phases = {phase: round(at - first, 1) for phase, at in run.began.items()}
    print(msgspec.json.encode(Told(run.story, problems, {**counts}, phases)).decode())
    return 1 if problems else 0


def end(process: "subprocess.Popen[bytes]") -> None:
    """What a run has started may outlive it, and keep its pipe open: nobody waits for that."""
    process.terminate()
    try:
        process.wait(timeout=ENDED_S)
    except subprocess.TimeoutExpired:
        process.kill()


def play_there(choice: Choice) -> tuple[Told, float]:
    """One run in a process of its own, and how long it took."""
    directory, began = BELOW / choice.name, time.monotonic()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.runtime.crash.campaign", "--one", str(choice.seed), *choice.options]
    with (directory / "run.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, start_new_session=True)
        running[choice] = process
        try:
            told = msgspec.json.decode(process.communicate(timeout=2 * BOUND_S)[0], type=Told)
        except subprocess.TimeoutExpired:
            end(process)
            told = Told(problems=["hang: the run itself does not end"])
        except msgspec.DecodeError:
            told = Told(problems=[f"the run broke: {(directory / 'run.log').read_text()[-500:]}"])
        finally:
            del running[choice]
    if not told.problems:
        shutil.rmtree(directory)
    return told, time.monotonic() - began


@contextmanager
def alone() -> Iterator[None]:
    """One campaign at a time; who ends it ends the runs under way, which whoever goes on plays again."""

    def give_up(*_: object) -> None:
        for process in list(running.values()):
            end(process)
        os._exit(1)

    BELOW.mkdir(parents=True, exist_ok=True)
    with (BELOW / "LOCK").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another campaign runs below {BELOW}") from None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, give_up)
        yield


def campaign(choices: list[Choice], jobs: int, again: bool) -> int:
    """Plays what has not passed yet; returns how many failed."""
    ledger, failed = Ledger("crash"), 0
    left = [choice for choice in choices if again or not ledger.has_passed(choice.name)]
    with alone(), ThreadPoolExecutor(jobs) as pool:
        for done, (choice, future) in enumerate([(each, pool.submit(play_there, each)) for each in left], 1):
            (told, seconds), plan = future.result(), choice.plan()
            counts = ", ".join(f"{told.counts.get(kind, 0)} {kind}" for kind in COUNTED)
            note = "; ".join([plan.broker, counts, *told.story, *told.problems])
            ledger.add(choice.name, SOURCES, not told.problems, seconds, note)
            print(f"{done}/{len(left)} {choice.name} {plan.broker} {', '.join(plan.faults)}: {seconds:.0f} s, {counts}")
            if told.problems:
                failed += 1
                replay = " ".join([*choice.options, "--seeds", str(choice.seed), "--again"])
                print(*told.problems, f"python -m tests.runtime.crash.campaign {replay}", sep="\n    ")
            if seconds > SLOW_S or told.problems:
                print("    ", *told.story, *(f"{at:.0f} s {phase}" for phase, at in told.phases.items()), sep="; ")
            sys.stdout.flush()
    print(f"{failed} of {len(left)} runs failed, {len(choices) - len(left)} had passed before")
    return failed


def summary() -> str:
    """What drawn runs have shown on these sources, as a page."""
    entries = {name: entry for name, entry in Ledger("crash").entries.items() if name.startswith("seed-")}
    plans = {name: drawn_plan(int(name.removeprefix("seed-"))) for name in entries}
    spent = sum(entry.seconds for entry in entries.values())
    failed = [name for name, entry in entries.items() if not entry.passed]
    counts = Counter[str]()
    for entry in entries.values():
        for part in entry.note.split("; ")[1].split(", ") if entry.note.count("; ") else []:
            number, _, kind = part.partition(" ")
            counts[kind] += int(number) if number.isdecimal() else 0
    rows = [
        f"| `{fault}` | {len(names)} | {len([name for name in names if name in failed])} |"
        for fault in MENU
        if (names := [name for name, plan in plans.items() if fault in plan.faults])
    ]
    brokers = ", ".join(f"{sum(p.broker == b for p in plans.values())} on {b}" for b in get_args(Broker))
    return "\n".join(
        [
            "# The crash campaign",
            "",
            f"Commit {commit()}: {len(entries)} runs ({brokers}), {len(failed)} failed.",
            f"Together {spent / 3600:.1f} hours, {', '.join(f'{counts[kind]} {kind}' for kind in COUNTED)}.",
            "",
            "| fault | runs | failed |",
            "|---|---|---|",
            *rows,
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="runs of real processes in trouble")
    parser.add_argument("--seeds", default="0..199", help="FIRST..LAST")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--faults", default="", help="these from the menu instead of drawn ones, with commas")
    parser.add_argument("--broker", default="", help="nats, jetstream or cluster, with --faults")
    parser.add_argument("--by", default="tree", choices=get_args(OrderedBy), help="how nodes order")
    parser.add_argument("--moves", action="store_true", help="homes move all the time; by tree only")
    parser.add_argument("--without", default="", help="leave out the seeds that draw one of these, with commas")
    parser.add_argument("--again", action="store_true", help="also what has passed")
    parser.add_argument("--summary", action="store_true", help="print what is known of the sources as they are")
    parser.add_argument("--one", type=int, help="only this seed, in this process")
    options = parser.parse_args()
    if options.one is not None:
        return play_here(Choice(options.one, options.faults, options.broker, options.by, options.moves))
    if options.summary:
        print(summary())
        return 0
    first, _, last = options.seeds.partition("..")
    choices = [
        Choice(seed, options.faults, options.broker, options.by, options.moves)
        for seed in range(int(first), int(last or first) + 1)
    ]
    left_out = options.without.split(",")
    choices = [choice for choice in choices if not any(fault in left_out for fault in choice.plan().faults)]
    return 1 if campaign(choices, options.jobs, options.again) else 0


if __name__ == "__main__":
    sys.exit(main())
