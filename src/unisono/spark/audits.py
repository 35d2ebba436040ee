"""One call for all judges at any size: `audit(df) -> df`, the same verdicts as `unisono audit` without Spark."""

from functools import reduce

from pyspark.sql import DataFrame

from unisono.errors import MisuseError
from unisono.spark.order import ORDER_JUDGES, disorder_by_judge, one_row_each
from unisono.spark.streams import JUDGES, applicable, deliveries

NEEDED = {"subscriber": ("string",), "event": ("string",), "position": ("bigint", "int")}
TYPES = {
    **NEEDED,
    "topic": ("string",),
    "publisher": ("string",),
    "publisher_seq": ("bigint", "int"),
    "number": ("bigint", "int"),
    "published_us": ("bigint",),
    "delivered_us": ("bigint",),
    "deadline_us": ("bigint",),
    "clock": ("map<string,bigint>", "map<string,int>"),
}


def check_columns(journal: DataFrame) -> None:
    """Raises MisuseError naming the columns that are missing or of the wrong type."""
    found = dict(journal.dtypes)
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise MisuseError(f"no column {', '.join(missing)}; there are {', '.join(found) or 'none'}")
    for name, kinds in TYPES.items():
        if name in found and found[name] not in kinds:
            raise MisuseError(f"column {name} is {found[name]}, not {' or '.join(kinds)}")


def audit(journal: DataFrame) -> DataFrame:
    """`judge, holds, violations, witness`: a row for every judge that the columns of `journal` allow.

    `journal` has the columns of a journal (docs/reference/journal.md); `subscriber`, `event` and `position` are enough.
    """
    check_columns(journal)
    names = applicable(journal)
    found = [disorder_by_judge(deliveries(journal)), *(JUDGES[name][0](journal) for name in names)]
    return one_row_each(reduce(DataFrame.unionAll, found), [*ORDER_JUDGES, *names])
