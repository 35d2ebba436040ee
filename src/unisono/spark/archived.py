"""What an archive says, as data frames of the source `unisono`: events, what is missing, and a journal to be judged."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from unisono.archive.headers import GAP

JOURNAL = ("topic", "number", "publisher", "publisher_seq", "published_us", "delivered_us", "deadline_us")


def _first_missing() -> Column:
    return F.element_at("headers", GAP)


def gaps(rows: DataFrame) -> DataFrame:
    """`seq, topic, first, last, reason`: the numbers of a topic that the archive misses, and why.

    `gaps(spark.read.format("unisono").option("gaps", "rows").load(archive))`: without the option there is nothing here.
    """
    return rows.where(_first_missing().isNotNull()).select(
        "seq",
        "topic",
        _first_missing().cast("bigint").alias("first"),
        F.col("number").alias("last"),
        F.col("payload").cast("string").alias("reason"),
    )


def deliveries(rows: DataFrame, subscriber: str = "archive") -> DataFrame:
    """The archive as one more subscriber: its events as the journal rows that `audits.audit` judges.

    Together with the journals of clients it is judged whether the archive keeps the order that everybody was told:
    `audit(deliveries(spark.read.format("unisono").load(archive)).unionByName(journals, allowMissingColumns=True))`.
    """
    return rows.where(_first_missing().isNull()).select(
        F.lit(subscriber).alias("subscriber"),
        F.concat_ws(":", "publisher", "publisher_seq").alias("event"),
        F.col("seq").alias("position"),
        *JOURNAL,
    )
