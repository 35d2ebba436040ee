"""The log of a durable machine: the inputs it handled, and now and then a snapshot (docs/reference/durability.md).

A directory holds segments `log-N` and snapshots; `snapshot-N` is the machine before the first
input of `log-N`. One commit is one block: header (magic, block number, length, checksums) and the inputs handled since
the last one, each with its time. A block is written by one `write` and made durable by one `fdatasync`, into space
that the file has already: a file that grows with every commit costs the disk its length each time, too (decision 91).
So a segment that is written ends in zeros; what is closed ends with its last block.

At start the newest snapshot is restored and every later input handled again. A last block that is not whole was never
durable, so nothing that depended on it ever left: it is cut off. Damage anywhere else is refused (`FormatError`): a
log with a hole in the middle would replay into another state. When a write or a sync fails, the log is dead for
this process (`TransportError`): what the disk holds is then unknown, and only a restart reads it again.
"""

import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from unisono.errors import FormatError, TransportError
from unisono.model.time import Micros
from unisono.runtime.driver.forked import IS_ABLE, ForkedWriter, fork_writer, wait_for_writer
from unisono.runtime.links.frames import UNREADABLE
from unisono.turns import Logged

LOG_VERSION = 1

UNWRITABLE = (OverflowError, TypeError, ValueError)
"""What an encoder raises for a value that no format carries."""
_MAGIC = b"uniB"
_HEADER = struct.Struct("<4sQII")  # magic, block number, length of the body, crc of the body
_HEADER_CRC = struct.Struct("<I")  # crc of the header, so that a length can be believed
_HEADER_BYTES = _HEADER.size + _HEADER_CRC.size
IS_ABLE_TO_RESERVE = hasattr(os, "posix_fallocate")


class LogConfig(Struct, frozen=True):
    """Sizes of one machine's log."""

    segment_bytes_max: int = 64 << 20
    """A snapshot is due when the segments since the last one are this long; a restart replays at most about this."""
    fork_bytes_min: int = 1 << 20
    """A snapshot that is probably as large as this, by the last one and by the log since, is written by a copy of the
    process: reading a megabyte of state takes about 14 ms, a fork some milliseconds whatever the size. Memory in use by
    both grows while it writes."""
    sync: bool = True
    """False leaves blocks to the operating system: they survive kill -9, not a power cut."""
    ahead_bytes: int = 256 << 10
    """So much space is taken at once when a synced log has to grow. 0: it grows with every commit."""
    quick_us: int = 1_000
    """While commits take less than this they are made by the loop itself, which stands still meanwhile: two changes of
    thread cost more (measured 0.2 ms for a sync, 0.1 to 0.3 ms for the changes). After a longer one the next is made
    in a thread beside the loop."""


