"""The crash campaign outside pytest, one line per run: stopped and started again, it goes on where it was.

    python -m tests.runtime.crash.campaign RESULTS [FIRST] [LAST]

Runs whose seeds RESULTS already has are left out. The directory of a run that failed is kept beside RESULTS.
"""

import asyncio
import shutil
import signal
import sys
import time
from pathlib import Path

import msgspec

from tests.runtime.crash.harness import JUDGES, Run, drawn_plan
from unisono.errors import UnisonoError


def play(seed: int, directory: Path) -> dict[str, object]:
    run, begun = Run(directory, drawn_plan(seed)), time.monotonic()
    problem = ""
    try:
        verdicts = {verdict.judge: verdict for verdict in asyncio.run(run.play())}
        failed = [f"{judge}: {verdicts[judge].witness}" for judge in JUDGES if not verdicts[judge].holds]
        problem = "; ".join([*failed, *run.broken_promises()[:3]])
    except (AssertionError, TimeoutError, UnisonoError) as error:
        problem = repr(error)
    counts = dict.fromkeys(("publish", "timestamp", "deliver", "gap", "stalled"), 0)
    for record in run.journal().records:
        if record.kind in counts:
            counts[record.kind] += 1
    row = {"seed": seed, "broker": run.plan.broker, "faults": run.story, "problem": problem}
    return {**row, "seconds": round(time.monotonic() - begun), **counts}


def main(results: Path, first: int = 0, last: int = 99) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes of a run end with it
    lines = results.read_bytes().splitlines() if results.exists() else []
    done = {msgspec.json.decode(line)["seed"]: None for line in lines}
    for seed in range(first, last + 1):
        if seed in done:
            continue
        directory = results.with_suffix("") / f"seed-{seed}"
        shutil.rmtree(directory, ignore_errors=True)
        row = play(seed, directory)
        with results.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
        print(msgspec.json.encode(row).decode(), flush=True)
        if not row["problem"]:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(text) for text in sys.argv[2:]))
