"""Arrow and Parquet files: their header and their rows as checked batches of the one schema (`columns`).

What cannot be read is a FormatError that names the rows. A file is one table: where several were put together, readers
see the first or the last of them, so that is refused.
"""

# pyarrow.compute makes its functions when it is imported, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import msgspec

from unisono.audit.files import NAMES, NEEDS_ARROW, check_header
from unisono.errors import FormatError, MisuseError
from unisono.model.journal import HEADER_KEY, Header, Record

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.ipc as ipc
    import pyarrow.parquet as pq

    from unisono.audit.columns import BATCH_ROWS, COLUMNS, is_text, normal, records_of
except ImportError:
    raise MisuseError(NEEDS_ARROW) from None

CODED_ROWS = 1 << 18
"""Of names as codes, where a batch repeats the names of its row group."""
GOES_ON = "something follows the table: several tables are one journal as files of one folder"
"""What is said where tables were put together: readers of Arrow and Parquet see one of them, and tell nobody."""
BROKEN = (pa.ArrowException, OSError, EOFError, ValueError, MemoryError, zlib.error)
"""What pyarrow raises for a garbled file; names that are not UTF-8 are a ValueError, sizes that nobody has
a MemoryError."""
_END_BYTES = 8
"""What ends the stream inside an Arrow file."""
_LEAST = ("subscriber", "event", "position")


def scan(file: IO[bytes], name: str, given: Mapping[str, Any]) -> tuple[Header, Iterator[Record]]:
    """As `files.scan`, for a file known to be Arrow or Parquet."""
    header, batches = scan_batches(file, name, given)
    names: dict[str, str] = {}
    return header, (record for batch in batches for record in records_of(batch, names))


def scan_batches(
    file: IO[bytes],
    name: str,
    given: Mapping[str, Any],
    groups: Sequence[int] | None = None,
    row: int = 0,
    coded: bool = False,
) -> tuple[Header, Iterator[Any]]:
    """The header, and the rows as checked batches of the one schema.

    Of Parquet only some row groups, if they are named; `row` rows of the file come before them. `coded`: names that the
    file has as codes stay so, which costs half the time and the memory of text.
    """
    try:
        opened = _open(file, groups, coded)
        names, metadata = opened.schema.names, opened.schema.metadata or {}
    except BROKEN as problem:
        raise FormatError(name, _first_line(problem)) from None
    header = Header()
    if HEADER_KEY.encode() in metadata:
        try:
            fields = msgspec.json.decode(metadata[HEADER_KEY.encode()])
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            raise FormatError(f"{name}, header", str(problem)) from None
        header = check_header(fields, f"{name}, header")
    for column in COLUMNS:
        if names.count(column) > 1:
            raise FormatError(f"{name}, column {column}", "there is more than one")
    for column in () if "kind" in names or "kind" in given else _LEAST:
        if column not in names and column not in given:
            raise FormatError(f"{name}, column {column}", f"missing; the file has {', '.join(names) or 'none'}")
    return header, _normal_batches(file, name, opened, given, row)


class _Opened(NamedTuple):
    """A file: its columns, its batches, whether names come as codes, and of Parquet the row groups that are read."""

    schema: Any
    batches: Iterator[Any]
    coded: bool = False
    groups: Sequence[int] = ()


def _open(file: IO[bytes], groups: Sequence[int] | None, coded: bool) -> _Opened:
    """Names stay `coded` only in Parquet: in Arrow files a code may stand for nothing."""
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"PAR1"):
        parquet = pq.ParquetFile(file)
        _check_alone(file, parquet.metadata)
        schema = parquet.schema_arrow
        known = _known(schema)
        texts = [name for name in NAMES if schema.names.count(name) == 1 and schema.field(name).type == pa.string()]
        if coded and texts:
            parquet = pq.ParquetFile(file, metadata=parquet.metadata, read_dictionary=texts)
        batches = parquet.iter_batches(CODED_ROWS if coded else BATCH_ROWS, groups, columns=known)
        return _Opened(schema, batches, coded, range(parquet.num_row_groups) if groups is None else groups)
    if magic == b"ARROW1":
        table = ipc.open_file(file)
        return _Opened(table.schema, _batches_of_file(file, table))
    return _Opened(ipc.open_stream(file).schema, _batches_of_stream(file))


