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


def linked(folder: Path) -> Path:
    """One region lies elsewhere, and is linked twice."""
    (folder / "disk" / "today").mkdir(parents=True)
    (folder / "disk" / "today" / "b.jsonl").write_bytes(ROWS[HALF:])
    (folder / "all" / "region=eu").mkdir(parents=True)
    (folder / "all" / "region=eu" / "a.jsonl").write_bytes(ROWS[:HALF])
    (folder / "all" / "region=us").symlink_to(folder / "disk")
    (folder / "all" / "today").symlink_to(folder / "disk" / "today")
    return folder / "all"


def current(folder: Path) -> Path:
    """The rows keep what their own folder tells."""
    for subscriber, rows in (("7", ROWS[HALF:]), ("s", ROWS[:HALF])):
        part = folder / "all" / f"subscriber={subscriber}" / "a.jsonl"
        part.parent.mkdir(parents=True)
        part.write_bytes(rows.replace(b'"subscriber":"%b",' % subscriber.encode(), b""))
    (folder / "all" / "current").symlink_to("subscriber=s")
    return folder / "all"


def _link_up(folder: Path) -> None:
    (folder.parent / "notes.txt").write_text("no journal")
    (folder / "b").symlink_to("..")


def mounted(folder: Path) -> Path:
    """What is seen are links to links to a hidden folder."""
    (folder / "all" / "..2026").mkdir(parents=True)
    (folder / "all" / "..2026" / "a.jsonl").write_bytes(ROWS)
    (folder / "all" / "..data").symlink_to("..2026")
    (folder / "all" / "a.jsonl").symlink_to("..data/a.jsonl")
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
    "a link to a file that is there": among(lambda folder: (folder / "current").symlink_to("a.jsonl")),
    "a link to a folder that is there": current,
    "a link upwards": among(_link_up),
    "a region on another disk": linked,
    "folders as Kubernetes mounts them": mounted,
    "an editor's file": among(lambda folder: (folder / ".a.jsonl.swp").write_bytes(b"b0VIM")),
    "categories": table(pa.dictionary(pa.int8(), pa.string()), pa.large_string(), pa.uint64()),
    "journals of three regions": regions,
}
