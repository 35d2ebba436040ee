"""Journal files: JSON lines, Arrow IPC and Parquet, one schema (docs/reference/journal.md).

The form is told by the first bytes of the file, not by its name; any form may be packed with gzip; a folder is one
journal in parts. Files made elsewhere need no header and no column but `subscriber`, `event` and `position`; unknown
columns are ignored. What cannot be read is a FormatError that names the line, or the row and column. Arrow and Parquet
need pyarrow; it is imported only when such a file is met.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec

from unisono.audit.parts import UNREADABLE, Part, open_part, parts_of
from unisono.errors import FormatError
from unisono.model.journal import JOURNAL_VERSION, KINDS, Header, Int64, Journal, Record, encode_line

CHUNK_BYTES = 1 << 20
NAMES = ("who", "subscriber", "event", "topic", "publisher", "peer", "note")
NUMBERS = (
    *("at_us", "position", "number", "last_number", "publisher_seq"),
    *("published_us", "delivered_us", "deadline_us"),
)
WHOLE_MAX = 2**53
"""Up to here a float is one whole number; beyond, it stands for several."""
NEEDED = {
    "deliver": ("subscriber", "event", "position"),
    "tag": ("subscriber", "event"),
    "gap": ("subscriber",),
    "publish": ("event",),
    "timestamp": ("event", "topic", "number"),
    "subscribe": ("subscriber",),
    "unsubscribe": ("subscriber",),
    "kept": ("event",),
    "searched": ("topic",),
}
_record = msgspec.json.Decoder(Record)
_anything = msgspec.json.Decoder()


def read(path: str | Path) -> Journal:
    """The whole journal: `read("run.jsonl").records`."""
    header, records = scan(path)
    return Journal(header, list(records))


def scan(path: str | Path) -> tuple[Header, Iterator[Record]]:
    """The header now, the records as they are asked for; memory stays small whatever the size of the file."""
    first, *others = parts_of(Path(path))
    header, records = scan_part(first, alone=first.path == Path(path))
    return header, chain(records, chain.from_iterable(scan_part(part, alone=False)[1] for part in others))


def scan_part(part: Part, alone: bool) -> tuple[Header, Iterator[Record]]:
    """The same of one file. Alone it has to hold something; among others it may be empty."""
    given = typed(part)
    file, is_columnar = open_part(part.path)
    try:
        if is_columnar:
            from unisono.audit.columns import scan as scan_columns  # pyarrow is optional

            return scan_columns(file, str(part.path), given)
        return _scan_lines(file, str(part.path), given, alone)
    except BaseException:
        file.close()
        raise


def write_jsonl(path: str | Path, header: Header, records: Iterable[Record]) -> None:
    """One header line, one line per record."""
    with Path(path).open("wb") as file:
        file.write(encode_line(header))
        file.writelines(map(encode_line, records))


def check(record: Record, name: str, unit: str, count: int) -> Record:
    """The columns a kind cannot do without are there; the rest of the arguments name the place for the error."""
    if record.kind == "deliver" and None not in (record.subscriber, record.event, record.position):
        return record  # nearly all records: a short way out
    for column in NEEDED.get(record.kind, ()):
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


def _scan_lines(file: IO[bytes], name: str, given: Mapping[str, Any], alone: bool) -> tuple[Header, Iterator[Record]]:
    header, line = read_header(file, name, alone)
    return header, _lines(file, name, line, given)


def read_header(file: IO[bytes], name: str, alone: bool = True) -> tuple[Header, int]:
    """The header of JSON lines and how many lines it took; the file stands at the first record."""
    try:
        first = file.readline()
    except UNREADABLE as problem:
        raise FormatError(f"{name}, line 1", str(problem)) from None
    if not first and not alone:
        return Header(), 0
    if not first.strip():
        raise FormatError(f"{name}, line 1", "the file is empty" if not first else "the first line is blank")
    try:
        fields = _anything.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise FormatError(f"{name}, line 1", "not JSON, and neither Arrow nor Parquet") from None
    if isinstance(fields, dict) and "journal" in fields:
        return check_header(fields, f"{name}, line 1"), 1
    file.seek(0)
    return Header(), 0


def _lines(file: IO[bytes], name: str, line: int, given: Mapping[str, Any]) -> Iterator[Record]:
    with file:
        while lines := read_lines(file, name, line):
            yield from decode_lines(lines, name, line, given)
            line += len(lines)


def read_lines(file: IO[bytes], name: str, line: int, size: int = CHUNK_BYTES) -> list[bytes]:
    """Some more lines, about `size` bytes; `line` of them were read before."""
    try:
        return file.readlines(size)
    except UNREADABLE as problem:
        raise FormatError(f"{name}, after line {line}", str(problem)) from None


def decode_lines(lines: list[bytes], name: str, line: int, given: Mapping[str, Any]) -> Iterator[Record]:
    """The records of these lines; blank ones hold none."""
    try:
        records = [] if given else _record.decode_lines(b"".join(lines))
    except (msgspec.DecodeError, UnicodeDecodeError):
        records = []
    if len(records) == len(lines):
        for record in records:
            line += 1
            yield check(record, name, "line", line)
        return
    for text in lines:  # one by one, to mend what can be mended and to find the line with the problem
        line += 1
        if text.strip():
            yield check(_decode(text, f"{name}, line {line}", given), name, "line", line)


def _decode(text: bytes, where: str, given: Mapping[str, Any]) -> Record:
    try:
        fields = _anything.decode(text)
        if isinstance(fields, dict):
            fields = {column: _plain(column, value) for column, value in fields.items() if value is not None}
            fields = {**given, **fields}
        return msgspec.convert(fields, Record)
    except msgspec.ValidationError as problem:
        reason, _, place = str(problem).partition(" - at `$")
        column = place.strip(".`").partition("[")[0]
        raise FormatError(f"{where}, column {column}" if column else where, reason) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        cut = "" if text.endswith(b"\n") else "the file ends inside a record: "
        raise FormatError(where, f"{cut}{problem}") from None


def _plain(column: str, value: Any) -> Any:
    """What files made elsewhere mean: names by number, whole floats, entries of null."""
    if column in NAMES:
        return _name(value)
    if column in NUMBERS:
        return _whole(value)
    if column == "clock" and isinstance(value, dict):
        return {publisher: _whole(number) for publisher, number in value.items() if number is not None}
    if column == "depends_on" and isinstance(value, list):
        return [_name(cause) for cause in value if cause is not None]
    return value


def _name(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and abs(value) <= WHOLE_MAX and value.is_integer() else value


def typed(part: Part) -> dict[str, Any]:
    """What the folders of a file tell, as values of a record."""
    told: dict[str, Any] = {}
    for column, text in part.given.items():
        if column in NUMBERS:
            try:
                told[column] = msgspec.convert(text, Int64, strict=False)
            except msgspec.ValidationError:
                raise FormatError(f"{part.path}, column {column}", f"its folder says {text!r}, no integer") from None
        elif column in NAMES:
            told[column] = text
        elif column == "kind":
            told[column] = check_kind(text, str(part.path))
    return told


def check_kind(kind: str, where: str) -> str:
    if kind not in KINDS:
        raise FormatError(f"{where}, column kind", f"{kind!r} is no kind of record")
    return kind
