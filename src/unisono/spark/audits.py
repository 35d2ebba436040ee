"""One call for all judges at any size: `audit(df) -> df`, or `report(df)`, what `unisono audit` says without Spark.

A log of deliveries (`deliver` and `tag` rows) is cut so that tasks of bounded rows judge its parts on columns: by
subscriber for what shows in single streams, by ranges for what streams disagree about. Records that change what the
judges mean (subscriptions, outcomes, gaps …) belong to full journals of single runs: those are judged as a whole, in
one task, and so is a log that is no larger than a part.
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
from unisono.audit.columnar.log import ColumnarLog
from unisono.audit.columns import COLUMNS
from unisono.errors import FormatError, MisuseError
from unisono.model.journal import Header
from unisono.spark.keeping import held
from unisono.spark.limits import RangeLimits
from unisono.spark.meaning import Prepared, prepare
from unisono.spark.order import Disorder, find_disorder
from unisono.spark.reading import check_file, load, scan
from unisono.spark.streams import metrics, percentiles
from unisono.spark.subscribers import Sizes, judge_streams, judge_topics, log_of, sizes_of

__all__ = ["audit", "check_file", "load", "report", "report_file"]


def audit(journal: DataFrame) -> DataFrame:
    """`judge, holds, violations, witness`: a row for every judge that the columns of `journal` allow.

    `journal` has the columns of a journal (docs/reference/journal.md); `subscriber`, `event` and `position` are enough.
    """
    said = [(v.judge, v.holds, v.violations, v.witness) for v in report(journal).verdicts]
    return journal.sparkSession.createDataFrame(said, "judge STRING, holds BOOLEAN, violations BIGINT, witness STRING")


def report(journal: DataFrame, limits: RangeLimits = RangeLimits(), header: Header = Header()) -> Report:
    """The whole audit as data: the verdicts and metrics of `unisono.audit.examine`. A frame has no header itself."""
    if not isinstance(journal, DataFrame):
        raise MisuseError(
            f"a data frame of Spark is judged here, no {type(journal).__name__}; report_file takes a path"
        )
    if journal.isStreaming:
        raise MisuseError("a stream has no end to judge it at: unisono.spark.live.audit_stream judges while it goes on")
    with held(journal) as read:
        prepared = prepare(read, limits)
        return _in_one_task(prepared.rows, header) if prepared.in_one_task else _report(prepared, limits, header)


def _in_one_task(rows: DataFrame, header: Header) -> Report:
    """What the columnar engine says of all rows, in their order."""
    columns = [name for name in COLUMNS if name in rows.columns]

    def judge(table: pa.Table) -> pa.Table:
        return pa.table({"report": [msgspec.json.encode(examine_columns(log_of(table, columns, header))).decode()]})

    found = rows.groupBy(F.lit(0).alias("all")).applyInArrow(judge, "report STRING").collect()
    if not found:
        return examine_columns(ColumnarLog(header))
    fields = msgspec.json.decode(found[0].report)  # whole figures stay whole: as a type, metrics are floats
    verdicts = msgspec.convert(fields["verdicts"], list[Verdict])
    return Report(fields["deliveries"], fields["subscribers"], verdicts, fields["metrics"])


def _report(prepared: Prepared, limits: RangeLimits, header: Header) -> Report:
    rows = prepared.rows
    by_subscriber = [name for name in prepared.judges if PYTHON_JUDGES[name].by_subscriber]
    found = {name: Verdict(name, holds=True) for name in prepared.judges}
    sizes = sizes_of(rows, limits)
    with judge_streams(rows, prepared.count, by_subscriber, sizes, limits, header) as streams:
        disorder = find_disorder(streams.numbered, prepared.count, limits, bool(sizes.long))
        of_topics = [name for name in prepared.judges if name not in by_subscriber]
        every = reduce(DataFrame.unionAll, judge_topics(rows, prepared.count, of_topics, limits), streams.found)
        shortest = F.min_by("witness", F.struct(F.length("witness"), "witness")).alias("witness")
        for row in every.groupBy("judge").agg(F.sum("violations").alias("violations"), shortest).collect():
            found[row.judge] = Verdict(row.judge, False, row.violations, row.witness)
    found |= {verdict.judge: verdict for verdict in (*disorder.verdicts, *prepared.unjudged)}
    ordered = [found[name] for name in PYTHON_JUDGES if name in found]
    return Report(prepared.count, sizes.subscribers, ordered, _figures(prepared, sizes, disorder))


def _figures(prepared: Prepared, sizes: Sizes, disorder: Disorder) -> dict[str, float]:
    """What `unisono.audit.metrics` counts."""
    counted = metrics(prepared.rows, prepared.wide).collect()[0].asDict()
    figures: dict[str, float] = {
        "events": disorder.events,
        "ordering_degree": round(1 - disorder.moved / sizes.streams, 6) if disorder.moved else 1.0,
        "inverted_share": _share(disorder.inverted, disorder.events),
        "tagged_share": _share(counted["tagged"], counted["deliveries"]),
        "gaps": 0,
    }
    if counted.get("timed"):
        figures["notified_within_1s"] = _share(counted["within_1s"], counted["timed"])
        span = (counted["timed"], int(counted["least"]), int(counted["most"]))
        p50, p99 = percentiles(prepared.rows, (50, 99), *span, prepared.wide)
        figures |= {"latency_p50_us": p50, "latency_p99_us": p99}
        if counted["beyond"]:
            figures["latencies_beyond_a_year"] = counted["beyond"]
    return figures


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def report_file(spark: SparkSession, path: str | Path, limits: RangeLimits = RangeLimits()) -> Report:
    """`report` of a file; what Spark finds wrong with it is a FormatError of one line."""
    path = Path(path)
    try:
        return report(scan(spark, path), limits, check_file(path))
    except FormatError:
        raise
    except PySparkException as error:
        raise FormatError(str(path), said_by(error)) from None
    except MisuseError as error:
        raise MisuseError(f"{path}: {error}") from None


def said_by(error: PySparkException) -> str:
    """The one line that tells what is wrong: of what a Python worker raised that of the error, else the first."""
    text = str(error).strip()
    _, raised, trace = text.rpartition("Traceback (most recent call last):")
    told = [line for line in trace.splitlines() if line and not line[0].isspace()]
    return told[0] if raised and told else text.partition("\n")[0]
