"""`df.writeStream.format("unisono_delta")`: every batch is one commit, once, however often Spark plays it.

Tasks write Parquet files into the table's folder, which no reader sees; the driver adds them in one commit that carries
the batch as an application transaction (`writer`, batch id). A batch that is there already is not added again: only the
last one can be played again, and it must have as many rows as before; anything else is a second query under the same
name, or one whose checkpoint was lost, and is refused. Files of attempts that never came to a commit are left to
`jobs.retain`.

Options: `path`, `writer` (a name that one query has for ever; for streams). A table that is not there is made.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from unisono.errors import DataLossError, MisuseError
from unisono.spark.files import file_system
from unisono.spark.lakehouse.table import LakeTable

KNOWN = ("path", "writer", "checkpointlocation")
ROWS_KEY = "unisono.rows"
TEXT_MAX = 64
"""Characters of a text that is told as the least or greatest of a file."""
SEARCHED_VERSIONS_MAX = 10_000


class DeltaSinkOptions:
    """The user's options, checked once."""

    def __init__(self, raw: Any, named: bool) -> None:
        for name in raw:
            if name.lower() not in KNOWN:
                raise MisuseError(f"unknown option {name!r}; there are path, writer")
        for name in ("path", "writer") if named else ("path",):
            if name not in raw:
                raise MisuseError(f"the sink unisono_delta needs the option {name}")
        self.path: str = raw["path"]
        self.writer: str = raw.get("writer", "")


@dataclass
class WrittenFiles(WriterCommitMessage):
    """What one task wrote."""

    files: list[AddAction] = field(default_factory=list)
    rows: int = 0


def write_files(location: str, batches: Iterator[pa.RecordBatch]) -> WrittenFiles:
    """The task's side: a file, if there are rows."""
    files, root = file_system(location)
    stats = FileStats()
    name = f"part-{uuid.uuid4()}.parquet"
    writer = sink = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if writer is None:
            files.create_dir(root, recursive=True)
            sink = files.open_output_stream(f"{root}/{name}")
            writer = pq.ParquetWriter(sink, batch.schema)
        writer.write_batch(batch)
        stats.add(batch)
    if writer is None or sink is None:
        return WrittenFiles()
    writer.close()
    sink.close()
    info = files.get_file_info(f"{root}/{name}")
    written_ms = (info.mtime_ns or 0) // 1_000_000
    return WrittenFiles([AddAction(name, info.size, {}, written_ms, True, stats.json())], stats.rows)


class FileStats:
    """Least, greatest and missing values of a file, of numbers and short texts."""

    def __init__(self) -> None:
        self.rows = 0
        self._sides: dict[str, tuple[Any, Any]] = {}
        self._missing: dict[str, int] = {}
        self._untold: dict[str, None] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            kind = column.type
            self._missing[name] = self._missing.get(name, 0) + column.null_count
            if not (pa.types.is_integer(kind) or pa.types.is_string(kind)) or column.null_count == len(column):
                continue
            low, high = pc.min_max(column).as_py().values()  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(high, str) and max(len(low), len(high)) > TEXT_MAX:
                self._untold[name] = None
                continue
            least, most = self._sides.get(name, (low, high))
            self._sides[name] = (min(low, least), max(high, most))

    def json(self) -> str:
        told = {name: sides for name, sides in self._sides.items() if name not in self._untold}
        found = {
            "numRecords": self.rows,
            "minValues": {name: low for name, (low, _) in told.items()},
            "maxValues": {name: high for name, (_, high) in told.items()},
            "nullCount": self._missing,
        }
        return msgspec.json.encode(found).decode()


def add_files(location: str, schema: pa.Schema, parts: Sequence[WrittenFiles], writer: str, batch: int | None) -> bool:
    """The driver's side: one commit; False if the batch is there already."""
    DeltaTable.create(location, schema=schema, mode="ignore")
    table = LakeTable(location)
    table.check_writable()
    check_fits(table, schema)
    rows = sum(part.rows for part in parts)
    files: list[AddAction | RemoveAction] = [file for part in parts for file in part.files]
    transactions = None
    if batch is not None:
        last = table.delta.transaction_version(writer)
        if last is not None and batch <= last:
            _check_replay(table, writer, batch, last, rows)
            _discard(location, parts)
            return False
        if last is not None and batch > last + 1:
            raise DataLossError(
                f"{location} has batches of {writer} up to {last}, and the next is {batch}: the table was set back, "
                "or two queries share the name"
            )
        transactions = [Transaction(writer, batch)]
    properties = CommitProperties(custom_metadata={ROWS_KEY: str(rows)}, app_transactions=transactions)
    table.delta.create_write_transaction(files, "append", table.delta.schema(), commit_properties=properties)
    return True


def check_fits(table: LakeTable, schema: pa.Schema) -> None:
    """Raises MisuseError if rows of this schema are none of the table's."""
    found = {field.name: field.type for field in table.schema}
    wrong = [name for name, kind in zip(schema.names, schema.types, strict=True) if found.get(name) != kind]
    missing = [field.name for field in table.schema if field.name not in schema.names and not field.nullable]
    if wrong or missing or table.delta.metadata().partition_columns:
        what = f"columns {', '.join([*wrong, *missing])}" if wrong or missing else "partitions, which this sink has not"
        raise MisuseError(f"{table.location} has other {what}: select the columns of the table, or write another table")


def _check_replay(table: LakeTable, writer: str, batch: int, last: int, rows: int) -> None:
    """Raises DataLossError unless this is the last batch again."""
    before = _rows_of(table, writer, last) if batch == last else None
    if batch == last and before in (None, rows):
        return
    what = f"{before} rows in batch {batch}" if before is not None else f"batches up to {last}"
    raise DataLossError(
        f"{table.location} has {what} of {writer}, and now batch {batch} has {rows}: no replay. A query with a new "
        "checkpoint, or over changed data, needs another name in the option writer"
    )


def _rows_of(table: LakeTable, writer: str, batch: int) -> int | None:
    """How many rows a batch had; None if its commit is no longer in the log."""
    for version in range(table.version, max(-1, table.version - SEARCHED_VERSIONS_MAX), -1):
        try:
            actions = table.actions(version)
        except DataLossError:
            return None
        if any(a.get("txn", {}).get("appId") == writer and a["txn"]["version"] == batch for a in actions):
            told = [a["commitInfo"][ROWS_KEY] for a in actions if ROWS_KEY in a.get("commitInfo", {})]
            return int(told[0]) if told else None
    return None


def _discard(location: str, parts: Sequence[WriterCommitMessage | None]) -> None:
    where, root = file_system(location)
    for part in parts:
        for file in part.files if isinstance(part, WrittenFiles) else ():
            where.delete_file(f"{root}/{file.path}")


class DeltaStreamWriter(DataSourceStreamArrowWriter):
    """The streaming side. Spark makes a new one for every call: it keeps nothing."""

    def __init__(self, options: DeltaSinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_files(self._options.path, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        parts = [message for message in messages if isinstance(message, WrittenFiles)]
        add_files(self._options.path, self._schema, parts, self._options.writer, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """No reader has seen anything."""
        _discard(self._options.path, messages)


class DeltaBatchWriter(DataSourceArrowWriter):
    """`df.write.format("unisono_delta").mode("append").save(table)`: one commit."""

    def __init__(self, options: DeltaSinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_files(self._options.path, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = [message for message in messages if isinstance(message, WrittenFiles)]
        add_files(self._options.path, self._schema, parts, "", None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """No reader has seen anything."""
        _discard(self._options.path, messages)
