"""Logs as people have them: untidy, and yet with one meaning. In each of them `a` and `b` are told in both orders."""

import gzip
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = (
    b'{"subscriber":"s","event":"a","position":1}\n'
    b'{"subscriber":"s","event":"b","position":2}\n'
    b'{"subscriber":"7","event":"b","position":1}\n'
    b'{"subscriber":"7","event":"a","position":2}\n'
)
HALF = len(ROWS) // 2


def file(content: bytes) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        (folder / "log").write_bytes(content)
        return folder / "log"

    return made


def among(more: Callable[[Path], object]) -> Callable[[Path], Path]:
    """A folder with the rows and something else."""

    def made(folder: Path) -> Path:
        (folder / "all").mkdir()
        (folder / "all" / "a.jsonl").write_bytes(ROWS)
        more(folder / "all")
        return folder / "all"

    return made


def _listen(folder: Path) -> None:
    before = Path.cwd()
    os.chdir(folder)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("node.sock")
    os.chdir(before)


def _table() -> pa.Table:
    return pa.table({"subscriber": ["s", "s", "7", "7"], "event": ["a", "b", "b", "a"], "position": [1, 2, 1, 2]})


def table(*types: pa.DataType) -> Callable[[Path], Path]:
    """With columns of these types."""

    def made(folder: Path) -> Path:
        found = _table()
        pq.write_table(found.cast(pa.schema(list(zip(found.column_names, types)))), folder / "log")
        return folder / "log"

    return made


def regions(folder: Path) -> Path:
    """Three machines' journals, each with a header, one of them from Spark with numbers as names."""
    for region, rows in (("eu", ROWS[:HALF]), ("us", b"")):
        (folder / "all" / f"region={region}").mkdir(parents=True)
        (folder / "all" / f"region={region}" / "journal.jsonl").write_bytes(b'{"journal": 1}\n' + rows)
    (folder / "all" / "region=ap").mkdir()
    theirs = pa.table({"subscriber": [7, 7], "event": ["b", "a"], "position": [1.0, 2.0], "color": ["red", None]})
    pq.write_table(theirs, folder / "all" / "region=ap" / "part-0.snappy.parquet")
    (folder / "all" / "region=ap" / ".part-0.snappy.parquet.crc").write_bytes(b"crc")
    (folder / "all" / "_SUCCESS").touch()
    return folder / "all"


UNTIDY: Mapping[str, Callable[[Path], Path]] = {
    "lines of Windows": file(ROWS.replace(b"\n", b"\r\n")),
    "blank lines": file(ROWS.replace(b"\n", b"\n\n \n") + b"\n"),
    "no end of line": file(ROWS[:-1]),
    "a key twice": file(ROWS.replace(b'"position":2', b'"position":0,"position":2')),
    "numbers as programs write them": file(ROWS.replace(b":1}", b":1.0}").replace(b":2}", b":0.2e1}")),
    "escapes": file(ROWS.replace(b'"a"', b'"\\u0061"')),
    "packed in pieces": file(gzip.compress(ROWS[:HALF]) + gzip.compress(ROWS[HALF:])),
    "packed and padded": file(gzip.compress(ROWS) + bytes(512)),
    "a pipe in the folder": among(lambda folder: os.mkfifo(folder / "b")),
    "a socket in the folder": among(_listen),
    "a folder in itself": among(lambda folder: (folder / "b").symlink_to(folder)),
    "a link to nothing": among(lambda folder: (folder / "b").symlink_to(folder / "none")),
    "an editor's file": among(lambda folder: (folder / ".a.jsonl.swp").write_bytes(b"b0VIM")),
    "categories": table(pa.dictionary(pa.int8(), pa.string()), pa.large_string(), pa.uint64()),
    "journals of three regions": regions,
}
