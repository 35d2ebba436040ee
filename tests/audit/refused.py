"""What people hand to an audit by mistake, and the words that every engine refuses it with."""

import gzip
import io
import json
import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

ROW = b'{"subscriber":"s","event":"a","position":1}\n'
OTHER = b'{"subscriber":"s","event":"b","position":2}\n'


def write(content: bytes, name: str = "log") -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        return folder / name

    return made


def table(**columns: Any) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        rows = {"subscriber": ["s", "s"], "event": ["a", "b"], "position": [1, 2]} | columns
        pq.write_table(pa.table(rows), folder / "log")
        return folder / "log"

    return made


def columns(folder: Path, *names: str) -> Path:
    path = table()(folder)
    pq.write_table(pq.read_table(path, columns=list(names)), path)
    return path


def among(others: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """A folder with a good file first."""

    def made(folder: Path) -> Path:
        (folder / "all").mkdir()
        (folder / "all" / "a").write_bytes(ROW + OTHER)
        others(folder / "all")
        return folder / "all"

    return made


def nothing(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def cut(lines: int, bad: int | None = None) -> bytes:
    """A packed file that ends too soon; one line may be broken."""
    content = [OTHER] * lines
    if bad is not None:
        content[bad] = b"{]\n"
    packed = gzip.compress(b"".join(content))
    return packed[: len(packed) * 2 // 3]


def nested(depth: int) -> bytes:
    return OTHER.replace(b"}", b',"more":' + b"[" * depth + b"]" * depth + b"}")


def _rows(count: int, bad: int) -> pa.Table:
    events = [b"e%d" % i for i in range(count)]
    events[bad] = b"\xff"
    binary = pa.array(events, pa.binary())
    text = pa.Array.from_buffers(pa.string(), count, binary.buffers())  # nobody checks that it is text
    return pa.table({"subscriber": ["s"] * count, "event": text, "position": range(count)})


def bad_text(folder: Path) -> Path:
    pq.write_table(_rows(1000, 700), folder / "log")
    return folder / "log"


def bad_text_in_arrow(folder: Path) -> Path:
    found = _rows(3, 1)
    with ipc.new_file(str(folder / "log"), found.schema) as writer:
        writer.write_table(found)
    return folder / "log"


def fallen_ill(folder: Path) -> Path:
    """A byte of a later row group has changed."""
    count = 3000
    rows = pa.table({"subscriber": ["s"] * count, "event": [str(i) for i in range(count)], "position": range(count)})
    pq.write_table(rows, folder / "log", row_group_size=1000, use_dictionary=False, compression="zstd")
    content = bytearray((folder / "log").read_bytes())
    at = pq.read_metadata(folder / "log").row_group(1).column(1).data_page_offset
    content[at + 60 : at + 90] = b"\xff" * 30
    (folder / "log").write_bytes(content)
    return folder / "log"


def stored(form: str) -> bytes:
    """A table of two rows in a form of Arrow or Parquet."""
    rows, content = pa.table({"subscriber": ["s", "s"], "event": ["a", "b"], "position": [1, 2]}), io.BytesIO()
    if form == "parquet":
        pq.write_table(rows, content)
    else:
        with (ipc.new_file if form == "file" else ipc.new_stream)(content, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=1)
    return content.getvalue()


def ending_in_nothing(folder: Path) -> Path:
    """A folder of which one region lies on a disk that is not mounted."""
    path = write(ROW, "all/region=eu/a")(folder).parents[1]
    (path / "region=us").symlink_to(folder / "disk")
    return path


REFUSED: Mapping[str, tuple[Callable[[Path], Path], str]] = {
    "a file that is not there": (lambda folder: folder / "none", "none: No such file or directory"),
    "a pipe": (pipe, "pipe: no file: what comes through a pipe can be read once only"),
    "the standard input": (lambda folder: Path("-"), "-: no file: what comes through a pipe can be read once only"),
    "a URL": (lambda folder: Path("s3://bucket/log"), "s3:/bucket/log: no path: give a file or folder that this"),
    "an empty folder": (nothing, "empty: the folder holds no journal"),
    "an empty file": (write(b""), "log, line 1: the file is empty"),
    "a table in CSV": (write(b"subscriber,event,position\ns,a,1\n"), "line 1: a table as text: write its rows as JSON"),
    "a log of a program": (
        write(b"INFO delivered a to s\n"),
        "log, line 1: not JSON, and neither Arrow nor Parquet: a",
    ),
    "packed otherwise": (
        write(pa.compress(ROW, codec="zstd", asbytes=True)),
        "line 1: packed with zstd: unpack it, or",
    ),
    "packed twice": (write(gzip.compress(gzip.compress(ROW))), "line 1: packed with gzip twice: unpack it once"),
    "an archive": (
        lambda folder: write(b"{\n}\n", "hub/manifest.json")(folder).parent,
        "hub: an archive, which unisono audit ",
    ),
    "an archive in the folder": (among(write(b"{\n}\n", "hub/manifest.json")), "all/hub: an archive, which unisono"),
    "a picture in the folder": (among(write(b"\x89PNG\r\n\x1a\n", "b.png")), "b.png, line 1: not JSON"),
    "a broken line": (write(ROW + b"{]\n" + OTHER), "log, line 2: JSON is malformed"),
    "a cut line": (write(ROW + OTHER[:-5]), "log, line 2: the file ends inside a record"),
    "an array": (write(json.dumps([1]).encode()), "log, line 1: Expected `object`, got `array`; each line is one rec"),
    "a record over lines": (write(ROW.replace(b",", b",\n")), "line 1: Input data was truncated; each line is one rec"),
    "a byte order mark": (write(b"\xef\xbb\xbf" + ROW), "line 1: begins with a byte order mark"),
    "two bytes a letter": (write(ROW.decode().encode("utf-16")), "line 1: begins with a byte order mark"),
    "another encoding": (
        write(ROW + OTHER.replace(b'b"', b"\xe9")),
        "log, line 2: not UTF-8 (invalid continuation byte): ",
    ),
    "objects without end": (write(ROW + nested(100_000)), "log, line 2: objects in objects, too many for a reader"),
    "no number": (
        write(ROW + OTHER.replace(b"2", b"NaN")),
        "malformed: invalid character (byte 41); NaN and Infinity are not JSON: write null",
    ),
    "no number at the beginning": (write(OTHER.replace(b"2", b"NaN")), "line 1: JSON is malformed: invalid character"),
    "no kind": (write(ROW + OTHER.replace(b"{", b'{"kind":"DELIVER",')), "line 2, column kind: 'DELIVER' is no kind"),
    "files put together": (write(ROW + b"\xef\xbb\xbf" + OTHER), "; there is a byte order mark in the line"),
    "a time in words": (
        write(ROW.replace(b"}", b',"delivered_us":"2026-01-01T00:00:00Z"}')),
        "line 1, column delivered_us: Expected `int | null`, got `str`: moments are microseconds, as integers",
    ),
    "a moment": (
        table(delivered_us=pa.array([0, 1], pa.timestamp("us"))),
        "timestamp[us], which does not fit int64: moments are",
    ),
    "a decimal": (table(position=[Decimal(1), Decimal(2)]), "decimal128(1, 0), which does not fit int64: cast it"),
    "bytes": (table(event=[b"a", b"b"]), "column event: is of type binary, which does not fit string: cast it"),
    "text for a number": (
        table(position=["1", "2"]),
        "log, column position: is of type string, which does not fit int64: cast it where it is written",
    ),
    "text that is none": (bad_text, "log, row 701, column event: not UTF-8: cast it where it is written"),
    "text that is none in Arrow": (
        bad_text_in_arrow,
        "log, row 2, column event: not UTF-8: cast it where it is written",
    ),
    "a table that fell ill": (fallen_ill, "log, rows 1001 to 2000: "),
    "no value": (table(position=[1, None]), "log, row 2, column position: missing"),
    "a column that is not there": (
        lambda folder: columns(folder, "subscriber", "event"),
        "column position: missing; the",
    ),
    "text for a clock": (table(clock=["x", "y"]), "log, column clock: is of type string, which does not fit"),
    "other names": (
        write(b'{"user":"s","message":"a","offset":1}\n'),
        "subscriber: missing, but a 'deliver' record needs it; the line has user, message, offset",
    ),
    "a folder that tells a word": (
        lambda folder: write(ROW, "all/position=one/a")(folder).parents[1],
        "a, column position: its folder says 'one', no integer",
    ),
    "a link to nothing": (ending_in_nothing, "all/region=us: a link to nothing: what should be there would not"),
    "tables put together": (write(stored("parquet") * 2), "log: something follows the table: several tables are one "),
    "Arrow files put together": (write(stored("file") * 2), "log, row 3: something follows the table: several tables"),
    "streams of Arrow put together": (write(stored("stream") * 2), "log, row 3: something follows the table: several"),
    "a stream of Arrow and lines": (write(stored("stream") + ROW), "log, row 3: something follows the table: several"),
    "packed streams put together": (write(gzip.compress(stored("stream")) * 2), "row 3: something follows the table: "),
    "a packed file that is cut": (write(cut(60_000)), ": Compressed file ended before"),
    "a broken line before the cut": (write(cut(60_000, bad=30_000)), "log, line 30001: JSON is malformed"),
}
