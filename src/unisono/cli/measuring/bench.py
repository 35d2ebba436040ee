"""`unisono bench [NAME|all]`: runs benchmarks of the repository and keeps what they measured.

A benchmark is a file in `benchmarks/` with a docstring and `run() -> list[dict]`: one dict per case, strings say what
was measured (`case` always), numbers say how it went. Rows are appended as JSON lines to
`benchmarks/results/NAME.jsonl` with commit, date, machine and the CPU seconds of the whole run; `--compare` appends
nothing and shows the ratio of every number to the last row of the same case. A long benchmark has `run(only)`: it
measures the cases that fit a pattern of `--only`, so that it can be done in parts, and may give its rows one by one:
then what was measured before it is stopped is kept. Where a case has several rows of this commit, their medians are
shown, too: `--medians` shows those and measures nothing. `--against COMMIT` measures two commits in turns
(`unisono.cli.measuring.pairs`).
"""

import inspect
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatch
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.table import Table

from unisono.cli.measuring.pairs import against, show_pairs
from unisono.cli.screen import screen
from unisono.errors import FormatError, MisuseError

CIRCUMSTANCES = ("commit", "date", "machine", "cpu_seconds")
Row = dict[str, Any]


def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A benchmark, or `all`; without it they are listed.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Keep nothing; show ratios to the last row.")] = False,
    medians: Annotated[
        bool, typer.Option("--medians", help="Measure nothing; show the medians of this commit's rows.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Of a long benchmark the cases that fit this pattern; may be repeated."),
    ] = None,
    commit_then: Annotated[
        str | None,
        typer.Option("--against", metavar="COMMIT", help="Measure this commit and what is here in turns."),
    ] = None,
    pairs: Annotated[int, typer.Option("--pairs", help="With --against: how often each of the two.")] = 10,
    arguments: Annotated[
        str, typer.Option("--passing", help="With --against: arguments of the benchmark itself, for both.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure, and compare with the last row.

    Example: unisono bench order --compare
    """
    home = find_home()
    found = {path.stem: path for path in sorted(home.glob("*.py")) if not path.stem.startswith("_")}
    if name is None:
        list_them(found, as_json)
        return
    if name != "all" and name not in found:
        raise MisuseError(f"no benchmark {name!r}; there are: {', '.join(found) or 'none'}")
    if commit_then is not None and name == "all":
        raise MisuseError("--against: one benchmark at a time")
    report = {}
    for chosen in found if name == "all" else [name]:
        kept = home / "results" / f"{chosen}.jsonl"
        before = last_rows(kept)
        coming: Iterable[Row]
        if medians:
            coming = [row for row in before.values() if row.get("commit") == commit(home) and _fits(row, only or [])]
        elif commit_then is not None:
            coming = [{**row, **circumstances(home)} for row in against(home, chosen, commit_then, pairs, arguments)]
        else:
            sys.stderr.write(f"measuring {chosen}\n")  # no spinner: it would be measured, too
            coming = perform(found[chosen], tuple(only or ()))
        rows = []
        for row in coming:
            rows.append(row)
            if not (compare or medians):
                append(kept, row)
        every = read_rows(kept)
        report[chosen] = [
            {**row, "ratios": ratios(row, before.get(identity(row))), "medians": medians_of(row, every)} for row in rows
        ]
        if not as_json and commit_then is not None:
            show_pairs(chosen, rows)
        elif not as_json:
            show(chosen, report[chosen])
    if as_json:
        print(json.dumps(report))


def find_home() -> Path:
    """The repository's benchmarks: beneath the current directory, or beside the sources of an editable install."""
    for root in (Path.cwd(), Path(__file__).parents[4]):
        if (root / "benchmarks" / "results").is_dir() and (root / "pyproject.toml").is_file():
            return root / "benchmarks"
    raise MisuseError("benchmarks live in the repository: run this in a checkout of unisono")


def load(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"benchmarks.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise MisuseError(f"{path} cannot be loaded")
    module = module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # what a benchmark is made of may lie beside it
    spec.loader.exec_module(module)
    return module


def list_them(found: dict[str, Path], as_json: bool) -> None:
    lines = {name: (load(path).__doc__ or "").strip().partition("\n")[0] for name, path in found.items()}
    if as_json:
        print(json.dumps(lines))
        return
    table = Table("name", "what", box=None, pad_edge=False)
    for name, line in lines.items():
        table.add_row(name, line)
    screen().print(table)


def perform(path: Path, only: tuple[str, ...] = ()) -> Iterator[Row]:
    module = load(path)
    if only and "only" not in inspect.signature(module.run).parameters:
        raise MisuseError(f"--only: {path.stem} is measured as a whole")
    started = time.process_time()
    count = 0
    for row in module.run(only=only) if only else module.run():
        count += 1
        yield {**row, **circumstances(path.parent), "cpu_seconds": round(time.process_time() - started, 3)}
    if only and not count:
        raise MisuseError(f"--only {' '.join(only)}: no case of {path.stem} fits; patterns are as in a shell")


def circumstances(home: Path) -> Row:
    return {
        "commit": commit(home),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "cpu": platform.machine()},
    }


def commit(directory: Path) -> str:
    """The commit measured, with a `+` when the work tree differs from it."""
    try:
        head = _git(directory, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(directory, "status", "--porcelain", "--", "../src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def append(path: Path, row: Row) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def identity(row: Row) -> str:
    """What a row is about: its words, without the circumstances."""
    return json.dumps({key: value for key, value in row.items() if isinstance(value, str) and key not in CIRCUMSTANCES})


def read_rows(path: Path) -> list[Row]:
    rows = []
    if path.exists():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as problem:
                raise FormatError(f"{path} line {number}", str(problem)) from None
    return rows


def last_rows(path: Path) -> dict[str, Row]:
    """The newest row of each case."""
    return {identity(row): row for row in read_rows(path)}


def _fits(row: Row, only: list[str]) -> bool:
    return not only or any(fnmatch(row["case"], pattern) for pattern in only)


def medians_of(row: Row, rows: list[Row]) -> dict[str, float]:
    """Of every number of this case and commit, and of how many `rows`."""
    same = [other for other in rows if identity(other) == identity(row) and other.get("commit") == row.get("commit")]
    found: dict[str, float] = {"rows": len(same)}
    for key, value in row.items():
        values = [other[key] for other in same if isinstance(other.get(key), int | float)]
        if isinstance(value, int | float) and key not in CIRCUMSTANCES and values:
            found[key] = round(statistics.median(values), 4)
    return found


def ratios(row: Row, before: Row | None) -> dict[str, float]:
    """Now over then, for every number that both rows have."""
    if before is None:
        return {}
    return {
        key: round(value / before[key], 3)
        for key, value in row.items()
        if isinstance(value, int | float) and isinstance(before.get(key), int | float) and before[key]
    }


def show(name: str, rows: list[Row]) -> None:
    repeated = any(row["medians"]["rows"] > 1 for row in rows)
    columns = ("case", "number", "value", "now / last", *(("median", "of rows") if repeated else ()))
    table = Table(*columns, box=None, pad_edge=False, title=name, title_justify="left")
    for row in rows:
        words = " ".join(value for key, value in row.items() if isinstance(value, str) and key not in CIRCUMSTANCES)
        for key, value in row.items():
            if isinstance(value, int | float):
                ratio, median = row["ratios"].get(key), row["medians"].get(key)
                more = ("", "") if median is None else (f"{median:,}", str(row["medians"]["rows"]))
                table.add_row(
                    words, key, f"{value:,}", "" if ratio is None else f"{ratio:.2f}", *(more if repeated else ())
                )
                words = ""
    screen().print(table)
