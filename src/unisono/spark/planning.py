"""Sequencing groups of subscriptions that do not fit one process: the plan of `unisono.planning`, counted by Spark.

Measured in the data-pipeline spec: up to some 10^8 rows one process with numpy is several times cheaper than any Spark
plan on the same machine, so this is for inputs that are already in Spark or too large. The plan is native: a list of
topics per subscriber, its pairs, and a count that Spark combines on the map side. `group_tables` has groups and pairs
as frames, at any size; `plan_groups` brings what enough subscribers share to the driver, in bounds, for its plan.
"""

from itertools import islice
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from unisono.errors import FormatError, MisuseError
from unisono.model.deployment import Deployment
from unisono.planning.files import read_subscriptions
from unisono.planning.groups import GroupPlan, assemble
from unisono.planning.leans import LeanDemand
from unisono.planning.regions import RegionDemand
from unisono.spark.keeping import held

COLUMNS = ("subscriber", "topic")
NAMES = ("string", "bigint", "int", "smallint", "tinyint")


KINDS_MAX = 2_000
"""Kinds of subscribers that leans are planned for; the linear programme is solved on the driver."""
DRIVER_ROWS_MAX = 20_000_000
"""Topics and pairs of topics of which the driver makes a plan, in some hundred bytes each."""
TOPICS_MAX = 2_000
"""Of a subscriber whose pairs are listed where its topics are; of one with more they are spread over tasks."""


def plan_groups(subscriptions: DataFrame, shared_min: int = 2, deployment: Deployment | None = None) -> GroupPlan:
    """Groups of the rows `subscriber, topic`; a row that comes twice counts once. A plan that is too large for the
    driver is refused: `group_tables` has it as frames.
    """
    with held(_checked(subscriptions)) as rows:
        heard = rows.groupBy("topic").count()
        with held(shared_pairs(rows, shared_min)) as pairs:
            size = heard.count() + pairs.count()
            if size > DRIVER_ROWS_MAX:
                raise MisuseError(
                    f"{size} topics and pairs of topics: a plan on the driver has at most {DRIVER_ROWS_MAX}. Raise "
                    "the number of subscribers that have to be shared, or write unisono.spark.planning.group_tables"
                )
            hearers = {row.topic: row["count"] for row in heard.orderBy("topic").toLocalIterator()}
            subscribers = rows.select("subscriber").distinct().count()
            found = ((row.a, row.b) for row in pairs.orderBy("a", "b").toLocalIterator())
            return assemble(hearers, found, subscribers, shared_min, deployment)


def group_tables(subscriptions: DataFrame, shared_min: int = 2) -> tuple[DataFrame, DataFrame]:
    """The plan at any size, lazily: `topic, subscribers, members` of every group, and `a, b, shared` of every pair."""
    rows = _checked(subscriptions, look=False)
    pairs = shared_pairs(rows, shared_min)
    both = pairs.select("a", "b").unionAll(pairs.select(F.col("b").alias("a"), F.col("a").alias("b")))
    members = both.groupBy(F.col("a").alias("topic")).agg(F.array_sort(F.collect_list("b")).alias("members"))
    heard = rows.groupBy("topic").agg(F.count("*").alias("subscribers"))
    nobody = F.array().cast("array<string>")
    groups = heard.join(members, "topic", "left").withColumn("members", F.coalesce("members", nobody))
    return groups, pairs


def _checked(subscriptions: DataFrame, look: bool = True) -> DataFrame:
    """`subscriber, topic`, each once; raises MisuseError if there is something else."""
    types = dict(subscriptions.dtypes)
    for name in COLUMNS:
        if name not in types:
            raise MisuseError(f"no column {name}; there are {', '.join(types) or 'none'}")
        if types[name] not in NAMES:
            raise MisuseError(f"column {name} is {types[name]}, not {' or '.join(NAMES)}")
    rows = subscriptions.select(*(F.col(name).cast("string").alias(name) for name in COLUMNS))
    nameless = "subscriber IS NULL OR topic IS NULL OR subscriber = '' OR topic = ''"
    if look and rows.where(nameless).limit(1).count():
        raise MisuseError("there are rows without a subscriber or a topic")
    return rows.distinct()


