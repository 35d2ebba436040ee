"""Plants bugs and demands that the tests notice.

Every `tests/mutants/*.toml` is a list of

    [[mutant]]
    name = "ack-before-log"                            # unique in its file
    breaks = "a crash after the ack loses the frame"   # why the rule is there
    file = "src/unisono/structures/sessions.py"        # or a list of edits under `edits` with file, find, replace
    find = "the text to take out, exactly once in the file"
    replace = "what to put there instead"
    tests = ["tests/structures/test_sessions.py::test_…"]   # all of them run; at least one must fail

With `like = "sequencer/no-hold"` instead of file, find and replace it is that mutant again, for other tests.

Each mutant gets a copy of the sources that only its own test process imports; the work tree is never touched.
`python -m tests.mutants.runner [--only TEXT] [--again]`: exit 0 when every mutant is killed. One that was killed is
not planted again, unless asked, before it, its tests or anything that these can reach has changed (`tests.ledger`).
Tests that hang until the runner loses its patience have noticed nothing: that mutant survives.
"""

import argparse
import compileall
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tests.ledger import Ledger

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).parent
AT_ONCE = 2
TESTS_FAILED = 1  # pytest's exit status; others mean that it could not run, which kills nothing
PATIENCE_SECONDS = 300


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    """One replacement in one file."""

    file: str
    find: str
    replace: str


class Mutant(Struct, frozen=True, forbid_unknown_fields=True):
    """A bug we know of and the tests that must see it."""

    name: str
    breaks: str
    tests: list[str]
    file: str = ""
    find: str = ""
    replace: str = ""
    edits: list[Edit] = []
    like: str = ""

    def all_edits(self) -> list[Edit]:
        return [*self.edits, *([Edit(self.file, self.find, self.replace)] if self.file else [])]


class MutantList(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of mutants."""

    mutant: list[Mutant]


@cache
def mutants() -> dict[str, Mutant]:
    """Every mutant by `<file>/<name>`."""
    found: dict[str, Mutant] = {}
    for path in sorted(LISTS.glob("*.toml")):
        for mutant in msgspec.toml.decode(path.read_bytes(), type=MutantList).mutant:
            name = f"{path.stem}/{mutant.name}"
            if name in found:
                raise SystemExit(f"{name} is listed twice")
            found[name] = mutant
    return {name: replace(mutant, edits=found[mutant.like].all_edits()) if mutant.like else mutant
            for name, mutant in found.items()}  # fmt: skip


def stale(mutant: Mutant, root: Path = ROOT) -> list[str]:
    """What no longer fits the sources, in words; empty when the mutant can be planted."""
    problems = [] if mutant.all_edits() else ["edits nothing"]
    for edit in mutant.all_edits():
        path = root / edit.file
        count = path.read_text(encoding="utf-8").count(edit.find) if path.is_file() else 0
        if count != 1:
            problems.append(f"{edit.file} has the text to find {count} times, not once")
        if edit.find == edit.replace:
            problems.append(f"{edit.file}: the edit changes nothing")
        if count == 1:
            problems += [f"{edit.file} has no self.{name}" for name in _slips(edit, mutant, path.read_text("utf-8"))]
    problems += [f"{test} is not there" for test in mutant.tests if not (root / test.partition("::")[0]).is_file()]
    return problems if mutant.tests else [*problems, "names no tests"]


def _slips(edit: Edit, mutant: Mutant, source: str) -> list[str]:
    """Attributes that the edit uses and nobody has: such a mutant dies of itself, and proves nothing."""
    planted = source
    for other in mutant.all_edits():
        planted = planted.replace(other.find, other.replace) if other.file == edit.file else planted
    return [
        name
        for name in sorted(set(re.findall(r"\bself\.(\w+)", edit.replace)))
        if not re.search(rf"\bself\.{name}\b", source)
        and not re.search(rf"\bself\.{name}\b[^=\n]*=(?!=)|\bdef {name}\b|^    {name}\b *[:=]", planted, re.MULTILINE)
    ]


def run(mutant: Mutant) -> tuple[bool, str]:
    """Whether the tests killed it, and a line about it."""
    problems = stale(mutant)
    if problems:
        return False, "stale: " + "; ".join(problems)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        for part in ("src", "tests", "benchmarks", "examples", "pyproject.toml"):
            # What Python has compiled goes along: it is found to be old where the mutant is, and only there.
            source, skip = ROOT / part, shutil.ignore_patterns("*.egg-info")
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=skip, copy_function=_link)
            else:
                _link(source, copy / part)
        for edit in mutant.all_edits():
            path = copy / edit.file
            planted = path.read_text(encoding="utf-8").replace(edit.find, edit.replace)
            path.unlink()  # the original has this name too
            path.write_text(planted, encoding="utf-8")
        return judge(copy, mutant.tests)


def _link(source: str | Path, copy: str | Path) -> None:
    """The same file under another name, a thousand times cheaper than a copy; where that cannot be, a copy."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)


def judge(copy: Path, tests: list[str]) -> tuple[bool, str]:
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", ""]
    started = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"SURVIVED: the tests hang ({PATIENCE_SECONDS} s), and say nothing"
    took = f"{time.monotonic() - started:.1f} s"
    if done.returncode == TESTS_FAILED:
        slips = sorted(set(re.findall(r"^E +((?:Attribute|Name|UnboundLocal)Error: .*)", done.stdout, re.MULTILINE)))
        return True, f"killed ({took})" + (f", perhaps of itself: {'; '.join(slips)}" if slips else "")
    if done.returncode == 0:
        return False, f"SURVIVED ({took}): {', '.join(tests)}"
    return False, f"the tests could not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description="plant every listed bug; its tests must fail")
    parser.add_argument("--only", default="", help="mutants with this in their name")
    parser.add_argument("--again", action="store_true", help="also those that were killed before")
    options = parser.parse_args()
    chosen = {name: mutant for name, mutant in mutants().items() if options.only in name}
    if not chosen:
        raise SystemExit(f"no mutant has {options.only!r} in its name" if options.only else "no mutants are listed")
    ledger = Ledger("mutants")
    keys = {name: f"{name} {hashlib.sha256(repr(mutant).encode()).hexdigest()[:8]}" for name, mutant in chosen.items()}
    left = [name for name in chosen if options.again or not ledger.has_passed(keys[name])]

    def plant(name: str) -> tuple[str, bool, str, float]:
        started = time.monotonic()
        return name, *run(chosen[name]), time.monotonic() - started

    for part in ("src", "tests"):
        compileall.compile_dir(ROOT / part, quiet=2)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, dead, line, seconds in pool.map(plant, left):
            tests = tuple(sorted({test.partition("::")[0] for test in chosen[name].tests}))
            ledger.add(keys[name], tests, dead, seconds, "" if dead else line)
            print(f"{name}: {line}", flush=True)
    killed = sum(map(ledger.has_passed, keys.values()))
    print(f"{killed} of {len(chosen)} mutants killed, {len(chosen) - len(left)} of them before")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