class Opening(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of block 0 of every segment, and the head of every snapshot."""

    machine: str
    """Name and version of the machine: another machine's log is refused."""
    version: int = LOG_VERSION
    height: int = 0
    """How many commits this log has had before."""


class _Snapshot(Struct, frozen=True):
    opening: Opening
    at: Micros
    state: Any


def of_another(theirs: str, ours: str) -> str:
    """Why a log is not replayed into this machine, and what to do."""
    if theirs.split()[0] != ours.split()[0]:
        return f"belongs to {theirs!r}, not to {ours!r}: name the data directory of this node"
    return (
        f"was written by {theirs!r} and this is {ours!r}: start the release that wrote it, or, when subscribers have"
        " had what they are owed, start this one with a new data directory"
    )


def _block(number: int, body: bytes) -> bytes:
    header = _HEADER.pack(_MAGIC, number, len(body), zlib.crc32(body))
    return header + _HEADER_CRC.pack(zlib.crc32(header)) + body


def _read_block(data: memoryview, at: int) -> tuple[int, memoryview] | None:
    """The block at this offset, if a whole and undamaged one is there."""
    if len(data) - at < _HEADER_BYTES:
        return None
    header = data[at : at + _HEADER.size]
    magic, number, length, body_crc = _HEADER.unpack(header)
    (header_crc,) = _HEADER_CRC.unpack(data[at + _HEADER.size : at + _HEADER_BYTES])
    if magic != _MAGIC or header_crc != zlib.crc32(header) or len(data) - at - _HEADER_BYTES < length:
        return None
    body = data[at + _HEADER_BYTES : at + _HEADER_BYTES + length]
    return (number, body) if zlib.crc32(body) == body_crc else None


class InputLog(Protocol):
    """What a host needs of a log: in files (`FileLog`) or on a replicated stream (`replicated.ReplicatedLog`)."""

    @property
    def height(self) -> int:
        """Grows with every commit over the whole life of the log, whatever snapshots remove."""
        ...

    def recover(self) -> tuple[tuple[Micros, Any] | None, Iterator[Logged]]: ...

    def commit(self, inputs: list[Logged]) -> None: ...

    @property
    def is_quick(self) -> bool:
        """Whether a commit may be made in the loop, because it will hardly take longer than handing it over."""
        ...

    @property
    def snapshot_is_due(self) -> bool: ...

    def begin_snapshot(self, at: Micros, state: Any) -> bytes: ...

    def finish_snapshot(self, block: bytes) -> None: ...

    def fork_snapshot(self, at: Micros, take: Callable[[], Any]) -> ForkedWriter | None:
        """A copy of this process writes the state that `take` gives there; None: a snapshot is to be taken here. Called
        by the thread that changes the state; the other two block."""
        ...

    def begin_forked(self) -> None: ...

    def finish_forked(self, writer: ForkedWriter) -> bool: ...

    def close(self) -> None: ...


class FileLog:
    """The open log of one machine. `commit` and `finish_snapshot` block: see `is_quick`."""

    def __init__(self, directory: Path, machine: str, inputs: Any, config: LogConfig = LogConfig()) -> None:
        """`inputs` is the type (union) of the machine's inputs; `machine` its name with the version of its state."""
        self.directory = directory
        self.config = config
        self.bytes_since_snapshot = 0
        self.height = 0
        self._took_s = float("inf")  # the last commit
        self._opening = Opening(machine)
        self._decoder = msgspec.msgpack.Decoder(list[tuple[Micros, inputs]])
        self._encoder = msgspec.msgpack.Encoder()
        self._segment = 0
        self._blocks = 0  # number of the next block of the open segment
        self._file: int | None = None
        self._end = self._space = 0  # where the next block goes, and how long the file is
        self._dead: str | None = None
        self._snapshot_bytes = 0  # of the last one

    # reading, once, at start

    def recover(self) -> tuple[tuple[Micros, Any] | None, Iterator[Logged]]:
        """The newest snapshot (its time and state) or None, and the inputs after it; leaves the log open for commits.

        The iterator must be exhausted before the first commit; it repairs a torn tail when it gets there.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        for leftover in self.directory.glob("*.tmp"):
            leftover.unlink()
        snapshots, segments = self._numbers("snapshot"), self._numbers("log")
        start = snapshots[-1] if snapshots else 0
        found = self._read_snapshot(start) if snapshots else None
        wanted = [number for number in segments if number >= start]
        if wanted != list(range(start, start + len(wanted))):
            raise FormatError(str(self.directory), f"segments {wanted} have a gap after snapshot {start}")
        if snapshots and not wanted:
            raise FormatError(str(self.directory), f"snapshot {start} has no segment log-{start:08d} after it")
        return found, self._replay(start, wanted)

    def _replay(self, start: int, segments: list[int]) -> Iterator[Logged]:
        for number in segments:
            yield from self._read_segment(number, last=number == segments[-1])
        if segments:
            path = self._path("log", segments[-1])
            self._segment = segments[-1]
            self._file = os.open(path, os.O_WRONLY)
            self._space = self._end
            os.lseek(self._file, self._end, os.SEEK_SET)
            if self._blocks == 0:  # torn before its opening was durable
                self._open_with(self._opening)
            self._sync()
        else:
            self._open_segment(start)
        self._delete_before(start)

    def _read_segment(self, number: int, last: bool) -> Iterator[Logged]:
        path = self._path("log", number)
        data = memoryview(path.read_bytes())
        at = blocks = 0
        while at < len(data):
            found = _read_block(data, at)
            if found is not None and found[0] != blocks:
                raise FormatError(str(path), f"block {found[0]} at byte {at}, where block {blocks} belongs")
            if found is None:
                if not last or self._has_block_behind(data, at, blocks):
                    raise FormatError(str(path), f"damaged at byte {at} (block {blocks}), with good blocks after it")
                os.truncate(path, at)
                break
            body = found[1]
            if blocks == 0:
                self.height = self._check_opening(path, body).height
            else:
                self.height += 1
                yield from (Logged(*item) for item in self._decode(path, at, body))
            at += _HEADER_BYTES + len(body)
            blocks += 1
        self._blocks, self._end = blocks, at
        self.bytes_since_snapshot += at

    def _has_block_behind(self, data: memoryview, at: int, blocks: int) -> bool:
        """Is there a whole block after the damage? Then it was durable, and so was what is damaged."""
        raw = bytes(data[at + 1 :])
        found = raw.find(_MAGIC)
        while found >= 0:
            block = _read_block(data, at + 1 + found)
            if block is not None and block[0] > blocks:
                return True
            found = raw.find(_MAGIC, found + 1)
        return False

    def _decode(self, path: Path, at: int, body: memoryview) -> list[tuple[Micros, Any]]:
        try:
            return self._decoder.decode(body)
        except UNREADABLE as error:
            raise FormatError(str(path), f"block at byte {at} is whole but not readable: {error}") from None

    def _check_opening(self, path: Path, body: bytes | memoryview) -> Opening:
        try:
            opening = msgspec.msgpack.decode(body, type=Opening)
        except UNREADABLE as error:
            raise FormatError(str(path), f"not a log of unisono: {error}") from None
        self._check_same(path, opening)
        return opening

    def _check_same(self, path: Path, opening: Opening) -> None:
        if opening.version != LOG_VERSION:
            raise FormatError(str(path), f"log version {opening.version} is unknown, this is version {LOG_VERSION}")
        if opening.machine != self._opening.machine:
            raise FormatError(str(path), of_another(opening.machine, self._opening.machine))

    def _read_snapshot(self, number: int) -> tuple[Micros, Any]:
        path = self._path("snapshot", number)
        data = memoryview(path.read_bytes())
        block = _read_block(data, 0)
        if block is None or block[0] != number or len(data) != _HEADER_BYTES + len(block[1]):
            raise FormatError(str(path), "the snapshot is damaged")
        try:
            snapshot = msgspec.msgpack.decode(block[1], type=_Snapshot)
        except UNREADABLE as error:
            raise FormatError(str(path), f"not a snapshot of unisono: {error}") from None
        self._check_same(path, snapshot.opening)
        return snapshot.at, snapshot.state

    # writing

    def commit(self, inputs: list[Logged]) -> None:
        """Makes these inputs durable, in order; raises TransportError, and then for ever."""
        self._guard()
        started = time.monotonic()
        try:
            self._append(self._encoder.encode(inputs))
            self._sync()
        except OSError as error:
            raise self._die(error) from error
        self.height += 1
        self._took_s = time.monotonic() - started

    @property
    def is_quick(self) -> bool:
        return self._took_s * 1e6 < self.config.quick_us

    @property
    def snapshot_is_due(self) -> bool:
        return self.bytes_since_snapshot >= self.config.segment_bytes_max

    def begin_snapshot(self, at: Micros, state: Any) -> bytes:
        """Starts the segment after a snapshot of this state; what it returns goes to `finish_snapshot`."""
        self._guard()
        body = self._encoder.encode(_Snapshot(self._opening, at, state))
        self._snapshot_bytes = len(body)
        self.begin_forked()
        return _block(self._segment, body)

    def finish_snapshot(self, block: bytes) -> None:
        """Writes the snapshot and forgets what it replaces. Later commits may run before or while this does."""
        number = _HEADER.unpack(block[: _HEADER.size])[1]
        path = self._path("snapshot", number)
        temporary = path.with_suffix(".tmp")
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _write_all(file, block)
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(temporary, path)
            self._sync_directory()
            self._delete_before(number)
        except OSError as error:
            raise self._die(error) from error

    def fork_snapshot(self, at: Micros, take: Callable[[], Any]) -> ForkedWriter | None:
        """None: the state is small."""
        self._guard()
        size = max(self._snapshot_bytes, self.bytes_since_snapshot)
        if not IS_ABLE or size < self.config.fork_bytes_min:
            return None
        number = self._segment + 1

        def make() -> bytes:
            return _block(number, self._encoder.encode(_Snapshot(self._opening, at, take())))

        return fork_writer(number, self._path("snapshot", number).with_suffix(".tmp"), make, UNWRITABLE)

    def begin_forked(self) -> None:
        """Starts the segment after the snapshot."""
        try:
            self._close_segment()
            self._open_segment(self._segment + 1)
        except OSError as error:
            raise self._die(error) from error

    def finish_forked(self, writer: ForkedWriter) -> bool:
        """Waits for it, and forgets what it replaces; False: the state cannot be written."""
        if not wait_for_writer(writer):
            return False
        try:
            self._snapshot_bytes = writer.path.stat().st_size
            os.replace(writer.path, self._path("snapshot", writer.number))
            self._sync_directory()
            self._delete_before(writer.number)
        except OSError as error:
            raise self._die(error) from error
        return True

    def close(self) -> None:
        if self._dead is None:
            with suppress(OSError):  # zeros may stay: the next start cuts them off
                self._close_segment()
        elif self._file is not None:
            os.close(self._file)
            self._file = None
        self._dead = self._dead or "it is closed"

    def _guard(self) -> None:
        if self._dead is not None:
            raise TransportError(f"the log in {self.directory} takes nothing more: {self._dead}")

    def _die(self, error: OSError) -> TransportError:
        self._dead = error.strerror or str(error)
        return TransportError(f"the log in {self.directory} failed: {self._dead}")

    def _append(self, body: bytes) -> None:
        assert self._file is not None
        block = _block(self._blocks, body)
        if self._end + len(block) > self._space:
            self._take_space(self._file, self._end + len(block))
        _write_all(self._file, block)
        self._blocks += 1
        self._end += len(block)
        self.bytes_since_snapshot += len(block)

    def _take_space(self, file: int, needed: int) -> None:
        if not self.config.sync or not self.config.ahead_bytes or not IS_ABLE_TO_RESERVE:
            return
        with suppress(OSError):  # a disk that is nearly full, or cannot do it: the write will say what it thinks
            space = max(needed, self._space + self.config.ahead_bytes)
            os.posix_fallocate(file, self._end, space - self._end)
            self._space = space

    def _close_segment(self) -> None:
        """Only the last segment of a log may end in anything but a block, whenever the power goes."""
        if self._file is None:
            return
        segment, self._file = self._file, None
        try:
            if self._space > self._end:
                os.ftruncate(segment, self._end)
                if self.config.sync:
                    os.fsync(segment)
        finally:
            os.close(segment)

    def _sync(self) -> None:
        if self.config.sync and self._file is not None:
            os.fdatasync(self._file)

    def _open_segment(self, number: int) -> None:
        path = self._path("log", number)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._segment, self._blocks, self.bytes_since_snapshot = number, 0, 0
        self._end = self._space = 0
        self._open_with(self._opening)
        self._sync()
        self._sync_directory()

    def _open_with(self, opening: Opening) -> None:
        self._append(msgspec.msgpack.encode(replace(opening, height=self.height)))

    def _sync_directory(self) -> None:
        if self.config.sync:
            directory = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def _delete_before(self, number: int) -> None:
        # Snapshots first: a snapshot whose segment is missing is refused, a segment without its snapshot is leftover.
        for kind in ("snapshot", "log"):
            for old in self._numbers(kind):
                if old < number:
                    self._path(kind, old).unlink()

    def _path(self, kind: str, number: int) -> Path:
        return self.directory / f"{kind}-{number:08d}"

    def _numbers(self, kind: str) -> list[int]:
        return sorted(int(path.name.removeprefix(f"{kind}-")) for path in self.directory.glob(f"{kind}-????????"))


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
