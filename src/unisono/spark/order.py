"""Order at any size: the judges of `unisono.audit`, run island by island."""

from collections.abc import Iterable
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unisono.audit import Trace, judge_trace
from unisono.model.journal import Header, Journal, Record
from unisono.spark.islands import find_islands, tag, with_reference
from unisono.spark.streams import with_place

ORDER_JUDGES = ("pairwise-order", "local-order", "acyclic")
INVERTED, MOVED = "inverted-events", "moved"
"""Not verdicts but counts for the metrics: events in an inverted pair, and how far events stand from their places."""
FOUND = "island BIGINT, judge STRING, subscriber STRING, violations BIGINT, witness STRING"


def judge_island(table: pa.Table) -> pa.Table:
    """What the Python judges say about the deliveries of one island, and what the metrics need of it."""
    island = table.column("island")[0].as_py()
    table = table.sort_by([("_at", "ascending"), ("event", "ascending")])  # equal positions stand in this order
    columns = [table.column(name).to_pylist() for name in ("subscriber", "event", "position", "place")]
    records = [Record(subscriber=s, event=e, position=p) for s, e, p, _ in zip(*columns, strict=True)]
    trace = Trace(Journal(Header(), records))
    rows: list[tuple[str, str | None, int, str]] = [
        (found.judge, None, found.violations, found.witness)
        for found in judge_trace(trace, ORDER_JUDGES)
        if not found.holds
    ]
    if rows:
        rows.append((INVERTED, None, sum(len(found.events) for found in trace.inversions), ""))
        places: dict[str, list[float]] = {}
        for event, place in zip(columns[1], columns[3], strict=True):
            places.setdefault(event, []).append(place)
        rows += [(MOVED, subscriber, far, "") for subscriber, far in displacements(trace, places).items()]
    names, subscribers, counts, witnesses = zip(*rows) if rows else ((), (), (), ())
    return pa.table(
        {
            "island": pa.array([island] * len(rows), pa.int64()),
            "judge": pa.array(names, pa.string()),
            "subscriber": pa.array(subscribers, pa.string()),
            "violations": pa.array(counts, pa.int64()),
            "witness": pa.array(witnesses, pa.string()),
        }
    )


def displacements(trace: Trace, places: dict[str, list[float]]) -> dict[str, int]:
    """Per subscriber, summed: how far its events stand from where the mean place within their knot would put them.

    A stream has the events of a knot in one piece, else what lies between would belong to the knot. So what a whole
    stream is compared with need not be known here.
    """
    far: dict[str, int] = {}
    for knot in trace.union.knots:
        means = {event: sum(own) / len(own) for event in knot if (own := places[trace.events[event]])}
        for stream in trace.streams:
            here = [event for event in stream.events if event in means]
            right = sorted(here, key=lambda event: (means[event], event))
            at = {event: i for i, event in enumerate(right)}
            moved = sum(abs(at[event] - i) for i, event in enumerate(here))
            if moved:
                far[stream.subscriber] = far.get(stream.subscriber, 0) + moved
    return far


def disorder(deliveries: DataFrame) -> DataFrame:
    """`island, judge, subscriber, violations, witness`: what the judges found and the metrics count, per island.

    `deliveries` has the columns `subscriber`, `event`, `position` (more make the cut into islands finer).
    """
    return disorder_of(with_reference(with_place(deliveries)))


def disorder_of(placed: DataFrame) -> DataFrame:
    """The same of deliveries that have their places; they are read twice, so persist them where there is room."""
    return tag(placed, find_islands(placed)).groupBy("island").applyInArrow(judge_island, FOUND)


def disorder_by_judge(deliveries: DataFrame) -> DataFrame:
    """`judge, violations, witness`: a row for each of `pairwise-order`, `local-order`, `acyclic` that does not hold."""
    return (
        disorder(deliveries)
        .where(F.col("judge").isin(*ORDER_JUDGES))
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
