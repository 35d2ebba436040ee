"""What long runs have shown, kept by the sources they ran on, so that a campaign that was stopped goes on where it was.

A ledger is a file of JSON lines, `out/results/<campaign>.jsonl`. Every line names the *sources* it is about: a digest
of everything that can change a result. A line about other sources is history; what passed on these is not run again.
`python -m tests.ledger` prints what is known about the sources as they are now.
"""

import hashlib
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "out" / "results"
COUNTED = ("src", "tests", "examples", "pyproject.toml")
"""What a result may depend on; docs and rows of benchmarks may change without running anything again."""


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """One result."""

    sources: str
    commit: str
    name: str
    passed: bool
    seconds: float
    note: str = ""
    at: str = ""
    """When, in UTC."""


@cache
def sources(root: Path = ROOT) -> str:
    """A digest of the sources as they are on disk."""
    digest = hashlib.sha256()
    for part in COUNTED:
        top = root / part
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path):
                digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def commit(root: Path = ROOT) -> str:
    """The commit that is checked out, for people; `+` where the work tree differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")


class Ledger:
    """The results of one campaign about the sources as they are now."""

    def __init__(self, campaign: str, directory: Path = RESULTS) -> None:
        self.path = directory / f"{campaign}.jsonl"
        self.entries: dict[str, Entry] = {}
        if self.path.is_file():
            for line in self.path.read_bytes().splitlines():
                entry = msgspec.json.decode(line, type=Entry)
                if entry.sources == sources():
                    self.entries[entry.name] = entry

    def has_passed(self, name: str) -> bool:
        entry = self.entries.get(name)
        return entry is not None and entry.passed

    def add(self, name: str, passed: bool, seconds: float, note: str = "") -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = self.entries[name] = Entry(sources(), commit(), name, passed, round(seconds, 1), note, at)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")

    def summary(self) -> str:
        """One line about what is known, and a line per failure."""
        counts = Counter(entry.passed for entry in self.entries.values())
        spent = sum(entry.seconds for entry in self.entries.values())
        failures = [f"  {entry.name}: {entry.note}" for entry in self.entries.values() if not entry.passed]
        head = f"{self.path.stem}: {counts[True]} passed, {counts[False]} failed, {spent:.0f} s, sources {sources()}"
        return "\n".join([head, *failures])


def main() -> int:
    ledgers = [Ledger(path.stem) for path in sorted(RESULTS.glob("*.jsonl"))]
    for ledger in ledgers:
        print(ledger.summary())
    return 0 if all(entry.passed for ledger in ledgers for entry in ledger.entries.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
