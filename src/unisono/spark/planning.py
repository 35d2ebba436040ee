"""Sequencing groups of subscriptions that do not fit one process: the plan of `unisono.planning`, counted by Spark.

Measured in the data-pipeline spec: up to some 10^8 rows one process with numpy is several times cheaper than any Spark
plan on the same machine, so this is for inputs that are already in Spark or too large. The plan is native: a list of
topics per subscriber, its pairs, and a count that Spark combines on the map side. Only the pairs that enough
subscribers share come to the driver.
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

COLUMNS = ("subscriber", "topic")
NAMES = ("string", "bigint", "int", "smallint", "tinyint")


def plan_groups(subscriptions: DataFrame, shared_min: int = 2, deployment: Deployment | None = None) -> GroupPlan:
    """Groups of the rows `subscriber, topic`; a row that comes twice counts once."""
    types = dict(subscriptions.dtypes)
    for name in COLUMNS:
        if name not in types:
            raise MisuseError(f"no column {name}; there are {', '.join(types) or 'none'}")
        if types[name] not in NAMES:
            raise MisuseError(f"column {name} is {types[name]}, not {' or '.join(NAMES)}")
    rows = subscriptions.select(*(F.col(name).cast("string").alias(name) for name in COLUMNS)).distinct().persist()
    try:
        if rows.where("subscriber IS NULL OR topic IS NULL OR subscriber = '' OR topic = ''").limit(1).count():
            raise MisuseError("there are rows without a subscriber or a topic")
        hearers = {row.topic: row["count"] for row in rows.groupBy("topic").count().orderBy("topic").collect()}
        subscribers = rows.select("subscriber").distinct().count()
        pairs = [(row.a, row.b) for row in shared_pairs(rows, shared_min).orderBy("a", "b").collect()]
    finally:
        rows.unpersist()
    return assemble(hearers, pairs, subscribers, shared_min, deployment)


def shared_pairs(rows: DataFrame, shared_min: int) -> DataFrame:
    """`a, b, shared`: pairs of topics, `a` the smaller name, that at least `shared_min` subscribers have."""
    interests = rows.groupBy("subscriber").agg(F.array_sort(F.collect_list("topic")).alias("topics"))
    firsts = interests.select("topics", F.posexplode("topics").alias("at", "a"))
    later = F.slice(F.col("topics"), F.col("at") + 2, F.size("topics"))
    pairs = firsts.select("a", F.explode(later).alias("b"))
    return pairs.groupBy("a", "b").agg(F.count("*").alias("shared")).where(F.col("shared") >= shared_min)


def check_file(path: Path) -> None:
    """Raises FormatError, before any JVM starts, if the first rows are not what they should be."""
    for _ in islice(read_subscriptions(path), 100):
        pass


def load(spark: SparkSession, path: Path) -> DataFrame:
    """A file of subscriptions as a data frame."""
    try:
        match path.suffix:
            case ".csv":
                return spark.read.option("header", "true").csv(str(path))
            case ".jsonl" | ".ndjson":
                return spark.read.schema("subscriber STRING, topic STRING").option("mode", "FAILFAST").json(str(path))
            case _:
                return spark.read.parquet(str(path))
    except PySparkException as error:
        raise FormatError(str(path), str(error).strip().partition("\n")[0]) from None
