"""`unisono audit FILE`: is a journal, or any log of deliveries, consistent?"""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unisono.audit import JUDGES, Trace, Verdict, judge_trace, measure, read
from unisono.errors import MisuseError


def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The journal, or a log of deliveries made elsewhere.")],
    promise: Annotated[
        list[str] | None,
        typer.Option(
            help="The judge the exit status depends on; may be repeated. pairwise and local are short for "
            f"pairwise-order and local-order. One of: {', '.join(JUDGES)}. "
            "Default: what the journal's header promises, else pairwise."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Is a journal, or any log of deliveries, consistent?

    FILE is JSON lines, Arrow or Parquet with at least the columns subscriber, event and position; more columns switch
    more judges on. Exit: 0 the promise holds, 1 it is violated, 2 could not run.

    Example: unisono audit deliveries.jsonl --promise pairwise --promise exactly-once --json
    """
    with Console(stderr=True).status(f"reading {file}") as status:
        trace = Trace(read(file))
        status.update(f"judging {trace.deliveries} deliveries")
        verdicts = judge_trace(trace)
        metrics = measure(trace)
    promised = [full_name(name) for name in promise] if promise else list(trace.header.promises)
    judged = {verdict.judge: verdict for verdict in verdicts}
    for name in promised:
        if name not in judged:
            full_name(name)
            raise MisuseError(f"{file}: there are no columns to judge {name!r} on (docs/reference/journal.md)")
    if as_json:
        report = {
            "deliveries": trace.deliveries,
            "subscribers": len(trace.streams),
            "verdicts": verdicts,
            "metrics": metrics,
        }
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        _print(trace, verdicts, promised, metrics)
    if not all(judged[name].holds for name in promised):
        raise typer.Exit(1)


def full_name(name: str) -> str:
    """`pairwise` -> `pairwise-order`; raises MisuseError for a judge there is not."""
    for candidate in (name, f"{name}-order"):
        if candidate in JUDGES:
            return candidate
    raise MisuseError(f"there is no judge {name!r}; there are {', '.join(JUDGES)}")


def _print(trace: Trace, verdicts: list[Verdict], promised: list[str], metrics: dict[str, float]) -> None:
    console = Console(highlight=False)
    table = Table("judge", "verdict", "violations", "promised", box=None, pad_edge=False)
    for verdict in verdicts:
        word = Text("holds", "green") if verdict.holds else Text("violated", "red")
        table.add_row(verdict.judge, word, str(verdict.violations), "yes" if verdict.judge in promised else "")
    console.print(f"{trace.deliveries} deliveries to {len(trace.streams)} subscribers")
    console.print(table)
    for verdict in verdicts:
        if not verdict.holds:
            console.print(Text(f"{verdict.judge}: {verdict.witness}"))
    console.print(", ".join(f"{name} {value:g}" for name, value in metrics.items()))
