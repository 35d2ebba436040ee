"""One call for all judges at any size: `audit(df) -> df`, or `report(df)`, what `unisono audit` says without Spark.

Judged are logs of deliveries: `deliver` and `tag` rows. Records that change what the judges mean (subscriptions,
outcomes, gaps …) belong to full journals of single runs; those are refused rather than judged by half.
"""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from unisono.audit import JUDGES as PYTHON_JUDGES
from unisono.audit import Report, Verdict, scan
from unisono.errors import FormatError, MisuseError
from unisono.model.journal import Header
from unisono.spark.islands import with_reference
from unisono.spark.order import INVERTED, MOVED, ORDER_JUDGES, disorder_by_judge, disorder_of, one_row_each
from unisono.spark.streams import JUDGES, Known, applicable, metrics

NAMES = ("string", "bigint", "int", "smallint", "tinyint")
NUMBERS = ("bigint", "int", "smallint", "tinyint")
CLOCKS = ("map<string,bigint>", "map<string,int>")
NEEDED = {"subscriber": NAMES, "event": NAMES, "position": NUMBERS}
TYPES = {
    **NEEDED,
    "kind": ("string",),
    **dict.fromkeys(("topic", "publisher"), NAMES),
    **dict.fromkeys(("publisher_seq", "number", "at_us", "published_us", "delivered_us", "deadline_us"), NUMBERS),
    "clock": CLOCKS,
}
JSON_ROWS = (
    "journal INT, kind STRING, subscriber STRING, event STRING, position BIGINT, topic STRING, publisher STRING, "
    "publisher_seq BIGINT, number BIGINT, at_us BIGINT, published_us BIGINT, delivered_us BIGINT, deadline_us BIGINT, "
    "clock MAP<STRING, BIGINT>, depends_on ARRAY<STRING>"
)
FULL_KINDS = ("publish", "outcome", "timestamp", "gap", "stalled", "subscribe", "restart")


def check_types(found: Mapping[str, str]) -> None:
    """Raises MisuseError naming the columns that are missing or of the wrong type."""
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise MisuseError(f"no column {', '.join(missing)}; there are {', '.join(found) or 'none'}")
    for name, kinds in TYPES.items():
        if name in found and found[name] not in kinds and not (name == "clock" and found[name].startswith("struct<")):
            raise MisuseError(f"column {name} is {found[name]}, not {' or '.join(kinds)}")


def prepare(journal: DataFrame) -> DataFrame:
    """The journal with one type per column, without the columns that hold nothing, refused if it is a full one."""
    check_types(dict(journal.dtypes))
    shaped = journal.select(*(_shaped(journal, name) for name in journal.columns if name in (*TYPES, "depends_on")))
    optional = [name for name in shaped.columns if name not in NEEDED]
    asked = [F.count(name).alias(name) for name in optional]
    if "kind" in optional:
        asked.append(F.array_sort(F.collect_set("kind")).alias("_kinds"))
    if "at_us" in optional:
        asked.append(F.max(F.abs("at_us")).alias("_timed"))
    row = shaped.agg(*asked).collect()[0].asDict() if asked else {}
    strange = [kind for kind in row.get("_kinds", []) if kind in FULL_KINDS]
    if strange:
        raise MisuseError(
            f"this is a full journal (it has {', '.join(strange)} records), which is judged without Spark; "
            "on Spark judge its deliver and tag rows"
        )
    if row.get("depends_on") and not row.get("clock"):
        raise MisuseError("causal order is judged by column clock on Spark, and there is only depends_on")
    kept = shaped.select(*NEEDED, *(name for name in optional if row[name] and name != "depends_on"))
    if "kind" in kept.columns:
        kept = kept.withColumn("kind", F.coalesce("kind", F.lit("deliver")))
    if row.get("_timed"):
        told = F.coalesce("delivered_us", "at_us") if "delivered_us" in kept.columns else F.col("at_us")
        kept = kept.withColumn("delivered_us", told)
    return kept


