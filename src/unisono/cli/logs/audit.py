"""`unisono audit FILE`: is a journal, or any log of deliveries, consistent?"""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from unisono.audit import JUDGES, Report
from unisono.audit.engines import ENGINES, choose, examine_file
from unisono.audit.live.state import LiveLimits
from unisono.cli.logs.following import follow_file
from unisono.cli.screen import screen
from unisono.errors import MisuseError
from unisono.model.journal import Header
from unisono.model.time import parse_span


def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The journal, or a log of deliveries made elsewhere.")],
    more: Annotated[list[Path] | None, typer.Argument(hidden=True, metavar="…")] = None,
    promise: Annotated[
        list[str] | None,
        typer.Option(
            help="The judge the exit status depends on; may be repeated. pairwise and local are short for "
            f"pairwise-order and local-order. One of: {', '.join(JUDGES)}. "
            "Default: what the journal's header promises, else pairwise."
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            help="Who judges: python, arrow (columns; one machine), spark, spark://host:port (a cluster) or "
            "sc://host:port (Spark Connect). auto takes what is cheapest for the size of FILE; local is auto without "
            "Spark. All give the same verdicts."
        ),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; with --follow one a batch.")] = False,
    follow: Annotated[
        bool,
        typer.Option(
            help="Judge a log that still grows: a journal, an archive, or a folder of them (region=NAME folders tell "
            "regions). What is closed is judged exactly, batch by batch, until it is interrupted."
        ),
    ] = False,
    state: Annotated[
        Path | None, typer.Option(help="With --follow: a folder for state and verdicts, to go on from after any end.")
    ] = None,
    lateness: Annotated[
        str, typer.Option(help="With --follow: how far apart notifications of one event, and clocks, may be.")
    ] = "5s",
    silence: Annotated[
        str, typer.Option(help="With --follow: a region this far behind the others no longer holds them up.")
    ] = "60s",
    until_idle: Annotated[
        str | None, typer.Option(help="With --follow: end, and judge what is open, when nothing came for so long.")
    ] = None,
) -> None:
    """Check a journal, or any log of deliveries, for broken promises.

    FILE is JSON lines, Arrow or Parquet with at least the columns subscriber, event and position; more columns switch
    more judges on. Exit: 0 the promise holds, 1 it is violated, 2 could not run, or FILE shows nothing to judge.

    Example: unisono audit deliveries.jsonl --promise pairwise --promise exactly-once --json
    Example: unisono audit journals/ --follow --state audit-state --lateness 2s
    """
    if more:
        raise MisuseError(f"{file} and {len(more)} more: files are one journal where they lie in one folder; give that")
    if follow:
        if on not in ("auto", "local", "python"):
            raise MisuseError(
                f"--follow runs here, not --on {on}: on Spark it is unisono.spark.live (docs/reference/spark.md)"
            )
        limits = LiveLimits(lateness_us=parse_span(lateness, "--lateness"), silence_us=parse_span(silence, "--silence"))
        idle_s = None if until_idle is None else parse_span(until_idle, "--until-idle") / 1e6
        follow_file(file, [full_name(name) for name in promise or ()], limits, state, idle_s, as_json)
        return
    if state is not None or until_idle is not None:
        raise MisuseError("--state and --until-idle go with --follow")
    with screen(stderr=True).status(f"reading {file}") as status:
        if on not in ENGINES and not on.startswith(("spark://", "sc://")):
            raise MisuseError(f"--on {on}: give {', '.join(ENGINES)}, spark://host:port or sc://host:port")
        engine = choose(file, spark=on == "auto") if on in ("auto", "local") else on
        if engine in ("python", "arrow"):
            header, report = examine_file(file, engine, lambda step: status.update(f"{step} {file}"))
        else:
            header, report = _on_spark(engine, file)
    judged = {verdict.judge: verdict for verdict in report.verdicts}
    if not promise and (unknown := [name for name in header.promises if not is_judge(name)]):
        raise MisuseError(f"{file}: its header promises {unknown[0]!r}, which no judge knows; name one with --promise")
    promised = [full_name(name) for name in promise or header.promises]
    for name in promised:
        if name not in judged:
            raise MisuseError(f"{file}: there are no columns to judge {name!r} on (docs/reference/journal.md)")
    if as_json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        _print(report, promised)
    if any(judged[name].is_violated for name in promised):
        raise typer.Exit(1)
    for name in promised:
        if not judged[name].judged:
            raise MisuseError(f"{file}: {name}: {judged[name].witness}")


def _on_spark(on: str, file: Path) -> tuple[Header, Report]:
    from unisono.spark.audits import check_file, report_file  # Spark is an extra, and slow to import
    from unisono.spark.session import session_on

    header = check_file(file)
    return header, report_file(session_on(on, f"unisono audit {file.name}"), file)


def is_judge(name: str) -> bool:
    return name in JUDGES or f"{name}-order" in JUDGES


def full_name(name: str) -> str:
    """`pairwise` -> `pairwise-order`; raises MisuseError for a judge there is not."""
    for candidate in (name, f"{name}-order"):
        if candidate in JUDGES:
            return candidate
    raise MisuseError(f"there is no judge {name!r}; there are {', '.join(JUDGES)}")


def _print(report: Report, promised: list[str]) -> None:
    console = screen()
    table = Table("judge", "verdict", "violations", "promised", box=None, pad_edge=False)
    for verdict in report.verdicts:
        word = Text("holds", "green") if verdict.holds else Text("violated", "red")
        if not verdict.judged:
            word = Text("nothing to judge", "yellow")
        table.add_row(verdict.judge, word, str(verdict.violations), "yes" if verdict.judge in promised else "")
    console.print(f"{report.deliveries} deliveries to {report.subscribers} subscribers")
    console.print(table)
    for verdict in report.verdicts:
        if verdict.judged and verdict.witness:
            console.print(Text(f"{verdict.judge}: {verdict.witness}"))
    if far := report.metrics.get("latencies_beyond_a_year"):
        console.print(f"{far} notifications lie more than a year from their publication: are all moments microseconds?")
    console.print(", ".join(f"{name} {value:.10g}" for name, value in report.metrics.items()))
