"""What long runs have shown, kept by the sources they ran on, so that a campaign that was stopped goes on where it was.

A ledger is a file of JSON lines, `out/results/<campaign>.jsonl`. Every line names the *sources* it is about: a digest
of everything that can change this result (`tests.reach`). A line about other sources is history; what passed on these
is not run again. `python -m tests.ledger` prints what is known about the sources as they are now.
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

from tests.reach import data, reach

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "out" / "results"


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
    of: tuple[str, ...] = ()
    """The files that the result began with."""


@cache
def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@cache
def sources(of: tuple[str, ...], root: Path = ROOT) -> str:
    """A digest of everything that can change a result which begins with these files, as it is on disk."""
    digest = hashlib.sha256()
    there = tuple(path for name in of if (path := root / name).is_file())
    for path in (*reach(there, root), *data(root)):
        digest.update(f"{path.relative_to(root)}\0".encode() + _digest(path))
    return digest.hexdigest()[:16]


@cache
def commit(root: Path = ROOT) -> str:
    """The commit that is checked out, for people; `+` where the work tree differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")


class Ledger:
    """The results of one campaign that hold for the sources as they are now."""

    def __init__(self, campaign: str, directory: Path = RESULTS) -> None:
        self.path = directory / f"{campaign}.jsonl"
        self.entries: dict[str, Entry] = {}
        if self.path.is_file():
            for line in self.path.read_bytes().splitlines():
                entry = msgspec.json.decode(line, type=Entry)
                if entry.of and entry.sources == sources(entry.of):
                    self.entries[entry.name] = entry

    def has_passed(self, name: str) -> bool:
        entry = self.entries.get(name)
        return entry is not None and entry.passed

    def add(self, name: str, of: tuple[str, ...], passed: bool, seconds: float, note: str = "") -> None:
        """`of` are the files that the result began with: those of the tests, or of the program that played."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = self.entries[name] = Entry(sources(of), commit(), name, passed, round(seconds, 1), note, at, of)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")

    def summary(self) -> str:
        """One line about what is known, and a line per failure."""
        counts = Counter(entry.passed for entry in self.entries.values())
        spent = sum(entry.seconds for entry in self.entries.values())
        failures = [f"  {entry.name}: {entry.note}" for entry in self.entries.values() if not entry.passed]
        commits = ", ".join(dict.fromkeys(entry.commit for entry in self.entries.values()))
        head = f"{self.path.stem}: {counts[True]} passed, {counts[False]} failed, {spent:.0f} s, at {commits}"
        return "\n".join([head, *failures])


def main() -> int:
    ledgers = [Ledger(path.stem) for path in sorted(RESULTS.glob("*.jsonl"))]
    for ledger in ledgers:
        print(ledger.summary())
    return 0 if all(entry.passed for ledger in ledgers for entry in ledger.entries.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
