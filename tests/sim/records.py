"""What a change of names or places must leave as it is: the records of every scenario, as hashes.

    python -m tests.sim.records before.json               before the change
    python -m tests.sim.records after.json before.json    after it: names the runs that differ

Played is the first virtual second of a dozen seeds per scenario, in about a minute of CPU.
"""

import hashlib
import json
import sys
from pathlib import Path

from unisono.model.journal import encode_line
from unisono.sim import scenario

FIRST_US = 1_000_000
SEEDS = range(12)


def digest(name: str, seed: int) -> str:
    """Of the records of a run's first virtual second."""
    chosen = scenario.load(name)
    world = scenario.stage(chosen, seed)
    world.run(until=chosen.workload.begin + FIRST_US)
    return hashlib.sha256(b"".join(map(encode_line, world.records))).hexdigest()


def compare(digests: dict[str, str], before: dict[str, str]) -> list[str]:
    """The runs of both that differ."""
    return [run for run, found in digests.items() if before.get(run, found) != found]


if __name__ == "__main__":
    digests = {f"{name} {seed}": digest(name, seed) for name in scenario.names() for seed in SEEDS}
    Path(sys.argv[1]).write_text(json.dumps(digests, indent=0), encoding="utf-8")
    if len(sys.argv) > 2:
        differ = compare(digests, json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
        print("\n".join(differ) or f"{len(digests)} runs, all as before")
        sys.exit(bool(differ))
