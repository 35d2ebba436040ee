"""The few things the archive asks of a disk, each a step that can be the last one before a crash."""

import os
from pathlib import Path
from typing import Protocol


class Disk(Protocol):
    """Steps of a segment's life. Tests bring a disk that stops, and forgets what was not synced, at any step."""

    def append(self, path: Path, data: bytes) -> None: ...

    def write(self, path: Path, data: bytes) -> None: ...

    def rename(self, old: Path, new: Path) -> None: ...

    def truncate(self, path: Path, size: int) -> None: ...

    def remove(self, path: Path) -> None: ...


class RealDisk:
    """Durable when it returns: data is synced, and so is the directory entry."""

    def append(self, path: Path, data: bytes) -> None:
        is_new = not path.exists()
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
        if is_new:
            self._sync_directory(path.parent)

    def write(self, path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)
        self._sync_directory(new.parent)

    def truncate(self, path: Path, size: int) -> None:
        with path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._sync_directory(path.parent)

    def _sync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
