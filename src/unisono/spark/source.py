"""`spark.read` and `spark.readStream.format("unisono")`: the archive's one order, with exact offsets.

The offset is the archive's own sequence, `{"v": 1, "seq": n}`: rows up to n have been read. A range reads the same
rows for ever, until retention removes them, and then says so. Rows come as Arrow batches that share the memory of
the mapped segments. `seq` is in every row: Spark keeps order within a partition of a batch, a shuffle does not.

Options (Spark hands all of them over as text): `path` (a directory, a URL of a file system that Arrow reads, or
`nats://host:port/STREAM` for an archive in a JetStream stream) or `url` and `stream` for the latter; `topics`
(comma-separated; filters where the rows are read); `startingSeq` (`earliest`, `latest` or a sequence to start at);
`endingSeq` (the last row of a batch read); `maxRowsPerTrigger`; `minPartitions`; `failOnDataLoss` (default true);
`gaps` (what becomes of the notices that numbers are missing: `omit`, the default, gives events only; `rows` gives the
notices too; `fail` ends the query). Ranges and topics are options, not filters pushed down: decision 17.
"""

# pyarrow.compute makes its functions when it is imported, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from unisono.archive.headers import GAP
from unisono.archive.reader import Archive
from unisono.archive.schema import SCHEMA
from unisono.errors import DataLossError, MisuseError
from unisono.spark.sink import BatchWriter, SinkOptions, StreamWriter

OFFSET_VERSION = 1
ROWS: StructType = from_arrow_schema(SCHEMA)
BATCH_ROWS = 50_000
KNOWN = (
    *("path", "url", "stream", "topics", "startingSeq", "endingSeq"),
    *("maxRowsPerTrigger", "minPartitions", "failOnDataLoss", "gaps"),
)
PASSWORD_VARIABLE = "UNISONO_NATS_PASSWORD"
"""Of the user that a `nats://user@host` names: options end up in plans and logs, the environment does not."""


class Options:
    """The user's options, checked once, with errors that name them."""

    def __init__(self, raw: Any) -> None:
        for name in raw:
            if name.lower() not in {known.lower() for known in KNOWN}:
                raise MisuseError(f"unknown option {name!r}; there are {', '.join(KNOWN)}")
        if "path" in raw and ("url" in raw or "stream" in raw):
            raise MisuseError("path, or url and stream: an archive has one place")
        if "path" not in raw and not ("url" in raw and "stream" in raw):
            raise MisuseError(
                "the unisono source needs a path: .load(directory) or .option('path', directory); or, for an archive "
                "in a stream, the options url (nats://host:port) and stream"
            )
        self.path: str = raw["path"] if "path" in raw else f"{raw['url'].rstrip('/')}/{raw['stream']}"
        topics = raw.get("topics")
        self.topics = tuple(name.strip() for name in topics.split(",")) if topics else None
        self.start: str = raw.get("startingSeq", "earliest")
        self.end = self._count(raw, "endingSeq")
        self.rows_max = self._count(raw, "maxRowsPerTrigger")
        self.partitions_min = self._count(raw, "minPartitions") or 1
        self.fail_on_loss = self._flag(raw, "failOnDataLoss")
        self.gaps: str = raw.get("gaps", "omit")
        if self.gaps not in ("omit", "rows", "fail"):
            raise MisuseError(f"gaps is omit, rows or fail, not {self.gaps!r}")
        if self.start not in ("earliest", "latest") and not self.start.isdigit():
            raise MisuseError(f"startingSeq is earliest, latest or a sequence, not {self.start!r}")

    @staticmethod
    def _count(raw: Any, name: str) -> int | None:
        text = raw.get(name)
        if text is None:
            return None
        if not text.isdigit() or int(text) == 0:
            raise MisuseError(f"{name} is a positive number, not {text!r}")
        return int(text)

    @staticmethod
    def _flag(raw: Any, name: str) -> bool:
        text = raw.get(name, "true").lower()
        if text not in ("true", "false"):
            raise MisuseError(f"{name} is true or false, not {text!r}")
        return bool(text == "true")


class Rows(Protocol):
    """An archive, wherever it is kept."""

    def bounds(self) -> tuple[int, int]: ...

    def read(self, after: int, upto: int, topics: tuple[str, ...] | None = None) -> Iterator[pa.RecordBatch]: ...


@contextmanager
def archive_at(location: str) -> Iterator[Rows]:
    """The archive in a directory or in a stream, for as long as it is looked at: a reader keeps no connection."""
    if not location.startswith(("nats://", "tls://")):
        yield Archive(location)
        return
    from unisono.runtime.streamed import open_stream  # a client of NATS, which files do not need

    with open_stream(with_password(location, os.environ.get(PASSWORD_VARIABLE, ""))) as archive:
        yield archive


def with_password(location: str, password: str) -> str:
    """`with_password("nats://ann@host/S", "x") == "nats://ann:x@host/S"`; without a bare user nothing changes."""
    scheme, _, rest = location.partition("://")
    user, at, hosts = rest.rpartition("@")
    return f"{scheme}://{user}:{quote(password, safe='')}@{hosts}" if password and at and ":" not in user else location


def bounds_of(location: str) -> tuple[int, int]:
    """The first and the last row that can be read now; (n + 1, n) when there is none."""
    with archive_at(location) as archive:
        return archive.bounds()


class Range(InputPartition):
    """Rows `after` < seq <= `upto`."""

    def __init__(self, after: int, upto: int) -> None:
        super().__init__((after, upto))
        self.after = after
        self.upto = upto


