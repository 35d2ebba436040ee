"""Source and sink as they are, dying at the place that option `dies` names when they come to rows beyond `beyond`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from unisono.spark.sink import PartitionRows, SinkOptions, SinkStreamWriter, publish, rows_of
from unisono.spark.source import Range, SourceOptions, StreamReader, UnisonoDataSource


@dataclass(frozen=True)
class Fault:
    place: str = ""
    beyond: int = 0

    def strikes(self, place: str, seq: int) -> bool:
        return place == self.place and seq > self.beyond

    def strike(self, place: str, seq: int) -> None:
        if self.strikes(place, seq):
            raise RuntimeError(f"died {place}")


READING = (Fault("before-read", 0), Fault("during-read", 10), Fault("after-read", 20))
WRITING = (Fault("before-write", 30), Fault("during-write", 40), Fault("after-write", 50))
COMMITTING = (Fault("before-commit", 60), Fault("during-commit", 60), Fault("after-commit", 60))
FAULTS = (*READING, *WRITING, *COMMITTING)


class Faulty(UnisonoDataSource):
    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamReader(self, schema: StructType) -> StreamReader:
        return Reading(SourceOptions(self._own()), schema, self._fault())

    def streamWriter(self, schema: StructType, overwrite: bool) -> SinkStreamWriter:
        return Writing(SinkOptions(self._own(), schema), self._fault())

    def _own(self) -> Any:
        own = self.options.copy()  # names of options have no case
        for name in ("dies", "beyond"):
            own.pop(name, None)
        return own

    def _fault(self) -> Fault:
        return Fault(self.options.get("dies", ""), int(self.options.get("beyond", "0")))


class Reading(StreamReader):
    def __init__(self, options: SourceOptions, schema: StructType, fault: Fault) -> None:
        super().__init__(options, schema)
        self._fault = fault

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        self._fault.strike("before-read", partition.upto)
        for batch in super().read(partition):
            yield from died_in_the_middle(self._fault, "during-read", batch)
            yield batch
        self._fault.strike("after-read", partition.upto)


class Writing(SinkStreamWriter):
    def __init__(self, options: SinkOptions, fault: Fault) -> None:
        super().__init__(options)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batches = list(iterator)
        last = max(last_of(batch) for batch in batches)
        self._fault.strike("before-write", last)
        for batch in batches:
            super().write(died_in_the_middle(self._fault, "during-write", batch))
        message = super().write(iter(batches))
        self._fault.strike("after-write", last)
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        rows = rows_of([m for m in messages if isinstance(m, PartitionRows)], self._options.topic)
        last = rows[-1].request
        self._fault.strike("before-commit", last)
        if self._fault.strikes("during-commit", last):
            publish(self._options, rows[: len(rows) // 2])
            self._fault.strike("during-commit", last)
        super().commit(messages, batchId)
        self._fault.strike("after-commit", last)


def last_of(batch: pa.RecordBatch) -> int:
    seqs: list[int] = batch.column("seq").to_pylist()
    return max(seqs)


def died_in_the_middle(fault: Fault, place: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Half of the batch, and the end, if this is the place; else nothing."""
    if fault.strikes(place, last_of(batch)):
        yield batch.slice(0, batch.num_rows // 2)
        fault.strike(place, last_of(batch))
