"""`unisono bench NAME --against COMMIT`: two commits measured in turns, so that the machine's mood meets both.

Each commit runs its own `benchmarks/NAME.py` over its own sources in a process of its own; pair by pair the one that
begins changes. For every number of a case that both have a row says the medians, and of the ratios within a pair the
median, the quartiles and the ends: how far neighbours in time differ though nothing has changed is the spread within
one commit (`spread`, its quartiles over its median).
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from unisono.cli.screen import screen
from unisono.errors import MisuseError

Row = dict[str, Any]
Measured = dict[tuple[tuple[str, str], ...], dict[str, float]]
"""Numbers by the words of their case."""


def against(home: Path, name: str, commit: str, pairs: int, arguments: str) -> list[Row]:
    """`arguments` are those of the benchmark itself: `--sites 1 --rounds 1`."""
    if pairs < 2:
        raise MisuseError(f"--pairs {pairs}: a spread needs at least two")
    with checked_out(home.parent, commit) as then:
        for tree in (then, home.parent):
            file = tree / "benchmarks" / f"{name}.py"
            if not file.is_file() or "__main__" not in file.read_text(encoding="utf-8"):
                raise MisuseError(f"--against: {name} of {tree.name} cannot be run by itself: it needs a `__main__`")
        taken: dict[Path, list[Measured]] = {then: [], home.parent: []}
        for number in range(pairs):
            sys.stderr.write(f"pair {number + 1} of {pairs}\n")
            for tree in (then, home.parent) if number % 2 == 0 else (home.parent, then):
                taken[tree].append(measure(tree, name, shlex.split(arguments)))
    return list(compared(taken[then], taken[home.parent], commit))


@contextmanager
def checked_out(root: Path, commit: str) -> Iterator[Path]:
    """The sources of a commit in a directory of its name, which is gone afterwards."""
    with TemporaryDirectory(prefix="unisono-") as directory:
        tree = Path(directory) / commit
        _git(root, "worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))


def _git(root: Path, *arguments: str) -> None:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MisuseError(f"--against: git {arguments[0]}: {done.stderr.strip()}")


def measure(tree: Path, name: str, arguments: Sequence[str]) -> Measured:
    (tree / "out").mkdir(exist_ok=True)
    command = [sys.executable, f"benchmarks/{name}.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MisuseError(f"{name} of {tree.name} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    found: Measured = {}
    for line in done.stdout.splitlines():
        row: Row = json.loads(line)
        words = tuple((key, value) for key, value in row.items() if isinstance(value, str))
        found[words] = {key: value for key, value in row.items() if isinstance(value, int | float)}
    return found


def compared(then: list[Measured], now: list[Measured], commit: str) -> Iterator[Row]:
    """A row for each number that every run of both has, and that is never 0."""
    for words, numbers in now[0].items():
        for key in numbers:
            values = [[one.get(words, {}).get(key, 0) for one in runs] for runs in (then, now)]
            if not all(value for runs in values for value in runs):
                continue
            ratios = sorted(new / old for old, new in zip(*values, strict=True))
            low, middle, high = statistics.quantiles(ratios, method="inclusive")
            first, half, third = statistics.quantiles(values[0], method="inclusive")
            yield {
                **dict(words),
                "against": commit,
                "of": key,
                "pairs": len(ratios),
                "then": round(half, 4),
                "now": round(statistics.median(values[1]), 4),
                "ratio": round(middle, 4),
                "ratio_q1": round(low, 4),
                "ratio_q3": round(high, 4),
                "ratio_min": round(ratios[0], 4),
                "ratio_max": round(ratios[-1], 4),
                "spread": round((third - first) / half, 4),
            }


_NO_WORDS = ("against", "of", "commit", "date")


def show_pairs(name: str, rows: list[Row]) -> None:
    """A line per number, under its case."""
    columns = ("number", "then", "now", "now / then", "half lie in", "all lie in", "spread then")
    table = Table(*columns, box=None, pad_edge=False, title=f"{name}, in turns", title_justify="left")
    last = ""
    for row in rows:
        told = [value for key, value in row.items() if isinstance(value, str) and key not in _NO_WORDS]
        case = f"{', '.join(told)}: {row['pairs']} pairs against {row['against']}"
        if case != last:
            table.add_row(case)
            last = case
        inner, outer = (
            f"{row[f'ratio_{low}']:.3f} .. {row[f'ratio_{high}']:.3f}" for low, high in (("q1", "q3"), ("min", "max"))
        )
        table.add_row(
            f"  {row['of']}",
            f"{row['then']:,}",
            f"{row['now']:,}",
            f"{row['ratio']:.3f}",
            inner,
            outer,
            f"{row['spread']:.1%}",
        )
    screen().print(table)
