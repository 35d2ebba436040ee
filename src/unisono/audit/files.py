"""Journal files: JSON lines, Arrow IPC and Parquet, one schema (docs/reference/journal.md).

The form is told by the first bytes of the file, not by its name; any form may be packed with gzip; a folder is one
journal in parts. Files made elsewhere need no header and no column but `subscriber`, `event` and `position`; unknown
columns are ignored. What cannot be read is a FormatError that names the line, or the row and column. Arrow and Parquet
need pyarrow; it is imported only when such a file is met.
"""

import codecs
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec

from unisono.audit.parts import UNREADABLE, JournalPart, open_part, parts_of
from unisono.errors import FormatError, naming
from unisono.model.journal import JOURNAL_VERSION, KINDS, Header, Int64, Journal, Record, encode_line

CHUNK_BYTES = 1 << 20
NAMES = ("who", "subscriber", "event", "topic", "publisher", "peer", "note")
NUMBERS = (
    *("at_us", "position", "number", "last_number", "publisher_seq"),
    *("published_us", "delivered_us", "deadline_us"),
)
MOMENTS = ": moments are microseconds, as integers"
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
SAYS_WHAT = ("kind", "subscriber", "event")
"""What a record has one of, and a header none."""
FOREIGN = {
    b"\x1f\x8b": "packed with gzip twice: unpack it once",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it, or pack it with gzip",
    b"BZh": "packed with bzip2: unpack it, or pack it with gzip",
    b"\xfd7zXZ": "packed with xz: unpack it, or pack it with gzip",
    b"\x04\x22\x4d\x18": "packed with lz4: unpack it, or pack it with gzip",
    b"PK": "a zip archive: unpack it",
    b"ORC": "a table in ORC: write it as Parquet",
    b"Obj\x01": "a table in Avro: write it as Parquet",
    b"FEA1": "Feather of version 1: write it as version 2, which is Arrow",
    b"PARE": "Parquet with an encrypted footer: write it unencrypted",
    b"SQLite format 3": "a database of SQLite: write its rows as JSON lines or Parquet",
}
"""How files begin that people have instead of journals, and what to do about each."""
NEEDS_ARROW = "Arrow and Parquet journals need pyarrow: pip install 'unisono[arrow]'"
ONE_A_LINE = "; each line is one record as JSON (jq -c makes such lines)"
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a line raises that is no JSON; the last for objects in objects without end."""
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


def scan_part(part: JournalPart, alone: bool) -> tuple[Header, Iterator[Record]]:
    """The same of one file. Alone it has to hold something; among others it may be empty."""
    given = typed(part)
    file, is_columnar = open_part(part.path)
    try:
        if is_columnar:
            from unisono.audit.tables import scan as scan_columns  # pyarrow is optional

            return scan_columns(file, str(part.path), given)
        return _scan_lines(file, str(part.path), given, alone)
    except BaseException:
        file.close()
        raise


def write_jsonl(path: str | Path, header: Header, records: Iterable[Record]) -> None:
    """One header line, one line per record."""
    with naming(path), Path(path).open("wb") as file:
        file.write(encode_line(header))
        file.writelines(map(encode_line, records))


def lacking(record: Record) -> str | None:
    """The first column that its kind cannot do without and that it does not have."""
    if record.kind == "deliver" and None not in (record.subscriber, record.event, record.position):
        return None  # nearly all records: a short way out
    return next((column for column in NEEDED.get(record.kind, ()) if getattr(record, column) is None), None)


def missing(record: Record, column: str, where: str, has: str = "") -> FormatError:
    """What is said of a record that lacks a column."""
    return FormatError(f"{where}, column {column}", f"missing, but a {record.kind!r} record needs it{has}")


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
    except UNDECODABLE as problem:
        raise FormatError(f"{name}, line 1", no_journal(first, problem)) from None
    if isinstance(fields, dict) and "journal" in fields:
        return check_header(fields, f"{name}, line 1"), 1
    file.seek(0)
    return Header(), 0


def no_journal(first: bytes, problem: Exception) -> str:
    """What to do about a file whose first line is not JSON."""
    if first.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "begins with a byte order mark: write it as UTF-8 without one"
    if first.lstrip().startswith((b"{", b"[")):
        return _no_record(first, problem, ONE_A_LINE)
    for magic, what in FOREIGN.items():
        if first.startswith(magic):
            return what
    if b"subscriber" in first and b"{" not in first:
        return "a table as text: write its rows as JSON lines or Parquet"
    return "not JSON, and neither Arrow nor Parquet: a journal has one JSON object a line, or is one of these"


def _lines(file: IO[bytes], name: str, line: int, given: Mapping[str, Any]) -> Iterator[Record]:
    with file:
        while lines := read_lines(file, name, line):
            yield from decode_lines(lines, name, line, given)
            line += len(lines)


def read_lines(file: IO[bytes], name: str, line: int, size: int = CHUNK_BYTES) -> list[bytes]:
    """Some more lines, about `size` bytes; `line` of them were read before."""
    try:
        return file.readlines(size)
    except UNREADABLE:
        return _readable_lines(file, name, line)


def _readable_lines(file: IO[bytes], name: str, line: int) -> list[bytes]:
    """What can be read after `line` lines of a file that cannot be read to its end; the same however it is read."""
    found: list[bytes] = []
    try:
        file.seek(0)
        for _ in range(line):
            file.readline()
        while text := file.readline():
            found.append(text)
    except UNREADABLE as problem:
        if not found:
            raise FormatError(f"{name}, after line {line}", f"{problem}: fetch or pack it again") from None
    return found


def decode_lines(lines: list[bytes], name: str, line: int, given: Mapping[str, Any]) -> Iterator[Record]:
    """The records of these lines; blank ones hold none, nor do further headers, as `cat` puts them between records."""
    try:
        records = [] if given else _record.decode_lines(b"".join(lines))
    except UNDECODABLE:
        records = []
    done = 0
    if len(records) == len(lines):
        for record in records:
            if lacking(record) is not None:
                break
            yield record
            done += 1
    for count, text in enumerate(lines[done:], line + done + 1):
        # One by one, to mend what can be mended and to find the line with the problem.
        if text.strip():
            found = _decode(text, f"{name}, line {count}", given)
            if found is not None:
                yield found


def _decode(text: bytes, where: str, given: Mapping[str, Any]) -> Record | None:
    try:
        fields = _anything.decode(text)
    except UNDECODABLE as problem:
        raise FormatError(where, _no_record(text, problem)) from None
    if isinstance(fields, dict):
        if "journal" in fields and not any(column in fields for column in SAYS_WHAT):
            check_header(fields, where)
            return None
        fields = {column: _plain(column, value) for column, value in fields.items() if value is not None}
        fields = {**given, **fields}
    try:
        record = msgspec.convert(fields, Record)
    except msgspec.ValidationError as problem:
        reason, _, place = str(problem).partition(" - at `$")
        column = place.strip(".`").partition("[")[0]
        if column == "kind" and isinstance(fields["kind"], str):
            check_kind(fields["kind"], where)
        if not column:
            reason += ONE_A_LINE
        elif column.endswith("_us"):
            reason += MOMENTS
        raise FormatError(f"{where}, column {column}" if column else where, reason) from None
    lacks = lacking(record)
    if lacks is not None:
        raise missing(record, lacks, where, f"; the line has {', '.join(fields) or 'nothing'}")
    return record


def _no_record(text: bytes, problem: Exception, advice: str = "") -> str:
    """Why a line is no JSON, and what to do where that can be told."""
    cut = "" if text.endswith(b"\n") else "the file ends inside a record: "
    if isinstance(problem, RecursionError):
        return f"{cut}objects in objects, too many for a reader"
    if isinstance(problem, UnicodeDecodeError):
        return f"{cut}not UTF-8 ({problem.reason}): write it as UTF-8 (iconv -t UTF-8 makes it of others)"
    if b"NaN" in text or b"Infinity" in text:
        advice = "; NaN and Infinity are not JSON: write null"
    elif codecs.BOM_UTF8 in text:
        advice = "; there is a byte order mark in the line"
    return f"{cut}{problem}{advice}"


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


def typed(part: JournalPart) -> dict[str, Any]:
    """What the folders of a file tell, as values of a record."""
    told: dict[str, Any] = {}
    for column, text in part.given.items():
        if column in NUMBERS:
            try:
                told[column] = msgspec.convert(text, Int64, strict=False)
            except msgspec.ValidationError:
                raise FormatError(f"{part.path}, column {column}", f"its folder says {text!r}, no integer") from None
        elif column in NAMES:
            if not is_text(text):
                raise FormatError(f"{part.path}, column {column}", "its folder's name is not UTF-8: rename it")
            told[column] = text
        elif column == "kind":
            told[column] = check_kind(text, str(part.path))
    return told


def is_text(name: str) -> bool:
    """Whether a name from the file system is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_kind(kind: str, where: str) -> str:
    if kind not in KINDS:
        raise FormatError(f"{where}, column kind", f"{kind!r} is no kind of record")
    return kind
