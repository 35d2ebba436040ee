"""Reading subscriptions from files made elsewhere: CSV, JSONL or Parquet with the columns `subscriber` and `topic`."""

import csv
from collections.abc import Iterator
from pathlib import Path

import msgspec

from unisono.errors import FormatError

COLUMNS = ("subscriber", "topic")


def read_subscriptions(path: Path) -> Iterator[tuple[str, str]]:
    """`(subscriber, topic)` per row; raises FormatError naming the row or the missing column."""
    if not path.is_file():
        raise FormatError(str(path), "no such file")
    match path.suffix:
        case ".csv":
            yield from _csv(path)
        case ".jsonl" | ".ndjson":
            yield from _jsonl(path)
        case ".parquet":
            yield from _parquet(path)
        case other:
            raise FormatError(
                str(path), f"cannot read {other or 'a file without suffix'}: use .csv, .jsonl or .parquet"
            )


def _csv(path: Path) -> Iterator[tuple[str, str]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        _check_columns(path, list(reader.fieldnames or []))
        for row in reader:
            yield _pair(path, f"line {reader.line_num}", row["subscriber"], row["topic"])


def _jsonl(path: Path) -> Iterator[tuple[str, str]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = msgspec.json.decode(line, type=dict[str, object])
            except msgspec.MsgspecError as error:
                raise FormatError(f"{path} line {number}", str(error)) from None
            _check_columns(path, list(row))
            yield _pair(path, f"line {number}", row["subscriber"], row["topic"])


def _parquet(path: Path) -> Iterator[tuple[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise FormatError(str(path), str(error).splitlines()[0]) from None
    _check_columns(path, file.schema_arrow.names)
    row = 0
    for batch in file.iter_batches(columns=list(COLUMNS)):
        for subscriber, topic in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            row += 1
            yield _pair(path, f"row {row}", subscriber, topic)


def _check_columns(path: Path, found: list[str]) -> None:
    missing = [name for name in COLUMNS if name not in found]
    if missing:
        raise FormatError(str(path), f"has no column {', '.join(missing)}; it has {', '.join(found) or 'none'}")


def _pair(path: Path, place: str, subscriber: object, topic: object) -> tuple[str, str]:
    for name, value in zip(COLUMNS, (subscriber, topic)):
        if value is None or value == "" or isinstance(value, dict | list):
            raise FormatError(f"{path} {place}", f"{name} is {value!r}; a name is wanted")
    return str(subscriber), str(topic)
