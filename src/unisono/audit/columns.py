"""The columnar forms of a journal, Arrow IPC and Parquet: the fields of `Record` as columns, in their order.

Spark reads the Parquet form as it is: text, 64-bit integers, one map (`clock`) and one list (`depends_on`). The header
is JSON under the schema metadata key `unisono.journal`. Files made elsewhere may use other integer and text types, or
integers as names. This is the only module of the room that needs pyarrow.
"""

from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from pathlib import Path
from typing import IO, Any

import msgspec

from unisono.audit.files import check, check_header
from unisono.errors import FormatError, MisuseError
from unisono.model.journal import HEADER_KEY, KINDS, Header, Record

try:
    import pyarrow as pa
    import pyarrow.ipc as ipc
    import pyarrow.parquet as pq
except ImportError:
    raise MisuseError("Arrow and Parquet journals need pyarrow: pip install 'unisono[arrow]'") from None

BATCH_ROWS = 1 << 16
BROKEN = (pa.ArrowException, OSError, EOFError, ValueError)
"""What pyarrow raises for a garbled file; names that are not UTF-8 are a ValueError."""
COLUMNS: tuple[str, ...] = Record.__struct_fields__
_TYPES: dict[str, Any] = {
    **dict.fromkeys(COLUMNS, pa.int64()),
    **dict.fromkeys(("kind", "who", "subscriber", "event", "topic", "publisher", "peer", "note"), pa.string()),
    "clock": pa.map_(pa.string(), pa.int64()),
    "depends_on": pa.list_(pa.string()),
}
SCHEMA: Any = pa.schema([pa.field(column, _TYPES[column]) for column in COLUMNS])
_LEAST = ("subscriber", "event", "position")


def write_arrow(path: str | Path, header: Header, records: Iterable[Record]) -> None:
    """Arrow IPC, file format."""
    schema = _schema(header)
    with ipc.new_file(str(path), schema) as writer:
        for batch in _batches(schema, records):
            writer.write_batch(batch)


def write_parquet(path: str | Path, header: Header, records: Iterable[Record]) -> None:
    """Parquet, which Spark reads as it is."""
    schema = _schema(header)
    with pq.ParquetWriter(str(path), schema) as writer:
        for batch in _batches(schema, records):
            writer.write_batch(batch)


def _schema(header: Header) -> Any:
    return SCHEMA.with_metadata({HEADER_KEY: msgspec.json.encode(header)})


def _batches(schema: Any, records: Iterable[Record]) -> Iterator[Any]:
    source = iter(records)
    while rows := list(islice(source, BATCH_ROWS)):
        columns = [[getattr(row, column) for row in rows] for column in COLUMNS]
        yield pa.record_batch(
            [pa.array(_plain(values), type=field.type) for values, field in zip(columns, schema)], schema=schema
        )


def _plain(values: list[Any]) -> list[Any]:
    """A map column is built from lists of pairs."""
    return [list(value.items()) if isinstance(value, dict) else value for value in values]


def scan(file: IO[bytes], name: str) -> tuple[Header, Iterator[Record]]:
    """As `files.scan`, for a file known to be Arrow or Parquet."""
    try:
        schema, batches = _open(file)
        names, metadata = schema.names, schema.metadata or {}
    except BROKEN as problem:
        raise FormatError(name, _first_line(problem)) from None
    header = Header()
    if HEADER_KEY.encode() in metadata:
        try:
            fields = msgspec.json.decode(metadata[HEADER_KEY.encode()])
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            raise FormatError(f"{name}, header", str(problem)) from None
        header = check_header(fields, f"{name}, header")
    for column in () if "kind" in names else _LEAST:
        if column not in names:
            raise FormatError(f"{name}, column {column}", f"missing; the file has {', '.join(names) or 'none'}")
    return header, _records(file, name, batches)


def _open(file: IO[bytes]) -> tuple[Any, Iterator[Any]]:
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"PAR1"):
        parquet = pq.ParquetFile(file)
        known = [column for column in COLUMNS if column in parquet.schema_arrow.names]
        return parquet.schema_arrow, parquet.iter_batches(BATCH_ROWS, columns=known)
    if magic == b"ARROW1":
        reader = ipc.open_file(file)
        return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))
    stream = ipc.open_stream(file)
    return stream.schema, iter(stream)


def _records(file: IO[bytes], name: str, batches: Iterator[Any]) -> Iterator[Record]:
    row = 0
    with file:
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)  # pyarrow trusts offsets: a garbled file would crash the process
                columns = [_values(batch, column, name, row) for column in COLUMNS]
            except BROKEN as problem:
                raise FormatError(f"{name}, row {row + 1}", _first_line(problem)) from None
            for values in zip(*columns):
                row += 1
                yield check(Record(*values), name, "row", row)


def _values(batch: Any, column: str, name: str, row: int) -> Iterable[Any]:
    default: Any = {"kind": "deliver", "at_us": 0}.get(column)
    if column not in batch.schema.names:
        return repeat(default, batch.num_rows)
    array, wanted = batch.column(column), _TYPES[column]
    if column == "clock" and pa.types.is_struct(array.type):  # what pandas makes of a column of dicts
        return [_clock(value, name, row + i + 1) for i, value in enumerate(array.to_pylist())]
    if array.type != wanted:
        try:
            array = array.cast(wanted)
        except pa.ArrowException:
            where = f"{name}, column {column}"
            raise FormatError(where, f"is of type {array.type}, which does not fit {wanted}") from None
    values: list[Any] = array.to_pylist()
    if column == "clock":
        return [None if value is None else dict(value) for value in values]
    if column == "depends_on":
        return [None if value is None else tuple(value) for value in values]
    if column == "kind":
        for i, value in enumerate(values):
            if value is not None and value not in KINDS:
                raise FormatError(f"{name}, row {row + i + 1}, column kind", f"{value!r} is no kind of record")
    return values if default is None else [default if value is None else value for value in values]


def _clock(value: dict[str, Any] | None, name: str, row: int) -> dict[str, int] | None:
    if value is None:
        return None
    for publisher, number in value.items():
        if number is not None and number != int(number):
            raise FormatError(f"{name}, row {row}, column clock", f"{number!r} of {publisher} is no whole number")
    return {publisher: int(number) for publisher, number in value.items() if number is not None}


def _first_line(problem: BaseException) -> str:
    return str(problem).strip().partition("\n")[0] or type(problem).__name__
