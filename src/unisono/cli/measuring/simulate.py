"""`unisono simulate NAME|FILE.toml`: play a scenario over many seeds in virtual time, and judge what happened."""

import json
import shlex
import tomllib
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.progress import Progress
from rich.table import Table

from unisono.audit import Verdict, judge, write_jsonl
from unisono.cli.screen import screen
from unisono.errors import FormatError, InvariantError, MisuseError
from unisono.model.journal import Journal
from unisono.sim import scenario as scenarios

VIOLATED = 1
SEEDS_MAX = 10_000_000


class SeedResult(NamedTuple):
    """What one seed came to."""

    seed: int
    deliveries: int
    verdicts: list[Verdict]

    @property
    def failed(self) -> bool:
        return any(verdict.is_violated for verdict in self.verdicts)


def simulate(
    name: Annotated[str | None, typer.Argument(metavar="NAME|FILE.toml", help="A scenario; see --list.")] = None,
    seeds: Annotated[str, typer.Option(help="Which runs: 7, or 0..199, or 1,5,9.")] = "0..19",
    journal: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the journal of every run here.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value: workload.clients=20.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes to share the seeds.")] = 1,
    list_all: Annotated[bool, typer.Option("--list", help="Name the built-in scenarios.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Play a scenario over many seeds in virtual time and judge it.

    A run is decided by the scenario and its seed alone. Exit: 0 all promises held, 1 a run broke one, 2 could not run,
    or no run has shown a case of a promise.

    Example: unisono simulate fifo/reorder --seeds 0..199
    """
    if list_all:
        _list(as_json)
        return
    if name is None:
        raise MisuseError("name a scenario, or ask for --list")
    scenario = scenarios.with_options(scenarios.load(name), dict(_setting(text) for text in settings or []))
    if not scenario.promises:
        raise MisuseError(f"{name} promises nothing, so there is nothing to judge: set promises")
    chosen = parse_seeds(seeds)
    if journal is not None:
        journal.mkdir(parents=True, exist_ok=True)
    replay = ["unisono", "simulate", name, *(part for text in settings or [] for part in ("--set", text))]
    runs: list[SeedResult] = []
    errors = screen(stderr=True, wraps=False)
    with ExitStack() as stack:
        finished = _play_all(scenario, chosen, journal, jobs, stack)
        if errors.is_terminal and len(chosen) > 1:
            progress = stack.enter_context(Progress(console=errors, transient=True))
            finished = progress.track(finished, total=len(chosen), description=name)
        for run in finished:
            runs.append(run)
            if run.failed:
                for verdict in run.verdicts:
                    if verdict.is_violated:
                        errors.print(f"seed {run.seed}: {verdict.judge} is broken: {verdict.witness}")
                errors.print(f"  replay: {shlex.join([*replay, '--seeds', str(run.seed), '--journal', 'DIR'])}")
    failed_seeds = [run.seed for run in runs if run.failed]
    report: dict[str, Any] = {
        "scenario": scenario.name,
        "runs": len(runs),
        "failed_seeds": failed_seeds,
        "deliveries": sum(run.deliveries for run in runs),
        "verdicts": summary(runs),
    }
    if as_json:
        print(json.dumps(report))
    else:
        _show(report)
    if failed_seeds:
        raise typer.Exit(VIOLATED)
    for whole in report["verdicts"]:
        if not whole["judged"]:
            raise MisuseError(f"{name}: {whole['judge']}: {whole['witness']}")


def parse_seeds(text: str) -> list[int]:
    """`parse_seeds("0..3,7") == [0, 1, 2, 3, 7]`."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dots, last = part.partition("..")
        if not first.strip().isdecimal() or (dots and not last.strip().isdecimal()):
            raise MisuseError(f"--seeds {text!r}: write 7, or 0..199, or 1,5,9")
        if dots and int(last) - int(first) >= SEEDS_MAX:
            raise MisuseError(f"--seeds {text!r}: at most {SEEDS_MAX} at a time")
        seeds.update(dict.fromkeys(range(int(first), int(last if dots else first) + 1)))
    if not seeds:
        raise MisuseError(f"--seeds {text!r} names no seed")
    return list(seeds)


def play(text: bytes, folder: Path | None, seed: int) -> SeedResult:
    """One run, judged; the scenario comes as text because it may cross into another process."""
    scenario = scenarios.decode(text)
    try:
        journal = scenarios.play(scenario, seed)
    except InvariantError as error:
        return SeedResult(seed, 0, [Verdict("invariant", holds=False, violations=1, witness=str(error))])
    if folder is not None:
        write_jsonl(folder / f"{_file_name(scenario.name)}-{seed}.jsonl", journal.header, journal.records)
    return SeedResult(seed, _deliveries(journal), judge(journal, scenario.promised))


def summary(runs: list[SeedResult]) -> list[dict[str, Any]]:
    """One verdict per judge over all runs; the witness is that of the first run that failed."""
    verdicts: dict[str, dict[str, Any]] = {}
    for run in runs:
        for verdict in run.verdicts:
            whole = verdicts.setdefault(
                verdict.judge, {"judge": verdict.judge, "holds": True, "violations": 0, "witness": "", "judged": False}
            )
            whole["violations"] += verdict.violations
            whole["judged"] |= verdict.judged
            if verdict.is_violated:
                whole["holds"] = False
                whole["witness"] = whole["witness"] or f"seed {run.seed}: {verdict.witness}"
    for whole in verdicts.values():
        if not whole["judged"]:
            whole["holds"], whole["witness"] = False, "nothing to judge in any run"
    return list(verdicts.values())


def _play_all(
    scenario: scenarios.Scenario, seeds: list[int], folder: Path | None, jobs: int, stack: ExitStack
) -> Iterable[SeedResult]:
    text = scenarios.encode(scenario)
    if jobs == 1 or len(seeds) == 1:
        return map(partial(play, text, folder), seeds)
    pool = stack.enter_context(ProcessPoolExecutor(jobs))
    return pool.map(play, repeat(text), repeat(folder), seeds, chunksize=max(1, min(50, len(seeds) // (4 * jobs))))


def _setting(text: str) -> tuple[str, Any]:
    """`workload.clients=20`: the value as TOML would read it; a bare word is a text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise MisuseError(f"--set {text!r}: write KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _deliveries(journal: Journal) -> int:
    return sum(record.kind in ("deliver", "tag") for record in journal.records)


def _file_name(name: str) -> str:
    return Path(name).stem if name.endswith(".toml") else name.replace("/", "-")


def _list(as_json: bool) -> None:
    found = {}
    for name in scenarios.names():
        try:
            found[name] = scenarios.load(name).about
        except FormatError as error:
            found[name] = f"cannot be read: {error}"
    if as_json:
        print(json.dumps(found))
        return
    table = Table("name", "what", box=None, pad_edge=False)
    for name, about in found.items():
        table.add_row(name, about)
    screen().print(table)


def _show(report: dict[str, Any]) -> None:
    console = screen(wraps=False)
    console.print(f"{report['scenario']}: {report['runs']} runs, {report['deliveries']} deliveries")
    for verdict in report["verdicts"]:
        if not verdict["judged"]:
            console.print(f"  {verdict['judge']}: {verdict['witness']}")
        elif verdict["holds"]:
            console.print(f"  {verdict['judge']} holds")
        else:
            console.print(f"  {verdict['judge']} BROKEN, {verdict['violations']} violations; {verdict['witness']}")
    if report["failed_seeds"]:
        console.print(f"  failed seeds: {', '.join(map(str, report['failed_seeds']))}")
