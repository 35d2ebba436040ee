"""A table and a verdict: the events of the archive as they come, and whether clients were told of them in its order."""

from functools import reduce

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from unisono.spark.archived import against_order, deliveries
from unisono.spark.order import one_row_each
from unisono.spark.streams import Known, exactly_once, fifo

spark = SparkSession.active()
ARCHIVE = spark.conf.get("unisono.archive")


@dp.table
def events() -> DataFrame:
    """Every event of the archive, once: each run goes on after the last one."""
    return spark.readStream.format("unisono").load(ARCHIVE)


@dp.materialized_view
def verdicts() -> DataFrame:
    """`judge, holds, violations, witness`, of everything up to now; the archive is one more client.

    It reads the archive, not `events`: a table that the same run has changed may be seen as it was before.
    """
    archive = spark.read.format("unisono").load(ARCHIVE)
    journals = spark.read.parquet(spark.conf.get("unisono.journals"))
    columns = ("subscriber", "event", "position", "publisher", "publisher_seq")
    told = deliveries(archive).select(*columns).unionAll(journals.select(*columns))
    known = Known.of_deliveries(told)
    found = [against_order(told, archive), fifo(told, known), exactly_once(told, known)]
    return one_row_each(reduce(DataFrame.unionAll, found), ("archive-order", "fifo", "exactly-once"))