def shared_pairs(rows: DataFrame, shared_min: int) -> DataFrame:
    """`a, b, shared`: pairs of topics, `a` the smaller name, that at least `shared_min` subscribers have."""
    interests = rows.groupBy("subscriber").agg(F.array_sort(F.collect_list("topic")).alias("topics"))
    few, many = interests.where(F.size("topics") <= TOPICS_MAX), interests.where(F.size("topics") > TOPICS_MAX)
    firsts = few.select("topics", F.posexplode("topics").alias("at", "a"))
    later = F.slice(F.col("topics"), F.col("at") + 2, F.size("topics"))
    pairs = firsts.select("a", F.explode(later).alias("b"))
    # Who has very many topics has them in pieces; every two pieces meet in a task of their own.
    pieces = many.select("subscriber", F.posexplode("topics").alias("at", "topic")).groupBy(
        "subscriber", F.floor(F.col("at") / TOPICS_MAX).alias("piece")
    )
    cut = pieces.agg(F.array_sort(F.collect_list("topic")).alias("topics"))
    other = cut.select("subscriber", F.col("piece").alias("later"), F.col("topics").alias("following"))
    met = cut.join(other, "subscriber").where("piece <= later").repartition("subscriber", "piece", "later")
    crossed = met.select(F.explode("topics").alias("a"), "following")
    pairs = pairs.unionAll(crossed.select("a", F.explode("following").alias("b")).where("a < b"))
    return pairs.groupBy("a", "b").agg(F.count("*").alias("shared")).where(F.col("shared") >= shared_min)


def check_file(path: Path) -> None:
    """Raises FormatError, before any JVM starts, if the first rows are not what they should be."""
    for _ in islice(read_subscriptions(path), 100):
        pass


def count_demand(subscriptions: DataFrame) -> list[RegionDemand]:
    """How many subscribe to what where, of the rows `subscriber, topic, region`; a row that comes twice counts once."""
    missing = [name for name in (*COLUMNS, "region") if name not in subscriptions.columns]
    if missing:
        raise FormatError("subscriptions", f"no column {missing[0]!r}; there are: {', '.join(subscriptions.columns)}")
    counted = subscriptions.select(*COLUMNS, "region").distinct().groupBy("region", "topic").count()
    rows = counted.limit(DRIVER_ROWS_MAX + 1).collect()
    if len(rows) > DRIVER_ROWS_MAX:
        raise MisuseError(f"more than {DRIVER_ROWS_MAX} pairs of region and topic: plan for a part of them")
    found: dict[str, dict[str, int]] = {}
    for region, topic, count in rows:
        found.setdefault(str(region), {})[str(topic)] = count
    return [RegionDemand(region, topics) for region, topics in sorted(found.items())]


def lean_demand(subscriptions: DataFrame, rates: dict[str, dict[str, float]]) -> tuple[LeanDemand, float]:
    """Who hears what where, of the rows `subscriber, topic, region`: subscribers of one region with the same topics are
    one kind, and the kinds with most to hear come to the driver. Also which share of all deliveries those are.

    Topics without a rate have no lane, and are left out.
    """
    missing = [name for name in (*COLUMNS, "region") if name not in subscriptions.columns]
    if missing:
        raise FormatError("subscriptions", f"no column {missing[0]!r}; there are: {', '.join(subscriptions.columns)}")
    totals = [(topic, float(sum(of_topic.values()))) for topic, of_topic in rates.items()]
    known = subscriptions.sparkSession.createDataFrame(totals, "topic string, rate double")
    rows = subscriptions.select(*COLUMNS, "region").distinct().join(F.broadcast(known), "topic")
    people = rows.groupBy("subscriber", "region").agg(
        F.array_sort(F.collect_list("topic")).alias("topics"), F.sum("rate").alias("hears")
    )
    kinds = people.groupBy("region", "topics").agg(F.count("*").alias("people"), F.sum("hears").alias("hears"))
    kept = kinds.orderBy(F.desc("hears"), "region", "topics").limit(KINDS_MAX).collect()
    heard = kinds.agg(F.sum("hears")).collect()[0][0] or 0.0
    hearers = {(str(row.region), tuple(row.topics)): int(row.people) for row in kept}
    return LeanDemand(hearers, rates), sum(row.hears for row in kept) / heard if heard else 1.0


def load(spark: SparkSession, path: Path, with_region: bool = False) -> DataFrame:
    """A file of subscriptions as a data frame."""
    schema = "subscriber STRING, topic STRING" + (", region STRING" if with_region else "")
    try:
        match path.suffix:
            case ".csv":
                return spark.read.option("header", "true").csv(str(path))
            case ".jsonl" | ".ndjson":
                return spark.read.schema(schema).option("mode", "FAILFAST").json(str(path))
            case _:
                return spark.read.parquet(str(path))
    except PySparkException as error:
        raise FormatError(str(path), str(error).strip().partition("\n")[0]) from None
