"""`spark.read` and `spark.readStream.format("unisono")`: the archive's one order, with exact offsets.

An offset names a row: `{"v": 2, "seq": n, "archive": id, "term": id}`, rows up to n have been read. An archive that was
replaced, shortened or rolled back does not fit it: an error that names both, at the driver and where rows are read. A
range reads the same rows for ever, until retention removes them, and then says so. Rows come as Arrow batches that
share the memory of the mapped segments, checked against their checksums. `seq` is in every row: Spark keeps order
within a partition of a batch, a shuffle does not.

Options (Spark hands all of them over as text): `path` (a directory, a URL of a file system that Arrow reads, or
`nats://host:port/STREAM` for an archive in a JetStream stream) or `url` and `stream` for the latter; `topics`
(comma-separated; filters where the rows are read); `startingSeq` (`earliest`, `latest` or a sequence to start at), or
`startingTimestamp` (at the first row that the archive had then or later: ISO 8601, or microseconds);
`endingSeq` (the last row of a batch read); `maxRowsPerTrigger`; `minPartitions` (a read has at least one partition per
32 MB of segments); `failOnDataLoss` (default true; false goes on with what is there, and warns with the count);
`gaps` (what becomes of the notices that numbers are missing: `omit`, the default, gives events only; `rows` gives the
notices too; `fail` ends the query). Ranges and topics are options, not filters pushed down: decision 17.
"""

# pyarrow.compute makes its functions when it is imported, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Protocol
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
from unisono.archive.manifest import ArchiveMark
from unisono.archive.reader import Archive
from unisono.archive.schema import SCHEMA
from unisono.errors import DataLossError, MisuseError
from unisono.spark.options import SourceOptions
from unisono.spark.sink import SinkBatchWriter, SinkOptions, SinkStreamWriter

logger = logging.getLogger(__name__)

OFFSET_VERSION = 2
PARTITION_BYTES = 32 << 20
"""Of segments per partition of a read: below it one task is quicker than two."""
ROWS: StructType = from_arrow_schema(SCHEMA)
BATCH_ROWS = 50_000
PASSWORD_VARIABLE = "UNISONO_NATS_PASSWORD"
"""Of the user that a `nats://user@host` names: options end up in plans and logs, the environment does not."""


class ArchiveRows(Protocol):
    """An archive, wherever it is kept."""

    def bounds(self) -> tuple[int, int]: ...

    def mark(self, seq: int) -> ArchiveMark: ...

    def loss(self, mark: ArchiveMark) -> str | None: ...

    def weights(self, after: int, upto: int) -> list[tuple[int, int]]: ...

    def read(self, after: int, upto: int, topics: tuple[str, ...] | None = None) -> Iterator[pa.RecordBatch]: ...


@contextmanager
def archive_at(location: str) -> Iterator[ArchiveRows]:
    """The archive in a directory or in a stream, for as long as it is looked at: a reader keeps no connection."""
    if not location.startswith(("nats://", "tls://")):
        yield Archive(location)
        return
    from unisono.runtime.archiving.streamed import open_stream  # a client of NATS, which files do not need

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


def first_since(archive: ArchiveRows, moment_us: int) -> int:
    """The first row delivered at the moment or later, the next one to come if there is none. Rows are looked at one by
    one, halving what is left: an archive's own moments ascend."""
    low, high = archive.bounds()
    high += 1
    while low < high:
        middle = (low + high) // 2
        found = [batch.column("delivered_us").to_pylist() for batch in archive.read(middle - 1, middle)]
        if any(moment < moment_us for moments in found for moment in moments):
            low = middle + 1
        else:
            high = middle
    return low


class Range(InputPartition):
    """Rows `after` < seq <= `upto` of the archive that `mark` was taken of."""

    def __init__(self, after: int, upto: int, mark: ArchiveMark | None = None) -> None:
        super().__init__((after, upto))
        self.after = after
        self.upto = upto
        self.mark = mark or ArchiveMark(upto)


