"""`spark.read` and `spark.readStream.format("unisono_delta")`: a Delta table, by versions.

An offset is `{"v": 1, "version": n, "table": id}`: what versions up to n added has been read. A table that was
replaced, or restored to an older version, does not fit it. A stream begins with the snapshot of a version, or after
one, and goes on with what later versions added; a compaction adds nothing. A version that changes rows (update, merge,
overwrite) is refused by its number, because a stream of rows cannot say it; one that only removes rows is retention,
and rows that it took before they were read are a loss.

Options: `path`; `columns` (comma-separated: only these are read); `topics`, `startingSeq`, `endingSeq`,
`startingTimestamp`, `endingTimestamp` (ISO 8601, or microseconds; of `delivered_us`): files that the log says hold none
of these rows are not opened; `startingVersion` (`earliest`: the snapshot there is when the stream begins; `latest`, or
what version n added and all after it); `versionAsOf` (of a batch read); `maxVersionsPerTrigger`; `minPartitions`;
`failOnDataLoss`.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from unisono.audit.tables import BROKEN
from unisono.errors import DataLossError, FormatError, MisuseError
from unisono.spark.lakehouse.options import DeltaOptions, WantedRows
from unisono.spark.lakehouse.sink import DeltaBatchWriter, DeltaSinkOptions, DeltaStreamWriter
from unisono.spark.lakehouse.table import DeltaFile, LakeTable

logger = logging.getLogger(__name__)
OFFSET_VERSION = 1
PARTITION_BYTES = 32 << 20
BATCH_ROWS = 50_000


class DeltaPart(InputPartition):
    """Files that one task reads."""

    def __init__(self, files: list[DeltaFile]) -> None:
        super().__init__([file.path for file in files])
        self.files = files


def parts_of(files: Sequence[DeltaFile], wanted: WantedRows, partitions_min: int) -> list[DeltaPart]:
    """The files that may hold wanted rows, by size."""
    chosen = [file for file in files if wanted.may_be_in(file)]
    count = min(len(chosen), max(partitions_min, -(-sum(file.size for file in chosen) // PARTITION_BYTES)))
    ends = [len(chosen) * i // count for i in range(count + 1)] if count else []
    return [DeltaPart(chosen[low:high]) for low, high in pairwise(ends)]


def report_loss(options: DeltaOptions, reason: str) -> None:
    """Rows that were to be read are not there."""
    if options.fail_on_loss:
        raise DataLossError(f"{reason}; set failOnDataLoss to false to go on without them")
    logger.warning("%s", reason)


def rows_of(options: DeltaOptions, part: DeltaPart, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The wanted rows of these files, in the exact schema Spark asks for."""
    table = LakeTable(options.path)
    read = [*dict.fromkeys([*target.names, *options.wanted.columns])]
    for file in part.files:
        try:
            content = table.open(file.path)
        except DataLossError as error:
            report_loss(options, f"{error} ({'unknown' if file.rows is None else file.rows} rows)")
            continue
        for batch in _batches(content, read, f"{file.path} of {table.location}"):
            rows = options.wanted.rows(_whole(batch, read, file, table.schema))
            if rows.num_rows:
                yield _shaped(rows, target)


def _batches(content: Any, names: Sequence[str], where: str) -> Iterator[pa.RecordBatch]:
    """Of a file those columns that it has."""
    try:
        with content, pq.ParquetFile(content) as opened:
            held = [name for name in names if name in opened.schema_arrow.names]
            yield from opened.iter_batches(BATCH_ROWS, columns=held)
    except BROKEN as problem:
        said = str(problem).strip().partition("\n")[0] or type(problem).__name__
        raise FormatError(where, f"damaged ({said}): put back a copy of it") from None


