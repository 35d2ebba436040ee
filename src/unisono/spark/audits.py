"""One call for all judges at any size: `audit(df) -> df`, or `report(df)`, what `unisono audit` says without Spark.

A log of deliveries (`deliver` and `tag` rows) is judged by native plans. Records that change what the judges mean
(subscriptions, outcomes, gaps …) belong to full journals of single runs: those are judged as a whole by the columnar
engine, in one task.
"""

from functools import reduce
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from unisono.audit import JUDGES as PYTHON_JUDGES
from unisono.audit import Report, Verdict
from unisono.audit.columnar.judges import examine as examine_columns
from unisono.audit.columnar.log import Log
from unisono.audit.columns import COLUMNS, SCHEMA
from unisono.errors import FormatError, MisuseError
from unisono.model.journal import Header
from unisono.spark.islands import with_reference
from unisono.spark.meaning import Prepared, prepare
from unisono.spark.order import INVERTED, MOVED, ORDER_JUDGES, disorder_by_judge, disorder_of, one_row_each
from unisono.spark.reading import check_file, load, scan
from unisono.spark.streams import JUDGES, Known, metrics, wide_latencies

__all__ = ["audit", "check_file", "load", "report", "report_file"]


def audit(journal: DataFrame) -> DataFrame:
    """`judge, holds, violations, witness`: a row for every judge that the columns of `journal` allow.

    `journal` has the columns of a journal (docs/reference/journal.md); `subscriber`, `event` and `position` are enough.
    """
    prepared = prepare(journal)
    rows, names = prepared.rows, prepared.judges
    if prepared.in_one_task:
        said = [(v.judge, v.holds, v.violations, v.witness) for v in _in_one_task(rows).verdicts]
        return rows.sparkSession.createDataFrame(said, "judge STRING, holds BOOLEAN, violations BIGINT, witness STRING")
    known = Known.of(rows)
    found = [disorder_by_judge(known.streams), *(JUDGES[name](rows, known) for name in names)]
    return one_row_each(reduce(DataFrame.unionAll, found), [*ORDER_JUDGES, *names])


def report(journal: DataFrame) -> Report:
    """The whole audit as data: the verdicts and metrics of `unisono.audit.examine`."""
    read = journal.persist()
    try:
        prepared = prepare(read)
        if prepared.in_one_task:
            return _in_one_task(prepared.rows)
        return _report(prepared)
    finally:
        read.unpersist()


def _in_one_task(rows: DataFrame) -> Report:
    """What the columnar engine says of all rows, in their order."""
    columns = [name for name in COLUMNS if name in rows.columns]

    def judge(table: pa.Table) -> pa.Table:
        log = Log(Header())
        table = table.sort_by([("_at", "ascending"), ("event", "ascending")]).select(columns).combine_chunks()
        for batch in table.to_batches():
            arrays = [
                batch.column(name).cast(SCHEMA.field(name).type)
                if name in columns
                else pa.nulls(batch.num_rows, SCHEMA.field(name).type)
                for name in COLUMNS
            ]
            log.add(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        return pa.table({"report": [msgspec.json.encode(examine_columns(log)).decode()]})

    found = rows.groupBy(F.lit(0).alias("all")).applyInArrow(judge, "report STRING").collect()
    if not found:
        return examine_columns(Log(Header()))
    fields = msgspec.json.decode(found[0].report)  # whole figures stay whole: as a type, metrics are floats
    verdicts = msgspec.convert(fields["verdicts"], list[Verdict])
    return Report(fields["deliveries"], fields["subscribers"], verdicts, fields["metrics"])


def _report(prepared: Prepared) -> Report:
    rows, names = prepared.rows, prepared.judges
    known = Known.looked_up(rows)
    placed = with_reference(known.streams).persist()
    try:
        per_island = disorder_of(placed).collect()
    finally:
        placed.unpersist()
    found = {name: Verdict(name, holds=True) for name in (*ORDER_JUDGES, *names)}
    for name in ORDER_JUDGES:
        mine = [row for row in per_island if row.judge == name]
        if mine:
            witness = min((row.witness for row in mine), key=lambda text: (len(text), text))
            found[name] = Verdict(name, False, sum(row.violations for row in mine), witness)
    if names:
        for row in reduce(DataFrame.unionAll, [JUDGES[name](rows, known) for name in names]).collect():
            found[row.judge] = Verdict(row.judge, False, row.violations, row.witness)
    counted = metrics(rows).collect()[0].asDict()
    if prepared.wide and counted.get("timed"):
        counted |= _wide(rows, counted["timed"])
    merits: dict[str, float] = {
        "events": counted["events"],
        "ordering_degree": 1.0,
        "inverted_share": _share(sum(r.violations for r in per_island if r.judge == INVERTED), counted["events"]),
        "tagged_share": _share(counted["tagged"], counted["deliveries"]),
        "gaps": 0,
    }
    moved: dict[str, int] = {}
    for row in per_island:
        if row.judge == MOVED:
            moved[row.subscriber] = moved.get(row.subscriber, 0) + row.violations
    if moved:
        sizes = {row.subscriber: row["count"] for row in known.streams.groupBy("subscriber").count().collect()}
        degrees = [1 - moved.get(subscriber, 0) / size**2 for subscriber, size in sizes.items()]
        merits["ordering_degree"] = round(sum(degrees) / len(degrees), 6)
    if counted.get("timed"):
        merits["notified_within_1s"] = _share(counted["within_1s"], counted["timed"])
        merits["latency_p50_us"] = int(counted["latency_p50_us"])
        merits["latency_p99_us"] = int(counted["latency_p99_us"])
    ordered = [found[name] for name in PYTHON_JUDGES if name in found]
    return Report(counted["deliveries"], counted["subscribers"], ordered, merits)


def _wide(rows: DataFrame, count: int) -> dict[str, int]:
    """The figures of latencies that doubles do not keep, from the sorted latencies themselves."""
    found = wide_latencies(rows)
    nearest = {percent: max(0, -(-percent * count // 100) - 1) for percent in (50, 99)}
    return {
        "within_1s": found.where("latency <= 1000000").count(),
        **{f"latency_p{p}_us": int(found.offset(at).limit(1).collect()[0].latency) for p, at in nearest.items()},
    }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def report_file(spark: SparkSession, path: Path) -> Report:
    """`report` of a file; what Spark finds wrong with it is a FormatError of one line."""
    try:
        return report(scan(spark, path))
    except FormatError:
        raise
    except PySparkException as error:
        raise FormatError(str(path), str(error).strip().partition("\n")[0]) from None
    except MisuseError as error:
        raise MisuseError(f"{path}: {error}") from None
