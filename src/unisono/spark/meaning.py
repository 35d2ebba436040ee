"""What a log means, on data frames: types, refusals and lookups (docs/reference/audit.md), before any judge is asked.

Rows that `reading.load` read are checked already. A frame from elsewhere is checked here, and has no order of rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, MapType, StructType

from unisono.audit import JUDGES as PYTHON_JUDGES
from unisono.audit.columns import COLUMNS
from unisono.audit.files import NAMES, NEEDED, NUMBERS, WHOLE_MAX
from unisono.audit.judges.fifo import NO_TOPIC
from unisono.audit.judges.table import Judge
from unisono.audit.verdict import Verdict, nothing
from unisono.errors import MisuseError
from unisono.model.journal import KINDS
from unisono.spark.limits import RangeLimits
from unisono.spark.reading import LEAST, first_problem, problem_column
from unisono.spark.streams import JUDGES

TEXTS = ("string", "varchar", "char")
INTEGERS = ("bigint", "int", "smallint", "tinyint")
FLOATS = ("double", "float")
OURS = ("_at", "_problem")
"""Where a row stands among all, and why it has to be refused: what `reading` tells beside the columns of a journal."""
NO_WHOLE = " is no whole number of 64 bits"
ONE_TASK_ROWS_MAX = 20_000_000
"""Rows of a full journal: one task holds them, in about 300 bytes each."""
ORDER_JUDGES = ("pairwise-order", "local-order", "acyclic")
FULL_KINDS = ("publish", "outcome", "timestamp", "gap", "stalled", "subscribe", "restart", "void", "kept")
"""Kinds that change what the judges say of deliveries; those that a judge needs are such kinds, too."""


def check_types(journal: DataFrame) -> None:
    """Raises MisuseError naming the columns that are missing, there twice, or of the wrong type."""
    found = dict(journal.dtypes)
    missing = [name for name in LEAST if name not in found]
    if missing and "kind" not in found:
        advice = (
            "; of an archive's rows unisono.spark.archived.deliveries makes a journal" if "payload" in found else ""
        )
        raise MisuseError(f"no column {', '.join(missing)}; there are {', '.join(found) or 'none'}{advice}")
    names = [name.lower() for name in journal.columns]
    for name in (name for name in (*COLUMNS, *OURS) if names.count(name) > 1):
        raise MisuseError(f"column {name} is there {names.count(name)} times: select one (Spark tells no case apart)")
    for name, kind in found.items():
        plain = kind.partition("(")[0]
        if name == "kind":
            fits = plain in TEXTS
        elif name in NAMES:
            fits = plain in (*TEXTS, *INTEGERS)
        elif name in NUMBERS:
            fits = plain in (*INTEGERS, *FLOATS)
        elif name == "_at":
            fits = plain in INTEGERS
        elif name == "clock":
            fits = _are_numbers(journal.schema[name].dataType)
        elif name == "depends_on":
            fits = kind in ("array<string>", "array<bigint>", "array<int>")
        else:
            fits = True
        if not fits and plain != "void":
            advice = ": unix_micros makes numbers of moments" if plain.startswith(("timestamp", "date")) else ""
            raise MisuseError(f"column {name} is {kind}, which does not fit (docs/reference/audit.md){advice}")


def _are_numbers(clock: DataType) -> bool:
    """Whether a column of clocks tells numbers of publishers."""
    match clock:
        case StructType():
            told = [field.dataType for field in clock.fields]
        case MapType() if clock.keyType.simpleString() in (*TEXTS, *INTEGERS):
            told = [clock.valueType]
        case _:
            return False
    return all(kind.simpleString() in (*INTEGERS, *FLOATS, "void") for kind in told)


@dataclass(frozen=True)
class Prepared:
    """A log in the one meaning: `rows` are notifications that say what is known of their events, in the columns that
    hold something; `judges` those that have columns. Of a log that one task judges, all rows.
    """

    rows: DataFrame
    judges: tuple[str, ...]
    unjudged: tuple[Verdict, ...] = ()
    """Of judges that have columns and nothing to judge."""
    count: int = 0
    """Of the notifications."""
    wide: bool = False
    """Whether moments are so large that doubles do not keep their differences."""
    in_one_task: bool = False


def prepare(journal: DataFrame, limits: RangeLimits) -> Prepared:
    """Types, refusals and lookups; raises FormatError or MisuseError for what has to be refused."""
    check_types(journal)
    shaped = journal.select(*(_shaped(journal, name) for name in COLUMNS if name in journal.columns), *_marks(journal))
    for name in LEAST:
        if name not in shaped.columns:
            shaped = shaped.withColumn(name, F.lit(None).cast("bigint" if name == "position" else "string"))
    stats = _look(shaped)
    problem = first_problem(stats["_problem"])
    if problem is not None:
        raise problem
    if stats["_full"] or not stats["_told"] or stats["_causes"] or _has_no_plan(stats):
        if stats["_rows"] > ONE_TASK_ROWS_MAX:
            raise MisuseError(
                f"a full journal (or causes without clocks, or a judge of whole logs) of {stats['_rows']} rows: one "
                f"task judges at most {ONE_TASK_ROWS_MAX}; judge its deliver and tag rows"
            )
        if stats["_full"] and "_at" not in journal.columns:
            raise MisuseError(
                "a full journal is judged in the order of its rows, which a frame does not have: read it by "
                "unisono.spark.audits.load, or give it a column _at, the place of each row"
            )
        return Prepared(shaped, (), in_one_task=True)
    if stats["_rows"] <= limits.bucket_rows:
        return Prepared(shaped, (), in_one_task=True)
    held = [name for name in COLUMNS if name in shaped.columns and (name in LEAST or stats[name])]
    rows = shaped.where("kind IN ('deliver', 'tag')") if "kind" in held else shaped
    rows = rows.select(*held, "_at")
    if stats["_timed"]:
        own = F.coalesce("delivered_us", "at_us") if "delivered_us" in held else F.col("at_us")
        rows = rows.withColumn("delivered_us", own)
    known, judges, unjudged = _known(rows, stats)
    return Prepared(known, judges, unjudged, stats["_told"], wide=bool(stats["_extreme"]))


def full_kinds() -> set[str]:
    """Kinds of records that make a log a full journal."""
    return {*FULL_KINDS, *(kind for judge in PYTHON_JUDGES.values() for kind in judge.kinds)}


def _has_no_plan(stats: Mapping[str, Any]) -> bool:
    """Whether there are columns for a judge of whole logs that is not among those with a plan of their own."""
    others = (judge for judge in _others().values() if not judge.by_subscriber)
    return any(_has_columns(judge, stats) for judge in others)


def _others() -> dict[str, Judge]:
    """The judges that are not known here."""
    known = (*ORDER_JUDGES, *JUDGES)
    return {name: judge for name, judge in PYTHON_JUDGES.items() if name not in known and not judge.kinds}


def _has_columns(judge: Judge, stats: Mapping[str, Any]) -> bool:
    return all(stats.get(column) for column in judge.columns)


def _marks(journal: DataFrame) -> list[Column]:
    """The place of every row, and what is wrong with it. A frame without `_at` has no order of rows."""
    if {*OURS} <= {*journal.columns}:
        return [F.col("_at"), F.col("_problem")]
    at = F.col("_at") if "_at" in journal.columns else F.lit(0)
    return [at.cast("bigint").alias("_at"), _problem(journal).alias("_problem")]


def _problem(journal: DataFrame) -> Column:
    """Per row of a frame, the first thing that has to be refused, else null."""
    types = dict(journal.dtypes)
    kind = F.coalesce(F.col("kind"), F.lit("deliver")) if "kind" in types else F.lit("deliver")
    header = "; headers of files are rows here: read the files by unisono.spark.audits.load" * ("journal" in types)
    shown = F.concat_ws(
        ", ",
        *(F.concat(F.lit(f"{n} "), F.coalesce(F.col(n).cast("string"), F.lit("null"))) for n in LEAST if n in types),
    )
    found: list[Column] = [
        F.when(~kind.isin(*KINDS), F.concat(F.lit("column kind: '"), kind, F.lit("' is no kind of record")))
    ]
    for name in (name for name in types if name in NUMBERS and types[name] in FLOATS):
        said = F.concat(F.lit(f"column {name}: "), F.col(name).cast("string"), F.lit(NO_WHOLE))
        found.append(F.when(~_is_whole(F.col(name)), said))
    if any(kind in types.get("clock", "") for kind in FLOATS):
        numbers = F.filter(_entries_of(journal, "double"), lambda entry: ~_is_whole(entry["value"]))
        first = F.get(numbers, F.lit(0))
        said = F.concat(F.lit("column clock: "), first["value"].cast("string"), F.lit(" of "), first["key"])
        found.append(F.when(first.isNotNull(), F.concat(said, F.lit(NO_WHOLE))))
    for wanting, columns in NEEDED.items():
        for name in columns:
            absent = F.col(name).isNull() if name in types else F.lit(True)
            said = F.lit(f"column {name}: missing, but a '{wanting}' record needs it{header}")
            found.append(F.when((kind == wanting) & absent, said))
    problem = F.coalesce(*found)
    return F.when(problem.isNotNull(), F.concat(F.lit("a row of the frame ("), shown, F.lit("), "), problem))


def _is_whole(value: Column) -> Column:
    """Whether a float is a whole number that floats can tell from its neighbours; null is none to ask about."""
    whole = (F.rint(value) == value) & (F.abs(value) <= float(WHOLE_MAX))  # of NaN the second part is not true
    return value.isNull() | whole


def _entries_of(journal: DataFrame, kind: str) -> Column:
    """The entries of each clock as an array of `key, value`; what is no number of this kind is null there."""
    column = F.col("clock")
    if dict(journal.dtypes)["clock"].startswith("struct<"):  # what pandas makes of a column of dicts
        fields = journal.select("clock.*").columns
        each = [F.struct(F.lit(f).alias("key"), column[f].try_cast(kind).alias("value")) for f in fields]
        return F.when(column.isNotNull(), F.array(*each))
    shaped = F.transform(
        F.map_entries(column),
        lambda e: F.struct(e["key"].cast("string").alias("key"), e["value"].try_cast(kind).alias("value")),
    )
    return F.when(column.isNotNull(), shaped)


def _look(shaped: DataFrame) -> dict[str, Any]:
    """One pass: what is to be refused, which columns hold something, which judges can be asked."""
    names = shaped.columns
    kind = F.col("kind") if "kind" in names else F.lit("deliver")
    is_told = kind.isin("deliver", "tag")

    def known(*columns: str) -> Column:
        return reduce(Column.__and__, [F.col(c).isNotNull() if c in names else F.lit(False) for c in columns], is_told)

    moments = [name for name in ("at_us", "published_us", "delivered_us") if name in names]
    is_timed = F.col("at_us") != 0 if "at_us" in names else F.lit(False)
    asked = {
        "_problem": problem_column(),
        "_rows": F.count("*"),
        "_told": F.count_if(is_told),
        "_full": F.count_if(kind.isin(*full_kinds())),
        "_timed": F.count_if(is_timed),
        "_authors": F.count_if(known("publisher", "publisher_seq")),
        "_clocks": F.count_if(known("clock")),
        "_topics": F.count_if(known("topic")),
        "_lines": F.count_if(known("topic", "number") | known("topic", "publisher", "publisher_seq")),
        "_authors_lines": F.count_if(known("topic", "publisher", "publisher_seq")),
        "_numbers": F.count_if(known("number")),
        "_lists": F.count_if(known("depends_on")),
        "_extreme": F.count_if(
            reduce(Column.__or__, [~F.col(m).between(-(2**52), 2**52) for m in moments], F.lit(False))
        ),
        "_due": F.count_if(known("deadline_us", "delivered_us")),
        "_due_at_all": F.count_if(known("deadline_us")),
        **{name: F.count(name) for name in names if not name.startswith("_")},
    }
    row: dict[str, Any] = shaped.agg(*(column.alias(name) for name, column in asked.items())).collect()[0].asDict()
    row["_causes"] = row["_lists"] and not (row["_clocks"] and row["_authors"])
    return row


def _known(rows: DataFrame, stats: dict[str, Any]) -> tuple[DataFrame, tuple[str, ...], tuple[Verdict, ...]]:
    """Every row says what any row says of its event; the judges there are columns for, and those without a case."""
    groups: dict[str, tuple[str, ...]] = {
        name: (name,) for name in ("topic", "number", "clock", "published_us") if name in rows.columns
    }
    if stats["_authors"]:
        groups["author"] = ("publisher", "publisher_seq")
    split = _split(rows, groups)
    if split:
        told = [
            F.max_by(F.struct(*columns), F.when(_all_known(columns), F.struct("_at", _hash(columns)))).alias(f"_{name}")
            for name, columns in groups.items()
            if name in split
        ]
        own = [F.col(name).alias(f"_own_{name}") for name in ("topic", "number") if name in split]
        others = [name for name in rows.columns if not any(name in groups[part] for part in split)]
        joined = rows.join(rows.groupBy("event").agg(*told), "event")
        filled = [
            (
                F.coalesce(F.col(name), F.col(f"_{part}.{name}"))
                if part == "published_us"
                else F.col(f"_{part}.{name}")
            ).alias(name)
            for part in split
            for name in groups[part]
        ]
        rows = joined.select(*others, *filled, *own)
    elif "publisher" in rows.columns and not stats["_authors"]:
        rows = rows.drop("publisher", "publisher_seq")
    if split and stats["_topics"]:  # what an event has in rows of its own it has in all rows by now
        names = [name for name in ("number", "publisher_seq") if name in rows.columns]
        placed = [F.col("topic").isNotNull() & F.col(name).isNotNull() for name in names]
        asked = {"_lines": reduce(Column.__or__, placed, F.lit(False))}
        asked["_authors_lines"] = placed[-1] if "publisher_seq" in names else F.lit(False)
        stats |= rows.agg(*(F.count_if(line).alias(name) for name, line in asked.items())).collect()[0].asDict()
    can = {
        "fifo": stats["_authors"],
        "publisher-order": stats["_authors"] and stats["_topics"],
        "causal": stats["_authors"] and stats["_clocks"],
        "exactly-once": True,
        "complete": stats["_lines"],
        "kept": stats["_numbers"],
        "deadline": stats["_due_at_all"] if stats["_timed"] else stats["_due"],
    }
    further = [name for name, judge in _others().items() if judge.by_subscriber and _has_columns(judge, stats)]
    without: tuple[Verdict, ...] = ()
    if can["publisher-order"] and not stats["_authors_lines"]:
        can["publisher-order"], without = 0, (nothing("publisher-order", NO_TOPIC),)
    return rows, (*(name for name in JUDGES if can[name]), *further), without


def _all_known(columns: Iterable[str]) -> Column:
    return reduce(Column.__and__, [F.col(column).isNotNull() for column in columns])


def _hash(columns: Iterable[str]) -> Column:
    return F.xxhash64(*(F.array_sort(F.map_entries(name)) if name == "clock" else F.col(name) for name in columns))


def _split(rows: DataFrame, groups: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Which groups of columns the rows of some event do not tell alike: only those need to be looked up."""
    if not groups:
        return []
    # Maps cannot be compared, hashes can. A group that a row tells by half is not told.
    hashes = {name: F.when(_all_known(columns), _hash(columns)) for name, columns in groups.items()}
    told_groups = F.concat_ws("", *(F.when(column.isNull(), "0").otherwise("1") for column in hashes.values()))
    together = F.xxhash64(told_groups, *hashes.values())
    differs = rows.groupBy(F.xxhash64("event")).agg((F.min(together) != F.max(together)).alias("differs"))
    if not differs.agg(F.count_if("differs")).collect()[0][0]:
        return []
    asked = []
    for name, told in hashes.items():
        is_partial = (F.count(told) < F.count("*")) & (F.count(told) > 0)
        asked.append((is_partial | F.coalesce(F.min(told) != F.max(told), F.lit(False))).alias(name))
    # By a number: two events that share one by chance are looked up, and found to be told alike.
    found = rows.groupBy(F.xxhash64("event")).agg(*asked)
    row = found.agg(*(F.count_if(F.col(name)).alias(name) for name in groups)).collect()[0].asDict()
    return [name for name in groups if row[name]]


def _shaped(journal: DataFrame, name: str) -> Column:
    """In the type of journals. What does not fit is null, and refused by `_problem`."""
    column = F.col(name)
    if name == "kind":
        column = F.coalesce(column.cast("string"), F.lit("deliver"))
    elif name == "at_us":
        column = F.coalesce(column.try_cast("bigint"), F.lit(0))
    elif name == "clock" and dict(journal.dtypes)[name] == "map<string,bigint>":
        column = F.map_filter(column, lambda _, number: number.isNotNull())
    elif name == "clock":
        known = F.filter(_entries_of(journal, "bigint"), lambda entry: entry["value"].isNotNull())
        column = F.map_from_entries(known)
    elif name == "depends_on":
        column = F.filter(column.cast("array<string>"), lambda cause: cause.isNotNull())
    else:
        column = column.try_cast("bigint") if name in NUMBERS else column.cast("string")
    return column.alias(name)
