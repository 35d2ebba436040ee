"""What an audit does physically: the log is read once, and rows are exchanged a known number of times."""

import re
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.spark.test_ranges import tracing
from unisono.spark.audits import report
from unisono.spark.limits import RangeLimits

Node = tuple[int, str]
"""How deep an operator stands in a plan, and its name."""


def plans_since(spark: SparkSession, first: int) -> list[list[Node]]:
    """The physical plans of all executions from one on, as Spark keeps them for its own pages."""
    found = spark._jsparkSession.sharedState().statusStore().executionsList()
    executions = [found.apply(i) for i in range(found.size())]
    return [nodes_of(e.physicalPlanDescription()) for e in executions if e.executionId() >= first]


def next_execution(spark: SparkSession) -> int:
    found = spark._jsparkSession.sharedState().statusStore().executionsList()
    return 1 + max((found.apply(i).executionId() for i in range(found.size())), default=-1)


def nodes_of(description: str) -> list[Node]:
    tree = description.partition("== Physical Plan ==\n")[2].partition("\n\n")[0]
    lines = (re.match(r"^([\s:+|*-]*)(.*?)(?: \(\d+\))*$", line) for line in tree.splitlines())
    return [(len(line[1]), line[2]) for line in lines if line is not None and line[2]]


def performed(plans: list[list[Node]]) -> list[str]:
    """The operators that were performed: what is below a kept frame once, however often it is used."""
    kept: set[str] = set()
    names: list[str] = []

    def walk(nodes: list[Node]) -> None:
        at = 0
        while at < len(nodes):
            depth, name = nodes[at]
            below = at + 1
            while name == "InMemoryRelation" and below < len(nodes) and nodes[below][0] > depth:
                below += 1
            subtree = nodes[at + 1 : below]
            shape = repr([(d - depth, n) for d, n in subtree])
            if name != "InMemoryRelation":
                names.append(name)
            elif shape not in kept:
                kept.add(shape)
                walk(subtree)
            at = below

    for plan in plans:
        walk(plan)
    return names


def test_a_log_is_read_once_and_exchanged_as_often_as_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    """Rows are exchanged by subscriber, once along streams, twice a round of lifting, by bucket and by topic. What else
    is exchanged are sums: a row per event, subscriber, topic, place or judge, and per task.
    """
    found, expected = tracing.planted(2_500, 1, tracing.FEW)
    pq.write_table(found, tmp_path / "log")
    first = next_execution(spark)
    said = report(spark.read.parquet(str(tmp_path / "log")), RangeLimits(anchors=2_500, bucket_rows=1_000))
    assert {v.judge: v.violations for v in said.verdicts} == expected
    names = performed(plans_since(spark, first))
    assert sum(name.startswith("Scan parquet") for name in names) == 1
    walks = names.count("Window")  # along streams, then over events and along streams in every round
    assert walks in (3, 5, 7, 9)
    exchanged = [below for name, below in pairwise(names) if name == "Exchange"]
    assert sum("Aggregate" not in name for name in exchanged) == 3 + walks
    assert len(exchanged) <= 14 + walks


def test_plans_are_read_as_they_are_printed() -> None:
    """A frame that is kept is performed once."""
    operators = ("* Project (5)", "+- InMemoryTableScan (4)", "   +- InMemoryRelation (3)", "      +- Exchange (2)")
    kept = "\n".join((*operators, "         +- Scan x  (1)"))
    again = kept.replace("Project", "Filter")
    plans = [nodes_of(f"== Physical Plan ==\n{tree}\n\n(1) Scan x") for tree in (kept, again)]
    assert [name.strip() for name in performed(plans)] == [
        *("Project", "InMemoryTableScan", "Exchange", "Scan x"),
        *("Filter", "InMemoryTableScan"),
    ]
