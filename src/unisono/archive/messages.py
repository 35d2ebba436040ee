"""An archive in a stream: what its messages look like. The same rows and columns as in segments, in another place.

The stream NAME has two subjects. On `_unisono.archive.NAME.rows` every message is one Arrow IPC stream of consecutive
rows with the schema of segments; its headers say which rows, so a reader finds a row by bisection over the messages.
On `_unisono.archive.NAME.index` a message now and then says which number every topic had reached, so that nobody needs
to read from the beginning, and what retention has removed. What is too large for one message is cut into consecutive
parts; parts that are not complete were never appended.
"""

import zlib

import pyarrow as pa
from msgspec import Struct, json

from unisono.archive.schema import SCHEMA, ArchivedEvent, brought_up, check_schema, to_batch
from unisono.errors import FormatError

STREAM_VERSION = 1
PART_BYTES = 512 << 10
"""A NATS server takes messages up to 1 MiB unless it is told otherwise."""
ROW_BYTES = 150
"""What a row costs beside its payload, headers and names, roughly."""


class Head(Struct, frozen=True):
    """The headers of a message."""

    first: int
    """Of a message with rows the first one; of an index the row that comes next."""
    count: int
    """Rows; an index has none."""
    owner: str
    """The process that appended it."""
    part: int = 1
    parts: int = 1
    crc32: int | None = None
    """Of the message's body; None in messages from before there were checksums."""

    @property
    def last(self) -> int:
        """The last row that is there when this message is."""
        return self.first + self.count - 1 if self.part == self.parts else self.first - 1

    def block(self) -> str:
        """As lines of a NATS header block."""
        return (
            f"Unisono-Version: {STREAM_VERSION}\r\nUnisono-First: {self.first}\r\nUnisono-Count: {self.count}\r\n"
            f"Unisono-Owner: {self.owner}\r\nUnisono-Part: {self.part}/{self.parts}\r\n"
            + (f"Unisono-Crc: {self.crc32}\r\n" if self.crc32 is not None else "")
        )

    def check(self, where: str, body: bytes) -> None:
        """Raises FormatError unless this is the body that was appended."""
        if self.crc32 is not None and zlib.crc32(body) != self.crc32:
            rows = f"rows {self.first} to {self.first + self.count - 1}" if self.count else "an index"
            raise FormatError(where, f"{rows}: its checksum is wrong")


class Index(Struct, frozen=True):
    """What all rows before it amount to."""

    archive: str = ""
    """The archive's id; empty in one that was last written before archives had ids."""
    numbers: dict[str, int] = {}
    """Per topic the last number."""
    dropped_upto: int = 0
    """Rows up to here were removed by retention, or may be at any moment."""
    dropped_numbers: dict[str, int] = {}
    """Per topic the last number among them."""


def rows_subject(name: str) -> str:
    return f"_unisono.archive.{name}.rows"


def index_subject(name: str) -> str:
    return f"_unisono.archive.{name}.index"


def parse_head(where: str, headers: dict[str, str]) -> Head:
    """Raises FormatError for what no archive of this version has written."""
    version = headers.get("Unisono-Version", "none")
    if version != str(STREAM_VERSION):
        raise FormatError(where, f"archive message version {version} is unknown, this is version {STREAM_VERSION}")
    try:
        part, _, parts = headers["Unisono-Part"].partition("/")
        first, count = int(headers["Unisono-First"]), int(headers["Unisono-Count"])
        crc32 = int(headers["Unisono-Crc"]) if "Unisono-Crc" in headers else None
        return Head(first, count, headers["Unisono-Owner"], int(part), int(parts), crc32)
    except (KeyError, ValueError) as error:
        raise FormatError(where, f"its headers are not those of an archive: {error!r}") from None


def in_messages(events: list[ArchivedEvent], owner: str) -> list[tuple[Head, bytes]]:
    """Rows as the messages to append, in order."""
    messages: list[tuple[Head, bytes]] = []
    start = size = 0
    for at, event in enumerate(events):
        cost = ROW_BYTES + len(event.payload) + sum(len(text) for item in event.headers.items() for text in item)
        if at > start and size + cost > PART_BYTES:
            messages += _in_parts(events[start].seq, at - start, owner, encode_rows(events[start:at]))
            start, size = at, 0
        size += cost
    if events:
        messages += _in_parts(events[start].seq, len(events) - start, owner, encode_rows(events[start:]))
    return messages


def index_messages(index: Index, next_row: int, owner: str) -> list[tuple[Head, bytes]]:
    """An index as the messages to append, in order."""
    return _in_parts(next_row, 0, owner, json.encode(index))


def _in_parts(first: int, count: int, owner: str, body: bytes) -> list[tuple[Head, bytes]]:
    # What is a little over the size still fits; only a single large row, or very many topics, is ever cut.
    pieces = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)] if len(body) > 900_000 else [body]
    return [(Head(first, count, owner, i, len(pieces), zlib.crc32(piece)), piece) for i, piece in enumerate(pieces, 1)]


def encode_rows(events: list[ArchivedEvent]) -> bytes:
    """`pyarrow.ipc.open_stream(data).read_all()` reads them back, in any language that has Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(to_batch(events))
    return bytes(sink.getvalue())


def decode_rows(where: str, head: Head, body: bytes) -> pa.RecordBatch:
    """The rows of a whole message, sharing its memory."""
    try:
        with pa.ipc.open_stream(body) as stream:
            version = check_schema(where, stream.schema)
            batch = brought_up(stream.read_next_batch(), version)
    except (pa.ArrowInvalid, StopIteration) as error:
        raise FormatError(where, (str(error) or "it holds no rows").splitlines()[0]) from None
    if batch.num_rows != head.count or batch.column("seq")[0].as_py() != head.first:
        raise FormatError(where, f"its rows are not those of its headers, {head.first} to {head.last}")
    return batch


def decode_index(where: str, body: bytes) -> Index:
    try:
        return json.decode(body, type=Index)
    except ValueError as error:
        raise FormatError(where, str(error)) from None


class Assembly:
    """Puts parts together."""

    def __init__(self) -> None:
        self._head: Head | None = None
        self._pieces: list[bytes] = []

    def add(self, head: Head, piece: bytes) -> bytes | None:
        """The whole body when the last part has come. Parts that others followed instead are forgotten."""
        if head.parts == 1:
            self._head = None
            return piece
        before, self._head = self._head, head
        if head.part == 1:
            self._pieces = [piece]
            return None
        if before is None or (before.first, before.owner, before.part + 1) != (head.first, head.owner, head.part):
            self._head = None
            return None
        self._pieces.append(piece)
        return b"".join(self._pieces) if head.part == head.parts else None
