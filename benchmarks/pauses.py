"""Pauses: how long a node's loop stands still for a snapshot, by the size of its state, and how long a restart takes.

The state is that of one topic manager with the last numbers of its topics, as bytes of its snapshot. `loop_cpu_ms` is
what the thread of the loop uses between two turns for it, but for the fork, in which the system copies page tables:
`fork_cpu_ms`, and `pause_ms` both together by the clock. `here_cpu_ms` is what the same snapshot costs when it is not
forked. `restart` handles a log of single
inputs again, as a node does that was killed.
"""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.messages import Creates, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.runtime.driver.log import FileLog, LogConfig
from unisono.runtime.links import control
from unisono.turns import Logged

SIZES_MB = (1, 10, 100)
TOPICS = 100
RESTARTED = 1_000_000
AT_ONCE = 5_000
FORKED: list[float] = []
"""CPU seconds of this thread before and after a fork."""


def _manager(runs: int) -> TopicManager:
    node = TopicManager(Address("node"), None, (), tuple(Topic(i) for i in range(TOPICS)), {})
    for i in range(runs):
        topic, request = Topic(i % TOPICS), i // TOPICS + 1
        node.handle(Creates(Address("publisher"), (Wanted(topic, request),)), Micros(1))
    return node


def _pause(size_mb: int) -> dict[str, Any]:
    runs = 2_000
    with TemporaryDirectory(dir="out", prefix="bench-pauses-") as name:
        log = FileLog(Path(name), "bench", control.Logged, LogConfig(segment_bytes_max=1, fork_bytes_min=1))
        list(log.recover()[1])
        log.commit([Logged(Micros(1), Creates(Address("publisher"), (Wanted(Topic(0), 1),)))])
        per_run = len(log.begin_snapshot(Micros(1), _manager(runs).snapshot())) / runs
        node = _manager(min(int(size_mb * 1e6 / per_run), 10_000 * TOPICS))
        log.commit([Logged(Micros(1), Creates(Address("publisher"), (Wanted(Topic(0), 1),)))])
        FORKED.clear()
        cpu, clock = time.thread_time(), time.perf_counter()
        writer = log.fork_snapshot(Micros(1), node.snapshot)
        forked_cpu, forked = time.thread_time() - cpu, time.perf_counter() - clock
        fork_cpu = FORKED[1] - FORKED[0]
        assert writer is not None
        log.begin_forked()
        begun = time.perf_counter()
        if not log.finish_forked(writer):
            raise SystemExit("the state could not be written")
        took = time.perf_counter() - begun
        size = (Path(name) / f"snapshot-{writer.number:08d}").stat().st_size
        cpu = time.thread_time()
        log.begin_snapshot(Micros(1), node.snapshot())
        here = time.thread_time() - cpu
        log.close()
    return {
        "case": f"{size_mb} MB of state",
        "snapshot_mb": round(size / 1e6, 1),
        "loop_cpu_ms": round((forked_cpu - fork_cpu) * 1e3, 2),
        "fork_cpu_ms": round(fork_cpu * 1e3, 2),
        "pause_ms": round(forked * 1e3, 2),
        "here_cpu_ms": round(here * 1e3, 1),
        "written_after_s": round(took, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def _restart() -> dict[str, Any]:
    with TemporaryDirectory(dir="out", prefix="bench-pauses-") as name:
        log = FileLog(Path(name), "bench", control.Logged, LogConfig(segment_bytes_max=1 << 40, sync=False))
        list(log.recover()[1])
        for first in range(0, RESTARTED, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            wanted = ((Topic(i % TOPICS), i // TOPICS + 1) for i in numbers)
            log.commit([Logged(Micros(1), Creates(Address("p"), (Wanted(t, request),))) for t, request in wanted])
        log.close()
        size = sum(file.stat().st_size for file in Path(name).iterdir())
        log = FileLog(Path(name), "bench", control.Logged)
        node = TopicManager(Address("node"), None, (), tuple(Topic(i) for i in range(TOPICS)), {})
        cpu, count = time.process_time(), 0
        for at, message in log.recover()[1]:
            node.handle(message, at)
            count += 1
        spent = time.process_time() - cpu
        log.close()
    return {
        "case": "restart",
        "inputs": count,
        "log_mb": round(size / 1e6, 1),
        "cpu_s": round(spent, 2),
        "cpu_us_per_input": round(spent / count * 1e6, 2),
    }


def _note_cpu() -> None:
    FORKED.append(time.thread_time())


def run() -> list[dict[str, Any]]:
    Path("out").mkdir(exist_ok=True)
    os.register_at_fork(before=_note_cpu, after_in_parent=_note_cpu)
    return [*map(_pause, SIZES_MB), _restart()]
