"""Order at any size: the columnar engine, bucket by bucket of ranges that no knot crosses."""

from collections.abc import Iterable
from functools import reduce

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from unisono.audit import JUDGES, Trace, Verdict
from unisono.audit.columnar.judges import SEARCHED_ROWS_MAX
from unisono.audit.columnar.order import DeliveryRows, Knots, tangled
from unisono.model.journal import Header, Journal, Record
from unisono.spark.limits import RangeLimits
from unisono.spark.ranges import Ints, cut

ORDER_JUDGES = ("pairwise-order", "local-order", "acyclic")
EVENTS, INVERTED, MOVED = "events", "inverted-events", "moved"
"""No verdicts but counts for the metrics: events, those in an inverted pair, how far they stand from their places."""
FOUND = "judge STRING, violations BIGINT, share DOUBLE, witness STRING"


class Disorder(Struct, frozen=True):
    """What the judges of order found in a log, and what the metrics count."""

    verdicts: list[Verdict]
    events: int = 0
    inverted: int = 0
    """Events in an inverted pair."""
    moved: float = 0.0
    """How far events stand from their places, over the square of their stream's length, summed over streams."""


class BucketFinding(Struct, frozen=True):
    """A row of what one bucket gives."""

    judge: str
    violations: int = 0
    share: float = 0.0
    witness: str = ""


def find_disorder(numbered: DataFrame, count: int, limits: RangeLimits, long: bool = True) -> Disorder:
    """Of `count` deliveries as `judge_streams` numbers them. What comes to the driver is a row per judge and figure."""
    shortest = F.min_by("witness", F.struct(F.length("witness"), "witness"))
    sums = [F.sum(name).alias(name) for name in ("violations", "share")]
    with cut(numbered, count, limits, long) as ranges:
        found = ranges.groupBy("bucket").applyInArrow(judge_bucket, FOUND)
        rows = {row.judge: row for row in found.groupBy("judge").agg(*sums, shortest.alias("witness")).collect()}
    verdicts = [
        Verdict(name, False, rows[name].violations, rows[name].witness) if name in rows else Verdict(name, holds=True)
        for name in ORDER_JUDGES
    ]
    events, inverted = (rows[name].violations if name in rows else 0 for name in (EVENTS, INVERTED))
    return Disorder(verdicts, events, inverted, rows[MOVED].share if MOVED in rows else 0.0)


def judge_bucket(table: pa.Table) -> pa.Table:
    """What the judges of order say about the deliveries of one bucket, and what the metrics need of it."""
    findings = _findings(table.combine_chunks())
    return pa.Table.from_pylist(
        [{name: getattr(finding, name) for name in finding.__struct_fields__} for finding in findings],
        pa.schema(
            [("judge", pa.string()), ("violations", pa.int64()), ("share", pa.float64()), ("witness", pa.string())]
        ),
    )


def _findings(table: pa.Table) -> list[BucketFinding]:
    codes = {name: table.column(name).combine_chunks().dictionary_encode() for name in ("subscriber", "event")}
    streams, events = (encoded.indices.to_numpy().astype(np.int64) for encoded in codes.values())
    nth, size = (table.column(name).to_numpy() for name in ("nth", "size"))
    order = np.lexsort((nth, streams))
    inside, labels = tangled(len(codes["event"].dictionary), streams[order], events[order])
    events_told = BucketFinding(EVENTS, len(codes["event"].dictionary))
    if not len(inside):
        return [events_told]
    rows = order[inside]
    knots = Knots(DeliveryRows(streams[rows], events[rows], nth[rows], size[rows], rows), labels)
    told = _Told(table, rows)
    found = [
        events_told,
        BucketFinding("acyclic", knots.count, witness=told.witness("acyclic", knots.showing_cycle(SEARCHED_ROWS_MAX))),
    ]
    for judge, counted in (("pairwise-order", knots.inverted), ("local-order", knots.local)):
        if counted.pairs:
            shown = told.witness(judge, knots.showing(counted.example))
            found.append(BucketFinding(judge, counted.pairs, witness=shown))
    if knots.inverted.pairs:
        found.append(BucketFinding(INVERTED, int(knots.inverted.events.sum())))
    _, far, lengths = knots.moved()
    return [*found, BucketFinding(MOVED, share=float((far / lengths.astype(float) ** 2).sum()))]


class _Told(Struct, frozen=True):
    """The deliveries that lie in knots, as records."""

    table: pa.Table
    rows: Ints

    def witness(self, judge: str, knotted: Ints) -> str:
        """What the judge says of these rows of knots."""
        at = np.sort(self.rows[knotted])
        taken = self.table.take(pa.array(at)).sort_by([("nth", "ascending")])
        columns = [taken.column(name).to_pylist() for name in ("subscriber", "event", "position")]
        records = [Record(subscriber=s, event=e, position=p) for s, e, p in zip(*columns, strict=True)]
        said = JUDGES[judge](Trace(Journal(Header(), records)))
        assert said is not None
        return said.witness


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
