"""`df.writeStream.format("unisono")`: every row becomes one event, once, for ever.

The sink is a named publisher (`client.publishing.named`): its name is the option `publisher`, the number of a row is
the row's `seq`. The home of the topic knows durably how far the name has come, so a batch that Spark plays again is
published only as far as it was not, however long ago that was.

Rows are collected by the tasks and published by the driver when the whole batch has been computed, in the order of
`seq`, whatever partitions they were in: a name speaks with one voice, and a task that fails or runs twice has said
nothing. So a batch has to fit the driver: the source's `maxRowsPerTrigger` bounds it.

Columns: `seq` BIGINT (from 1, unique per topic, never lower in a later batch), `payload` BINARY or STRING, `topic`
STRING unless the option `topic` names one, and optionally `headers` MAP<STRING,STRING>. Options: `url`
(`unisono://host:port` or a deployment file), `publisher`, `topic`, `timeoutSeconds` (default 30), and where a
deployment asks for them `tokenVariable` or `tokenFile`, and `authority`. A secret is no option: plans are logged.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from unisono.errors import MisuseError
from unisono.runtime.client.publishing.named import NamedEvent, named_publisher
from unisono.runtime.links.security import read_secret

logger = logging.getLogger(__name__)
OPTIONS = ("url", "publisher", "topic", "timeoutSeconds", "tokenVariable", "tokenFile", "authority")
OF_SPARK = ("path", "checkpointLocation")
COLUMNS = {
    "seq": ("bigint", "int"),
    "topic": ("string",),
    "payload": ("binary", "string"),
    "headers": ("map<string,string>",),
}


class SinkOptions:
    """The user's options and columns, checked once, with errors that name them."""

    def __init__(self, raw: Any, schema: StructType) -> None:
        for name in raw:
            if name.lower() not in {known.lower() for known in (*OPTIONS, *OF_SPARK)}:
                raise MisuseError(f"unknown option {name!r}; there are {', '.join(OPTIONS)}")
        for name in ("url", "publisher"):
            if name not in raw:
                raise MisuseError(f"the unisono sink needs the option {name}")
        self.url: str = raw["url"]
        self.publisher: str = raw["publisher"]
        self.topic: str | None = raw.get("topic")
        text = raw.get("timeoutSeconds", "30")
        if not text.isdigit() or int(text) == 0:
            raise MisuseError(f"timeoutSeconds is a positive number, not {text!r}")
        self.timeout_s = int(text)
        self.authority: str | None = raw.get("authority")
        self._token_of: tuple[str | None, str | None] = raw.get("tokenVariable"), raw.get("tokenFile")
        if None not in self._token_of:
            raise MisuseError("tokenVariable or tokenFile: a token is read from one place")
        found = {field.name: field.dataType.simpleString() for field in schema.fields}
        missing = [name for name in ("seq", "payload") if name not in found]
        if self.topic is None and "topic" not in found:
            missing.append("topic (or an option topic)")
        if missing:
            raise MisuseError(f"no column {', '.join(missing)}; there are {', '.join(found) or 'none'}")
        for name, kind in found.items():
            if name not in COLUMNS:
                raise MisuseError(f"column {name} is not published: select {', '.join(COLUMNS)}")
            if kind not in COLUMNS[name]:
                raise MisuseError(f"column {name} is {kind}, not {' or '.join(COLUMNS[name])}")

    def token(self) -> str | None:
        """Read where it is used, so that no plan holds it; None leaves it to the deployment."""
        return read_secret(*self._token_of, Path()) if any(self._token_of) else None


@dataclass
class PartitionRows(WriterCommitMessage):
    """The rows of one partition, as an Arrow stream; empty without rows."""

    data: bytes


def collect(batches: Iterator[pa.RecordBatch]) -> PartitionRows:
    """The task's side: keeps the rows for the driver."""
    sink = pa.BufferOutputStream()
    writer = None
    for batch in batches:
        if writer is None:
            writer = pa.ipc.new_stream(sink, batch.schema)
        writer.write_batch(batch)
    if writer is None:
        return PartitionRows(b"")
    writer.close()
    return PartitionRows(sink.getvalue().to_pybytes())


def rows_of(parts: Sequence[PartitionRows | None], topic: str | None) -> list[NamedEvent]:
    """The rows of all parts in the order of `seq`; raises MisuseError where that is no order."""
    rows: list[NamedEvent] = []
    for part in parts:
        if part is None or not part.data:
            continue
        table = pa.ipc.open_stream(part.data).read_all()
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        for i, seq in enumerate(columns["seq"]):
            name = columns["topic"][i] if "topic" in columns else topic
            payload = columns["payload"][i]
            if seq is None or seq < 1 or name is None or payload is None:
                raise MisuseError(
                    f"a row with seq {seq}, topic {name}: seq, topic and payload must be there, seq from 1"
                )
            headers = dict(columns["headers"][i] or ()) if "headers" in columns else {}
            rows.append(NamedEvent(name, seq, payload.encode() if isinstance(payload, str) else payload, headers))
    rows.sort(key=lambda row: row.request)
    last: dict[str, int] = {}
    for row in rows:
        if last.get(row.topic) == row.request:
            raise MisuseError(
                f"two rows for {row.topic} have seq {row.request}: the second would count as a repetition"
            )
        last[row.topic] = row.request
    return rows


def publish(options: SinkOptions, rows: list[NamedEvent]) -> int:
    """The driver's side: returns how many rows were new."""

    async def run() -> int:
        secrets = {"token": options.token(), "authority": options.authority}
        async with named_publisher(options.url, options.publisher, timeout=options.timeout_s, **secrets) as publisher:
            return await publisher.publish(rows)

    new = asyncio.run(run()) if rows else 0
    if new < len(rows):
        logger.warning("%s", repetition(options.publisher, rows, new))
    return new


def repetition(publisher: str, rows: list[NamedEvent], new: int) -> str:
    """What is said when rows were not published because their `seq` was not new: once after a crash, or a mistake."""
    topics = ", ".join(dict.fromkeys(row.topic for row in rows))
    return (
        f"sink {publisher}: {len(rows) - new} of {len(rows)} rows for {topics}, seq {rows[0].request} to "
        f"{rows[-1].request}, were published before and are not again. If this is no replay, two queries share the "
        "name, or seq does not ascend"
    )


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """The streaming side. Spark makes a new one for every call: it keeps nothing."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return collect(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        publish(self._options, rows_of([m for m in messages if isinstance(m, PartitionRows)], self._options.topic))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was said."""


class SinkBatchWriter(DataSourceArrowWriter):
    """`df.write.format("unisono").mode("append").save()`, with the same promise."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return collect(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        publish(self._options, rows_of([m for m in messages if isinstance(m, PartitionRows)], self._options.topic))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing was said."""
