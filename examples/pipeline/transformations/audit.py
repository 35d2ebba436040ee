"""Two tables and a verdict: the events of the archive as they come, what clients were told, and whether they agree."""

from functools import reduce

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from unisono.spark.archived import against_order, deliveries
from unisono.spark.order import one_row_each
from unisono.spark.streams import exactly_once, fifo

spark = SparkSession.active()


@dp.table
def events() -> DataFrame:
    """Every event of the archive, once: each run goes on behind the last one."""
    return spark.readStream.format("unisono").load(spark.conf.get("unisono.archive"))


@dp.materialized_view
def told() -> DataFrame:
    """What clients were told, with the archive as one more of them."""
    archive = deliveries(spark.read.table("events"))
    journals = spark.read.parquet(spark.conf.get("unisono.journals"))
    columns = ("subscriber", "event", "position", "publisher", "publisher_seq")
    return archive.select(*columns).unionAll(journals.select(*columns))


@dp.materialized_view
def verdicts() -> DataFrame:
    """`judge, holds, violations, witness`."""
    journal = spark.read.table("told")
    found = [against_order(journal, spark.read.table("events")), fifo(journal), exactly_once(journal)]
    return one_row_each(reduce(DataFrame.unionAll, found), ("archive-order", "fifo", "exactly-once"))
