"""A Spark session that finds this Python and stays on this machine, for commands, examples and tests."""

import ctypes
import os
import shutil
import socket
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from unisono.audit.memory import memory_bytes
from unisono.errors import MisuseError, TransportError

PR_SET_CHILD_SUBREAPER = 36
# Measured in the data-pipeline spec: C1 and the serial collector save 45 % of the CPU of short jobs.
SHORT_JOB_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Spark turns Arrow batches into rows field by field. Without a check of bounds and of nulls at each, which Arrow makes
# a second time, the JVM's share of reading an archive falls by a seventh.
LONG_JOB_FLAGS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

LONG_JOB_PARTITIONS = 4
"""Of a shuffle, per core: a sort of a part fits in memory where one of everything would go over the disk."""
REACH_S = 10.0
"""To connect to a master or a Connect server."""
_PORTS = {"spark://": 7077, "sc://": 15002}
MEMORY_VARIABLE = "SPARK_DRIVER_MEMORY"
"""What Spark itself takes from the environment."""


def long_job_memory_mb() -> int:
    """A quarter of the memory that is free, for the JVM; its Python workers and the disk cache need the rest."""
    return int(min(max(memory_bytes() // 4, 1 << 30), 32 << 30)) >> 20


def local_session(name: str, cores: int = 2, short: bool = True) -> SparkSession:
    """`local_session("audit")`: a local session; `short=False` leaves the JVM its full compiler for long jobs."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise MisuseError("Spark needs Java 17 or newer: install it (Debian: openjdk-17-jre-headless) or set JAVA_HOME")
    # Without these the workers run the system's Python, which has no pyarrow, and the user sees only a timeout.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    flags = SHORT_JOB_FLAGS if short else LONG_JOB_FLAGS
    memory = "" if short or MEMORY_VARIABLE in os.environ else f"--driver-memory {long_job_memory_mb()}m "
    os.environ["PYSPARK_SUBMIT_ARGS"] = f'{memory}--driver-java-options "{flags}" pyspark-shell'
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .appName(name)
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(cores if short else cores * LONG_JOB_PARTITIONS))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50000")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )


class CpuMeter:
    """CPU of this process and of all that it has started, the JVM and its Python workers: `with CpuMeter() as cpu: …`.

    Linux. It looks twice a second and remembers the dead: Spark's worker daemon leaves its children unwaited, so what
    they used is in nobody's books. `seconds()` is what was used since the meter began.
    """

    def __init__(self) -> None:
        self._used: dict[tuple[int, str], int] = {}
        self._before = 0
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._keep_looking, daemon=True)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        # Workers that outlive their daemon become our children and stay in sight.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._before = self._look()
        self._looking.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._looking.join()

    def seconds(self) -> float:
        return (self._look() - self._before) / os.sysconf("SC_CLK_TCK")

    def _keep_looking(self) -> None:
        while not self._over.wait(0.5):
            self._look()

    def _look(self) -> int:
        children: dict[int, list[int]] = {}
        found: dict[int, tuple[tuple[int, str], int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:  # it has just ended
                    continue
                pid = int(entry.name)
                children.setdefault(int(fields[1]), []).append(pid)
                found[pid] = ((pid, fields[19]), int(fields[11]) + int(fields[12]))  # a start time tells pids apart
        mine = [os.getpid()]
        for pid in mine:  # grows while it is walked
            mine += children.get(pid, [])
        with self._lock:
            self._used.update(found[pid] for pid in mine if pid in found)
            return sum(self._used.values())


def session_on(where: str, name: str) -> SparkSession:
    """`session_on("spark", "audit")`: here; `spark://host:port`: a standalone cluster; `sc://host:port`: Connect."""
    if where == "spark":
        return local_session(name, short=False)
    if not where.startswith(tuple(_PORTS)):
        raise MisuseError(f"cannot run on {where!r}: local, spark, spark://host:port or sc://host:port")
    _reach(where)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if where.startswith("sc://"):
        return SparkSession.builder.remote(where).appName(name).getOrCreate()
    return SparkSession.builder.master(where).appName(name).config("spark.log.level", "ERROR").getOrCreate()


def _reach(where: str) -> None:
    """Somebody answers there. Spark itself asks for ten minutes, or ends in a trace of its JVM."""
    scheme, _, rest = where.partition("://")
    problem: Exception | None = None
    for address in rest.partition("/")[0].split(","):  # a master may have others in reserve
        host, _, port = address.partition(":")
        try:
            socket.create_connection((host, int(port or _PORTS[f"{scheme}://"])), REACH_S).close()
        except (OSError, ValueError) as error:
            problem = error
        else:
            return
    what = "master" if scheme == "spark" else "Connect server"
    raise TransportError(f"{where}: {problem}; is the {what} running, and is this its address?")
