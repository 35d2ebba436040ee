"""What an audit costs on each engine: CPU seconds and memory for 1, 4, 10 and 30 M deliveries over a wide area.

The traces are those of `tracing.wide`: unequal uplinks and downlinks, sparse positions, subscribers that are there for
part of the run, groups with bridges, one subscriber that has everything, and three columns alone. Every engine judges
the same file, in a process of its own: all judges and metrics, reading and starting included. Memory is the peak of all
its processes together. 30 M deliveries are three tiles of 10 M with events of their own; that the seams fit is what the
judges say. Python is measured to 10 M, shapes other than `wide` at 4 M. As a script: `audit_engines.py SCALE ENGINE …`.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tracing.wide import SHAPES, write

MILLION = 1_000_000
SIZES = (1, 4, 10, 30)
ENGINES = ("python", "arrow", "auto", "spark")
PYTHON_MAX = 10
COMMAND = "from unisono.cli.main import main; main()"


def run(scale: float = 1.0, engines: tuple[str, ...] = ENGINES) -> list[dict[str, Any]]:
    """One row per trace and engine; `scale` shrinks the traces."""
    cases = [("wide", size) for size in SIZES] + [(shape, 4) for shape in SHAPES if shape != "wide"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape, size in cases:
            path = Path(folder) / f"{shape}-{size}.parquet"
            tiles = 3 if size > 10 else 1
            write(str(path), SHAPES[shape], int(size * MILLION * scale / tiles), tiles=tiles)
            rows += [
                {"case": f"{shape} {size} M", "engine": engine, **measure(path, engine)}
                for engine in engines
                if engine != "python" or size <= PYTHON_MAX
            ]
            path.unlink()
    return rows


def measure(path: Path, engine: str) -> dict[str, Any]:
    """Runs the command as people do. All promises hold of these traces: an engine that says otherwise is no result."""
    command = [sys.executable, "-c", COMMAND, "audit", str(path), "--on", engine, "--json"]
    began = time.perf_counter()
    used = os.times()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = [0]
    watch = threading.Thread(target=_watch, args=(process, peak))
    watch.start()
    said, _ = process.communicate()
    watch.join()
    spent = os.times()
    report = json.loads(said)
    broken = [verdict["judge"] for verdict in report["verdicts"] if not verdict["holds"]]
    if process.returncode or broken:
        raise SystemExit(f"{path.name} on {engine}: {broken or process.returncode}")
    return {
        "deliveries": report["deliveries"],
        "judges": len(report["verdicts"]),
        "audit_cpu_s": round(
            spent.children_user + spent.children_system - used.children_user - used.children_system, 2
        ),
        "audit_s": round(time.perf_counter() - began, 2),
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


if __name__ == "__main__":
    chosen = tuple(sys.argv[2:]) or ENGINES
    print(json.dumps(run(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0, chosen), indent=1))
