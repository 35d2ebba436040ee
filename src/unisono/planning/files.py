"""Reading rows from files made elsewhere: CSV, JSONL or Parquet, with the columns that a plan needs."""

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from unisono.errors import FormatError

Columns = tuple[str, ...]


def read_rows(path: Path, columns: Columns) -> Iterator[tuple[str, ...]]:
    """The named columns of every row, as text; raises FormatError naming the row or the missing column."""
    if not path.is_file():
        raise FormatError(str(path), "is a directory" if path.is_dir() else "no such file")
    match path.suffix:
        case ".csv":
            rows = _csv(path, columns)
        case ".jsonl" | ".ndjson":
            rows = _jsonl(path, columns)
        case ".parquet":
            rows = _parquet(path, columns)
        case other:
            raise FormatError(
                str(path), f"cannot read {other or 'a file without suffix'}: use .csv, .jsonl or .parquet"
            )
    for place, values in rows:
        for name, value in zip(columns, values, strict=True):
            if value is None or value == "" or isinstance(value, dict | list):
                raise FormatError(f"{path} {place}", f"{name} is {value!r}; a name or a number is wanted")
        yield tuple(map(str, values))


def read_subscriptions(path: Path) -> Iterator[tuple[str, str]]:
    """`(subscriber, topic)` per row."""
    return ((row[0], row[1]) for row in read_rows(path, ("subscriber", "topic")))


def read_rates(path: Path) -> dict[str, dict[str, float]]:
    """`rates[topic][region]` from rows of topic, region and rate (events per second)."""
    rates: dict[str, dict[str, float]] = {}
    for topic, region, text in read_rows(path, ("topic", "region", "rate")):
        try:
            rate = float(text)
        except ValueError:
            rate = math.nan
        if not 0 <= rate < math.inf:  # not a number is neither
            raise FormatError(str(path), f"the rate of {topic} in {region} is {text!r}, not a number from 0")
        own = rates.setdefault(topic, {})
        own[region] = own.get(region, 0.0) + rate
    return rates


Rows = Iterator[tuple[str, list[object]]]


def _csv(path: Path, columns: Columns) -> Rows:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        _check_columns(path, columns, list(reader.fieldnames or []))
        for row in reader:
            yield f"line {reader.line_num}", [row[name] for name in columns]


def _jsonl(path: Path, columns: Columns) -> Rows:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = msgspec.json.decode(line, type=dict[str, object])
            except msgspec.MsgspecError as error:
                raise FormatError(f"{path} line {number}", str(error)) from None
            _check_columns(path, columns, list(row))
            yield f"line {number}", [row[name] for name in columns]


def _parquet(path: Path, columns: Columns) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise FormatError(str(path), str(error).splitlines()[0]) from None
    _check_columns(path, columns, file.schema_arrow.names)
    number = 0
    for batch in file.iter_batches(columns=list(columns)):
        for values in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            number += 1
            yield f"row {number}", list(values)


def _check_columns(path: Path, columns: Columns, found: list[str]) -> None:
    missing = [name for name in columns if name not in found]
    if missing:
        raise FormatError(str(path), f"has no column {', '.join(missing)}; it has {', '.join(found) or 'none'}")
