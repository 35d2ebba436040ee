"""Plans and sweeps on Spark: sequencing groups of 1 and 10 million subscriptions, and 100 000 runs.

Subscribers of ten topics each, out of the twenty topics of one of 2500 rooms: 50 000 topics. `frames` makes every group
and every pair and collects nothing; `plan` brings them to the driver. `sweep` keeps what 100 000 runs of next to
nothing give: what a run costs beside its work. CPU is that of driver, JVM and workers together.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from unisono.spark.planning import group_tables, plan_groups
from unisono.spark.session import CpuMeter, local_session
from unisono.spark.sweeps import sweep

EACH, ROOM, ROOMS = 10, 20, 2500
MILLION = 1_000_000
RUNS = 100_000


def subscriptions(spark: SparkSession, count: int) -> DataFrame:
    """Computed, not drawn: the same rows every time. Neighbours in the ring of a room, from anywhere on."""
    in_room = (F.xxhash64("id").bitwiseAND(F.lit(0xFFFF)) + F.col("j")) % ROOM
    each = spark.range(count // EACH).select("id", F.explode(F.sequence(F.lit(0), F.lit(EACH - 1))).alias("j"))
    topic = (F.col("id") % ROOMS) * ROOM + in_room
    return each.select(F.format_string("s%d", "id").alias("subscriber"), F.format_string("t%d", topic).alias("topic"))


def run() -> Iterator[dict[str, Any]]:
    spark = local_session("benchmark planning", short=False)
    spark.range(1000).groupBy((F.col("id") % 7).alias("k")).count().collect()  # the JVM is warm
    with tempfile.TemporaryDirectory() as directory:
        for millions in (1, 10):
            path = f"{directory}/{millions}.parquet"
            subscriptions(spark, millions * MILLION).write.parquet(path)
            rows, case = spark.read.parquet(path), f"{millions} M subscriptions"
            yield {"case": f"{case}, frames", **measured(partial(frames, rows, f"{directory}/{millions}"))}
            yield {"case": f"{case}, plan", **measured(partial(plan, rows))}
        out = Path(directory) / "runs"
        yield {"case": "sweep", **measured(partial(runs, spark, out))}
    spark.stop()


def frames(rows: DataFrame, out: str) -> dict[str, Any]:
    groups, pairs = group_tables(rows)
    groups.write.parquet(f"{out}/groups")
    pairs.write.parquet(f"{out}/pairs")
    read = rows.sparkSession.read
    return {"groups": read.parquet(f"{out}/groups").count(), "pairs": read.parquet(f"{out}/pairs").count()}


def plan(rows: DataFrame) -> dict[str, Any]:
    return {"groups": len(plan_groups(rows).groups)}


def runs(spark: SparkSession, out: Path) -> dict[str, Any]:
    return {"runs": sweep(spark, str, range(RUNS), out).count()}


def measured(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    began = time.perf_counter()
    with CpuMeter() as cpu:
        found = work()
        return {**found, "plan_s": round(time.perf_counter() - began, 1), "plan_cpu_s": round(cpu.seconds(), 1)}