def _whole(batch: pa.RecordBatch, names: Sequence[str], file: DeltaFile, schema: pa.Schema) -> pa.RecordBatch:
    """With the columns that only the log tells, and null where the file is older than the column."""
    arrays = []
    for name in names:
        if name in batch.schema.names:
            arrays.append(batch.column(name))
        else:
            value = pa.scalar(file.partition.get(name)).cast(schema.field(name).type)
            arrays.append(pa.repeat(value, batch.num_rows))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _shaped(rows: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    columns = (rows.column(name) for name in target.names)
    arrays = [
        column if column.type == field.type else column.cast(field.type) for column, field in zip(columns, target)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


class DeltaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming side."""

    def __init__(self, options: DeltaOptions, schema: StructType) -> None:
        if options.as_of is not None:
            raise MisuseError("versionAsOf is for batch reads: a stream goes on")
        self._options = options
        self._target = target_schema(options, schema)
        self._final: int | None = None

    def initialOffset(self) -> dict[str, int | str]:
        table = LakeTable(self._options.path)
        match self._options.start:
            case "earliest":
                version = -1
            case "latest":
                version = table.version
            case text:
                version = int(text) - 1
                if version > table.version:
                    raise MisuseError(f"startingVersion is {text}, and {table.location} is at version {table.version}")
        return _offset(table, version)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._final = LakeTable(self._options.path).version

    def latestOffset(self, start: dict[str, int | str], limit: ReadLimit) -> dict[str, int | str]:
        table = LakeTable(self._options.path)
        at = _version(start, table)
        head = table.version if self._final is None else self._final
        if at >= 0 and self._options.versions_max is not None:
            head = min(head, at + self._options.versions_max)
        return start if head <= at else _offset(table, head)

    def reportLatestOffset(self) -> dict[str, int | str]:
        table = LakeTable(self._options.path)
        return _offset(table, table.version)

    def partitions(self, start: dict[str, int | str], end: dict[str, int | str]) -> Sequence[DeltaPart]:
        table = LakeTable(self._options.path)
        after, upto = _version(start, table), _version(end, table)
        if after < 0:
            files = LakeTable(self._options.path, upto).snapshot() if upto >= 0 else []
        else:
            files = self._added(table, after, upto)
        return parts_of(files, self._options.wanted, self._options.partitions_min)

    def _added(self, table: LakeTable, after: int, upto: int) -> list[DeltaFile]:
        files: list[DeltaFile] = []
        for version in range(after, upto):
            try:
                (change,) = table.changes(version, version + 1)
            except DataLossError as error:
                report_loss(self._options, str(error))
                continue
            if change.added and change.removed:
                raise MisuseError(
                    f"version {change.version} of {table.location} changes rows ({change.operation}), and a stream "
                    f"reads what is added: start a new one with startingVersion {change.version + 1}, or read batches"
                )
            files += change.added
        return files

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, DeltaPart)
        return rows_of(self._options, partition, self._target)

    def commit(self, end: dict[str, int | str]) -> None:
        """Nothing is freed: retention is a job, not somebody's offset."""


def _offset(table: LakeTable, version: int) -> dict[str, int | str]:
    return {"v": OFFSET_VERSION, "version": version, "table": table.id}


def _version(offset: dict[str, int | str], table: LakeTable) -> int:
    match offset:
        case {"v": 1, "version": int(version), "table": str(name)}:
            if name != table.id:
                raise DataLossError(f"{table.location} is table {table.id}, and the offset is of table {name}")
            if version > table.version:
                raise DataLossError(
                    f"{table.location} is at version {table.version}, and version {version} was read of it: "
                    "it was restored from a backup, or set back"
                )
            return version
        case _:
            raise MisuseError(f"offset {offset} has an unknown version; this is version {OFFSET_VERSION}")


class DeltaBatchReader(DataSourceReader):
    """The batch side: a snapshot."""

    def __init__(self, options: DeltaOptions, schema: StructType) -> None:
        self._options = options
        self._target = target_schema(options, schema)
        files = LakeTable(options.path, options.as_of).snapshot()
        self._parts = parts_of(files, options.wanted, options.partitions_min) or [DeltaPart([])]

    def partitions(self) -> Sequence[DeltaPart]:
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, DeltaPart)
        return rows_of(self._options, partition, self._target)


def target_schema(options: DeltaOptions, schema: StructType) -> pa.Schema:
    """What Spark compares our batches with."""
    strange = [
        name for name in (*schema.names, *options.wanted.columns) if name not in LakeTable(options.path).schema.names
    ]
    if strange:
        raise MisuseError(f"the table has no column {', '.join(dict.fromkeys(strange))}")
    return to_arrow_schema(schema, timezone="UTC")


class DeltaDataSource(DataSource):
    """The data source `unisono_delta`."""

    @classmethod
    def name(cls) -> str:
        return "unisono_delta"

    def schema(self) -> StructType:
        options = DeltaOptions(self.options)
        schema = LakeTable(options.path, options.as_of).schema
        strange = [name for name in options.columns or () if name not in schema.names]
        if strange:
            raise MisuseError(f"the table has no column {', '.join(strange)}; it has {', '.join(schema.names)}")
        found: StructType = from_arrow_schema(
            pa.schema([schema.field(name) for name in options.columns]) if options.columns else schema
        )
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        return DeltaBatchReader(DeltaOptions(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return DeltaStreamReader(DeltaOptions(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return DeltaStreamWriter(DeltaSinkOptions(self.options, named=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise MisuseError("this sink appends: use mode append; streams that read the table could not say the rest")
        return DeltaBatchWriter(DeltaSinkOptions(self.options, named=False), schema)
