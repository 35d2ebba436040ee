"""One row of the archive, and its Arrow schema. Names are those of the journal."""

import pyarrow as pa
from msgspec import Struct

SEGMENT_VERSION = 1
VERSION_KEY = b"unisono.segment"


class ArchivedEvent(Struct, frozen=True, array_like=True):
    """An event as the archive was notified of it. `number` is its place in its topic's order."""

    seq: int
    topic: str
    number: int
    publisher: str
    publisher_seq: int
    published_us: int
    delivered_us: int
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
        pa.field("published_us", pa.int64(), nullable=False),
        pa.field("delivered_us", pa.int64(), nullable=False),
        pa.field("deadline_us", pa.int64()),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ],
    metadata={VERSION_KEY: str(SEGMENT_VERSION).encode()},
)


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
    columns = [batch.column(name).to_pylist() for name in SCHEMA.names]
    headers = SCHEMA.get_field_index("headers")
    columns[headers] = [dict(pairs) for pairs in columns[headers]]
    return [ArchivedEvent(*row) for row in zip(*columns, strict=True)]
