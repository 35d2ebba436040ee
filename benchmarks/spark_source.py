"""The source on Spark: rows per CPU second from an archive as Arrow batches, as tuples, and from native Parquet.

The same rows in one run, all columns, each way read to the end and thrown away. First every way must give the same
count and sums. Then the ways take turns: some to warm up, for the JVM compiles for many seconds what it runs often,
and Parquet's reader gains more by it than ours; of the others the median counts. A ratio is that within a turn, so that
a change of the machine's mood meets both. CPU is that of driver, JVM and workers together: on a machine with other
work, wall time says little.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from unisono.archive.schema import ArchivedEvent
from unisono.archive.writer import ArchiveConfig, ArchiveWriter
from unisono.model.time import Micros
from unisono.spark.session import CpuMeter, local_session
from unisono.spark.source import BatchReader, SourceOptions, UnisonoDataSource

ROWS, SEGMENT = 1_000_000, 100_000
WARM_UPS, TURNS = 8, 11


class TupleReader(BatchReader):
    """What a reader without Arrow would do with the same segments."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            columns = [column.to_pylist() for column in batch.columns]
            headers = batch.schema.get_field_index("headers")
            columns[headers] = [dict(pairs) for pairs in columns[headers]]
            yield from zip(*columns, strict=True)


class TupleSource(UnisonoDataSource):
    @classmethod
    def name(cls) -> str:
        return "tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(SourceOptions(self.options), schema)


def fill(directory: Path) -> None:
    with ArchiveWriter(directory, ArchiveConfig(seal_rows=SEGMENT)) as writer:
        for first in range(1, ROWS + 1, SEGMENT):
            writer.append(
                [
                    ArchivedEvent(n, f"t{n % 20}", n // 20, f"p{n % 50}", n // 50, n, n + 9, None, {}, b"%064d" % n)
                    for n in range(first, first + SEGMENT)
                ],
                Micros(0),
            )


def consume(frame: DataFrame) -> tuple[float, float]:
    """Seconds and CPU seconds to read everything."""
    began = time.perf_counter()
    with CpuMeter() as cpu:
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began, cpu.seconds()


def whole(frame: DataFrame) -> Row:
    """What every way must say alike."""
    length = "sum(length(topic) + length(publisher) + length(payload) + size(headers))"
    columns = ("number", "publisher_seq", "published_us", "delivered_us", "coalesce(deadline_us, 0)")
    return frame.selectExpr("count(*) AS n", length, f"sum(seq + {' + '.join(columns)})").collect()[0]


def run() -> list[dict[str, Any]]:
    spark = local_session("benchmark source", short=False)
    spark.dataSource.register(TupleSource)
    with tempfile.TemporaryDirectory() as temporary:
        archive, parquet = Path(temporary) / "archive", str(Path(temporary) / "parquet")
        fill(archive)
        arrow = spark.read.format("unisono").option("minPartitions", "2").load(str(archive))
        arrow.write.parquet(parquet)
        ways = {
            "arrow": arrow,
            "tuples": spark.read.format("tuples").option("minPartitions", "2").load(str(archive)),
            "native parquet": spark.read.parquet(parquet),
        }
        sums = {name: whole(frame) for name, frame in ways.items()}
        assert all(found == sums["arrow"] and found.n == ROWS for found in sums.values()), sums
        for _ in range(WARM_UPS):
            for name, frame in ways.items():
                if name != "tuples":
                    consume(frame)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(TURNS):
            for name, frame in ways.items():
                taken[name].append(consume(frame))
    spark.stop()
    return [
        {
            "case": name,
            "rows": ROWS,
            "rows_per_s": round(ROWS / median(seconds for seconds, _ in turns)),
            "rows_per_cpu_s": round(ROWS / median(cpu for _, cpu in turns)),
            "cpu_of_arrow": round(median(cpu / ours for (_, cpu), (_, ours) in zip(turns, taken["arrow"])), 2),
        }
        for name, turns in taken.items()
    ]
