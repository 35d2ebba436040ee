"""Where disorder can be: cut a trace into islands, so that each can be judged alone and the rest needs no look.

Give every event a place g in any linear order. Where a subscriber goes down in g (a descent), the span between the
two places is marked; overlapping spans merge into islands. Every inverted pair of events and every cycle of the union
of all delivery orders lies inside one island: a cycle must cross each level downwards, over some descent. So one sort
finds the islands, and only what lies in them is looked at closely. A bad g costs time, never truth.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from unisono.spark.streams import PLACE

TAGGED = "island BIGINT, subscriber STRING, event STRING, position BIGINT, _at BIGINT, place DOUBLE"


def with_reference(deliveries: DataFrame) -> DataFrame:
    """Adds `g`, where the event stands by publication time, else by delivery time, else by mean position; and `place`,
    where its delivery stands in its own stream, from 0 to 1 (positions count the deliveries, so no sort is needed).
    """
    keys: list[Column] = [
        F.min(name).cast("double") for name in ("published_us", "delivered_us") if name in deliveries.columns
    ]
    keys.append(F.avg("position"))
    events = deliveries.groupBy("event").agg(F.coalesce(*keys).alias("key"))
    # The ids of a sorted frame follow the sort. They must not be computed twice: range boundaries are sampled.
    places = events.orderBy("key", "event").select("event", F.monotonically_increasing_id().alias("g"))
    streams = deliveries.groupBy("subscriber").agg(F.count("*").alias("_size"), F.min("position").alias("_first"))
    own = deliveries.join(streams, "subscriber").withColumn(
        "place", (F.col("position").cast("double") - F.col("_first").cast("double")) / F.col("_size")
    )
    return own.select("subscriber", *PLACE, "place").join(places.localCheckpoint(), "event")


def find_islands(placed: DataFrame) -> pa.Table:
    """Disjoint spans `lo`..`hi` of g, ascending. Small: it has a row per island, and is made on the driver."""
    before = Window.partitionBy("subscriber").orderBy(*PLACE)
    spans = (
        placed.select("g", F.lag("g").over(before).alias("from"))
        .where("from > g")
        .groupBy("g")
        .agg(F.max("from").alias("hi"))
    )
    ordered = Window.orderBy("g")  # one partition, but of descents only
    reach = F.max("hi").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    starts = spans.withColumn("reach", reach).withColumn(
        "island", F.sum((F.col("reach").isNull() | (F.col("g") > F.col("reach"))).cast("int")).over(ordered)
    )
    return (
        starts.groupBy("island")
        .agg(F.min("g").alias("lo"), F.max("hi").alias("hi"))
        .orderBy("lo")
        .toArrow()
        .combine_chunks()
    )


def tag(placed: DataFrame, islands: pa.Table) -> DataFrame:
    """The deliveries that lie in an island, with its number. A binary search per row, not a range join."""

    def search(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield tagged(batch, islands)

    position = F.col("position").cast("bigint").alias("position")
    return placed.select("g", "subscriber", "event", position, "_at", "place").mapInArrow(search, TAGGED)


def tagged(batch: pa.RecordBatch, islands: pa.Table) -> pa.RecordBatch:
    """The same of one batch."""
    lows, highs = islands.column("lo").to_numpy(), islands.column("hi").to_numpy()
    g = batch.column("g").to_numpy()
    at = np.searchsorted(lows, g, side="right") - 1
    inside = (at >= 0) & (g <= highs[at]) if len(lows) else np.zeros(len(g), bool)
    kept = batch.filter(pa.array(inside))
    names = ("subscriber", "event", "position", "_at", "place")
    columns = [pa.array(at[inside], pa.int64()), *(kept.column(name) for name in names)]
    return pa.RecordBatch.from_arrays(columns, names=["island", *names])
