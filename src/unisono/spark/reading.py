"""A journal as a data frame: the same reader as everywhere, in tasks over pieces of files.

A piece is some row groups of a Parquet file, a range of bytes of JSON lines, or a whole file. Rows come checked, in the
schema of journals, with `_at`, which is their place in the order of files and rows. What has to be refused is a row,
too: its `_problem` says in one line what the reader says elsewhere, so that the first of all pieces can be told.
"""

import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from unisono.audit.columnar.reading import batches_of, batches_of_lines
from unisono.audit.columns import COLUMNS, SCHEMA
from unisono.audit.files import NEEDED, is_text, read_header, typed
from unisono.audit.parts import JournalPart, open_part, parts_of
from unisono.audit.tables import BROKEN, scan_batches
from unisono.errors import FormatError
from unisono.model.journal import Header

LEAST = NEEDED["deliver"]
PIECE_ROWS = 1_000_000
PIECE_BYTES = 1 << 27
TASK_BYTES = 1 << 24
"""Of small files: a task costs as much as to read some hundred thousand rows."""
_CHUNK_BYTES = 1 << 23
_FILE_ROWS = 1 << 44
"""Places that a file has: more than it has bytes."""
_SQL = {"kind": "STRING", "clock": "MAP<STRING, BIGINT>", "depends_on": "ARRAY<STRING>"}


class ReadingPiece(NamedTuple):
    """What is read in one go: a whole `file`, the row `groups` from `first` up to `last` of Parquet, or the lines that
    begin in these `bytes`. `row` rows of the file come before row groups.
    """

    file: int
    path: str
    given: str
    alone: bool
    unit: str = "file"
    first: int = 0
    last: int = 0
    row: int = 0


def check_file(path: Path) -> Header:
    """The header of a journal; raises FormatError, before any JVM starts, if its first rows cannot be read."""
    parts = parts_of(path)
    for part in parts:
        if not is_text(str(part.path)):
            raise FormatError(str(part.path), "Spark cannot be told a name that is not UTF-8: rename it")
    first = parts[0]
    header, batches = batches_of(first, alone=first.path == path)
    next(batches, None)
    return header


def load(spark: SparkSession, path: str | Path) -> DataFrame:
    """All rows of a file or folder, checked: the columns of journals and `_at`. Raises FormatError for a bad row.

    The files are read for the check, and again when the frame is used.
    """
    rows = scan(spark, Path(path))
    problem = first_problem(rows.agg(problem_column().alias("_problem")).collect()[0]["_problem"])
    if problem is not None:
        raise problem
    usual = {"kind": "deliver", "at_us": 0}
    return rows.select(
        *(
            F.col(field.name)
            if field.name in rows.columns
            else F.lit(usual.get(field.name)).cast(_sql(field)).alias(field.name)
            for field in SCHEMA
        ),
        "_at",
    )


def problem_column() -> Column:
    """Of all rows that have to be refused, what was said of the first."""
    return F.min_by("_problem", F.when(F.col("_problem").isNotNull(), F.struct("_at", "_problem")))


def first_problem(said: str | None) -> FormatError | None:
    """What a reader said, as an error again."""
    if said is None:
        return None
    where, _, what = said.partition(": ")
    return FormatError(where, what)


def scan(spark: SparkSession, path: Path) -> DataFrame:
    """The same unchecked: what has to be refused is a row with `_problem`. Of columns that no part has there are only
    the least: Spark would take every one of them through its rows, its cache and its sums.
    """
    told: dict[str, None] = dict.fromkeys(LEAST)
    pieces = chain.from_iterable(_cut(i, part, path, told) for i, part in enumerate(parts_of(path)))
    tasks = [(msgspec.json.encode(some).decode(),) for some in _together(pieces)]
    columns = [field for field in SCHEMA if field.name in told]
    schema = ", ".join(f"{field.name} {_sql(field)}" for field in columns)
    frame = spark.createDataFrame(tasks, "pieces STRING")
    read = partial(_read, columns=[field.name for field in columns])
    return frame.repartition(len(tasks)).mapInArrow(read, f"{schema}, _at BIGINT, _problem STRING")


def _sql(field: Any) -> str:
    return _SQL.get(field.name) or ("BIGINT" if field.type == pa.int64() else "STRING")


def _together(pieces: Iterable[ReadingPiece]) -> Iterator[list[ReadingPiece]]:
    """What tasks read: one piece each, but of small files as many as are worth a task."""
    some: list[ReadingPiece] = []
    size = 0
    for piece in pieces:
        weight = _bytes(piece.path) if piece.unit == "file" else TASK_BYTES
        if some and size + weight > TASK_BYTES:
            yield some
            some, size = [], 0
        some.append(piece)
        size += weight
    if some:
        yield some


