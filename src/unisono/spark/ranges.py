"""Cuts a log of deliveries into ranges that can be judged apart, exactly, whatever its times are worth.

Needed are `subscriber`, `event`, `position`. Give every event a place f; where a stream goes down in f, the span
between the two places belongs to one range. Then no stream goes down across the border of a range, and so no cycle and
no inverted pair crosses one. Any f is right; a good one makes small ranges:

- A sample of the events, the *anchors*, is ordered on the driver as their streams have them.
- Everything else is lifted: an event stands as high as the highest anchor that any of its subscribers had before it.
  Each round of lifting brings places closer to the streams, at two exchanges a round; it ends when ranges are small.

What comes to the driver has the size of the sample, never that of the log. Ranges are packed into buckets of bounded
rows, and a bucket is what one task judges. A range above `rows_max` is a knot that no cut takes apart: it is refused
with its size.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from unisono.audit.columnar.order import components, neighbours
from unisono.errors import MisuseError
from unisono.spark.keeping import held
from unisono.spark.limits import RangeLimits
from unisono.spark.subscribers import NUMBERED

Ints = npt.NDArray[np.int64]


class Ranges(NamedTuple):
    """The cut: disjoint ranges of places, ascending, by their first and last place, and how many rows each has."""

    first: Ints
    last: Ints
    rows: Ints

    def buckets(self, bucket_rows: int) -> Ints:
        """Range -> bucket. A bucket is filled until it has so many rows."""
        before = np.concatenate([[0], np.cumsum(self.rows)[:-1]])
        return np.asarray(before // max(bucket_rows, 1), np.int64)


def merge(places: Ints, reach: Ints, rows: Ints) -> Ranges:
    """Ranges from ascending places, how high a stream has been before each, and how many rows each has."""
    if not len(places):
        return Ranges(places, places, rows)
    top = np.maximum.accumulate(np.maximum(places, reach))
    first = np.flatnonzero(np.concatenate([[True], places[1:] > top[:-1]]))
    last = np.concatenate([first[1:], [len(places)]]) - 1
    return Ranges(places[first], places[last], np.add.reduceat(rows, first))


def anchor_places(streams: Ints, events: Ints) -> Ints:
    """Event -> its place, from 1, in topological order of the streams, knots as one. Rows stand as streams do."""
    if not len(events):
        return np.zeros(0, np.int64)
    first, second = neighbours(streams, events)
    size = int(events.max()) + 1
    labels = components(size, first * size + second)
    return _topological(labels, first, second)[labels] + 1


def _topological(labels: Ints, first: Ints, second: Ints) -> Ints:
    """Component -> its place, so that every edge goes up."""
    count = int(labels.max()) + 1
    tails, heads = labels[first], labels[second]
    edges = np.unique(np.stack([tails, heads], 1)[tails != heads], axis=0)
    starts = np.searchsorted(edges[:, 0], np.arange(count + 1)).tolist()
    waits = np.bincount(edges[:, 1], minlength=count).tolist()
    following = edges[:, 1].tolist()
    ready = deque(component for component in range(count) if not waits[component])
    place = np.empty(count, np.int64)
    for at in range(count):
        component = ready.popleft()
        place[component] = at
        for other in following[starts[component] : starts[component + 1]]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    return place


@contextmanager
def cut(numbered: DataFrame, count: int, limits: RangeLimits, long: bool = True) -> Iterator[DataFrame]:
    """`count` deliveries of `judge_streams`, with the `bucket` of each. What is kept is freed at the end.

    `long` says that there may be streams above the limit.
    """
    with ExitStack() as stack:
        anchors = _anchors(numbered, max(1, -(-count // limits.anchors)), limits)
        walk = _walk_in_pieces if long else _walk
        largest, buckets = 0, pa.table({"f": [], "bucket": []})
        walked = walk(numbered.join(F.broadcast(anchors), "e", "left").fillna(0, ["f"]), limits)
        for left in reversed(range(limits.rounds_max)):
            walked = stack.enter_context(held(walk(_lift(walked), limits)))
            classes = walked.groupBy("f").agg(F.count("*").alias("rows"), F.max("before").alias("reach")).toArrow()
            found, buckets = _bucketed(classes, limits)
            largest = int(found.rows.max(initial=0))
            if not left or largest <= limits.bucket_rows:
                break
        if largest > limits.rows_max:
            raise MisuseError(
                f"{largest} deliveries are tied together, and one task judges at most {limits.rows_max}: judge parts "
                "of the log by themselves (some subscribers, some topics), or all of it on one machine with --on arrow"
            )
        table = F.broadcast(numbered.sparkSession.createDataFrame(buckets))
        yield walked.join(table, "f").select(*NUMBERED, "bucket")


def _anchors(numbered: DataFrame, every: int, limits: RangeLimits) -> DataFrame:
    """`e, f` of the sample: all rows of one event in `every`. A few events that everybody has may be more than was
    wanted, so it is cut off: any f is right.
    """
    chosen = numbered.where(F.pmod("e", F.lit(every)) == 0).limit(2 * limits.anchors)
    sample = chosen.select("s", "e", "nth").toArrow()
    names, events = (sample.column(i).combine_chunks().dictionary_encode() for i in (0, 1))
    codes, ids = (encoded.indices.to_numpy().astype(np.int64) for encoded in (names, events))
    order = np.lexsort((sample.column("nth").to_numpy(), codes))
    places = anchor_places(codes[order], ids[order])
    table = pa.table({"e": events.dictionary, "f": pa.array(places, pa.int64())})
    return numbered.sparkSession.createDataFrame(table)


def _walk(rows: DataFrame, limits: RangeLimits, *pieces: str) -> DataFrame:
    """With `before`, the highest f in the stream before this row; one window, as each is paid for by the row."""
    earlier = Window.partitionBy("s", *pieces).orderBy("nth").rowsBetween(Window.unboundedPreceding, -1)
    return rows.withColumn("before", F.max("f").over(earlier))


def _walk_in_pieces(rows: DataFrame, limits: RangeLimits) -> DataFrame:
    """The same where a stream is too long for a task. What its earlier pieces come to is a row for each of them."""
    pieces = rows.withColumn("piece", F.floor(F.col("nth") / limits.stream_rows))
    long = pieces.where(F.col("size") > limits.stream_rows)
    tops = long.groupBy("s", "piece").agg(F.max("f").alias("own"))
    earlier = Window.partitionBy("s").orderBy("piece").rowsBetween(Window.unboundedPreceding, -1)
    carried = tops.select("s", "piece", F.max("own").over(earlier).alias("top")).where("top IS NOT NULL")
    joined = _walk(pieces, limits, "piece").join(F.broadcast(carried), ["s", "piece"], "left")
    return joined.withColumn("before", F.greatest("before", "top")).drop("piece", "top")


def _lift(walked: DataFrame) -> DataFrame:
    """An event stands as high as the highest that any of its subscribers had before it."""
    event = Window.partitionBy("e")
    return walked.withColumn("f", F.max(F.greatest("f", "before")).over(event)).drop("before")


def _bucketed(classes: pa.Table, limits: RangeLimits) -> tuple[Ranges, pa.Table]:
    """The ranges, and the bucket of every place."""
    classes = classes.sort_by("f")
    places = classes.column("f").to_numpy()
    reach = classes.column("reach").fill_null(0).to_numpy()
    found = merge(places, reach, classes.column("rows").to_numpy())
    of_range = found.buckets(limits.bucket_rows)[np.searchsorted(found.first, places, side="right") - 1]
    return found, pa.table({"f": pa.array(places, pa.int64()), "bucket": pa.array(of_range, pa.int64())})
