"""A journal as columns: names as small integers, one order of rows per subscriber, what is known of each event.

`Trace` in arrays. Rows are counted from 0 in the order of files and rows. `stream_*` are the first untagged deliveries
in the order of (subscriber, position, row): one stream after the other, as `Trace.streams` has them.
"""

# pyarrow.compute makes its functions when it is imported, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from unisono.audit.columns import CODED, COLUMNS, SCHEMA, records_of
from unisono.audit.trace import TELLING, Trace
from unisono.model.journal import Header, Journal, Record

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
NONE = -1
"""No name: names are numbered from 0."""
_TEXT_BYTES_MAX = 2**31 - 2**20
"""What one array of plain text holds."""
_USUAL = {"kind": "deliver", "at_us": 0}


class NameColumn(NamedTuple):
    """A column of names: the number of each row's name (`NONE` where it has none), and the names by number."""

    codes: Ints
    names: Any

    def name(self, code: int) -> str:
        found: str = self.names[int(code)].as_py()
        return found


class NumberColumn(NamedTuple):
    """A column of numbers; what `known` does not mark means nothing."""

    values: Ints
    known: Flags


class ColumnarLog:
    """A journal whose rows have been read; columns that say nothing in any row are not kept."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.size = 0
        self._chunks: dict[str, list[Any]] = {column: [] for column in COLUMNS}

    def add(self, batch: Any) -> None:
        """Rows after those that are there, in the schema of journals."""
        for column, array in zip(COLUMNS, batch.columns, strict=True):
            usual = _USUAL.get(column)
            if (usual is not None and pc.all(pc.equal(array, usual)).as_py()) or array.null_count == len(array):
                array = pa.nulls(len(array))
            self._chunks[column].append(array)
        self.size += batch.num_rows

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Column -> its values; without the columns that say nothing."""
        found = {}
        for column in COLUMNS:
            chunks = self._chunks.pop(column)
            types = {chunk.type for chunk in chunks} - {pa.null()}
            if not types:
                continue
            wanted = CODED if types == {CODED} else SCHEMA.field(column).type
            filled = [self._unsaid(column, len(c)) if pa.types.is_null(c.type) else c for c in chunks]
            filled = [chunk.cast(wanted) for chunk in filled]
            found[column] = pa.chunked_array([pa.concat_arrays(filled)] if wanted == pa.int64() else filled, wanted)
        return found

    def _unsaid(self, column: str, rows: int) -> Any:
        return pa.repeat(pa.scalar(_USUAL.get(column), SCHEMA.field(column).type), rows)

    def records(self, rows: Ints) -> list[Record]:
        """These rows as records."""
        arrays = []
        for column in COLUMNS:
            if column in self.columns:
                taken = self.columns[column].take(pa.array(rows))
                arrays.append(taken.cast(SCHEMA.field(column).type).combine_chunks())
            else:
                arrays.append(self._unsaid(column, len(rows)))
        return list(records_of(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)))

    @cached_property
    def trace(self) -> Trace:
        """All rows for a judge that has no columnar form."""
        return Trace(Journal(self.header, self.records(np.arange(self.size))))

    def names(self, column: str) -> NameColumn | None:
        """A column of names, None if no row has one."""
        if column not in self.columns:
            return None
        values = self.columns[column]
        if values.nbytes > _TEXT_BYTES_MAX:
            values = values.cast(pa.large_string())
        if pa.types.is_dictionary(values.type):
            encoded = values.unify_dictionaries().combine_chunks()
        else:
            encoded = values.combine_chunks().dictionary_encode()  # chunk by chunk it takes three times as long
        self.columns[column] = pa.chunked_array([encoded])
        pa.default_memory_pool().release_unused()  # what Arrow kept for columns to come, numpy can use
        indices = encoded.indices.fill_null(NONE) if encoded.null_count else encoded.indices
        return NameColumn(np.asarray(indices).astype(np.int64), encoded.dictionary)

    def numbers(self, column: str) -> NumberColumn | None:
        """A column of numbers, None if no row has one."""
        if column not in self.columns:
            return None
        array = self.columns[column]
        known = ~np.asarray(array.is_null()) if array.null_count else np.ones(self.size, bool)
        return NumberColumn(np.asarray(array.fill_null(0) if array.null_count else array), known)

    def is_kind(self, *kinds: str) -> Flags:
        """Which rows are of these kinds."""
        if "kind" not in self.columns:
            return np.full(self.size, "deliver" in kinds)
        return np.asarray(pc.is_in(self.columns["kind"], pa.array(kinds)))

    @cached_property
    def kinds(self) -> dict[str, None]:
        """The kinds there are."""
        if "kind" not in self.columns:
            return {"deliver": None} if self.size else {}
        return dict.fromkeys(self.columns["kind"].unique().to_pylist())

    # What every judge starts from

    @cached_property
    def delivered(self) -> Ints:
        """Rows that are untagged deliveries."""
        return np.flatnonzero(self.is_kind("deliver"))

    @cached_property
    def tagged(self) -> Ints:
        return np.flatnonzero(self.is_kind("tag")) if "tag" in self.kinds else np.empty(0, np.int64)

    @cached_property
    def told(self) -> Ints:
        """Notifications, tagged or not, in the order of rows."""
        return np.sort(np.concatenate([self.delivered, self.tagged])) if len(self.tagged) else self.delivered

    @cached_property
    def telling(self) -> Ints | None:
        """Rows that tell something of their event; None if all do."""
        if all(kind in TELLING for kind in self.kinds):
            return None
        return np.flatnonzero(self.is_kind(*TELLING) & (self.events.codes != NONE))

    @cached_property
    def subscribers(self) -> NameColumn:
        return self.names("subscriber") or _nobody(self.size)

    @cached_property
    def events(self) -> NameColumn:
        return self.names("event") or _nobody(self.size)

    @cached_property
    def is_timed(self) -> bool:
        """As `Trace.is_timed`: whether `at_us` means anything."""
        return "at_us" in self.columns

    # What is known of events

    def last_telling(self, known: Flags, rows: Ints | None = None) -> Ints:
        """Event -> the last row that tells, `NONE` if none does; `rows` are those that may tell (all telling ones)."""
        found = np.full(len(self.events.names), NONE)
        if rows is None:
            rows = self.telling
        rows = np.flatnonzero(known) if rows is None else rows[known[rows]]
        found[self.events.codes[rows]] = rows  # of several rows of an event the last is written last
        return found

    def tells_of_notified(self, known: Flags) -> bool:
        """Whether `known` marks an event that somebody was notified of."""
        return bool(known[self.events.codes[self.told]].any())

    def telling_causes(self, column: str) -> Ints:
        """The same for `clock` and `depends_on`, which mean something else in `timestamp` rows."""
        known = ~np.asarray(self.columns[column].is_null())
        return self.last_telling(known, np.flatnonzero(self.is_kind("deliver", "tag", "publish")))

    @cached_property
    def authors(self) -> "Authors | None":
        """As `Trace.authors`, by event; None if no row tells."""
        publishers, seqs = self.names("publisher"), self.numbers("publisher_seq")
        if publishers is None or seqs is None:
            return None
        rows = self.last_telling((publishers.codes != NONE) & seqs.known)
        if not (rows != NONE).any():
            return None
        return Authors(
            np.where(rows != NONE, publishers.codes[rows], NONE), seqs.values[rows], len(publishers.names), rows
        )

    @cached_property
    def topics(self) -> "Topics | None":
        """As `Trace.topics`, by event; None if no row tells."""
        topics = self.names("topic")
        if topics is None:
            return None
        rows = self.last_telling(topics.codes != NONE)
        return Topics(np.where(rows != NONE, topics.codes[rows], NONE), rows) if (rows != NONE).any() else None

    def answered(self, rows: Ints) -> tuple[Ints, Flags]:
        """When the subscriber had what these rows say, and where that is known: as `Trace.delivered_us`."""
        delivered, written = self.numbers("delivered_us"), self.numbers("at_us")
        moments, known = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
        if delivered is not None:
            moments, known = delivered.values[rows], delivered.known[rows]
        if written is not None:
            moments, known = np.where(known, moments, written.values[rows]), np.ones(len(rows), bool)
        return moments, known

    def known_records(self, rows: Ints) -> list[Record]:
        """A few rows as records that also say what is known of their events: topic, publisher, publisher_seq."""
        found = self.records(rows)
        for i, event in enumerate(self.events.codes[rows]):
            if self.authors is not None and self.authors.rows[event] != NONE:
                teller = self.records(self.authors.rows[[event]])[0]
                found[i] = replace(found[i], publisher=teller.publisher, publisher_seq=teller.publisher_seq)
            if self.topics is not None and self.topics.rows[event] != NONE:
                found[i] = replace(found[i], topic=self.records(self.topics.rows[[event]])[0].topic)
        return found


class Authors(NamedTuple):
    """Event -> its publisher (`NONE`: unknown), its number among that publisher's, and the row that tells."""

    publishers: Ints
    seqs: Ints
    publishers_count: int
    rows: Ints


class Topics(NamedTuple):
    """Event -> its topic (`NONE`: unknown), and the row that tells."""

    codes: Ints
    rows: Ints


def _nobody(size: int) -> NameColumn:
    return NameColumn(np.full(size, NONE), pa.array([], pa.string()))
