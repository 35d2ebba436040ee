"""The audit on Spark: 1 M and 10 M deliveries with planted inversions and cycles, all found, none invented.

Events go to 10 of 2000 subscribers each, all in one order but for the plants. An inversion: two neighbours of the
same ten subscribers, the other way round at one of them. A cycle: three neighbouring events, each pair of which only
one subscriber has, in an order that goes round; every pair of subscribers agrees. CPU is that of driver, JVM and
workers together, for the whole report (all judges and metrics) over a Parquet file.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from unisono.spark.audits import report
from unisono.spark.session import CpuMeter, local_session

SUBSCRIBERS, FAN_OUT, PLANT_EVERY = 2000, 10, 500
"""Every 500 events a plant, inversions and cycles in turn."""


def trace(spark: SparkSession, deliveries: int) -> DataFrame:
    """Computed, not drawn: the same rows every time."""
    event = F.col("id")
    site = (event % PLANT_EVERY).cast("int")  # 0, 1, 2 are the plants
    turn = F.floor(event / PLANT_EVERY) % 2  # 0 inversion, 1 cycle
    first = event - site
    # Neighbours of a plant have the receivers of its first event.
    base = F.when((site < 2) | ((turn == 1) & (site < 3)), first).otherwise(event)
    j = F.explode(F.sequence(F.lit(0), F.lit(FAN_OUT - 1))).alias("j")
    rows = spark.range(deliveries // FAN_OUT).select(
        event, site.alias("site"), turn.alias("turn"), base.alias("base"), j
    )
    # Of a cycle, event 0 goes to receivers 0 and 2, event 1 to 0 and 1, event 2 to 1 and 2.
    has = F.when(
        (F.col("turn") == 1) & (F.col("site") < 3),
        ((F.col("site") == 0) & F.col("j").isin(0, 2))
        | ((F.col("site") == 1) & F.col("j").isin(0, 1))
        | ((F.col("site") == 2) & F.col("j").isin(1, 2)),
    ).otherwise(True)
    swapped = (
        F.when((F.col("turn") == 0) & (F.col("j") == 0) & (F.col("site") < 2), 1 - 2 * F.col("site"))
        .when((F.col("turn") == 1) & (F.col("j") == 2) & (F.col("site") == 0), 2)
        .when((F.col("turn") == 1) & (F.col("j") == 2) & (F.col("site") == 2), -2)
        .otherwise(0)
    )
    subscriber = (F.col("base") * 7919 + F.col("j") * 197) % SUBSCRIBERS
    return rows.where(has).select(
        F.format_string("s%d", subscriber).alias("subscriber"),
        F.format_string("e%d", "id").alias("event"),
        (F.col("id") + swapped).alias("position"),
        F.format_string("p%d", F.col("id") % 100).alias("publisher"),
        F.floor(F.col("id") / 100).alias("publisher_seq"),
        (F.col("id") * 100).alias("published_us"),
        (F.col("id") * 100 + F.col("j") * 1000).alias("delivered_us"),
    )


def run() -> list[dict[str, Any]]:
    spark = local_session("benchmark audit", short=False)
    spark.conf.set("spark.sql.shuffle.partitions", "8")
    spark.range(1000).groupBy((F.col("id") % 7).alias("k")).count().collect()  # the JVM is warm
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for millions in (1, 10):
            path = str(Path(directory) / f"{millions}.parquet")
            trace(spark, millions * 1_000_000).write.parquet(path)
            rows.append(measure(spark, path, f"{millions} M deliveries", millions * 1_000_000 // FAN_OUT))
    spark.stop()
    return rows


def measure(spark: SparkSession, path: str, case: str, events: int) -> dict[str, Any]:
    sites = range(0, events, PLANT_EVERY)
    inversions = {site for site in sites if site // PLANT_EVERY % 2 == 0}
    cycles = set(sites) - inversions
    began = time.perf_counter()
    with CpuMeter() as cpu:
        found = report(spark.read.parquet(path))
        seconds, used = time.perf_counter() - began, cpu.seconds()
    verdicts = {verdict.judge: verdict for verdict in found.verdicts}
    assert verdicts["pairwise-order"].violations == len(inversions), verdicts
    assert verdicts["acyclic"].violations == len(inversions) + len(cycles), verdicts
    return {
        "case": case,
        "deliveries": found.deliveries,
        "inversions_planted": len(inversions),
        "inversions_found": verdicts["pairwise-order"].violations,
        "cycles_planted": len(cycles),
        "cycles_found": verdicts["acyclic"].violations - verdicts["pairwise-order"].violations,
        "report_s": round(seconds, 1),
        "report_cpu_s": round(used, 1),
    }
