"""What an audit costs on each engine: CPU seconds and memory for 1, 4, 10 and 30 M deliveries over a wide area.

The traces are those of `tracing.wide`: unequal uplinks and downlinks, sparse positions, subscribers that are there for
part of the run, groups with bridges, one subscriber that has everything, and three columns alone. Every engine judges
the same file, in a process of its own: all judges and metrics, reading and starting included. Memory is the peak of all
its processes together. 30 M deliveries are three tiles of 10 M with events of their own; that the seams fit is what the
judges say, and `tests/audit/test_traces.py`. Python is measured to 10 M, `sparse` and `three` without Python, the other
shapes at 4 M. What `auto` should choose is measured on small logs, as Parquet, as Arrow, and as lines of JSON, packed
or not. All of it takes an hour: `unisono bench audit_engines --only "wide 4 M *"` measures what fits (case and engine),
and does so again for each pattern.

`exponent` says how CPU seconds grow from the smallest to the largest size of a trace, of the newest rows: 1 is linear.
`of_best` is what an engine takes for a trace, divided by what the best of ours does, of those measured together.

`duckdb` and `polars`, where they are installed, answer one question alone, the plain way: whether any two subscribers
have two common events in opposite order, by a join of all deliveries of an event, and neighbours in pairs of streams.
They go to 10 M: polars takes a gigabyte a million.
"""

import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.ipc as ipc
import pyarrow.parquet as pq
from tracing.wide import SHAPES, write

from unisono.audit import scan, write_jsonl
from unisono.spark.session import CpuMeter

MILLION = 1_000_000
SIZES = (0.02, 0.1, 0.4, 1, 4, 10, 30)
SMALL_MAX = 0.5
"""Up to here the question is what `auto` chooses; Spark and the peers would show how long they start."""
GROWING = ("wide", "sparse", "three")
ENGINES = ("python", "arrow", "auto", "spark")
PYTHON_MAX = 10
PEERS_MAX = 10
RESULTS = Path(__file__).parent / "results" / "audit_engines.jsonl"
COMMAND = "from unisono.cli.main import main; main()"


PEERS = {
    "duckdb": """
import sys, duckdb
plain = duckdb.connect()
plain.execute("SET enable_progress_bar = false")
print(plain.execute(f'''
  SELECT count(*) FROM (SELECT y < lag(y) OVER (PARTITION BY p, q ORDER BY x) AS falls FROM (
    SELECT a.subscriber p, b.subscriber q, a.position x, b.position y
    FROM '{sys.argv[1]}' a JOIN '{sys.argv[1]}' b ON a.event = b.event AND a.subscriber < b.subscriber)) WHERE falls
''').fetchone()[0])
""",
    "polars": """
import sys, polars as pl
d = pl.scan_parquet(sys.argv[1]).select("subscriber", "event", "position")
both = d.join(d, on="event", suffix="_q").filter(pl.col("subscriber") < pl.col("subscriber_q"))
falls = pl.col("position_q") < pl.col("position_q").shift(1).over("subscriber", "subscriber_q")
print(both.sort("position").select(falls.sum()).collect().item())
""",
}


def run(only: tuple[str, ...] = ("*",)) -> Iterator[dict[str, Any]]:
    """One row per trace and engine, of those that fit one of the patterns."""
    engines = (*ENGINES, *(name for name in PEERS if find_spec(name) is not None))
    traces = [(shape, size) for shape in GROWING for size in SIZES]
    traces += [(shape, 4) for shape in SHAPES if shape not in GROWING]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for shape, size in traces:
            asked = {
                form: chosen
                for form in ("", *(FORMS if size <= SMALL_MAX else ()))
                if (
                    chosen := [
                        e for e in engines if is_asked(e, shape, size) and fits(case(shape, size, form), e, only)
                    ]
                )
            }
            if not asked:
                continue
            path = Path(folder) / f"{shape}-{size}.parquet"
            tiles = 3 if size > 10 else 1
            write(str(path), SHAPES[shape], int(size * MILLION / tiles), tiles=tiles)
            for form, chosen in asked.items():
                log = FORMS[form](path) if form else path
                log.read_bytes()  # from the disk cache, for the first engine as for the others
                found = [{"case": case(shape, size, form), "engine": e, **measure(log, e)} for e in chosen]
                rows += (done := compared(found))
                yield from done
                if form:
                    log.unlink()
            path.unlink()
    yield from growth(rows)


def case(shape: str, size: float, form: str) -> str:
    return f"{shape} {size:g} M" + (f", {form}" if form else "")


