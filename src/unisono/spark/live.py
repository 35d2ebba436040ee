"""The live audit as a streaming query: rows of any sources and regions in, verdicts by batch out, each exactly once.

`audit_stream(rows, folder)` gives a writer for `rows`, whose columns are those of a journal and `region`. The machine
is that of `unisono audit --follow` (`unisono.audit.live`): what is closed is judged exactly and for good. It runs on
the driver and holds the open part of the log, in bounds; Spark brings the rows, and plays a batch again after a crash.

In `folder`, a directory or a URL that Arrow reads: `verdicts`, `latencies` and `batches`, a Parquet file for every
batch, and `state`, the machine as it stood after the last two. A batch is done when its state is there; whatever a
killed attempt left before that is written over with the same rows. So no batch has two verdicts, and none has none. A
batch that comes again has to have the rows that were judged: else it is one of another checkpoint.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from unisono.audit.columns import COLUMNS, normal, records_of
from unisono.audit.live import BatchReport, Latency, LiveAudit, LiveLimits, decode_state, encode_state
from unisono.audit.live.core import END
from unisono.errors import DataLossError, MisuseError
from unisono.model.journal import Record
from unisono.spark.archived import deliveries, gap_records
from unisono.spark.files import file_system
from unisono.spark.meaning import check_types

VERDICTS = pa.schema(
    [
        *(("batch", pa.int64()), ("judge", pa.string()), ("holds", pa.bool_())),
        *(("violations", pa.int64()), ("witness", pa.string())),
    ]
)
LATENCIES = pa.schema(
    [("batch", pa.int64())]
    + [
        (name, pa.string() if name in ("published_in", "delivered_in", "topic") else pa.int64())
        for name in Latency.__struct_fields__
    ]
)
COUNTS = ("deliveries", "events", "watermark_us", "open_rows", "remembered", "late", "forced", "forgotten")
CAME = ("rows", "digest")
"""What a batch had: how many rows, and a number that they have in any order."""
BATCHES = pa.schema(
    [("batch", pa.int64()), *((name, pa.int64()) for name in (*COUNTS, *CAME)), ("silent", pa.list_(pa.string()))]
)
STATE = "state"


def audit_stream(
    rows: DataFrame, folder: str, limits: LiveLimits = LiveLimits(), regions: Sequence[str] = ()
) -> "DataStreamWriter":
    """`audit_stream(rows, "live").option("checkpointLocation", "checkpoints/live").start()`.

    `regions` are waited for from the beginning, whether they have told something or not.
    """
    if not rows.isStreaming:
        raise MisuseError(
            "a live audit follows a stream (spark.readStream); what is complete is judged by audits.report"
        )
    check_types(rows)
    types = dict(rows.dtypes)
    if types.get("region", "string") != "string":
        raise MisuseError(f"column region is {types['region']}: regions have names")
    if "delivered_us" not in types and "at_us" not in types:
        raise MisuseError("a live audit needs moments: no column delivered_us or at_us")
    return rows.writeStream.foreachBatch(LiveBatches(folder, limits, regions))


def from_archive(events: DataFrame, region: str, subscriber: str | None = None) -> DataFrame:
    """An archive of a region as rows for `audit_stream`; with the option `gaps` = `rows` its gaps are counted, too."""
    name = subscriber or (f"archive-{region}" if region else "archive")
    told = deliveries(events, name).unionByName(gap_records(events, name), allowMissingColumns=True)
    return told.withColumn("region", F.lit(region))


class LiveBatches:
    """What a query calls for every batch."""

    def __init__(self, folder: str, limits: LiveLimits = LiveLimits(), regions: Sequence[str] = ()) -> None:
        if isinstance(regions, str):
            raise MisuseError(f"regions is a list of names, like [{regions!r}]")
        self._folder, self._limits, self._regions = folder, limits, tuple(regions)
        self._live: LiveAudit | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        names = [name for name in (*COLUMNS, "region") if name in rows.columns]
        self.take(batch, rows.select(*names).toArrow())

    def take(self, batch: int, table: pa.Table) -> BatchReport | None:
        """Judges what the batch closes; None if that was done before."""
        rows = _rows(table)
        came = {"rows": len(rows), "digest": _digest(rows)}
        if self._is_done(batch):
            self._check_replay(batch, came)
            return None
        live, self._live = self._at(batch), None  # unless the batch is kept
        for region in self._regions:
            live.expect(region)
        for record, region in rows:
            live.take([record], region)
        report = live.close()
        self._keep(batch, live, report, came)
        return report

    def finish(self) -> BatchReport:
        """The last batch, after the query has ended: what is still open is judged as it is."""
        batch = self._last() + 1
        if not batch:
            raise MisuseError(f"{self._folder} holds no live audit that could be finished")
        live = self._at(batch)
        report = live.finish()
        self._keep(batch, live, report, {"rows": 0, "digest": 0})
        return report

    def _check_replay(self, batch: int, came: dict[str, int]) -> None:
        files, root = file_system(self._folder)
        with files.open_input_file(f"{root}/batches/{_name(batch)}.parquet") as file:
            (judged,) = pq.read_table(file, columns=list(CAME)).to_pylist()
        if judged != came:
            raise DataLossError(
                f"batch {batch} in {self._folder} was judged with {judged['rows']} rows, and comes with {came['rows']}"
                ", not the same: it is of another checkpoint, or rows of it are gone since. Begin anew, with a new "
                "folder and a new checkpoint"
            )

    def _at(self, batch: int) -> LiveAudit:
        """The machine as it was before this batch."""
        if self._live is not None and self._live.state.batch == batch - 1:
            return self._live
        last = self._last()
        if last != batch - 1:
            where = f"{self._folder} holds a live audit up to batch {last}" if last >= 0 else f"{self._folder} is empty"
            raise DataLossError(
                f"{where}, and the next is {batch}: it belongs to another checkpoint. Give the query its own folder, "
                "or a new folder and a new checkpoint"
            )
        if batch == 0:
            return LiveAudit(self._limits)
        files, root = file_system(self._folder)
        path = f"{root}/{STATE}/{_name(last)}.msgpack"
        with files.open_input_file(path) as file:
            live = LiveAudit(self._limits, decode_state(file.read(), path))
        if live.state.watermark == END:
            raise MisuseError(
                f"the audit in {self._folder} was finished with batch {last}: begin another in a new folder"
            )
        return live

    def _keep(self, batch: int, live: LiveAudit, report: BatchReport, came: dict[str, int]) -> None:
        files, root = file_system(self._folder)
        found = [{"batch": batch, **{n: getattr(v, n) for n in VERDICTS.names[1:]}} for v in report.verdicts]
        lines = [{"batch": batch, **msgspec.structs.asdict(line)} for line in report.latencies]
        counted = {"batch": batch, **{name: getattr(report, name) for name in (*COUNTS, "silent")}, **came}
        for name, schema, rows in (
            ("verdicts", VERDICTS, found),
            ("latencies", LATENCIES, lines),
            ("batches", BATCHES, [counted]),
        ):
            table = pa.Table.from_pylist(rows, schema)
            _write(files, f"{root}/{name}", f"{_name(batch)}.parquet", partial(pq.write_table, table))
        state = encode_state(live.state)
        _write(files, f"{root}/{STATE}", f"{_name(batch)}.msgpack", lambda sink: sink.write(state))
        self._live = live
        for old in self._states():
            if old < batch - 1:
                files.delete_file(f"{root}/{STATE}/{_name(old)}.msgpack")

    def _is_done(self, batch: int) -> bool:
        return batch <= self._last() and batch in self._states()

    def _last(self) -> int:
        return max(self._states(), default=-1)

    def _states(self) -> list[int]:
        """The batches whose state is there."""
        files, root = file_system(self._folder)
        found = files.get_file_info(fs.FileSelector(f"{root}/{STATE}", allow_not_found=True))
        names = [info.base_name for info in found if info.base_name.endswith(".msgpack")]
        return sorted(int(name.partition(".")[0]) for name in names if not name.startswith("."))


def _name(batch: int) -> str:
    return f"{batch:012}"


def _write(files: Any, folder: str, name: str, fill: Callable[[Any], object]) -> None:
    """The whole file or none of it; one that is there is replaced."""
    files.create_dir(folder, recursive=True)
    with files.open_output_stream(f"{folder}/.{name}") as sink:
        fill(sink)
    files.move(f"{folder}/.{name}", f"{folder}/{name}")


def _rows(table: pa.Table) -> list[tuple[Record, str]]:
    """The rows of a batch, and where each was told, as they stand in files: that decides among equal positions."""
    found: list[tuple[Record, str]] = []
    for batch in table.combine_chunks().to_batches():
        regions = batch.column("region").to_pylist() if "region" in batch.schema.names else [""] * batch.num_rows
        rows = records_of(normal(batch, _NOTHING_GIVEN, "the stream", len(found)))
        found += zip(rows, (region or "" for region in regions), strict=True)
    return found


def _digest(rows: list[tuple[Record, str]]) -> int:
    """The same for the same rows in any order."""
    return sum(zlib.crc32(msgspec.msgpack.encode(record), zlib.crc32(region.encode())) for record, region in rows)


_NOTHING_GIVEN: Mapping[str, Any] = {}
