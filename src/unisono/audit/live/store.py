"""What a live audit keeps on disk: its state as of the last batch, and a line for every batch, each exactly once.

The state file is replaced as a whole and holds the batch it was made by, too. A line is appended after that; whoever
opens the folder appends the one line that a kill may have left out, and cuts half a line. So a batch is either not
there, and will be read again from where it began, or it is there once.
"""

import os
from pathlib import Path

import msgspec
from msgspec import Struct, field

from unisono.audit.live.core import END, BatchReport
from unisono.audit.live.feeds import ReadUpTo
from unisono.audit.live.state import STATE_VERSION, LiveState
from unisono.errors import FormatError, MisuseError, UnisonoError, naming
from unisono.structures.locks import lock_file

STATE, VERDICTS, LOCK = "state.msgpack", "verdicts.jsonl", "LOCK"


class Saved(Struct):
    """The state file."""

    root: str
    """What is audited."""
    promises: tuple[str, ...] = ()
    version: int = STATE_VERSION
    live: LiveState = field(default_factory=LiveState)
    places: dict[str, ReadUpTo] = field(default_factory=dict)
    batch: BatchReport | None = None
    """The last one."""


class AuditStore:
    """A folder of one live audit. `saved` is where it stands."""

    def __init__(self, folder: Path, root: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        if not lock_file(self._lock):
            os.close(self._lock)
            raise MisuseError(f"{folder} is in use by another audit: take another --state")
        try:
            self.saved = self._load(root)
        except UnisonoError:
            os.close(self._lock)
            raise
        self._lines = os.open(folder / VERDICTS, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._mend()

    def _load(self, root: str) -> Saved:
        path = self._folder / STATE
        try:
            saved = msgspec.msgpack.decode(path.read_bytes(), type=Saved)
        except FileNotFoundError:
            return Saved(root)
        except msgspec.MsgspecError as problem:
            raise FormatError(str(path), f"is no state of a live audit: {problem}") from None
        if saved.version != STATE_VERSION:
            raise FormatError(str(path), f"version {saved.version}; this program reads version {STATE_VERSION}")
        if saved.root != root:
            raise MisuseError(f"{self._folder} is the state of an audit of {saved.root}: take another --state")
        if saved.live.watermark == END:
            raise MisuseError(f"the audit in {self._folder} has ended: its verdicts are in {VERDICTS} there")
        return saved

    def _mend(self) -> None:
        """Half a line is cut; the line of the last batch is there."""
        with (self._folder / VERDICTS).open("rb") as file:
            data = file.read()
        whole = data.rfind(b"\n") + 1
        os.ftruncate(self._lines, whole)
        lines = data[:whole].splitlines()
        last = msgspec.json.decode(lines[-1])["batch"] if lines else -1
        if self.saved.batch is not None and last < self.saved.batch.batch:
            self._append(self.saved.batch)

    def save(self) -> None:
        """`saved` as it is now; durable when it returns."""
        new = self._folder / f"{STATE}.new"
        with naming(new), new.open("wb") as file:
            file.write(msgspec.msgpack.encode(self.saved))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._folder / STATE)
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        if self.saved.batch is not None:
            self._append(self.saved.batch)

    def _append(self, batch: BatchReport) -> None:
        data = msgspec.json.encode(batch) + b"\n"
        while data:
            data = data[os.write(self._lines, data) :]
        os.fdatasync(self._lines)

    def close(self) -> None:
        os.close(self._lines)
        os.close(self._lock)