def _shaped(journal: DataFrame, name: str) -> Column:
    kind = dict(journal.dtypes)[name]
    column = F.col(name)
    if name == "clock" and kind.startswith("struct<"):  # what pandas makes of a column of dicts
        fields = journal.select(f"{name}.*").columns
        pairs = [part for field in fields for part in (F.lit(field), F.col(name)[field].cast("bigint"))]
        column = F.map_filter(F.create_map(*pairs), lambda _, number: number.isNotNull())
    elif name == "clock":
        column = column.cast("map<string,bigint>")
    elif name in TYPES:
        column = column.cast("string" if "string" in TYPES[name] else "bigint")
    return column.alias(name)


def audit(journal: DataFrame) -> DataFrame:
    """`judge, holds, violations, witness`: a row for every judge that the columns of `journal` allow.

    `journal` has the columns of a journal (docs/reference/journal.md); `subscriber`, `event` and `position` are enough.
    """
    rows = prepare(journal)
    names = applicable(rows)
    known = Known.of(rows)
    found = [disorder_by_judge(known.streams), *(JUDGES[name][0](rows, known) for name in names)]
    return one_row_each(reduce(DataFrame.unionAll, found), [*ORDER_JUDGES, *names])


def report(journal: DataFrame) -> Report:
    """The whole audit as data: the verdicts and metrics of `unisono.audit.examine`."""
    rows = prepare(journal).persist()
    try:
        return _report(rows)
    finally:
        rows.unpersist()


def _report(rows: DataFrame) -> Report:
    names = applicable(rows)
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
        for row in reduce(DataFrame.unionAll, [JUDGES[name][0](rows, known) for name in names]).collect():
            found[row.judge] = Verdict(row.judge, False, row.violations, row.witness)
    counted = metrics(rows).collect()[0].asDict()
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
        merits["latency_p50_us"] = counted["latency_p50_us"]
        merits["latency_p99_us"] = counted["latency_p99_us"]
    ordered = [found[name] for name in PYTHON_JUDGES if name in found]
    return Report(counted["deliveries"], counted["subscribers"], ordered, merits)


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def check_file(path: Path) -> Header:
    """The header of a journal file; raises FormatError or MisuseError, before any JVM starts, if it cannot be one."""
    header, _ = scan(path)
    part = _first_part(path)
    if not _magic(part).startswith(b"PAR1"):
        return header
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = pq.read_schema(part)
    known = [i for i, name in enumerate(schema.names) if name in TYPES]
    try:
        types = from_arrow_schema(schema.empty_table().select(known).schema)
        check_types({field.name: field.dataType.simpleString() for field in types.fields})
    except (MisuseError, PySparkException) as error:
        raise MisuseError(f"{path}: {error}") from None
    return header


def load(spark: SparkSession, path: Path) -> DataFrame:
    """A journal in Parquet or in JSON lines as a data frame: one file, or a folder of parts."""
    magic = _magic(_first_part(path))
    if magic.startswith(b"PAR1"):
        return spark.read.parquet(str(path))
    if magic.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        raise MisuseError(f"{path}: Spark reads Parquet and JSON lines, not Arrow files")
    return spark.read.schema(JSON_ROWS).option("mode", "FAILFAST").json(str(path)).where("journal IS NULL")


def _magic(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(6)


def _first_part(path: Path) -> Path:
    if not path.is_dir():
        return path
    parts = [part for part in sorted(path.iterdir()) if part.name[0] not in "._" and part.stat().st_size]
    if not parts:
        raise FormatError(str(path), "the folder holds no journal")
    return parts[0]


def report_file(spark: SparkSession, path: Path) -> Report:
    """`report` of a file; what Spark finds wrong with it is a FormatError of one line."""
    try:
        return report(load(spark, path))
    except PySparkException as error:
        raise FormatError(str(path), str(error).strip().partition("\n")[0]) from None
    except MisuseError as error:
        raise MisuseError(f"{path}: {error}") from None
