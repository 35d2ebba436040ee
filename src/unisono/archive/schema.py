"""One row of the archive, and its Arrow schema. Names are those of the journal."""

# pyarrow.compute makes its functions when it is imported, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from unisono.errors import FormatError

SEGMENT_VERSION = 2
VERSION_KEY = b"unisono.segment"
ARCHIVE_KEY = b"unisono.archive"
"""In a segment's metadata: the id of the archive it belongs to."""


class ArchivedEvent(Struct, frozen=True, array_like=True, gc=False):
    """An event as the archive was notified of it. `number` is its place in its topic's order."""

    seq: int
    topic: str
    number: int
    publisher: str
    publisher_seq: int
    published_us: int | None
    """By the publisher's clock; None for a gap, and where the publisher did not say."""
    delivered_us: int
    """By the archive's."""
    deadline_us: int | None
    headers: dict[str, str]
    payload: bytes


SCHEMA = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("publisher", pa.string(), nullable=False),
        pa.field("publisher_seq", pa.int64(), nullable=False),
        pa.field("published_us", pa.int64()),
        pa.field("delivered_us", pa.int64(), nullable=False),
        pa.field("deadline_us", pa.int64()),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ],
    metadata={VERSION_KEY: str(SEGMENT_VERSION).encode()},
)

BLIND_VERSION = 1
"""Segments of this version have the moment of delivery where that of publication belongs and nobody knew it."""
_BLIND = SCHEMA.set(SCHEMA.get_field_index("published_us"), pa.field("published_us", pa.int64(), nullable=False))


def check_schema(where: str, schema: pa.Schema) -> int:
    """The version of a segment with this schema; raises FormatError if it is none that we know."""
    version = (schema.metadata or {}).get(VERSION_KEY, b"").decode()
    known = {str(SEGMENT_VERSION): SCHEMA, str(BLIND_VERSION): _BLIND}
    if version not in known:
        raise FormatError(where, f"segment version {version or 'none'} is unknown")
    if not schema.equals(known[version]):
        raise FormatError(where, "its columns are not those of an archive")
    return int(version)


def brought_up(batch: pa.RecordBatch, version: int) -> pa.RecordBatch:
    """Rows of an older version as rows of this one."""
    if version == SEGMENT_VERSION:
        return batch
    told = batch.column("published_us")
    known = pc.if_else(pc.equal(told, batch.column("delivered_us")), pa.scalar(None, pa.int64()), told)
    columns = [known if name == "published_us" else batch.column(name) for name in SCHEMA.names]
    return pa.record_batch(columns, schema=SCHEMA)


def to_batch(events: list[ArchivedEvent]) -> pa.RecordBatch:
    """Columns out of rows."""
    names = SCHEMA.names
    columns = [
        pa.array(
            [list(event.headers.items()) for event in events]
            if name == "headers"
            else [getattr(event, name) for event in events],
            type=SCHEMA.field(name).type,
        )
        for name in names
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def to_events(batch: pa.RecordBatch) -> list[ArchivedEvent]:
    """Rows out of columns."""
    return list(map(ArchivedEvent, *(_values(name, batch.column(name)) for name in SCHEMA.names)))


def _values(name: str, column: pa.Array) -> list[Any]:
    """A column as Python values: `to_pylist` with shortcuts for what most columns are (a third of its time)."""
    count = len(column)
    if name == "headers":
        is_bare = count == 0 or column.offsets[0].as_py() == column.offsets[count].as_py()
        return [{} for _ in range(count)] if is_bare else [dict(pairs) for pairs in column.to_pylist()]
    if column.null_count == count:
        return [None] * count
    if column.null_count == 0 and column.type == pa.int64():
        return _integers(column, "q")
    if column.type == pa.string():  # few topics and publishers, many rows
        coded = column.dictionary_encode()
        words = coded.dictionary.to_pylist()
        return [words[i] for i in _integers(coded.indices, "i")]
    values: list[Any] = column.to_pylist()
    return values


def _integers(column: pa.Array, kind: Literal["q", "i"]) -> list[int]:
    data = memoryview(column.buffers()[1]).cast("B").cast(kind)
    return data[column.offset : column.offset + len(column)].tolist()
