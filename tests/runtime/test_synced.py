"""What a power cut leaves of a log: only what was synced, file by file and name by name, in the order it was asked for.

A child process writes a log under `strace`; the calls it made are handled again on a model of a disk that keeps the
content of a file up to its last sync and the names in a directory up to the last sync of the directory.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

CALL = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+)")
TRACED = "openat,write,fsync,fdatasync,rename,unlink,close"
WORK = """
import sys
from pathlib import Path
from unisono.model.time import Micros
from unisono.runtime.driver.data_directory import DataDirectory, Identity
from unisono.runtime.driver.log import FileLog
from unisono.turns import Logged

directory = Path(sys.argv[1])
DataDirectory(directory).identify(Identity("d", "n"))
log = FileLog(directory, "toy 1", int)
list(log.recover()[1])
for number in range(3):
    log.commit([Logged(Micros(number), number)])
    print("told", flush=True)
log.finish_snapshot(log.begin_snapshot(Micros(3), 3))
for number in range(3, 6):
    log.commit([Logged(Micros(number), number)])
    print("told", flush=True)
"""


class Disk:
    """A directory as a power cut would leave it: durable names, each with the bytes that were synced."""

    def __init__(self) -> None:
        self.durable: dict[str, int] = {}
        """Names that survive, and which file each names."""
        self._names: dict[str, int] = {}
        self._written: dict[int, int] = {}
        self._synced: dict[int, int] = {}
        self._files: dict[str, int] = {}
        self._open: dict[str, int | None] = {}

    def call(self, name: str, arguments: list[str], result: str, directory: str) -> None:
        if name == "openat":
            path = arguments[1].strip('"')
            if path == directory:
                self._open[result] = None
            elif path.startswith(directory):
                self._opened(path, arguments[2], result)
            else:
                self._open.pop(result, None)
        elif name == "write" and (file := self._open.get(arguments[0])) is not None:
            self._written[file] += int(result)
        elif name in ("fsync", "fdatasync") and arguments[0] in self._open:
            file = self._open[arguments[0]]
            if file is None:
                self.durable = dict(self._names)
            else:
                self._synced[file] = self._written[file]
        elif name == "rename":
            self._names[arguments[1].strip('"')] = self._names.pop(arguments[0].strip('"'))
        elif name == "unlink":
            self._names.pop(arguments[0].strip('"'), None)
        elif name == "close":
            self._open.pop(arguments[0], None)

    def _opened(self, path: str, flags: str, result: str) -> None:
        if path not in self._names or "O_TRUNC" in flags:
            self._names[path] = file = len(self._written)
            self._written[file] = self._synced[file] = 0
        self._open[result] = self._names[path]

    def is_whole(self, name: str) -> bool:
        """Whether a file is there and everything written to it would survive."""
        found = [file for path, file in self.durable.items() if path.endswith(f"/{name}")]
        return bool(found) and self._synced[found[0]] == self._written[found[0]] > 0

    def keeps(self) -> bool:
        """Whether an unbroken history would survive: from the first segment, or from a snapshot and its segment."""
        return self.is_whole("log-00000000") or (self.is_whole("snapshot-00000001") and self.is_whole("log-00000001"))


def test_a_power_cut_at_any_moment_keeps_everything_that_anybody_was_told(tmp_path: Path) -> None:
    trace, directory = tmp_path / "trace", tmp_path / "data"
    strace = ["strace", "-f", "-o", str(trace), "-e", f"trace={TRACED}", "-s", "8"]
    subprocess.run([*strace, sys.executable, "-c", WORK, str(directory)], check=True, timeout=120)
    disk, told = Disk(), 0
    for line in trace.read_text().splitlines():
        match = CALL.match(line.partition(" ")[2].strip())
        if match is None or match[3] == "-1":
            continue
        name, arguments, result = match[1], [part.strip() for part in match[2].split(", ")], match[3]
        removes = name == "unlink" and "log-00000000" in arguments[0]
        if removes:
            assert disk.is_whole("snapshot-00000001"), "what a snapshot replaces goes only when the snapshot is durable"
        disk.call(name, arguments, result, str(directory))
        if name == "write" and '"told' in arguments[1]:
            told += 1
            assert disk.keeps(), f"told {told} times, and a power cut now would lose it"
            assert disk.is_whole("IDENTITY")
    assert told == 6
