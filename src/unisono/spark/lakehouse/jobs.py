"""Jobs for the scheduler of a lakehouse: fewer and larger files, and an end to what is old. Streams that read go on.

from unisono.spark.lakehouse.jobs import compact, retain

compact("lake/events")
retain("lake/events", before_us=now_us - 30 * 86_400_000_000)
"""

import time

from deltalake import CommitProperties
from deltalake.transaction import AddAction, RemoveAction
from msgspec import Struct

from unisono.spark.lakehouse.table import LakeTable

COMPACTED_BYTES = 128 << 20
UNREAD_HOURS = 168
"""How long files that no version holds any more are kept for those who still read an older one."""


class Compacted(Struct, frozen=True):
    """What a compaction did."""

    files_before: int
    files_after: int


class Retained(Struct, frozen=True):
    """What a retention did."""

    files: int
    rows: int
    deleted: int
    """Files that were deleted, of this and earlier runs, and of attempts that never came to a commit."""


def compact(location: str, target_bytes: int = COMPACTED_BYTES) -> Compacted:
    """Puts small files together. It adds no rows, and streams read past it."""
    table = LakeTable(location)
    before = len(table.snapshot())
    table.delta.optimize.compact(target_size=target_bytes)
    return Compacted(before, len(LakeTable(location).snapshot()))


def retain(location: str, before_us: int, column: str = "delivered_us", unread_hours: int = UNREAD_HOURS) -> Retained:
    """Removes the files all of whose rows are older than `before_us`, in one commit; no file is written anew.

    A file of which the log does not know how new its rows are is kept. Files that are out of the table for
    `unread_hours` are deleted.
    """
    table = LakeTable(location)
    old = [file for file in table.snapshot() if column in file.high and int(file.high[column]) < before_us]
    if old:
        moment_ms = time.time_ns() // 1_000_000
        removed: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, True, moment_ms, file.size, file.partition) for file in old
        ]
        properties = CommitProperties(custom_metadata={"unisono.retained_before_us": str(before_us)})
        table.delta.create_write_transaction(removed, "append", table.delta.schema(), commit_properties=properties)
    deleted = LakeTable(location).delta.vacuum(unread_hours, dry_run=False, enforce_retention_duration=False)
    return Retained(len(old), sum(file.rows or 0 for file in old), len(deleted))
