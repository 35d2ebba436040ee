"""A journal into columns: batches where pyarrow understands the rows as the reference reader does, else through that.

Arrow and Parquet come as checked batches of the one schema. Lines of JSON are parsed by pyarrow in large pieces. A
piece that pyarrow refuses, or might read otherwise than the reference reader (`files`), goes through the reference
reader, which mends what may be mended and refuses the rest by its line. So both say the same of every file.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.json as pj

from unisono.audit.columnar.log import ColumnarLog
from unisono.audit.columns import BATCH_ROWS, COLUMNS, SCHEMA, batch_of, check_rows, normal
from unisono.audit.files import decode_lines, read_header, read_lines, scan_part, typed
from unisono.audit.parts import JournalPart, is_packed, open_part, parts_of
from unisono.audit.tables import BROKEN, scan_batches
from unisono.errors import FormatError
from unisono.model.journal import Header, Record

PIECE_BYTES = 1 << 23
FEW_BYTES = 1 << 13
"""Of lines that the reference reader reads in the time in which pyarrow begins."""
NESTED_MAX = 200
"""Lines of fewer objects and lists are read by all readers alike."""
# A clock is an object, which pyarrow does not read as a map: asked for as text, it makes pyarrow refuse the piece.
_READ_AS = pa.schema([pa.field(f.name, pa.string() if f.name == "clock" else f.type) for f in SCHEMA])
_PARSE = pj.ParseOptions(explicit_schema=_READ_AS, unexpected_field_behavior="ignore", newlines_in_values=False)


def load(path: str | Path) -> ColumnarLog:
    """All rows of a file or folder, in the order of files and rows: `load("run.jsonl").size`."""
    first, *others = parts_of(Path(path))
    header, batches = batches_of(first, alone=first.path == Path(path), coded=True)
    log = ColumnarLog(header)
    for batch in chain(batches, _further(others)):
        log.add(batch)
    return log


def _further(parts: Sequence[JournalPart]) -> Iterator[Any]:
    """The rows of files after the first. Files of a few lines become one batch: a batch costs as much as many lines."""
    few: list[Record] = []
    for part in parts:
        has_few = _has_few_lines(part.path)
        if has_few:
            few += scan_part(part, alone=False)[1]
        if few and (not has_few or len(few) >= BATCH_ROWS):
            yield batch_of(few)
            few = []
        if not has_few:
            yield from batches_of(part, alone=False, coded=True)[1]
    if few:
        yield batch_of(few)


def _has_few_lines(path: Path) -> bool:
    if path.stat().st_size > FEW_BYTES or is_packed(path):
        return False
    file, is_columnar = open_part(path, to_read=False)
    file.close()
    return not is_columnar


def batches_of(part: JournalPart, alone: bool, coded: bool = False) -> tuple[Header, Iterator[Any]]:
    """The header of one file, and its rows as checked batches of the one schema; names of Parquet may stay `coded`."""
    given = typed(part)
    file, is_columnar = open_part(part.path)
    try:
        if is_columnar:
            return scan_batches(file, str(part.path), given, coded=coded)
        header, line = read_header(file, str(part.path), alone)
        return header, _pieces(file, str(part.path), line, given)
    except BaseException:
        file.close()
        raise


def _pieces(file: IO[bytes], name: str, line: int, given: Mapping[str, Any]) -> Iterator[Any]:
    with file:
        while lines := read_lines(file, name, line, PIECE_BYTES):
            yield from batches_of_lines(lines, name, line, given)
            line += len(lines)


def batches_of_lines(lines: list[bytes], name: str, line: int, given: Mapping[str, Any]) -> Iterator[Any]:
    """Lines of JSON as checked batches; `line` lines of the file come before them."""
    batch = None if _is_nested(lines) else _parsed(b"".join(lines), len(lines), given, name, line)
    if batch is not None:
        yield batch
        return
    records = decode_lines(lines, name, line, given)
    while some := list(islice(records, BATCH_ROWS)):
        yield batch_of(some)


def _is_nested(lines: list[bytes]) -> bool:
    """Whether a line may have more objects in objects than the reference reader reads. They take two bytes each."""
    longest = max(lines, key=len)
    if len(longest) < 2 * NESTED_MAX:
        return False
    return any(len(text) >= 2 * NESTED_MAX and text.count(b"[") + text.count(b"{") > NESTED_MAX for text in lines)


def _parsed(piece: bytes, lines: int, given: Mapping[str, Any], name: str, line: int) -> Any | None:
    """The rows of a piece as pyarrow reads them, or None where it might differ from the reference reader."""
    # One record on every line: only there does one end and the next begin. And NaN is no JSON, a header no record.
    if (
        b'"journal"' in piece
        or piece.count(b"}\n{") + 1 != lines
        or piece[:1] != b"{"
        or b"NaN" in piece
        or b"Inf" in piece
    ):
        return None
    try:
        options = pj.ReadOptions(use_threads=False, block_size=len(piece) + 1)
        table = pj.read_json(io.BytesIO(piece), read_options=options, parse_options=_PARSE)
        if table.num_rows != lines or table.column("clock").null_count != lines:
            return None
        batch = pa.RecordBatch.from_arrays(
            [table.column(column).combine_chunks() for column in COLUMNS if column != "clock"],
            names=[column for column in COLUMNS if column != "clock"],
        )
        batch.validate(full=True)
        found = normal(batch, given, name, line)
        check_rows(found, name, "line", line)
    except (FormatError, *BROKEN):
        return None
    return found
