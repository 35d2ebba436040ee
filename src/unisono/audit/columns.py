"""The columnar forms of a journal, Arrow IPC and Parquet: the fields of `Record` as columns, in their order.

Spark reads the Parquet form as it is: text, 64-bit integers, one map (`clock`) and one list (`depends_on`). The header
is JSON under the schema metadata key `unisono.journal`. Files made elsewhere may use other integer and text types,
floats that are whole, or integers as names; `normal` gives every batch the one schema, or says which row does not fit.
"""

# pyarrow.compute makes its functions when it is imported, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from unisono.audit.files import MOMENTS, NAMES, NEEDED, NEEDS_ARROW, NUMBERS, WHOLE_MAX, check_kind, lacking, missing
from unisono.errors import FormatError, MisuseError
from unisono.model.journal import HEADER_KEY, Header, Record

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.ipc as ipc
    import pyarrow.parquet as pq
except ImportError:
    raise MisuseError(NEEDS_ARROW) from None

BATCH_ROWS = 1 << 16
CODED: Any = pa.dictionary(pa.int32(), pa.string())
COLUMNS: tuple[str, ...] = Record.__struct_fields__
_TYPES: dict[str, Any] = {
    **dict.fromkeys(COLUMNS, pa.int64()),
    **dict.fromkeys(("kind", *NAMES), pa.string()),
    "clock": pa.map_(pa.string(), pa.int64()),
    "depends_on": pa.list_(pa.string()),
}
SCHEMA: Any = pa.schema([pa.field(column, _TYPES[column]) for column in COLUMNS])
_TEXTS = frozenset(("kind", *NAMES))
_DEFAULTS = {"kind": "deliver", "at_us": 0}
_CLOCK, _CAUSES = COLUMNS.index("clock"), COLUMNS.index("depends_on")


def write_arrow(path: str | Path, header: Header, records: Iterable[Record]) -> None:
    """Arrow IPC, file format."""
    schema = _schema(header)
    with ipc.new_file(str(path), schema) as writer:
        for batch in _batches(schema, records):
            writer.write_batch(batch)


def write_parquet(path: str | Path, header: Header, records: Iterable[Record]) -> None:
    """Parquet, which Spark reads as it is."""
    schema = _schema(header)
    with pq.ParquetWriter(str(path), schema) as writer:
        for batch in _batches(schema, records):
            writer.write_batch(batch)


def _schema(header: Header) -> Any:
    return SCHEMA.with_metadata({HEADER_KEY: msgspec.json.encode(header)})


def _batches(schema: Any, records: Iterable[Record]) -> Iterator[Any]:
    source = iter(records)
    while rows := list(islice(source, BATCH_ROWS)):
        yield batch_of(rows, schema)


def batch_of(records: Sequence[Record], schema: Any = SCHEMA) -> Any:
    """Records as a batch in the schema."""
    columns = [[getattr(record, column) for record in records] for column in COLUMNS]
    return pa.record_batch(
        [pa.array(_plain(values), type=field.type) for values, field in zip(columns, schema)], schema=schema
    )


def _plain(values: list[Any]) -> list[Any]:
    """A map column is built from lists of pairs."""
    return [list(value.items()) if isinstance(value, dict) else value for value in values]


def normal(batch: Any, given: Mapping[str, Any], name: str, row: int, coded: bool = False) -> Any:
    """The batch in the schema of journals; `given` fills what rows leave out, `row` rows of the file came before.
    Names may stay `coded`.

    Raises FormatError for the first column that does not fit, else for the first row that lacks what its kind needs.
    """
    arrays = []
    for column in COLUMNS:
        wanted, default = _TYPES[column], given.get(column, _DEFAULTS.get(column))
        if column in batch.schema.names:
            array = batch.column(column)
            if not (coded and array.type == CODED and column in NAMES):
                array = _fit(array, column, lambda i: f"{name}, row {row + i + 1}", name)
            if default is not None and array.null_count:
                array = array.cast(wanted).fill_null(default)
        else:
            array = _unsaid(wanted, default, batch.num_rows)
        arrays.append(array)
    found = pa.RecordBatch.from_arrays(arrays, COLUMNS) if coded else pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    check_rows(found, name, "row", row)
    return found


@lru_cache(maxsize=16)
def _unsaid(kind: Any, default: Any, rows: int) -> Any:
    """A column that a file does not have: the same for all its batches but the last."""
    return pa.repeat(pa.scalar(default, kind), rows)


def check_rows(batch: Any, name: str, unit: str, row: int) -> None:
    """As `files.lacking`, of all rows of a batch in the schema at once."""
    kinds = batch.column("kind")
    for kind in kinds.unique().to_pylist():
        if kind not in NEEDED:
            i = pc.index(kinds, kind).as_py()
            check_kind(kind, f"{name}, {unit} {row + i + 1}")
    lacking_at = []
    for column in dict.fromkeys(column for needed in NEEDED.values() for column in needed):
        array = batch.column(column)
        if array.null_count:
            needing = pa.array([kind for kind, needed in NEEDED.items() if column in needed])
            i = pc.index(pc.and_(array.is_null(), pc.is_in(kinds, needing)), True).as_py()
            if i >= 0:
                lacking_at.append(i)
    if lacking_at:
        first = min(lacking_at)
        record = next(records_of(batch.slice(first, 1)))
        lacks = lacking(record)
        assert lacks is not None
        raise missing(record, lacks, f"{name}, {unit} {row + first + 1}")


