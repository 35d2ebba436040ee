"""What a reader of a Delta table wants: which rows, which columns, from which version on."""

# pyarrow.compute makes its functions when it is imported, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from unisono.errors import MisuseError
from unisono.spark.lakehouse.table import DeltaFile
from unisono.spark.moments import moment_us

KNOWN = (
    *("path", "columns", "topics", "startingSeq", "endingSeq", "startingTimestamp", "endingTimestamp"),
    *("startingVersion", "versionAsOf", "maxVersionsPerTrigger", "minPartitions", "failOnDataLoss"),
)


class WantedRows(Struct, frozen=True):
    """Rows, by what archives write into them. A span has both ends in it; None is open."""

    topics: tuple[str, ...] | None = None
    spans: tuple[tuple[str, int | None, int | None], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that decide."""
        return (*(("topic",) if self.topics else ()), *(name for name, _, _ in self.spans))

    def may_be_in(self, file: DeltaFile) -> bool:
        """Whether a file may hold wanted rows, by what its log says of it; not knowing is yes."""
        for name, low, high in self.spans:
            least, most = (_whole(_side(file, name, side)) for side in ("low", "high"))
            if (low is not None and most is not None and most < low) or (
                high is not None and least is not None and least > high
            ):
                return False
        if self.topics is None:
            return True
        least, most = _side(file, "topic", "low"), _side(file, "topic", "high")
        return any((least is None or topic >= least) and (most is None or topic <= most) for topic in self.topics)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The wanted ones."""
        masks = []
        if self.topics is not None:
            masks.append(pc.is_in(batch.column("topic"), pa.array(self.topics)))
        for name, low, high in self.spans:
            masks += [pc.greater_equal(batch.column(name), low)] if low is not None else []
            masks += [pc.less_equal(batch.column(name), high)] if high is not None else []
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        return batch.filter(masks[0]) if masks else batch


def _side(file: DeltaFile, name: str, side: str) -> Any:
    return file.partition[name] if name in file.partition else getattr(file, side).get(name)


def _whole(value: Any) -> int | None:
    return int(value) if value is not None else None


class DeltaOptions:
    """The user's options, checked once, with errors that name them."""

    def __init__(self, raw: Any) -> None:
        for name in raw:
            if name.lower() not in {known.lower() for known in KNOWN}:
                raise MisuseError(f"unknown option {name!r}; there are {', '.join(KNOWN)}")
        if "path" not in raw:
            raise MisuseError("the source unisono_delta needs a path: .load(table) or .option('path', table)")
        self.path: str = raw["path"]
        self.columns = _names(raw, "columns")
        self.start: str = raw.get("startingVersion", "earliest")
        if self.start not in ("earliest", "latest") and not self.start.isdigit():
            raise MisuseError(f"startingVersion is earliest, latest or a version, not {self.start!r}")
        self.as_of = _count(raw, "versionAsOf", 0)
        self.versions_max = _count(raw, "maxVersionsPerTrigger", 1)
        self.partitions_min = _count(raw, "minPartitions", 1) or 1
        self.fail_on_loss = _flag(raw, "failOnDataLoss")
        spans: list[tuple[str, int | None, int | None]] = []
        first, last = (_count(raw, name, 0) for name in ("startingSeq", "endingSeq"))
        if first is not None or last is not None:
            spans.append(("seq", first, last))
        names = ("startingTimestamp", "endingTimestamp")
        since, until = (moment_us(raw[name], name) if name in raw else None for name in names)
        if since is not None or until is not None:
            spans.append(("delivered_us", since, until))
        self.wanted = WantedRows(_names(raw, "topics"), tuple(spans))


def _names(raw: Any, name: str) -> tuple[str, ...] | None:
    text = raw.get(name)
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else None


def _count(raw: Any, name: str, least: int) -> int | None:
    text = raw.get(name)
    if text is None:
        return None
    if not text.isdigit() or int(text) < least:
        raise MisuseError(f"{name} is a number from {least} on, not {text!r}")
    return int(text)


def _flag(raw: Any, name: str) -> bool:
    text = raw.get(name, "true").lower()
    if text not in ("true", "false"):
        raise MisuseError(f"{name} is true or false, not {text!r}")
    return bool(text == "true")
