"""The same code on a real standalone cluster and over Spark Connect, each in processes of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark
import pytest

from tests.spark.test_audits import random_trace
from tests.spark.test_portscan import KEY, Traffic, generate, keep, prepare
from unisono.audit import examine, read
from unisono.audit.columns import write_parquet
from unisono.model.journal import Header
from unisono.runtime.tools.ports import free_ports
from unisono.spark.portscan import PacketWatch, Rule

pytestmark = pytest.mark.campaign
SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE_S = 1800
ATTEMPTS = 12
JOB = f"""
import json, sys
from pathlib import Path
import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from unisono.spark.audits import report_file
from unisono.spark.portscan import blacklist
journal, archive, out, *remote = sys.argv[1:]
rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
builder = SparkSession.builder.appName("job").config("spark.sql.shuffle.partitions", "2")
builder = builder.config("spark.sql.streaming.stateStore.providerClass", rocksdb)
spark = (builder.remote(remote[0]) if remote else builder).getOrCreate()
print("REPORT " + msgspec.json.encode(report_file(spark, Path(journal))).decode())
found = blacklist(spark.readStream.format("unisono").load(archive))
for attempt in range({ATTEMPTS}):  # on a loaded machine a new Python process may be later than Spark waits
    writer = found.writeStream.format("parquet").option("path", out + "/found")
    query = writer.option("checkpointLocation", out + "/checkpoint").trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        break
    except StreamingQueryException as error:
        if "connect back" not in str(error) or attempt == {ATTEMPTS - 1}:
            raise
rows = spark.read.parquet(out + "/found").collect()
print("BLACKLIST " + json.dumps(sorted(name for row in rows for name in json.loads(row.payload)["blacklist"])))
spark.stop()
"""
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": SHORT,
        "SPARK_DAEMON_MEMORY": "300m",
        "PYSPARK_SUBMIT_ARGS": f'--driver-java-options "{SHORT}" pyspark-shell',
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


def wait_for(what: str, log: Path, patience_s: float = 600) -> None:
    until = time.monotonic() + patience_s
    while what not in log.read_text():
        if time.monotonic() > until:
            raise TimeoutError(f"{what!r} is not in {log.name}: {log.read_text()[-500:]}")
        time.sleep(0.2)


class Work(NamedTuple):
    """What the job is given, and what it must say."""

    script: Path
    arguments: list[str]
    verdicts: list[tuple[str, int]]
    blacklist: list[str]

    def check(self, done: subprocess.CompletedProcess[str]) -> None:
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
        said = dict(
            line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("REPORT ", "BLACKLIST "))
        )
        found = json.loads(said["REPORT"])["verdicts"]
        assert [(v["judge"], v["violations"]) for v in found] == self.verdicts
        assert json.loads(said["BLACKLIST"]) == sorted(self.blacklist)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    script, journal = tmp_path / "job.py", tmp_path / "run.parquet"
    script.write_text(JOB)
    write_parquet(journal, Header(), [record for seed in range(20) for record in random_trace(seed)])
    packets, _ = generate(Traffic(flows=300, scanners=4))
    watch = PacketWatch(Rule())
    scanners = [name for packet in keep(prepare(packets, KEY), tmp_path / "archive") for name in watch.see(packet)]
    verdicts = [(verdict.judge, verdict.violations) for verdict in examine(read(journal)).verdicts]
    return Work(script, [str(journal), str(tmp_path / "archive"), str(tmp_path)], verdicts, scanners)


def test_a_master_and_two_workers_run_the_audit_and_the_case_study_through_spark_submit(
    work: Work, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
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
        submit += ["--driver-java-options", SHORT, "--conf", f"spark.executor.extraJavaOptions={SHORT}"]
        submit += ["--conf", "spark.executor.memory=600m", "--conf", "spark.driver.host=127.0.0.1"]
        work.check(
            subprocess.run(
                [*submit, str(work.script), *work.arguments],
                env=environment(),
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        )
        for number in (1, 2):
            assert "Executor app-" in (tmp_path / f"worker{number}.log").read_text(), "both worked"


def test_the_same_runs_over_spark_connect(work: Work) -> None:
    work.check(
        subprocess.run(
            [sys.executable, str(work.script), *work.arguments, "local[2]"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    )
