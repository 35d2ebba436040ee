"""A copy of this process writes a file while we go on: what it costs the loop is the fork alone.

The child has our memory as it was, and touches nothing else: it closes every descriptor it has inherited (a connection
that two hold does not end when one dies), hears no signal but those that end it, and leaves without tidying up.
"""

import gc
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from unisono.errors import TransportError

UNWRITABLE_STATUS = 3
DESCRIPTORS_MAX = 1 << 16
IS_ABLE = hasattr(os, "fork")


class ForkedWriter(Struct, frozen=True):
    """A child that writes."""

    pid: int
    number: int
    """Of what it writes."""
    path: Path


def fork_writer(
    number: int, path: Path, make: Callable[[], bytes], unwritable: tuple[type[Exception], ...]
) -> ForkedWriter:
    """The child calls `make`, writes what it gets to `path`, makes it durable, and ends."""
    pid = os.fork()
    if pid:
        return ForkedWriter(pid, number, path)
    status = 1
    try:
        gc.disable()
        with suppress(ValueError):  # not in the main thread: then no handler of ours is ever called here
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(each, signal.SIG_DFL)
        os.closerange(3, DESCRIPTORS_MAX)
        _write(path, make())
        status = 0
    except unwritable:
        status = UNWRITABLE_STATUS
    finally:
        os._exit(status)


def wait_for_writer(writer: ForkedWriter) -> bool:
    """Blocks until the file is written; False: the state is not one that can be. Raises if it went wrong otherwise."""
    _, status = os.waitpid(writer.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == UNWRITABLE_STATUS:
        return False
    if code:
        raise TransportError(f"the process that wrote {writer.path} ended with status {code}: is the disk full?")
    return True


def _write(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.fsync(file)
    os.close(file)
