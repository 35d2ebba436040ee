"""What a commit of a node's log costs: one file on this disk, one stream on one server, one stream on three servers.

All servers run on this machine and sync every message (`sync_interval: always`), so three of them share its disk.
One commit at a time, ten inputs each, as an idle node makes them.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unisono.model.time import Micros
from unisono.runtime.driver.log import FileLog, LogConfig, Logged
from unisono.runtime.driver.replicated import ReplicatedConfig, ReplicatedLog
from unisono.runtime.tools.nats_server import NatsCluster, NatsServer, NatsServerConfig

COMMITS = 200
INPUTS = [Logged(Micros(i), "x" * 60) for i in range(10)]


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        return asyncio.run(measure(Path(name)))


async def measure(directory: Path) -> list[dict[str, Any]]:
    log = FileLog(directory / "file", "bench 1", str)
    list(log.recover()[1])
    grown = FileLog(directory / "grown", "bench 1", str, LogConfig(ahead_bytes=0))
    list(grown.recover()[1])
    rows = [row("file", log.commit), row("file that grows with every commit", grown.commit)]
    log.close()
    grown.close()
    config = NatsServerConfig(jetstream=True)
    server = NatsServer(directory / "one", config)
    await server.start()
    rows.append(await on_stream("stream, 1 server", (server.url,), 1))
    server.kill()
    cluster = NatsCluster(directory / "three", 3, Micros(0), config)
    await cluster.start()
    rows.append(await on_stream("stream, 3 servers", tuple(server.url for server in cluster.servers), 3))
    await cluster.stop()
    return rows


async def on_stream(case: str, servers: tuple[str, ...], replicas: int) -> dict[str, Any]:
    log = ReplicatedLog(ReplicatedConfig(servers, "bench", replicas), "bench 1", str)
    await log.claim()
    log.recover()
    # The proxies between the servers live on this loop: it must go on while commits block.
    found = await asyncio.get_running_loop().run_in_executor(None, row, case, log.commit)
    await asyncio.get_running_loop().run_in_executor(None, log.close)
    return found


def row(case: str, commit: Callable[[list[Logged]], None]) -> dict[str, Any]:
    times_us = []
    spent_s = time.process_time()
    for _ in range(COMMITS):
        started = time.perf_counter_ns()
        commit(INPUTS)
        times_us.append((time.perf_counter_ns() - started) // 1000)
    spent_s = time.process_time() - spent_s
    times_us.sort()
    return {
        "case": case,
        "commit_us_median": round(statistics.median(times_us)),
        "commit_us_p99": times_us[int(len(times_us) * 0.99)],
        "commit_cpu_us": round(spent_s / COMMITS * 1e6, 1),
    }
