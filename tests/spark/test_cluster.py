"""The same code on a real standalone cluster and over Spark Connect, each in processes of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.runtime.test_cluster import free_ports
from tests.spark.test_audits import random_trace
from unisono.audit import examine, read
from unisono.audit.columns import write_parquet
from unisono.model.journal import Header

pytestmark = pytest.mark.campaign
SPARK_HOME = Path(pyspark.__file__).parent
AUDIT = """
import sys
from pathlib import Path
import msgspec
from pyspark.sql import SparkSession
from unisono.spark.audits import report_file
builder = SparkSession.builder.appName("audit").config("spark.sql.shuffle.partitions", "4")
if len(sys.argv) > 2:
    builder = builder.remote(sys.argv[2])
spark = builder.getOrCreate()
print("REPORT " + msgspec.json.encode(report_file(spark, Path(sys.argv[1]))).decode())
spark.stop()
"""


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


@contextmanager
def process(log: Path, *command: str) -> Iterator[None]:
    with log.open("wb") as out:
        running = subprocess.Popen(command, env=environment(), stdout=out, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            running.terminate()
            running.wait(30)


def wait_for(what: str, log: Path, patience_s: float = 240) -> None:
    until = time.monotonic() + patience_s
    while what not in log.read_text():
        if time.monotonic() > until:
            raise TimeoutError(f"{what!r} is not in {log.name}: {log.read_text()[-500:]}")
        time.sleep(0.2)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "run.parquet"
    write_parquet(path, Header(), [record for seed in range(20) for record in random_trace(seed)])
    return path


def check(output: str, journal: Path) -> None:
    (line,) = [line for line in output.splitlines() if line.startswith("REPORT ")]
    found = json.loads(line.removeprefix("REPORT "))["verdicts"]
    expected = examine(read(journal)).verdicts
    assert [(v["judge"], v["violations"]) for v in found] == [(v.judge, v.violations) for v in expected]


def test_a_cluster_of_a_master_and_two_workers_audits_through_spark_submit(journal: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    script = tmp_path / "audit.py"
    script.write_text(AUDIT)
    spark_class = str(SPARK_HOME / "bin" / "spark-class")
    with ExitStack() as stack:
        master = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        log = tmp_path / "master.log"
        stack.enter_context(process(log, spark_class, "org.apache.spark.deploy.master.Master", *master))
        wait_for("I have been elected leader", log)
        for number in (1, 2):
            worker = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0")
            place = ("--work-dir", str(tmp_path / f"work{number}"), f"spark://127.0.0.1:{port}")
            name = "org.apache.spark.deploy.worker.Worker"
            stack.enter_context(process(tmp_path / f"worker{number}.log", spark_class, name, *worker, *place))
        for number in (1, 2):
            wait_for("Successfully registered with master", tmp_path / f"worker{number}.log")
        submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", f"spark://127.0.0.1:{port}"]
        submit += ["--conf", "spark.executor.memory=600m", "--conf", "spark.driver.host=127.0.0.1"]
        done = subprocess.run(
            [*submit, str(script), str(journal)], env=environment(), capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr[-2000:]
        check(done.stdout, journal)
        assert "Executor app-" in (tmp_path / "worker1.log").read_text() + (tmp_path / "worker2.log").read_text()


def test_the_same_runs_over_spark_connect(journal: Path, tmp_path: Path) -> None:
    script = tmp_path / "audit.py"
    script.write_text(AUDIT)
    done = subprocess.run(
        [sys.executable, str(script), str(journal), "local[2]"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    check(done.stdout, journal)
