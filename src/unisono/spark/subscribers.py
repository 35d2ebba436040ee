"""What shows in the notifications of one subscriber: judged on columns, some whole streams to a task.

One exchange brings the rows of a subscriber together, and one sort in the task serves all judges of single streams, and
numbers the deliveries for those that compare streams (`ranges`). A stream too long for a task does not pass through
one: its judges are native plans (`streams`), and it is numbered in pieces.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from unisono.audit.columnar.judges import Case, ask
from unisono.audit.columnar.log import ColumnarLog
from unisono.audit.columnar.sorting import order_by
from unisono.audit.columns import COLUMNS, SCHEMA
from unisono.errors import MisuseError
from unisono.model.journal import Header
from unisono.spark.keeping import held
from unisono.spark.limits import RangeLimits
from unisono.spark.streams import FOUND_COLUMNS, JUDGES, PLACE, Known

NUMBERED = ("subscriber", "event", "position", "nth", "size")
"""A delivery, its place in its stream from 0, and the length of the stream."""
KEYS = ("s", "e")
"""Numbers that the rows of a subscriber and those of an event share, which sort faster than names. Two that share one
by chance are taken for one while places are sought, which makes ranges larger at worst.
"""
GIVEN = pa.schema(
    [("judge", pa.string()), ("violations", pa.int64()), ("witness", pa.string())]
    + [(name, pa.string() if name in ("subscriber", "event") else pa.int64()) for name in NUMBERED]
)
_GIVEN_SQL = ", ".join(f"{field.name} {'STRING' if field.type == pa.string() else 'BIGINT'}" for field in GIVEN)
_OF_TOPICS = ("kind", "subscriber", "event", "position", "topic", "number", "publisher", "publisher_seq")
_BATCH_ROWS = 50_000


class Sizes(NamedTuple):
    """How many were notified of something, of something in order, and who of too much for a task."""

    subscribers: int
    streams: int
    long: list[str]


class JudgedStreams(NamedTuple):
    """What tasks found: `judge, violations, witness`; and every event once per stream, in `NUMBERED` and `KEYS`."""

    found: DataFrame
    numbered: DataFrame


def sizes_of(rows: DataFrame, limits: RangeLimits) -> Sizes:
    """Of a log of notifications. The names that come to the driver are few: each is of a stream above the limit."""
    in_order = F.count_if(F.col("kind") == "deliver") if "kind" in rows.columns else F.count("*")
    sizes = rows.groupBy("subscriber").agg(F.count("*").alias("size"), in_order.alias("in_order"))
    is_long = F.col("size") > limits.stream_rows
    names = F.collect_list(F.when(is_long, F.col("subscriber")))
    total = sizes.agg(F.count("*"), F.count_if(F.col("in_order") > 0), names)
    subscribers, streams, long = total.collect()[0]
    return Sizes(subscribers, streams, sorted(long))


@contextmanager
def judge_streams(
    rows: DataFrame,
    count: int,
    names: Sequence[str],
    sizes: Sizes,
    limits: RangeLimits,
    header: Header = Header(),
) -> Iterator[JudgedStreams]:
    """Asks the named judges about `count` rows that say what is known of their events."""
    columns = [name for name in COLUMNS if name in rows.columns and name != "at_us"]  # moments are in delivered_us
    is_long = F.col("subscriber").isin(sizes.long)
    short = rows.where(~is_long) if sizes.long else rows
    tasks = max(2, -(-count // limits.task_rows))
    task = _task(names, columns, header)
    given = short.select(*columns, "_at").repartition(tasks, "subscriber").mapInArrow(task, _GIVEN_SQL)
    with held(given) as known:
        found = known.where("judge IS NOT NULL").select(*FOUND_COLUMNS)
        numbered = known.where("judge IS NULL").select(*NUMBERED)
        if sizes.long:
            long = rows.where(is_long)
            found = reduce(DataFrame.unionAll, _native(long, names, limits), found)
            numbered = numbered.unionAll(_number(Known.of(long).streams, sizes, limits))
        keys = {key: F.xxhash64(name) for key, name in zip(KEYS, ("subscriber", "event"))}
        yield JudgedStreams(found, numbered.withColumns(keys))


def judge_topics(rows: DataFrame, count: int, names: Sequence[str], limits: RangeLimits) -> list[DataFrame]:
    """`judge, violations, witness` of judges whose violations each show in the rows of one topic: topics to a task.

    Where a topic is too long for a task, or where rows of an event name several topics or numbers, by native plans.
    """
    if not names:
        return []
    told = rows.where("topic IS NOT NULL")
    largest = told.groupBy("topic").count().agg(F.max("count")).collect()[0][0] or 0
    own = {f"_own_{name}" for name in ("topic", "number")} & {*rows.columns}
    by_plan = [name for name in names if largest > limits.stream_rows or (name == "kept" and own)]
    found = [JUDGES[name](rows, None).select(*FOUND_COLUMNS) for name in by_plan]
    by_task = [name for name in names if name not in by_plan]
    if by_task:
        columns = [name for name in _OF_TOPICS if name in rows.columns]
        parts = told.select(*columns, "_at").repartition(max(2, -(-count // limits.task_rows)), "topic")
        found.append(
            parts.mapInArrow(_task(by_task, columns, Header(), numbering=False), _GIVEN_SQL).select(*FOUND_COLUMNS)
        )
    return found


def _native(long: DataFrame, names: Sequence[str], limits: RangeLimits) -> list[DataFrame]:
    """The judges of streams that no task holds."""
    for name in names:
        if name not in JUDGES:
            raise MisuseError(
                f"a subscriber has more than {limits.stream_rows} notifications, and {name} is judged in one task per "
                "subscriber: audit the log on one machine with --on arrow, or leave out the columns of that judge"
            )
    known = Known.of(long)
    return [JUDGES[name](long, known).select(*FOUND_COLUMNS) for name in names]


def _task(
    names: Sequence[str], columns: Sequence[str], header: Header, numbering: bool = True
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = [batch for batch in batches if batch.num_rows]
        if not read:
            return
        case = Case(log_of(pa.Table.from_batches(read), columns, header))
        for name in names:
            verdict = ask(case, name)
            if verdict is not None and verdict.is_violated:
                yield _given(1, judge=[name], violations=[verdict.violations], witness=[verdict.witness])
        if numbering:
            yield from _numbered(case)

    return judge


def log_of(table: pa.Table, columns: Sequence[str], header: Header) -> ColumnarLog:
    """These rows, with these columns of journals, in the order of `_at`; without one in that of the events' names."""
    at = table.column("_at").to_numpy()
    if len(at) and at.min() == at.max():
        names = [name for name in ("event", "subscriber", "position") if name in table.column_names]
        table = table.sort_by([(name, "ascending") for name in names])
    elif (at[1:] < at[:-1]).any():
        table = table.take(pa.array(order_by(at)))
    log = ColumnarLog(header)
    for batch in table.combine_chunks().to_batches():
        arrays = [
            batch.column(field.name).cast(field.type) if field.name in columns else pa.nulls(batch.num_rows, field.type)
            for field in SCHEMA
        ]
        log.add(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    return log


def _numbered(case: Case) -> Iterator[pa.RecordBatch]:
    """Streams as they stand."""
    streams, log = case.streams, case.log
    positions = log.numbers("position")
    sizes = np.diff(streams.starts)
    for start in range(0, len(streams.rows), _BATCH_ROWS):
        at = slice(start, start + _BATCH_ROWS)
        nth = np.arange(start, min(start + _BATCH_ROWS, len(streams.rows)))
        which = np.searchsorted(streams.starts, nth, side="right") - 1
        assert positions is not None
        yield _given(
            len(nth),
            subscriber=log.subscribers.names.take(pa.array(streams.subscribers[at])),
            event=log.events.names.take(pa.array(streams.events[at])),
            position=positions.values[streams.rows[at]],
            nth=nth - streams.starts[which],
            size=sizes[which],
        )


def _given(rows: int, **columns: Any) -> pa.RecordBatch:
    arrays = []
    for field in GIVEN:
        column = columns.get(field.name)
        if column is None:
            column = pa.nulls(rows, field.type)
        arrays.append(column.cast(field.type) if isinstance(column, pa.Array) else pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=GIVEN)


def _number(streams: DataFrame, sizes: Sizes, limits: RangeLimits) -> DataFrame:
    """The deliveries of long streams, sorted in pieces of their positions.

    Rows with equal positions are in one piece, so what breaks the tie need not be compared between pieces.
    """
    total = streams.groupBy("subscriber").agg(F.count("*").alias("size"))
    count = 1 + int((total.agg(F.max("size")).collect()[0][0] or 0) // limits.stream_rows)
    steps = [i / count for i in range(1, count)] or [0.5]
    bounds = streams.groupBy("subscriber").agg(F.percentile_approx("position", steps, 10_000).alias("bounds"))
    small = F.broadcast(streams.sparkSession.createDataFrame(total.join(bounds, "subscriber").toArrow()))
    passed = F.size(F.filter("bounds", lambda bound: bound < F.col("position")))
    pieces = streams.join(small, "subscriber").withColumn("piece", passed)
    own = F.row_number().over(Window.partitionBy("subscriber", "piece").orderBy(*PLACE))
    counts = pieces.groupBy("subscriber", "piece").agg(F.count("*").alias("rows"))
    earlier = Window.partitionBy("subscriber").orderBy("piece").rowsBetween(Window.unboundedPreceding, -1)
    carried = counts.select("subscriber", "piece", F.coalesce(F.sum("rows").over(earlier), F.lit(0)).alias("earlier"))
    numbered = pieces.withColumn("own", own).join(F.broadcast(carried), ["subscriber", "piece"])
    nth = (F.col("own") - 1 + F.col("earlier")).cast("bigint").alias("nth")
    return numbered.select("subscriber", "event", "position", nth, "size")
