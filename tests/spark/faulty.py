"""The sink, dying once at each place for which there is a file in the directory of option `marks`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from unisono.spark.sink import Part, SinkOptions, StreamWriter, publish, rows_of
from unisono.spark.source import UnisonoDataSource

FAULTS = ("after-write", "during-commit", "after-commit")


class Faulty(UnisonoDataSource):
    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        own = {name: value for name, value in self.options.items() if name != "marks"}
        return Dying(SinkOptions(own, schema), Path(self.options["marks"]))


class Dying(StreamWriter):
    def __init__(self, options: SinkOptions, marks: Path) -> None:
        super().__init__(options)
        self._marks = marks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(iterator)
        self._die("after-write")
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if (self._marks / "during-commit").exists():
            rows = rows_of([m for m in messages if isinstance(m, Part)], self._options.topic)
            publish(self._options, rows[: len(rows) // 2])
            self._die("during-commit")
        super().commit(messages, batchId)
        self._die("after-commit")

    def _die(self, where: str) -> None:
        if (self._marks / where).exists():
            (self._marks / where).unlink(missing_ok=True)  # several tasks may see it
            raise RuntimeError(f"died {where}")
