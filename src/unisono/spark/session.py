"""A Spark session that finds this Python and stays on this machine, for commands, examples and tests."""

import ctypes
import os
import shutil
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from unisono.errors import MisuseError

PR_SET_CHILD_SUBREAPER = 36
# Measured in the data-pipeline spec: C1 and the serial collector save 45 % of the CPU of short jobs.
SHORT_JOB_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def local_session(name: str, cores: int = 2, short: bool = True) -> SparkSession:
    """`local_session("audit")`: a local session; `short=False` leaves the JVM its full compiler for long jobs."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise MisuseError("Spark needs Java 17 or newer: install it (Debian: openjdk-17-jre-headless) or set JAVA_HOME")
    # Without these the workers run the system's Python, which has no pyarrow, and the user sees only a timeout.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    flags = SHORT_JOB_FLAGS if short else ""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f'--driver-java-options "{flags}" pyspark-shell'
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .appName(name)
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50000")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )


def cpu_seconds() -> float:
    """CPU used so far by this process and all that it has started: the JVM and its Python workers. Linux.

    The first call makes this process the heir of orphans: workers that outlive their daemon stay in the count.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # its own, and those of its ended children
    mine = [os.getpid()]
    for pid in mine:  # grows while it is walked
        mine += children.get(pid, [])
    return sum(ticks[pid] for pid in mine) / os.sysconf("SC_CLK_TCK")


def session_on(where: str, name: str) -> SparkSession:
    """`session_on("spark", "audit")`: here; `spark://host:port`: a standalone cluster; `sc://host:port`: Connect."""
    if where == "spark":
        return local_session(name, short=False)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if where.startswith("sc://"):
        return SparkSession.builder.remote(where).appName(name).getOrCreate()
    if where.startswith("spark://"):
        return SparkSession.builder.master(where).appName(name).config("spark.log.level", "ERROR").getOrCreate()
    raise MisuseError(f"cannot run on {where!r}: local, spark, spark://host:port or sc://host:port")
