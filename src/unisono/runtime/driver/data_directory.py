"""A directory that one process holds at a time, and that knows whose it is.

`LOCK` is locked before anything else in the directory is read, and until the process ends, however it ends: two
processes on one log would each number events that the other knows nothing of. `IDENTITY` says which node of which
deployment the directory belongs to, so that the data of another is refused and not continued, and by which rules its
log was decided: under others the same inputs would lead to another state than the one that others have heard of.
"""

import os
from pathlib import Path
from threading import Lock

import msgspec
from msgspec import Struct, structs

from unisono.errors import FormatError, MisuseError
from unisono.runtime.links.frames import UNREADABLE
from unisono.structures.locks import lock_file

LOCK = "LOCK"
IDENTITY = "IDENTITY"
IDENTITY_VERSION = 1
Rule = str | bool | tuple[str, ...] | None
"""A setting; a list may grow at its end."""


class Identity(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose a data directory is; a line of JSON, so that a person can read it."""

    deployment: str
    node: str
    deployment_id: str = ""
    """The `id` of its file, if that has one: two deployments may have the same name."""
    rules: dict[str, Rule] = {}
    """Settings of the file that its log depends on; none where that was not written down yet."""
    version: int = IDENTITY_VERSION

    def __str__(self) -> str:
        named = f"node {self.node!r} of deployment {self.deployment!r}"
        return f"{named} (id {self.deployment_id})" if self.deployment_id else named

    def is_other(self, known: "Identity") -> bool:
        """Whether that is somebody else. An id that one of them does not have tells nothing."""
        ids = dict.fromkeys(each for each in (self.deployment_id, known.deployment_id) if each)
        return (self.deployment, self.node) != (known.deployment, known.node) or len(ids) > 1

    def changed(self, known: "Identity") -> list[str]:
        """Settings that were others when the log began, in words."""
        both = [(name, known.rules[name], now) for name, now in self.rules.items() if name in known.rules]
        return [f"{name} was {_shown(was)} and is {_shown(now)}" for name, was, now in both if not _goes_on(was, now)]


def _goes_on(was: Rule, now: Rule) -> bool:
    return now[: len(was)] == was if isinstance(was, tuple) and isinstance(now, tuple) else was == now


def _shown(value: Rule) -> str:
    return "not given" if value is None else msgspec.json.encode(value).decode()


class DataDirectory:
    """A directory that is ours until `release`."""

    def __init__(self, directory: Path, lock: str = LOCK) -> None:
        """Raises MisuseError when another process holds it."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(directory / lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            take_lock(self._file, str(directory))
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(self._file)
            raise

    def identify(self, mine: Identity, adopts: bool = False) -> None:
        """An empty directory becomes ours, and with `adopts` a log that does not say whose it is, or that was decided
        by other rules; raises MisuseError when it belongs to somebody else."""
        path = self.directory / IDENTITY
        found = read_identity(path)
        if found is None:
            if not adopts and (any(self.directory.glob("log-*")) or any(self.directory.glob("snapshot-*"))):
                raise MisuseError(
                    f"{self.directory} holds a log and no {IDENTITY}, so nobody knows whose it is: restore the "
                    "directory as a whole; if it is this node's, and that is all there is: --new-incarnation"
                )
            write_durably(path, msgspec.json.encode(mine) + b"\n")
        elif mine.is_other(found):
            raise MisuseError(
                f"{self.directory} belongs to {found}, and this is {mine}: name another directory as data of the node"
            )
        elif not adopts and (changed := mine.changed(found)):
            raise MisuseError(
                f"{'; '.join(changed)}: {self.directory} was written under the old setting. Put it back; what it takes "
                "to change it: docs/reference/operations.md, 'Another root, another order'"
            )
        elif (mine.rules, mine.deployment_id or found.deployment_id) != (found.rules, found.deployment_id):
            known = structs.replace(mine, deployment_id=mine.deployment_id or found.deployment_id)
            write_durably(path, msgspec.json.encode(known) + b"\n")

    def release(self) -> None:
        os.close(self._file)


def take_lock(file: int, what: str) -> None:
    """Locks an open file until it is closed; raises MisuseError when another process has locked it."""
    if not lock_file(file):
        pid = os.pread(file, 16, 0).strip().decode("ascii", "replace")
        who = f"process {pid}" if pid.isdecimal() else "another process"
        raise MisuseError(f"{what} is in use by {who}: stop that one first")


def read_identity(path: Path) -> Identity | None:
    """None if there is no such file; raises FormatError if it is not what it should be."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(data, type=Identity)
    except UNREADABLE as error:
        raise FormatError(str(path), f"does not say whose the directory is: {error}") from None
    if found.version != IDENTITY_VERSION:
        raise FormatError(str(path), f"version {found.version} is unknown, this is version {IDENTITY_VERSION}")
    return found


_writing = Lock()
"""Two threads that write one file at once would take each other's temporary one away, or mix what they write."""


def write_durably(path: Path, data: bytes) -> None:
    """Replaces a small file: whoever reads it, even after a power cut, finds the old one or the new one."""
    temporary = path.with_suffix(".tmp")
    with _writing:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(temporary, path)
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Names that were made, replaced or removed in it are durable on return."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