def _batches_of_stream(file: IO[bytes]) -> Iterator[Any]:
    file.seek(0)
    yield from ipc.open_stream(file)
    if file.read(1):
        raise ValueError(GOES_ON)


def _batches_of_file(file: IO[bytes], table: Any) -> Iterator[Any]:
    """Its last batch ends where the footer begins, but for the end of the stream inside."""
    end = 0
    for i in range(table.num_record_batches):
        batch = table.get_batch(i)
        end = max(end, file.tell())
        yield batch
    file.seek(-10, os.SEEK_END)
    footer = file.tell() - int.from_bytes(file.read(4), "little")
    if end and footer - end > _END_BYTES:
        raise ValueError(GOES_ON)


def _check_alone(file: IO[bytes], metadata: Any) -> None:
    """Whether between the rows and the footer of Parquet, where indexes may be, another file ends."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    after = max((_begin(column) + column.total_compressed_size for column in columns), default=4)
    file.seek(-8 - metadata.serialized_size, os.SEEK_END)
    between = file.tell() - after
    file.seek(after)
    if b"PAR1PAR1" in file.read(max(0, between)):
        raise ValueError(GOES_ON)


def _begin(column: Any) -> int:
    pages: int = column.data_page_offset
    return min(pages, column.dictionary_page_offset) if column.has_dictionary_page else pages


def _known(schema: Any) -> list[str]:
    return [column for column in COLUMNS if column in schema.names]


def _normal_batches(file: IO[bytes], name: str, opened: _Opened, given: Mapping[str, Any], row: int) -> Iterator[Any]:
    with file:
        first = row
        while True:
            try:
                batch = next(opened.batches, None)
            except BROKEN as problem:
                raise _unreadable(file, name, opened, first, row, problem) from None
            if batch is None:
                return
            batch = batch.select(_known(batch.schema))
            try:
                batch.validate(full=True)  # pyarrow trusts offsets: a garbled file would crash the process
                found = normal(batch, given, name, row, opened.coded)
            except BROKEN as problem:
                raise _garbled(name, batch, row, problem) from None
            yield found
            row += batch.num_rows


def _unreadable(
    file: IO[bytes], name: str, opened: _Opened, first: int, row: int, problem: BaseException
) -> FormatError:
    """Of Parquet the first row group that cannot be read, however large the batches are in which it was tried."""
    for group in opened.groups:
        parquet = pq.ParquetFile(file)
        rows = parquet.metadata.row_group(group).num_rows
        try:
            parquet.read_row_group(group, columns=_known(opened.schema))
        except BROKEN as why:
            return FormatError(f"{name}, rows {first + 1} to {first + rows}", f"{_first_line(why)}: write it again")
        first += rows
    return FormatError(f"{name}, row {row + 1}", _first_line(problem))


def _garbled(name: str, batch: Any, row: int, problem: BaseException) -> FormatError:
    """Text that is no text is told by its row; of anything else pyarrow says what it says."""
    found = [(i, column) for column in batch.schema.names for i in _not_text(batch.column(column))]
    if not found:
        return FormatError(f"{name}, row {row + 1}", _first_line(problem))
    i, column = min(found, key=lambda it: it[0])
    return FormatError(f"{name}, row {row + i + 1}, column {column}", "not UTF-8: cast it where it is written")


def _not_text(array: Any) -> list[int]:
    """The rows of an array that are not UTF-8, if that is what is wrong with it: then it can be looked into."""
    texts, codes = (array.dictionary, array.indices) if pa.types.is_dictionary(array.type) else (array, None)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as why:
        if not is_text(texts.type) or "UTF8" not in str(why):
            return []
    else:
        return []
    bad = [i for i, text in enumerate(texts.cast(pa.binary()).to_pylist()) if not _is_utf8(text)]
    rows = bad if codes is None else [pc.index(codes, i).as_py() for i in bad]
    return [i for i in rows if i >= 0]


def _is_utf8(text: bytes | None) -> bool:
    try:
        (text or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _first_line(problem: BaseException) -> str:
    return str(problem).strip().partition("\n")[0] or type(problem).__name__