def _bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0  # the task that reads it will say what is wrong


def _cut(file: int, part: JournalPart, path: Path, told: dict[str, None]) -> Iterator[ReadingPiece]:
    """The pieces of a part; `told` gets the columns that it may have."""
    whole = ReadingPiece(file, str(part.path), msgspec.json.encode(part.given).decode(), part.path == path)
    groups: list[int] = []
    size = 0
    columns: Iterable[str] = COLUMNS
    try:
        opened, is_columnar = open_part(part.path)
        with opened:
            if is_columnar:
                groups, names = _groups(opened)
                columns = (*names, *part.given)
            elif not isinstance(opened, gzip.GzipFile):
                size = part.path.stat().st_size
    except (FormatError, *BROKEN):
        pass  # the task that reads it will say what is wrong
    told.update(dict.fromkeys(columns))
    if size > PIECE_BYTES:
        for first in range(0, size, PIECE_BYTES):
            yield whole._replace(unit="bytes", first=first, last=min(first + PIECE_BYTES, size))
        return
    first = row = rows = 0
    for i, count in enumerate(groups):
        rows += count
        if rows >= PIECE_ROWS or i + 1 == len(groups):
            yield whole._replace(unit="groups", first=first, last=i + 1, row=row)
            first, row, rows = i + 1, row + rows, 0
    if not groups:
        yield whole


def _groups(file: Any) -> tuple[list[int], Sequence[str]]:
    """Rows of each row group, none if it is not Parquet, and the columns."""
    if file.read(4) != b"PAR1":
        return [], COLUMNS
    file.seek(0)
    parquet = pq.ParquetFile(file)
    found = parquet.metadata
    return [found.row_group(i).num_rows for i in range(found.num_row_groups)], parquet.schema_arrow.names


def _read(batches: Iterator[pa.RecordBatch], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for pieces in batch.column("pieces").to_pylist():
            for piece in msgspec.json.decode(pieces, type=list[ReadingPiece]):
                for rows in _rows(piece):
                    yield rows.select([*columns, "_at", "_problem"])


def _rows(piece: ReadingPiece) -> Iterator[pa.RecordBatch]:
    # A row has a byte at least, so counting on from a piece's first byte keeps the order of pieces.
    at = piece.file * _FILE_ROWS + (piece.first if piece.unit == "bytes" else piece.row)
    try:
        for batch in _batches(piece):
            places = pa.array(range(at, at + batch.num_rows), pa.int64())
            yield _with(batch, places, pa.nulls(batch.num_rows, pa.string()))
            at += batch.num_rows
    except FormatError as problem:
        nothing = pa.RecordBatch.from_pylist([{}], schema=SCHEMA)
        yield _with(nothing, pa.array([at], pa.int64()), pa.array([str(problem)]))


def _with(batch: pa.RecordBatch, places: pa.Array, problems: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, places, problems], names=[*COLUMNS, "_at", "_problem"])


def _batches(piece: ReadingPiece) -> Iterator[pa.RecordBatch]:
    part = JournalPart(Path(piece.path), msgspec.json.decode(piece.given))
    if piece.unit == "file":
        return batches_of(part, piece.alone)[1]
    given = typed(part)
    file, _ = open_part(part.path)
    if piece.unit == "bytes":
        return _lines(file, piece, given)
    return scan_batches(file, piece.path, given, range(piece.first, piece.last), piece.row)[1]


def _lines(file: IO[bytes], piece: ReadingPiece, given: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """The lines that begin in the piece. Which lines they are is counted only if one has to be named."""
    with file:
        if piece.first:
            file.seek(piece.first - 1)
            file.readline()
        else:
            read_header(file, piece.path, piece.alone)
        begin = file.tell()
        content = file.read(max(0, piece.last - begin))
        if content and not content.endswith(b"\n"):
            content += file.readline()
        source = io.BytesIO(content)
        while lines := source.readlines(_CHUNK_BYTES):
            try:
                yield from batches_of_lines(lines, piece.path, 0, given)
            except FormatError:
                before = begin + source.tell() - sum(map(len, lines))
                file.seek(0)
                list(batches_of_lines(lines, piece.path, _count_lines(file, before), given))
                raise


def _count_lines(file: IO[bytes], upto: int) -> int:
    count = 0
    while upto > 0 and (some := file.read(min(upto, _CHUNK_BYTES))):
        count += some.count(b"\n")
        upto -= len(some)
    return count
