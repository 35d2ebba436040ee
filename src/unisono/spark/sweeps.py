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
from pyspark.sql import functions as F

TASK_S = 3.0
"""Work per task that is aimed at."""
TASKS_PER_WAVE = 16
RUNS = "run BIGINT, result STRING"


def sweep_key(*what: str) -> str:
    """A name for runs that belong together: the same for the same work by the same version, else another."""
    text = "\0".join((version("unisono"), *what))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def sweep(
    spark: SparkSession, work: Callable[[int], str], runs: Sequence[int] | DataFrame, out: Path | str
) -> DataFrame:
    """`run, result` of all `runs`, from the Parquet folder `out`, after those that were missing there have been run.

    `work` must be a function that workers can import, or a small closure over data; the same run gives the same text.
    Many runs are a `range`, or a frame with the column `run`: their numbers are then nowhere in one list.
    """
    path = str(out)
    wanted = _frame(spark, runs).distinct()
    first = _missing(spark, wanted, path).agg(F.min("run")).collect()[0][0]
    if first is not None:
        began = time.perf_counter()
        result = work(first)  # tells what a run costs
        per_task = max(1, round(TASK_S / max(time.perf_counter() - began, 1e-6)))
        spark.createDataFrame([(first, result)], RUNS).write.mode("append").parquet(path)
        wave = per_task * TASKS_PER_WAVE
        while left := _missing(spark, wanted, path).limit(wave).count():
            mine = _missing(spark, wanted, path).orderBy("run").limit(wave)
            perform(mine.repartition(-(-left // per_task), "run"), work).write.mode("append").parquet(path)
    return spark.read.schema(RUNS).parquet(path).dropDuplicates(["run"]).join(wanted, "run", "left_semi").orderBy("run")


def _frame(spark: SparkSession, runs: Sequence[int] | DataFrame) -> DataFrame:
    match runs:
        case DataFrame():
            return runs.select(F.col("run").cast("bigint").alias("run"))
        case range():
            return spark.range(runs.start, runs.stop, runs.step).withColumnRenamed("id", "run")
        case _:
            return spark.createDataFrame([(run,) for run in runs], "run BIGINT")


def _missing(spark: SparkSession, wanted: DataFrame, path: str) -> DataFrame:
    """The wanted runs that are not kept in `path`."""
    if "://" not in path and not Path(path).exists():
        return wanted
    return wanted.join(spark.read.schema(RUNS).parquet(path).select("run"), "run", "left_anti")


def perform(runs: DataFrame, work: Callable[[int], str]) -> DataFrame:
    """`run, result` of these runs, a task for every partition of them."""

    def perform_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            mine = batch.column("run").to_pylist()
            results = [work(run) for run in mine]
            yield pa.record_batch({"run": pa.array(mine, pa.int64()), "result": pa.array(results, pa.string())})

    return runs.mapInArrow(perform_part, RUNS)