def fits(case: str, engine: str, only: tuple[str, ...]) -> bool:
    return any(fnmatchcase(f"{case} {engine}", pattern) for pattern in only)


def is_asked(engine: str, shape: str, size: float) -> bool:
    if size <= SMALL_MAX:
        return engine in ("python", "arrow", "auto")
    if engine in PEERS:
        return size <= PEERS_MAX
    return engine != "python" or (size <= PYTHON_MAX and shape not in ("sparse", "three"))


def as_lines(path: Path) -> Path:
    """The same rows as lines of JSON."""
    lines = path.with_suffix(".jsonl")
    header, records = scan(path)
    write_jsonl(lines, header, records)
    return lines


def as_packed_lines(path: Path) -> Path:
    """The same packed with gzip."""
    lines = as_lines(path)
    packed = lines.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(lines.read_bytes(), 6))
    lines.unlink()
    return packed


def as_arrow(path: Path) -> Path:
    """The same rows as an Arrow file."""
    table, other = pq.read_table(path), path.with_suffix(".arrow")
    with ipc.new_file(str(other), table.schema) as writer:
        writer.write_table(table, max_chunksize=1 << 16)
    return other


FORMS = {"lines": as_lines, "packed": as_packed_lines, "arrow": as_arrow}
"""What `auto` chooses depends on the form: each is measured on small logs beside Parquet."""


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With what each engine of ours takes, relative to the best of them."""
    ours = [row["audit_cpu_s"] for row in rows if row["engine"] in ENGINES]
    return [
        {**row, "of_best": round(row["audit_cpu_s"] / min(ours), 2)} if row["engine"] in ENGINES else row
        for row in rows
    ]


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How CPU seconds grow, per trace and engine just measured, from one million deliveries on."""
    kept = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()] if RESULTS.exists() else []
    newest = {(row["case"], row["engine"]): row for row in kept + rows if "audit_cpu_s" in row}
    found = []
    for shape in GROWING:
        for engine in dict.fromkeys(row["engine"] for row in rows if row["case"].startswith(f"{shape} ")):
            sized = {size: newest.get((case(shape, size, ""), engine)) for size in SIZES if size > SMALL_MAX}
            large = [(size, row["audit_cpu_s"]) for size, row in sized.items() if row is not None]
            if len(large) > 1:
                (small, little), (most, much) = large[0], large[-1]
                exponent = round(math.log(much / little) / math.log(most / small), 2)
                found.append({"case": f"growth {shape} {small:g}-{most:g} M", "engine": engine, "exponent": exponent})
    return found


def measure(path: Path, engine: str) -> dict[str, Any]:
    """Runs the command as people do. All promises hold of these traces: an engine that says otherwise is no result."""
    command = [sys.executable, "-c", COMMAND, "audit", str(path), "--on", engine, "--json"]
    if engine in PEERS:
        command = [sys.executable, "-c", PEERS[engine], str(path)]
    began = time.perf_counter()
    used = os.times()
    with CpuMeter() as cpu:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        peak = [0]
        watch = threading.Thread(target=_watch, args=(process, peak))
        watch.start()
        said, _ = process.communicate()
        watch.join()
        elapsed = time.perf_counter() - began
        metered = cpu.seconds()  # also of a JVM, which its Python does not wait for; all but the last half second
    spent = os.times()
    waited = spent.children_user + spent.children_system - used.children_user - used.children_system
    report = json.loads(said) if engine not in PEERS else {"deliveries": None, "verdicts": []}
    if engine in PEERS and int(said):
        raise SystemExit(f"{path.name} on {engine}: {said}")
    broken = [verdict["judge"] for verdict in report["verdicts"] if not verdict["holds"]]
    if process.returncode or broken:
        raise SystemExit(f"{path.name} on {engine}: {broken or process.returncode}")
    return {
        "deliveries": report["deliveries"],
        "judges": len(report["verdicts"]),
        "audit_cpu_s": round(max(waited, metered), 2),
        "audit_s": round(elapsed, 2),
        "peak_mb": peak[0] // 1024,
    }


def _watch(process: "subprocess.Popen[str]", peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], _resident_kb(process.pid))
        time.sleep(0.05)


def _resident_kb(pid: int) -> int:
    """Of a process and all below it."""
    total = 0
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        try:
            status = Path(f"/proc/{one}/status").read_text()
            waiting += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except OSError:  # it has just ended
            continue
        total += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
    return total
