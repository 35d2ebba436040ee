"""What each subscriber's own stream must satisfy, in native Spark: one sort per judge, no Python per row.

The meaning of every judge, and the unit of its violations, are those of `unisono.audit` on a plain file of deliveries
(docs/reference/audit.md). Witnesses are in the same words where the words need no second look at the data.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from unisono.audit.metrics import SECOND_US, YEAR_US
from unisono.errors import InvariantError

FOUND_COLUMNS = ("judge", "violations", "witness")
BINS = 1 << 16
"""What a pass over latencies tells them apart by."""
PLACE = ("position", "_at", "event")
"""The order of a stream: equal positions stand in the order of files and rows (`_at`; the same in all rows of a frame
that has no such order).
"""


def notifications(journal: DataFrame) -> DataFrame:
    """Rows that notified somebody. Without a `kind` column every row did."""
    return journal.where("kind IN ('deliver', 'tag')") if "kind" in journal.columns else journal


def untagged(journal: DataFrame) -> DataFrame:
    """Notifications in order, as they came."""
    return journal.where("kind = 'deliver'") if "kind" in journal.columns else journal


def deliveries(journal: DataFrame) -> DataFrame:
    """Untagged notifications, each event at its first position only: the streams that order is promised for."""
    return _firsts(with_place(untagged(journal))).drop("_nth")


def with_place(rows: DataFrame) -> DataFrame:
    """The rows with `_at`, if they have none."""
    return rows if "_at" in rows.columns else rows.withColumn("_at", F.lit(0))


def _firsts(rows: DataFrame) -> DataFrame:
    """With a column more: to drop it is to look at the columns."""
    place = Window.partitionBy("subscriber", "event").orderBy("position", "_at")
    return rows.withColumn("_nth", F.row_number().over(place)).where("_nth = 1")


def summed(judge: str, broken: DataFrame, violations: Column, witness: Column) -> DataFrame:
    """One row `judge, violations, witness`, or none when nothing is broken. The witness is the least of its kind."""
    found = broken.agg(F.sum(violations).cast("bigint").alias("violations"), F.min(witness).alias("witness"))
    return found.where("violations > 0").select(F.lit(judge).alias("judge"), "violations", "witness")


def repeats(journal: DataFrame) -> DataFrame:
    """`subscriber, event, n`: events that somebody was notified of more than once."""
    return _repeats(notifications(journal))


def _repeats(rows: DataFrame) -> DataFrame:
    return rows.groupBy("subscriber", "event").agg(F.count("*").alias("n")).where("n > 1")


class Known(NamedTuple):
    """What several judges need and would compute each for itself: the streams, and what repeats in the journal."""

    streams: DataFrame
    repeats: DataFrame

    @classmethod
    def of(cls, journal: DataFrame) -> "Known":
        """Without a look at the data."""
        return cls(deliveries(journal), repeats(journal))

    @classmethod
    def of_deliveries(cls, rows: DataFrame) -> "Known":
        """Where every row notified somebody: without a look at the columns either, as declarative pipelines demand."""
        return cls(_firsts(rows.withColumn("_at", F.lit(0))), _repeats(rows))


def fifo(journal: DataFrame, known: Known | None = None) -> DataFrame:
    """Notifications that came after a later event of the same publisher."""
    return _overtaken("fifo", known or Known.of(journal), "publisher")


def publisher_order(journal: DataFrame, known: Known | None = None) -> DataFrame:
    """Notifications that came after a later event of the same publisher on the same topic."""
    return _overtaken("publisher-order", known or Known.of(journal), "publisher", "topic")


def _overtaken(judge: str, known: Known, *line: str) -> DataFrame:
    """Within a stream events with the same `line` are compared; those that lack part of it are in none."""
    earlier = (
        Window.partitionBy("subscriber", *line)
        .orderBy(*PLACE)
        .rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    )
    latest = F.max(F.struct("publisher_seq", "event", "position")).over(earlier)
    broken = (
        known.streams.where(" AND ".join(f"{column} IS NOT NULL" for column in (*line, "publisher_seq")))
        .withColumn("latest", latest)
        .where("latest.publisher_seq > publisher_seq")
    )
    witness = F.format_string(
        "%s published %s as its %d. and %s as its %d.; %s was notified of the later one at position %d and of the "
        "earlier one at position %d",
        "publisher",
        "event",
        "publisher_seq",
        "latest.event",
        "latest.publisher_seq",
        "subscriber",
        "latest.position",
        "position",
    )
    return summed(judge, broken, F.lit(1), witness)


def exactly_once(journal: DataFrame, known: Known | None = None) -> DataFrame:
    """Surplus notifications of an event, and positions given to a second event."""
    known = known or Known.of(journal)
    repeated = known.repeats.select(
        (F.col("n") - 1).alias("surplus"),
        F.format_string("%s %d times at %s", "event", "n", "subscriber").alias("witness"),
    )
    positions = known.streams.groupBy("subscriber", "position").agg(
        F.count("*").alias("n"), F.min("event").alias("one"), F.max("event").alias("other")
    )
    shared = positions.where("n > 1").select(
        (F.col("n") - 1).alias("surplus"),
        F.format_string("position %d of %s was given to %s and to %s", "position", "subscriber", "one", "other").alias(
            "witness"
        ),
    )
    return summed("exactly-once", repeated.unionAll(shared), F.col("surplus"), F.col("witness"))


def deadline(journal: DataFrame, known: Known | None = None) -> DataFrame:
    """Notifications after their deadline."""
    late = notifications(journal).where("delivered_us > deadline_us")
    witness = F.format_string(
        "%s had %s at %d us, %s us after its deadline of %d us",
        "subscriber",
        "event",
        "delivered_us",
        _difference("delivered_us", "deadline_us").cast("string"),
        "deadline_us",
    )
    return summed("deadline", late, F.lit(1), witness)


def _difference(later: str, earlier: str) -> Column:
    """Of two numbers of 64 bits, which may need one more."""
    return F.col(later).cast("decimal(20,0)") - F.col(earlier).cast("decimal(20,0)")


def causal(journal: DataFrame, known: Known | None = None) -> DataFrame:
    """Notifications that came before one of their causes, by sparse clocks: a sort over deliveries and clock entries.

    Event m with clock {x: n} came too early at a subscriber if an event of publisher x with a sequence up to n was
    notified there later. So entries and events meet in one window per (subscriber, x), read from the end.
    """
    rows = (known or Known.of(journal)).streams
    needs = rows.select("subscriber", *PLACE, F.explode("clock").alias("x", "need")).withColumn(
        "have", F.lit(None).cast("bigint")
    )
    gives = rows.where("publisher_seq IS NOT NULL").select(
        "subscriber",
        *PLACE,
        F.col("publisher").alias("x"),
        F.lit(None).cast("bigint").alias("need"),
        F.col("publisher_seq").alias("have"),
    )
    later = (
        Window.partitionBy("subscriber", "x")
        # From the end; an event is not later than itself, so what it needs comes first.
        .orderBy(*(F.col(name).desc() for name in PLACE), F.col("have").isNull().desc())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    )
    least = F.min(F.when(F.col("have").isNotNull(), F.struct("have", "event", "position"))).over(later)
    broken = (
        needs.unionAll(gives)
        .withColumn("least", least)
        .where("need IS NOT NULL AND least.have <= need")
        .groupBy("subscriber", "event", "position")
        .agg(F.min(F.struct("least.position", "least.event", "x", "need", "least.have")).alias("cause"))
    )
    witness = F.format_string(
        "%s depends on %s, because its clock has %s: %d and %s is number %d of %s; %s was notified of %s at position "
        "%d and of %s at position %d",
        *("event", "cause.event", "cause.x", "cause.need", "cause.event", "cause.have", "cause.x"),
        *("subscriber", "event", "position", "cause.event", "cause.position"),
    )
    return summed("causal", broken, F.lit(1), witness)


def complete(journal: DataFrame, known: Known | None = None) -> DataFrame:
    """Events of a line (a topic's numbers, or a publisher's on it) that others had and this subscriber had not.

    Owed is what lies between the first and the last number the subscriber was notified of. Counting needs no product:
    the numbers of a line are ranked once, and a subscriber lacks (rank of last - rank of first + 1) - own.
    """
    told = notifications(journal)
    absent = F.lit(None).cast("bigint")
    number = F.col("number") if "number" in told.columns else absent
    by_publisher = {"publisher", "publisher_seq"} <= set(told.columns)
    publisher = F.col("publisher") if by_publisher else F.lit(None).cast("string")
    lines = told.select(
        "subscriber",
        "event",
        F.struct("topic", F.when(number.isNotNull(), "").otherwise(publisher).alias("publisher")).alias("line"),
        F.coalesce(number, F.col("publisher_seq") if by_publisher else absent).alias("n"),
    ).where("n IS NOT NULL AND line.topic IS NOT NULL AND line.publisher IS NOT NULL")
    numbered = lines.groupBy("line", "n").agg(F.min("event").alias("event"))
    ranked = numbered.withColumn("rank", F.row_number().over(Window.partitionBy("line").orderBy("n")))
    own = lines.select("subscriber", "line", "n").distinct().join(ranked, ["line", "n"])
    before = Window.partitionBy("subscriber", "line").orderBy("rank")
    holes = own.withColumn("missing", F.col("rank") - F.lag("rank").over(before) - 1).where("missing > 0")
    witness = F.format_string(
        "%d events of %s are missing at %s before %s", "missing", "line.topic", "subscriber", "event"
    )
    return summed("complete", holes, F.col("missing"), witness)


def kept(journal: DataFrame, known: Known | None = None) -> DataFrame:
    """Numbers of a topic that name several events, and events with several numbers there: each beyond the first."""
    # What each row says itself, which `_own_` columns keep where the rows of an event do not say the same.
    own = [f"_own_{name}" if f"_own_{name}" in journal.columns else name for name in ("topic", "number")]
    told = notifications(journal).select(F.col(own[0]).alias("topic"), F.col(own[1]).alias("number"), "event")
    told = told.where("topic IS NOT NULL AND number IS NOT NULL")
    names = told.groupBy("topic", "number").agg(F.array_sort(F.collect_set("event")).alias("found"))
    numbers = told.groupBy("topic", "event").agg(F.array_sort(F.collect_set("number")).alias("found"))
    several = [
        names.select(
            (F.size("found") - 1).alias("surplus"),
            F.format_string("number %d of %s names %s and %s", "number", "topic", _nth(0), _nth(1)).alias("witness"),
        ),
        numbers.select(
            (F.size("found") - 1).alias("surplus"),
            F.format_string("%s has several numbers on %s: %d and %d", "event", "topic", _nth(0), _nth(1)).alias(
                "witness"
            ),
        ),
    ]
    return summed("kept", several[0].unionAll(several[1]).where("surplus > 0"), F.col("surplus"), F.col("witness"))


def _nth(place: int) -> Column:
    return F.get("found", F.lit(place))


JUDGES: Mapping[str, Callable[[DataFrame, Known | None], DataFrame]] = {
    "fifo": fifo,
    "publisher-order": publisher_order,
    "causal": causal,
    "exactly-once": exactly_once,
    "complete": complete,
    "kept": kept,
    "deadline": deadline,
}


def metrics(journal: DataFrame, wide: bool = False) -> DataFrame:
    """One row: notifications, tagged ones, and latencies where there are times. `wide`: as of `latencies`."""
    told = notifications(journal)
    is_tag = F.col("kind") == "tag" if "kind" in journal.columns else F.lit(False)
    wanted = [
        F.count("*").alias("deliveries"),
        F.coalesce(F.sum(is_tag.cast("bigint")), F.lit(0)).alias("tagged"),
    ]
    if {"published_us", "delivered_us"} <= set(told.columns):
        latency = _latency(wide)
        wanted += [
            F.count(latency).alias("timed"),
            F.count_if(latency <= SECOND_US).alias("within_1s"),
            F.count_if(~latency.between(-YEAR_US, YEAR_US)).alias("beyond"),
            F.min(latency).cast("decimal(20,0)").alias("least"),
            F.max(latency).cast("decimal(20,0)").alias("most"),
        ]
    return told.agg(*wanted)


def _latency(wide: bool) -> Column:
    """`wide`: of moments whose difference may need more than 64 bits."""
    return _difference("delivered_us", "published_us") if wide else F.col("delivered_us") - F.col("published_us")


def percentiles(
    journal: DataFrame, percents: Sequence[int], count: int, least: int, most: int, wide: bool
) -> list[int]:
    """Of `count` latencies between `least` and `most`: exact, by nearest rank, without a sort.

    The span is cut into bins, and the bins that hold the ranks again, until they are one number wide: two passes over
    latencies of up to an hour, three of up to three years. Each brings at most `BINS` rows per rank to the driver.
    """
    told = notifications(journal).select(_latency(wide).alias("latency"))
    unit = "BD" if wide else "L"
    spans = [(least, most, max(0, -(-percent * count // 100) - 1)) for percent in percents]
    while any(low < high for low, high, _ in spans):
        cut = {(low, high): (high - low) // BINS + 1 for low, high, _ in spans}
        parts = [
            f"WHEN latency BETWEEN {low}{unit} AND {high}{unit} "
            f"THEN {i}L * {BINS} + (latency - ({low}{unit})) div {width}{unit}"
            for i, ((low, high), width) in enumerate(cut.items())
        ]
        bins = F.expr(f"CASE {' '.join(parts)} END").alias("bin")
        sizes = {row.bin: row["count"] for row in told.groupBy(bins).count().collect() if row.bin is not None}
        order = sorted(sizes)
        numbers = {span: i for i, span in enumerate(cut)}
        for k, (low, high, rank) in enumerate(spans):
            first = numbers[low, high] * BINS
            for at in order[bisect_left(order, first) :]:
                if rank < sizes[at]:
                    width = cut[low, high]
                    begin = low + (at - first) * width
                    spans[k] = (begin, min(high, begin + width - 1), rank)
                    break
                rank -= sizes[at]
            else:
                raise InvariantError(f"a rank of {count} latencies is in no bin: they changed while they were counted")
    return [low for low, _, _ in spans]