def records_of(batch: Any, known: dict[str, str] | None = None) -> Iterator[Record]:
    """The rows of a batch in the schema as records, whose names may still be codes.

    A name is one object in all rows, and in all batches that share what is `known`: a judge that looks it up finds its
    hash worked out and itself in the table, and memory holds it once.
    """
    known = {} if known is None else known
    columns: list[list[Any]] = [
        _shared(batch.column(column), known) if column in _TEXTS else batch.column(column).to_pylist()
        for column in COLUMNS
    ]
    for i, value in enumerate(columns[_CLOCK]):
        if value is not None:
            columns[_CLOCK][i] = dict(value)
    for i, value in enumerate(columns[_CAUSES]):
        if value is not None:
            columns[_CAUSES][i] = tuple(value)
    for values in zip(*columns):
        yield Record(*values)


def _shared(texts: Any, known: dict[str, str]) -> list[str | None]:
    """The texts of a column, equal ones as one object."""
    if texts.null_count == len(texts):
        return [None] * len(texts)
    encoded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    names: list[str | None] = [known.setdefault(name, name) for name in encoded.dictionary.to_pylist()]
    names.append(None)
    codes = encoded.indices.fill_null(len(names) - 1)
    return [names[code] for code in codes.to_pylist()]


def _fit(array: Any, column: str, where: Callable[[int], str], name: str) -> Any:
    kind, wanted = array.type, _TYPES[column]
    if kind == wanted and not pa.types.is_nested(kind):
        return array
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if pa.types.is_null(kind):
        return array.cast(wanted)
    if column == "kind":
        fits = is_text(kind)
    elif column in NAMES:
        fits = is_text(kind) or pa.types.is_integer(kind)
    elif column in NUMBERS:
        return _whole(array, where, column, name)
    elif column == "depends_on":
        return _causes(array, name)
    else:
        return _clocks(array, where, name)
    if not fits:
        raise _misfit(name, column, kind)
    return array.cast(wanted)


def is_text(kind: Any) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _misfit(name: str, column: str, kind: Any) -> FormatError:
    advice = MOMENTS if column.endswith("_us") else ""
    if column in NUMBERS and is_text(kind) and not advice:
        advice = ": cast it where it is written"
    if pa.types.is_decimal(kind) or (column in NAMES and (pa.types.is_binary(kind) or pa.types.is_floating(kind))):
        advice = ": cast it where it is written"
    return FormatError(f"{name}, column {column}", f"is of type {kind}, which does not fit {_TYPES[column]}{advice}")


def _whole(array: Any, where: Callable[[int], str], column: str, name: str) -> Any:
    """Integers of 64 bits, from integers of any width and from floats that are whole."""
    kind = array.type
    if pa.types.is_floating(kind):
        array = array.cast(pa.float64())
        fits = pc.and_(pc.equal(pc.trunc(array), array), pc.less_equal(pc.abs(array), float(WHOLE_MAX)))
    elif pa.types.is_uint64(kind):
        fits = pc.less_equal(array, pa.scalar(2**63 - 1, pa.uint64()))
    elif pa.types.is_integer(kind):
        return array.cast(pa.int64())
    else:
        raise _misfit(name, column, kind)
    i = pc.index(fits, False).as_py()
    if i >= 0:
        value = array[i].as_py()
        raise FormatError(f"{where(i)}, column {column}", f"{value!r} is no whole number of 64 bits")
    return array.cast(pa.int64())


def _causes(array: Any, name: str) -> Any:
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise _misfit(name, "depends_on", kind)
    if not (is_text(kind.value_type) or pa.types.is_integer(kind.value_type) or pa.types.is_null(kind.value_type)):
        raise _misfit(name, "depends_on", kind)
    array = array.cast(_TYPES["depends_on"])
    if array.values.null_count:
        lists = [None if value is None else [e for e in value if e is not None] for value in array.to_pylist()]
        array = pa.array(lists, _TYPES["depends_on"])
    return array


def _clocks(array: Any, where: Callable[[int], str], name: str) -> Any:
    kind, wanted = array.type, _TYPES["clock"]
    if kind == wanted and not array.items.null_count:
        return array
    if pa.types.is_struct(kind):  # what pandas makes of a column of dicts
        publishers = [(field.name, field.type) for field in kind]
    elif pa.types.is_map(kind) and (is_text(kind.key_type) or pa.types.is_integer(kind.key_type)):
        publishers = [("", kind.item_type)]
    else:
        raise _misfit(name, "clock", kind)
    for _, numbers in publishers:
        if not (pa.types.is_integer(numbers) or pa.types.is_floating(numbers) or pa.types.is_null(numbers)):
            raise _misfit(name, "clock", kind)
    clocks: list[list[tuple[str, int]] | None] = []
    for i, value in enumerate(array.to_pylist()):
        entries = value.items() if isinstance(value, dict) else value
        clocks.append(None if value is None else list(_entries(entries, f"{where(i)}, column clock")))
    return pa.array(clocks, wanted)


def _entries(entries: Iterable[tuple[Any, Any]], where: str) -> Iterator[tuple[str, int]]:
    for publisher, number in entries:
        if number is None:
            continue
        is_whole = number == int(number) if abs(number) <= WHOLE_MAX else isinstance(number, int) and number < 2**63
        if not is_whole:
            raise FormatError(where, f"{number!r} of {publisher} is no whole number of 64 bits")
        yield str(publisher), int(number)
