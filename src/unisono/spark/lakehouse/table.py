"""A Delta table as this room needs it: its versions, what each added, and what files are known to hold.

The log is read by delta-rs for a snapshot, and commit by commit for a stream: a compaction between two versions adds no
rows, which the difference of two snapshots does not show. Tables that a plain reader of Parquet would misread are
refused: deletion vectors, renamed columns, and whatever comes later under the name of a reader feature.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from msgspec import Struct

from unisono.errors import DataLossError, MisuseError
from unisono.spark.files import file_system

WRITER_VERSION_MAX = 2
"""Above it a table may demand checks of its writers (constraints, generated columns) that nobody here makes."""


class DeltaFile(Struct, frozen=True):
    """A Parquet file of a table: what the log says it holds, at least and at most, per column."""

    path: str
    size: int
    rows: int | None
    low: dict[str, Any]
    high: dict[str, Any]
    partition: dict[str, str | None]


class TableChange(Struct, frozen=True):
    """What one version did to the rows."""

    version: int
    added: list[DeltaFile]
    removed: int
    """Files whose rows are gone."""
    operation: str


class LakeTable:
    """A table as it is now; raises MisuseError if there is none, or none that can be read here."""

    def __init__(self, location: str, version: int | None = None) -> None:
        self.location = location
        try:
            self.delta = DeltaTable(location, version=version)
        except TableNotFoundError:
            raise MisuseError(f"{location} is no Delta table") from None
        except DeltaError as problem:
            raise MisuseError(f"{location}: {str(problem).splitlines()[0]}") from None
        protocol = self.delta.protocol()
        features = protocol.reader_features or ()
        if features or protocol.min_reader_version == 2:
            wanted = ", ".join(features) or "column mapping (reader version 2)"
            raise MisuseError(
                f"{location} is written for readers that know {wanted}, and this one does not: write it anew without, "
                "or read it with an engine that does"
            )
        self._files, self._root = file_system(location)

    @property
    def id(self) -> str:
        return str(self.delta.metadata().id)

    @property
    def version(self) -> int:
        return int(self.delta.version())

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self.delta.schema().to_arrow())

    def check_writable(self) -> None:
        """Raises MisuseError if the table demands of writers what is not done here."""
        protocol = self.delta.protocol()
        if protocol.min_writer_version > WRITER_VERSION_MAX:
            raise MisuseError(
                f"{self.location} demands writer version {protocol.min_writer_version} "
                f"({', '.join(protocol.writer_features or ())}); this sink writes version {WRITER_VERSION_MAX}"
            )

    def snapshot(self) -> list[DeltaFile]:
        """The files of this version, in the order of their paths."""
        found = []
        for row in pa.table(self.delta.get_add_actions(flatten=True)).to_pylist():
            sides = {side: _of(row, side) for side in ("min", "max", "partition")}
            found.append(
                DeltaFile(
                    row["path"], row["size_bytes"], row["num_records"], sides["min"], sides["max"], sides["partition"]
                )
            )
        return sorted(found, key=lambda file: file.path)

    def changes(self, after: int, upto: int) -> Iterator[TableChange]:
        """What versions `after` < v <= `upto` did; raises DataLossError where the log is gone."""
        for version in range(after + 1, upto + 1):
            yield _change(version, self.actions(version))

    def actions(self, version: int) -> list[dict[str, Any]]:
        """The lines of one commit."""
        path = f"{self._root}/_delta_log/{version:020}.json"
        try:
            with self._files.open_input_stream(path) as file:
                return [msgspec.json.decode(line) for line in file.read().splitlines() if line.strip()]
        except FileNotFoundError:
            raise DataLossError(f"version {version} of {self.location} is no longer in its log") from None

    def open(self, path: str) -> Any:
        """A file of the table; raises DataLossError if it was removed."""
        try:
            return self._files.open_input_file(f"{self._root}/{path}")
        except FileNotFoundError:
            raise DataLossError(f"{path} of {self.location} was removed before it was read") from None


def _of(row: Mapping[str, Any], side: str) -> dict[str, Any]:
    """`min.seq`, `min.topic` … as columns; a column that nothing is said of is not there."""
    prefix = f"{side}."
    return {name[len(prefix) :]: value for name, value in row.items() if name.startswith(prefix) and value is not None}


def _change(version: int, actions: list[dict[str, Any]]) -> TableChange:
    added, removed, operation = [], 0, ""
    for action in actions:
        if "add" in action and action["add"]["dataChange"]:
            added.append(_added(action["add"]))
        elif "remove" in action and action["remove"].get("dataChange", True):
            removed += 1
        elif "commitInfo" in action:
            operation = str(action["commitInfo"].get("operation", ""))
    return TableChange(version, added, removed, operation)


def _added(add: dict[str, Any]) -> DeltaFile:
    stats = msgspec.json.decode(add["stats"]) if add.get("stats") else {}
    low, high = (stats.get(side) or {} for side in ("minValues", "maxValues"))
    partition = add.get("partitionValues") or {}
    return DeltaFile(unquote(add["path"]), add["size"], stats.get("numRecords"), low, high, partition)
