"""Journal files: JSON lines, Arrow IPC and Parquet, one schema (docs/reference/journal.md).

The format is told by the first bytes of the file, not by its name; a folder is one journal in parts. Files made
elsewhere need no header and no column but `subscriber`, `event` and `position`; unknown columns are ignored. What
cannot be read is a FormatError that names the line, or the row and column. Arrow and Parquet need pyarrow; it is
imported only when such a file is met.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec

from unisono.errors import FormatError
from unisono.model.journal import JOURNAL_VERSION, Header, Journal, Record, encode_line

CHUNK_BYTES = 1 << 20
_TEXTS = ("who", "subscriber", "event", "topic", "publisher", "peer", "note")
_NEEDED = {
    "deliver": ("subscriber", "event", "position"),
    "tag": ("subscriber", "event"),
    "gap": ("subscriber",),
    "publish": ("event",),
    "timestamp": ("event", "topic", "number"),
    "subscribe": ("subscriber",),
    "unsubscribe": ("subscriber",),
}
_record = msgspec.json.Decoder(Record)
_anything = msgspec.json.Decoder()


def read(path: str | Path) -> Journal:
    """The whole journal: `read("run.jsonl").records`."""
    header, records = scan(path)
    return Journal(header, list(records))


def scan(path: str | Path) -> tuple[Header, Iterator[Record]]:
    """The header now, the records as they are asked for; memory stays small whatever the size of the file."""
    path = Path(path)
    if path.is_dir():
        return _scan_folder(path)
    try:
        file = path.open("rb")
    except OSError as problem:
        raise FormatError(str(path), problem.strerror or "cannot be opened") from None
    try:
        magic = file.read(6)
        file.seek(0)
        if magic.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")):
            from unisono.audit.columns import scan as scan_columns  # pyarrow is optional

            return scan_columns(file, str(path))
        return _scan_lines(file, str(path))
    except BaseException:
        file.close()
        raise


def _scan_folder(path: Path) -> tuple[Header, Iterator[Record]]:
    """The parts of one journal in the order of their names, as Spark writes them and as a rotated journal lies."""
    parts = [part for part in sorted(path.iterdir()) if part.name[0] not in "._" and part.stat().st_size]
    if not parts:
        raise FormatError(str(path), "the folder holds no journal")
    header, records = scan(parts[0])
    return header, chain(records, chain.from_iterable(scan(part)[1] for part in parts[1:]))


def write_jsonl(path: str | Path, header: Header, records: Iterable[Record]) -> None:
    """One header line, one line per record."""
    with Path(path).open("wb") as file:
        file.write(encode_line(header))
        file.writelines(map(encode_line, records))


def check(record: Record, name: str, unit: str, count: int) -> Record:
    """The columns a kind cannot do without are there; the rest of the arguments name the place for the error."""
    if record.kind == "deliver" and None not in (record.subscriber, record.event, record.position):
        return record  # nearly all records: a short way out
    for column in _NEEDED.get(record.kind, ()):
        if getattr(record, column) is None:
            where = f"{name}, {unit} {count}, column {column}"
            raise FormatError(where, f"missing, but a {record.kind!r} record needs it")
    return record


def check_header(fields: Any, where: str) -> Header:
    try:
        header = msgspec.convert(fields, Header)
    except msgspec.ValidationError as problem:
        raise FormatError(where, f"the header is broken: {problem}") from None
    if header.journal != JOURNAL_VERSION:
        raise FormatError(where, f"a journal of version {header.journal}; this program reads version {JOURNAL_VERSION}")
    return header


def _scan_lines(file: IO[bytes], name: str) -> tuple[Header, Iterator[Record]]:
    first = file.readline()
    if not first.strip():
        raise FormatError(f"{name}, line 1", "the file is empty" if not first else "the first line is blank")
    try:
        fields = _anything.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise FormatError(f"{name}, line 1", "not JSON, and neither Arrow nor Parquet") from None
    if isinstance(fields, dict) and "journal" in fields:
        return check_header(fields, f"{name}, line 1"), _lines(file, name, 1)
    file.seek(0)
    return Header(), _lines(file, name, 0)


def _lines(file: IO[bytes], name: str, line: int) -> Iterator[Record]:
    with file:
        while lines := file.readlines(CHUNK_BYTES):
            try:
                records = _record.decode_lines(b"".join(lines))
            except (msgspec.DecodeError, UnicodeDecodeError):
                records = []
            if len(records) == len(lines):
                for record in records:
                    line += 1
                    yield check(record, name, "line", line)
                continue
            for text in lines:  # one by one, to find the line with the problem; blank lines are none
                line += 1
                if text.strip():
                    yield check(_decode(text, f"{name}, line {line}"), name, "line", line)


def _decode(text: bytes, where: str) -> Record:
    try:
        return _record.decode(text)
    except msgspec.ValidationError as problem:
        refused = problem
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise _not_json(text, where, problem) from None
    try:  # files made elsewhere often name subscribers and events by number
        fields = _anything.decode(text)
        if isinstance(fields, dict):
            named = {column: str(fields[column]) for column in _TEXTS if isinstance(fields.get(column), int)}
            return msgspec.convert({**fields, **named}, Record)
    except msgspec.ValidationError as problem:
        refused = problem
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise _not_json(text, where, problem) from None
    reason, _, place = str(refused).partition(" - at `$")
    column = place.strip(".`").partition("[")[0]
    raise FormatError(f"{where}, column {column}" if column else where, reason)


def _not_json(text: bytes, where: str, problem: Exception) -> FormatError:
    cut = "" if text.endswith(b"\n") else "the file ends inside a record: "
    return FormatError(where, f"{cut}{problem}")
