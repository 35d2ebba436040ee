"""Journals of running processes: JSONL files, rotated by size, written before anybody sees what they tell."""

import os
from pathlib import Path
from typing import Literal

import msgspec

from unisono.errors import MisuseError, TransportError
from unisono.model.event import Event
from unisono.model.journal import Header, Record, encode_line
from unisono.model.time import Micros
from unisono.runtime.driver.data_directory import take_lock

Level = Literal["off", "deliveries", "all"]

BYTES_MAX = 256 << 20
KEPT = 4
"""Full files that are kept beside the one that is written."""


def publication(event: Event, now: Micros, lasts_us: Micros = Micros(0)) -> Record:
    """An event as its publisher hands it over; attributes stand in the note, for judges that know filters. `lasts_us`:
    so long after it the event is of use, if that has an end."""
    return Record(
        "publish",
        now,
        who=event.publisher,
        event=event.id,
        topic=event.topic,
        publisher=event.publisher,
        publisher_seq=event.sequence,
        published_us=event.born_at or now,
        deadline_us=(event.born_at or now) + lasts_us if lasts_us else None,
        note=msgspec.json.encode(event.attributes).decode() if event.attributes else None,
    )


class JournalFile:
    """Appends records to `NAME.jsonl`; at `BYTES_MAX` the file becomes `NAME.1.jsonl`, and so on up to `KEPT`."""

    def __init__(self, directory: Path, name: str, header: Header = Header()) -> None:
        self.path = directory / f"{name.replace('/', '-')}.jsonl"
        self._header = header
        self._lines: list[bytes] = []
        directory.mkdir(parents=True, exist_ok=True)
        self._open()

    def note(self, record: Record) -> None:
        self._lines.append(encode_line(record))

    def flush(self) -> None:
        """Hands what was noted to the operating system: it survives the end of the process."""
        if not self._lines:
            return
        data, self._lines = b"".join(self._lines), []
        try:
            while data:
                data = data[os.write(self._file, data) :]
            if os.fstat(self._file).st_size >= BYTES_MAX:
                self._rotate()
        except OSError as error:
            raise TransportError(f"the journal {self.path} failed: {error.strerror}") from None

    def close(self) -> None:
        self.flush()
        os.close(self._file)

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            take_lock(self._file, f"the journal {self.path}")
        except MisuseError:
            os.close(self._file)
            raise
        data = self.path.read_bytes()
        os.ftruncate(self._file, data.rfind(b"\n") + 1)  # a process that was killed may have left half a line
        if os.fstat(self._file).st_size == 0:
            os.write(self._file, encode_line(self._header))

    def _rotate(self) -> None:
        os.close(self._file)
        for age in range(KEPT, 0, -1):
            older = self.path.with_suffix(f".{age}.jsonl")
            if age == KEPT:
                older.unlink(missing_ok=True)
            elif older.exists():
                older.rename(self.path.with_suffix(f".{age + 1}.jsonl"))
        self.path.rename(self.path.with_suffix(".1.jsonl"))
        self._open()
