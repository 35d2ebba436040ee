"""Order at any size: the judges of `unisono.audit`, run island by island."""

from collections.abc import Iterable
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unisono.audit import judge
from unisono.model.journal import Header, Journal, Record
from unisono.spark.islands import find_islands, tag, with_reference

ORDER_JUDGES = ("pairwise-order", "local-order", "acyclic")
FOUND = "island BIGINT, judge STRING, violations BIGINT, witness STRING"


def judge_island(table: pa.Table) -> pa.Table:
    """What the Python judges say about the deliveries of one island."""
    island = table.column("island")[0].as_py()
    columns = (table.column(name).to_pylist() for name in ("subscriber", "event", "position"))
    records = [Record(subscriber=s, event=e, position=p) for s, e, p in zip(*columns, strict=True)]
    found = [v for v in judge(Journal(Header(), records), ORDER_JUDGES) if not v.holds]
    return pa.table(
        {
            "island": pa.array([island] * len(found), pa.int64()),
            "judge": pa.array([v.judge for v in found], pa.string()),
            "violations": pa.array([v.violations for v in found], pa.int64()),
            "witness": pa.array([v.witness for v in found], pa.string()),
        }
    )


def disorder(deliveries: DataFrame) -> DataFrame:
    """One row per island and judge that found something: `island, judge, violations, witness`.

    `deliveries` has the columns `subscriber`, `event`, `position` (more make the cut into islands finer).
    """
    placed = with_reference(deliveries)
    return tag(placed, find_islands(placed)).groupBy("island").applyInArrow(judge_island, FOUND)


def disorder_by_judge(deliveries: DataFrame) -> DataFrame:
    """`judge, violations, witness`: a row for each of `pairwise-order`, `local-order`, `acyclic` that does not hold."""
    return (
        disorder(deliveries)
        .groupBy("judge")
        .agg(F.sum("violations").alias("violations"), F.min_by("witness", F.length("witness")).alias("witness"))
    )


def one_row_each(found: DataFrame, names: Iterable[str]) -> DataFrame:
    """Adds a row that holds for every judge in `names` that found nothing."""
    session = found.sparkSession
    expected = reduce(DataFrame.unionAll, [session.range(1).select(F.lit(name).alias("judge")) for name in names])
    return expected.join(found, "judge", "left").select(
        "judge",
        F.col("violations").isNull().alias("holds"),
        F.coalesce("violations", F.lit(0)).alias("violations"),
        F.coalesce("witness", F.lit("")).alias("witness"),
    )
