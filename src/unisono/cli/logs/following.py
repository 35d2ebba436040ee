"""`unisono audit --follow`: the verdicts of a log that still grows, batch by batch."""

import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from unisono.audit.live.carried import LIVE
from unisono.audit.live.core import END, BatchReport, LiveAudit
from unisono.audit.live.follow import Follower, follow
from unisono.audit.live.latencies import Latency
from unisono.audit.live.state import LiveLimits
from unisono.audit.parts import ONCE
from unisono.audit.verdict import Verdict
from unisono.cli.screen import screen
from unisono.errors import MisuseError


def follow_file(
    file: Path, promises: list[str], limits: LiveLimits, state: Path | None, idle_s: float | None, as_json: bool
) -> None:
    """Follows until it is interrupted, or until nothing has come for `idle_s`; exits as `unisono audit` does."""
    if not file.exists():
        raise MisuseError(f"{file}: there is no such file or folder to follow")
    if not file.is_file() and not file.is_dir():
        raise MisuseError(f"{file}: {ONCE}")
    for name in promises:
        if name not in LIVE:
            raise MisuseError(f"{name} needs the whole log: audit it without --follow (live are {', '.join(LIVE)})")
    signal.signal(signal.SIGTERM, _interrupt)
    follower = Follower(file, limits, state)
    try:
        for batch in follow(follower, idle_s):
            _tell(batch, as_json)
    except KeyboardInterrupt:
        pass  # the end that people give it: what is open stays open
    finally:
        follower.close()
    promised = promises or [name for name in follower.saved.promises if name in LIVE] or ["pairwise-order"]
    _sum_up(follower.live, promised, as_json)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _tell(batch: BatchReport, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(batch).decode() + "\n")
        sys.stdout.flush()
        return
    console = screen()
    bad = [verdict for verdict in batch.verdicts if verdict.is_violated]
    word = ", ".join(f"{verdict.judge} {verdict.violations}" for verdict in bad)
    console.print(
        f"batch {batch.batch}: {batch.deliveries} deliveries judged up to {_clock(batch.watermark_us)}, "
        f"{batch.open_rows} rows open{_counts(batch)}: ",
        Text(word or ("holds" if batch.deliveries else "nothing closed"), "red" if bad else "green"),
    )
    for verdict in bad:
        console.print(Text(f"  {verdict.judge}: {verdict.witness}"))
    if batch.latencies:
        console.print(_latencies(batch.latencies))


def _clock(moment_us: int | None) -> str:
    """Simulated time begins at 0; real time is told as such."""
    if moment_us is None or moment_us == END:
        return "the end" if moment_us == END else "nothing"
    if moment_us < 10**15:
        return f"{moment_us} us"
    return datetime.fromtimestamp(moment_us / 1e6, UTC).strftime("%H:%M:%S")


def _counts(batch: BatchReport) -> str:
    counted = {"late": batch.late, "forced": batch.forced, "forgotten": batch.forgotten}
    words = [f"{count} {name}" for name, count in counted.items() if count]
    if batch.silent:
        words.append(f"silent: {', '.join(batch.silent)}")
    return f" ({', '.join(words)})" if words else ""


def _latencies(lines: list[Latency]) -> Table:
    table = Table(
        "from", "to", "topic", "notified", "p50 ms", "p99 ms", "order p50 ms", "order p99 ms", "gaps", "stalls"
    )
    table.box, table.pad_edge = None, False
    for line in lines:
        moments = (line.p50_us, line.p99_us, line.held_p50_us, line.held_p99_us)
        table.add_row(
            line.published_in or "?",
            line.delivered_in or "?",
            line.topic,
            str(line.notified),
            *("" if moment is None else f"{moment / 1000:.1f}" for moment in moments),
            str(line.gaps),
            str(line.stalls),
        )
    return table


def _sum_up(live: LiveAudit, promised: list[str], as_json: bool) -> None:
    found = {verdict.judge: verdict for verdict in live.report()}
    if not as_json:
        console = screen()
        state = live.state
        console.print(f"{state.deliveries} deliveries of {state.events} events judged, {state.late} rows late")
        for verdict in found.values():
            console.print(
                f"{verdict.judge}: ", Text("violated" if verdict.is_violated else "holds"), verdict.violations
            )
    verdicts: list[Verdict] = [found.get(name) or live.unjudged(name) for name in promised]
    if any(verdict.is_violated for verdict in verdicts):
        raise typer.Exit(1)
    for verdict in verdicts:
        if not verdict.judged:
            raise MisuseError(f"{verdict.judge}: {verdict.witness}")
