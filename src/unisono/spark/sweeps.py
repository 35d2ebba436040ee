"""Sweeps: thousands of deterministic runs as Spark tasks, kept as Parquet, continued where they were interrupted.

A run is a pure function of its number; what it gives is text (JSON). A Python task costs 50 to 65 ms of CPU by itself
(measured in the data-pipeline spec), so runs are packed into tasks of a few seconds. Tasks go out in waves, and a wave
is written when it is whole: whoever is killed repeats one wave at most. Runs that are there already are not run again.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

TASK_S = 3.0
"""Work per task that is aimed at."""
TASKS_PER_WAVE = 16
RUNS = "run BIGINT, result STRING"


def sweep_key(*what: str) -> str:
    """A name for runs that belong together: the same for the same work by the same version, else another."""
    text = "\0".join((version("unisono"), *what))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def sweep(spark: SparkSession, work: Callable[[int], str], runs: Sequence[int], out: Path | str) -> DataFrame:
    """`run, result` of all `runs`, from the Parquet folder `out`, after those that were missing there have been run.

    `work` must be a function that workers can import, or a small closure over data; the same run gives the same text.
    """
    path = str(out)
    missing = sorted(set(runs) - done(spark, path))
    if missing:
        began = time.perf_counter()
        first = (missing[0], work(missing[0]))  # tells what a run costs
        cost_s = max(time.perf_counter() - began, 1e-6)
        spark.createDataFrame([first], RUNS).write.mode("append").parquet(path)
        missing = missing[1:]
        per_task = max(1, round(TASK_S / cost_s))
        for start in range(0, len(missing), per_task * TASKS_PER_WAVE):
            wave = missing[start : start + per_task * TASKS_PER_WAVE]
            perform(spark, work, wave, -(-len(wave) // per_task)).write.mode("append").parquet(path)
    wanted = spark.createDataFrame([(run,) for run in runs], "run BIGINT")
    return spark.read.schema(RUNS).parquet(path).dropDuplicates(["run"]).join(wanted, "run", "left_semi").orderBy("run")


def done(spark: SparkSession, path: str) -> set[int]:
    """The runs that are kept in `path`."""
    if "://" not in path and not Path(path).exists():
        return set()
    return {row.run for row in spark.read.schema(RUNS).parquet(path).select("run").collect()}


def perform(spark: SparkSession, work: Callable[[int], str], runs: Sequence[int], tasks: int) -> DataFrame:
    """`run, result` of these runs, in this many tasks."""
    chosen = list(runs)

    def perform_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            mine = [chosen[i] for i in batch.column("id").to_pylist()]
            results = [work(run) for run in mine]
            yield pa.record_batch({"run": pa.array(mine, pa.int64()), "result": pa.array(results, pa.string())})

    return spark.range(0, len(chosen), 1, tasks).mapInArrow(perform_part, RUNS)
