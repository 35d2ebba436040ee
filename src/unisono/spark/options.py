"""What a user says about an archive that is to be read."""

from typing import Any

from unisono.errors import MisuseError
from unisono.spark.moments import moment_us

KNOWN = (
    *("path", "url", "stream", "topics", "startingSeq", "startingTimestamp", "endingSeq"),
    *("maxRowsPerTrigger", "minPartitions", "failOnDataLoss", "gaps"),
)


class SourceOptions:
    """The user's options, checked once, with errors that name them."""

    def __init__(self, raw: Any) -> None:
        for name in raw:
            if name.lower() not in {known.lower() for known in KNOWN}:
                raise MisuseError(f"unknown option {name!r}; there are {', '.join(KNOWN)}")
        if "path" in raw and ("url" in raw or "stream" in raw):
            raise MisuseError("path, or url and stream: an archive has one place")
        if "path" not in raw and not ("url" in raw and "stream" in raw):
            raise MisuseError(
                "the unisono source needs a path: .load(directory) or .option('path', directory); or, for an archive "
                "in a stream, the options url (nats://host:port) and stream"
            )
        self.path: str = raw["path"] if "path" in raw else f"{raw['url'].rstrip('/')}/{raw['stream']}"
        topics = raw.get("topics")
        self.topics = tuple(name.strip() for name in topics.split(",")) if topics else None
        self.start: str = raw.get("startingSeq", "earliest")
        self.end = self._count(raw, "endingSeq")
        self.rows_max = self._count(raw, "maxRowsPerTrigger")
        self.partitions_min = self._count(raw, "minPartitions") or 1
        self.fail_on_loss = self._flag(raw, "failOnDataLoss")
        self.gaps: str = raw.get("gaps", "omit")
        if self.gaps not in ("omit", "rows", "fail"):
            raise MisuseError(f"gaps is omit, rows or fail, not {self.gaps!r}")
        since = raw.get("startingTimestamp")
        if since is not None and "startingSeq" in raw:
            raise MisuseError("startingSeq or startingTimestamp: a read begins at one place")
        self.since_us = None if since is None else moment_us(since, "startingTimestamp")
        if self.start not in ("earliest", "latest") and not self.start.isdigit():
            raise MisuseError(f"startingSeq is earliest, latest or a sequence, not {self.start!r}")
        if self.start.isdigit() and not int(self.start):
            raise MisuseError("startingSeq is 0, and the first row of an archive is 1: earliest begins there")
        if self.start.isdigit() and self.end is not None and self.end < int(self.start):
            raise MisuseError(f"endingSeq is {self.end}, before startingSeq, which is {self.start}")

    @staticmethod
    def _count(raw: Any, name: str) -> int | None:
        text = raw.get(name)
        if text is None:
            return None
        if not text.isdigit() or int(text) == 0:
            raise MisuseError(f"{name} is a positive number, not {text!r}")
        return int(text)

    @staticmethod
    def _flag(raw: Any, name: str) -> bool:
        text = raw.get(name, "true").lower()
        if text not in ("true", "false"):
            raise MisuseError(f"{name} is true or false, not {text!r}")
        return bool(text == "true")