def split(after: int, upto: int, parts: int) -> list[Range]:
    """Contiguous, disjoint ranges of nearly equal size that together are (after, upto]."""
    rows = upto - after
    parts = min(parts, rows)
    cuts = [after + rows * i // parts for i in range(parts + 1)] if rows > 0 else []
    return [Range(low, high) for low, high in pairwise(cuts)]


def planned(archive: ArchiveRows, after: int, upto: int, partitions_min: int) -> list[Range]:
    """A range cut for reading."""
    ends = cut(archive.weights(after, upto), after, upto, partitions_min)
    mark = archive.mark(upto)
    return [Range(low, high, mark) for low, high in pairwise([after, *ends])]


def cut(weights: list[tuple[int, int]], after: int, upto: int, partitions_min: int) -> list[int]:
    """The last rows of the parts of a range, of pieces with these last rows and bytes. Parts end where pieces end, if
    there are enough of those: then nobody checks a segment that another task has to check too."""
    parts = max(partitions_min, -(-sum(size for _, size in weights) // PARTITION_BYTES))
    ends = [min(last, upto) for last, _ in weights]
    if len(ends) < parts:
        return [part.upto for part in split(after, upto, parts)]
    return [ends[len(ends) * i // parts - 1] for i in range(1, parts + 1)]


def rows_of(options: SourceOptions, part: Range, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in pieces, in the exact schema Spark asks for."""
    with archive_at(options.path) as archive:
        for batch in whole_rows(archive, options, part):
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


def whole_rows(archive: ArchiveRows, options: SourceOptions, part: Range) -> Iterator[pa.RecordBatch]:
    """The rows of a range as they were planned; what is gone since is an error, or left out and counted."""
    reason = archive.loss(part.mark)
    if reason is not None:
        report_loss(options, f"{reason}; rows {part.after + 1} to {part.upto} are not read")
        return
    after = part.after
    while after < part.upto:
        try:
            for batch in archive.read(after, part.upto, options.topics):
                yield batch
                after = batch.column("seq")[-1].as_py()
            return
        except DataLossError as error:
            report_loss(options, str(error))
            after = max(after, min(archive.bounds()[0] - 1, part.upto))


def report_loss(options: SourceOptions, reason: str) -> None:
    """Rows that were to be read are not there."""
    if options.fail_on_loss:
        raise DataLossError(f"{options.path}: {reason}; set failOnDataLoss to false to go on without them")
    logger.warning("%s: %s", options.path, reason)


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
            "set gaps to omit or rows to go on after them"
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

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.end is not None:
            raise MisuseError("a stream has no end: endingSeq is for batch reads, maxRowsPerTrigger bounds a trigger")
        self._options = options
        self._target_schema = arrow_schema(schema)
        self._final: int | None = None

    def initialOffset(self) -> dict[str, int | str]:
        with archive_at(self._options.path) as archive:
            first, last = archive.bounds()
            match self._options.start:
                case _ if self._options.since_us is not None:
                    seq = first_since(archive, self._options.since_us) - 1
                case "earliest":
                    seq = first - 1
                case "latest":
                    seq = last
                case text:
                    seq = int(text) - 1
            # A row that is still to come belongs to nobody yet.
            return offset_of(archive.mark(seq) if seq <= last else ArchiveMark(seq))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.rows_max) if self._options.rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._final = bounds_of(self._options.path)[1]

    def latestOffset(self, start: dict[str, int | str], limit: ReadLimit) -> dict[str, int | str]:
        with archive_at(self._options.path) as archive:
            at = self._resumed(archive, mark_of(start))
            first, last = archive.bounds()
            if at + 1 < first:
                report_loss(self._options, _retained(at + 1, first - 1))
                at = first - 1
            head = last if self._final is None else self._final
            if isinstance(limit, ReadMaxRows):
                head = min(head, at + limit.max_rows)
            return start if head <= at == mark_of(start).seq else offset_of(archive.mark(max(head, at)))

    def reportLatestOffset(self) -> dict[str, int | str]:
        with archive_at(self._options.path) as archive:
            return offset_of(archive.mark(archive.bounds()[1]))

    def partitions(self, start: dict[str, int | str], end: dict[str, int | str]) -> Sequence[Range]:
        with archive_at(self._options.path) as archive:
            upto = mark_of(end)
            if (reason := archive.loss(upto)) is not None:
                report_loss(self._options, f"{reason}; the batch up to row {upto.seq} is not read again")
                return []
            after, first = self._resumed(archive, mark_of(start)), archive.bounds()[0]
            if after + 1 < first and after < upto.seq:
                report_loss(self._options, _retained(after + 1, min(first - 1, upto.seq)))
                after = min(first - 1, upto.seq)
            return planned(archive, after, upto.seq, self._options.partitions_min) if after < upto.seq else []

    def _resumed(self, archive: ArchiveRows, mark: ArchiveMark) -> int:
        """The row to go on after. What another archive holds has not been read, so it is read from its beginning."""
        reason = archive.loss(mark)
        if reason is None:
            return mark.seq
        first, last = archive.bounds()
        report_loss(self._options, f"{reason}; what it had after row {mark.seq} is lost, rows {first} to {last} follow")
        return first - 1

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return rows_of(self._options, partition, self._target_schema)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to free: a restart may read the range again."""

    def stop(self) -> None:
        """Nothing is held."""


def offset_of(mark: ArchiveMark) -> dict[str, int | str]:
    return {"v": OFFSET_VERSION, "seq": mark.seq, "archive": mark.archive, "term": mark.term}


def mark_of(offset: dict[str, int | str]) -> ArchiveMark:
    """Offsets of version 1 named no archive: they fit any."""
    match offset:
        case {"v": 1, "seq": int(seq)}:
            return ArchiveMark(seq)
        case {"v": 2, "seq": int(seq), "archive": str(archive), "term": str(term)}:
            return ArchiveMark(seq, archive, term)
        case _:
            raise MisuseError(f"offset {offset} has an unknown version; this is version {OFFSET_VERSION}")


def _retained(first: int, last: int) -> str:
    return f"rows {first} to {last} ({last - first + 1}) were removed by retention before they were read"


class BatchReader(DataSourceReader):
    """The batch side: everything sealed now, or the range that options name."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._target_schema = arrow_schema(schema)
        if options.start == "latest":
            raise MisuseError("a batch reads what is there: startingSeq is earliest or a sequence, not latest")
        with archive_at(options.path) as archive:
            first, last = archive.bounds()
            if options.since_us is not None:
                first = first_since(archive, options.since_us)
            elif options.start.isdigit():
                wanted = int(options.start)
                if wanted < first:
                    report_loss(options, _retained(wanted, first - 1))
                first = max(first, wanted)
            if options.end is not None:
                if options.end > last:
                    raise MisuseError(f"endingSeq is {options.end}, and the last row that is sealed is {last}")
                last = max(options.end, first - 1)
            # Spark wants at least one partition; an empty range reads nothing.
            empty = Range(first - 1, first - 1, archive.mark(min(first - 1, last)))
            self._parts = planned(archive, first - 1, last, options.partitions_min) if last >= first else [empty]

    def partitions(self) -> Sequence[Range]:
        return self._parts

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
        return BatchReader(SourceOptions(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(SourceOptions(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return SinkStreamWriter(SinkOptions(self.options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise MisuseError("what was published stays published: use mode append")
        return SinkBatchWriter(SinkOptions(self.options, schema))