def split(after: int, upto: int, parts: int) -> list[Range]:
    """Contiguous, disjoint ranges of nearly equal size that together are (after, upto]."""
    rows = upto - after
    parts = min(parts, rows)
    cuts = [after + rows * i // parts for i in range(parts + 1)] if rows > 0 else []
    return [Range(low, high) for low, high in pairwise(cuts)]


def rows_of(options: Options, part: Range, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in pieces, in the exact schema Spark asks for."""
    with archive_at(options.path) as archive:
        for batch in archive.read(part.after, part.upto, options.topics):
            if options.gaps != "rows":
                batch = events_of(batch, options.gaps == "fail")
            shaped = pa.RecordBatch.from_arrays(
                [
                    column if column.type == field.type else column.cast(field.type)
                    for column, field in zip((batch.column(name) for name in target.names), target)
                ],
                schema=target,
            )
            for start in range(0, shaped.num_rows, BATCH_ROWS):
                yield shaped.slice(start, BATCH_ROWS)


def events_of(batch: pa.RecordBatch, fail: bool) -> pa.RecordBatch:
    """The batch without notices of gaps, which are no events; raises DataLossError at the first if they are to `fail`.

    A notice has no publisher, so most batches are seen to hold none at the price of one comparison per row.
    """
    if not pc.any(pc.equal(batch.column("publisher"), "")).as_py():
        return batch
    first = pc.map_lookup(batch.column("headers"), pa.scalar(GAP), "first")
    is_event = pc.is_null(first)
    if fail and not pc.all(is_event).as_py():
        at = pc.index(is_event, False).as_py()
        topic, number, why = (batch.column(name)[at].as_py() for name in ("topic", "number", "payload"))
        raise DataLossError(
            f"numbers {first[at]} to {number} of {topic} are missing in the archive ({why.decode()}); "
            "set gaps to omit or rows to go on behind them"
        )
    return batch.filter(is_event)


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark compares our batches with; columns the archive does not have are refused by name."""
    strange = [name for name in schema.names if name not in SCHEMA.names]
    if strange:
        raise MisuseError(f"the archive has no column {', '.join(strange)}; it has {', '.join(SCHEMA.names)}")
    return to_arrow_schema(schema, timezone="UTC")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming side. It frees nothing on commit: the archive's retention is nobody's offset."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.end is not None:
            raise MisuseError("a stream has no end: endingSeq is for batch reads, maxRowsPerTrigger bounds a trigger")
        self._options = options
        self._target_schema = arrow_schema(schema)
        self._final: int | None = None

    def initialOffset(self) -> dict[str, int]:
        first, last = bounds_of(self._options.path)
        match self._options.start:
            case "earliest":
                seq = first - 1
            case "latest":
                seq = last
            case text:
                seq = int(text) - 1
        return {"v": OFFSET_VERSION, "seq": seq}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.rows_max) if self._options.rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._final = bounds_of(self._options.path)[1]

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        at = self._seq(start)
        first, last = bounds_of(self._options.path)
        if at + 1 < first:
            self._lost(at + 1, first - 1)
            at = first - 1
        head = last if self._final is None else self._final
        if isinstance(limit, ReadMaxRows):
            head = min(head, at + limit.max_rows)
        return {"v": OFFSET_VERSION, "seq": max(head, at)}

    def reportLatestOffset(self) -> dict[str, int]:
        return {"v": OFFSET_VERSION, "seq": bounds_of(self._options.path)[1]}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Range]:
        after, upto = self._seq(start), self._seq(end)
        first, _ = bounds_of(self._options.path)
        if after + 1 < first and after < upto:
            self._lost(after + 1, min(first - 1, upto))
            after = min(first - 1, upto)
        return split(after, upto, self._options.partitions_min)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return rows_of(self._options, partition, self._target_schema)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to free: a restart may read the range again."""

    def stop(self) -> None:
        """Nothing is held."""

    def _lost(self, first: int, last: int) -> None:
        if self._options.fail_on_loss:
            raise DataLossError(
                f"rows {first} to {last} were removed by retention before they were read; "
                "set failOnDataLoss to false to go on behind them"
            )

    @staticmethod
    def _seq(offset: dict[str, int]) -> int:
        if offset.get("v") != OFFSET_VERSION:
            raise MisuseError(f"offset {offset} has an unknown version; this is version {OFFSET_VERSION}")
        return offset["seq"]


class BatchReader(DataSourceReader):
    """The batch side: everything sealed now, or the range that options name."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._target_schema = arrow_schema(schema)
        first, last = bounds_of(options.path)
        if options.start.isdigit():
            wanted = int(options.start)
            if wanted < first and options.fail_on_loss:
                raise DataLossError(f"rows {wanted} to {first - 1} were removed by retention")
            first = max(first, wanted)
        elif options.start == "latest":
            raise MisuseError("a batch reads what is there: startingSeq is earliest or a sequence, not latest")
        if options.end is not None:
            if options.end > last:
                raise MisuseError(f"endingSeq is {options.end}, and the last row that is sealed is {last}")
            last = max(options.end, first - 1)
        self._after, self._upto = first - 1, last

    def partitions(self) -> Sequence[Range]:
        # Spark wants at least one partition; an empty range reads nothing.
        return split(self._after, self._upto, self._options.partitions_min) or [Range(self._after, self._after)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return rows_of(self._options, partition, self._target_schema)


class UnisonoDataSource(DataSource):
    """The data source `unisono`."""

    @classmethod
    def name(cls) -> str:
        return "unisono"

    def schema(self) -> StructType:
        return ROWS

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(Options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(Options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(SinkOptions(self.options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise MisuseError("what was published stays published: use mode append")
        return BatchWriter(SinkOptions(self.options, schema))
