"""What an archive says, as data frames of the source `unisono`: events, what is missing, and a journal to be judged."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from unisono.archive.headers import GAP
from unisono.spark.streams import summed

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


def gap_records(rows: DataFrame, subscriber: str = "archive") -> DataFrame:
    """The archive's notices that numbers are missing, as the journal rows of one more subscriber."""
    return rows.where(_first_missing().isNotNull()).select(
        F.lit("gap").alias("kind"),
        F.col("delivered_us").alias("at_us"),
        F.lit(subscriber).alias("subscriber"),
        "topic",
        _first_missing().cast("bigint").alias("number"),
        F.col("number").alias("last_number"),
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


def against_order(journal: DataFrame, rows: DataFrame) -> DataFrame:
    """`judge, violations, witness`: notifications that came after one that stands later in the archive; lazily.

    Nothing found means that one order, the archive's, explains all streams: then they agree pairwise and globally. It
    is native Spark without an action, so it also runs where `audits.audit` can not, as in a declarative pipeline.
    """
    places = rows.select(F.concat_ws(":", "publisher", "publisher_seq").alias("event"), F.col("seq").alias("place"))
    earlier = (
        Window.partitionBy("subscriber")
        .orderBy("position")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    )
    broken = (
        journal.join(places, "event")
        .withColumn("latest", F.max(F.struct("place", "event")).over(earlier))
        .where("latest.place > place")
    )
    witness = F.format_string(
        "%s was notified of %s after %s, which stands later in the archive (%d, %d)",
        *("subscriber", "event", "latest.event", "place", "latest.place"),
    )
    return summed("archive-order", broken, F.lit(1), witness)
