"""The crash campaign: many runs with faults drawn from the menu, kept by the sources they ran on.

    python -m tests.runtime.crash.campaign [--seeds 0..199] [--jobs 2] [--faults NAME,NAME --broker KIND] [--again]

A run that passed on these very sources is not played again (`tests.ledger`, campaign `crash`), so what was stopped goes
on where it was. The directory of a run that failed is kept below `out/crash`, and the command that plays it again is
printed. Each run is a process of its own, with a bound.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tests.ledger import ROOT, Ledger
from tests.runtime.crash.harness import BOUND_S, Plan, Run
from tests.runtime.crash.menu import MENU, drawn_plan, plan_of, play

BELOW = ROOT / "out" / "crash"


def planned(seed: int, faults: str, broker: str) -> Plan:
    """The drawn plan, or one with these faults."""
    if not faults:
        return drawn_plan(seed)
    names = faults.split(",")
    return plan_of(seed, names, msgspec.convert(broker or MENU[names[0]].brokers[0], str))  # type: ignore[arg-type]


def title(seed: int, faults: str, broker: str) -> str:
    return "-".join(word for word in (faults.replace(",", "-"), broker, f"seed-{seed}") if word)


def play_here(plan: Plan, directory: Path) -> int:
    """One run in this process; says what happened as one line of JSON."""
    run = Run(directory, plan)
    problems = asyncio.run(play(run))
    print(msgspec.json.encode({"story": run.story, "problems": problems}).decode())
    return 1 if problems else 0


def play_there(seed: int, options: argparse.Namespace) -> tuple[int, list[str], list[str], float]:
    """One run in a process of its own: its story, its problems, how long it took."""
    directory = BELOW / title(seed, options.faults, options.broker)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.runtime.crash.campaign", "--one", str(seed), "--faults", options.faults]
    with (directory / "run.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--broker", options.broker], stdout=subprocess.PIPE, stderr=log, cwd=ROOT, start_new_session=True
        )
        try:
            output, _ = process.communicate(timeout=2 * BOUND_S)
            told = msgspec.json.decode(output, type=dict[str, list[str]])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            told = {"story": [], "problems": ["hang: the run itself does not end"]}
        except msgspec.DecodeError:
            told = {"story": [], "problems": [f"the run broke: {(directory / 'run.log').read_text()[-500:]}"]}
    if not told["problems"]:
        shutil.rmtree(directory)
    return seed, told["story"], told["problems"], time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description="runs of real processes in trouble")
    parser.add_argument("--seeds", default="0..199", help="FIRST..LAST")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--faults", default="", help="these from the menu instead of drawn ones, with commas")
    parser.add_argument("--broker", default="", help="nats, jetstream or cluster, with --faults")
    parser.add_argument("--again", action="store_true", help="also what has passed on these very sources")
    parser.add_argument("--one", type=int, help="only this one, in this process")
    options = parser.parse_args()
    if options.one is not None:
        chosen = (options.one, options.faults, options.broker)
        return play_here(planned(*chosen), BELOW / title(*chosen))
    first, _, last = options.seeds.partition("..")
    seeds, ledger = range(int(first), int(last or first) + 1), Ledger("crash")
    names = {seed: title(seed, options.faults, options.broker) for seed in seeds}
    left = [seed for seed in seeds if options.again or not ledger.has_passed(names[seed])]
    failed, played = 0, Counter[str]()
    with ThreadPoolExecutor(options.jobs) as pool:
        for done, future in enumerate([pool.submit(play_there, seed, options) for seed in left], 1):
            seed, story, problems, seconds = future.result()
            plan = planned(seed, options.faults, options.broker)
            played.update(plan.faults)
            ledger.add(names[seed], not problems, seconds, "; ".join([plan.broker, *story, *problems]))
            print(f"{done}/{len(left)} seed {seed} {plan.broker} {', '.join(plan.faults)}: {seconds:.0f} s", flush=True)
            for problem in problems:
                print(f"    {problem}", flush=True)
            if problems:
                failed += 1
                again = f"--faults {options.faults} --broker {options.broker} " if options.faults else ""
                print(f"    again: python -m tests.runtime.crash.campaign {again}--seeds {seed} --again", flush=True)
    print(", ".join(f"{fault} {count}" for fault, count in played.most_common()))
    print(f"{failed} of {len(left)} runs failed, {len(seeds) - len(left)} had passed before")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
