"""Large states are written by a copy of the process: the loop goes on, and the copy holds nothing of ours."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.toy import Add, Adder, Inputs, Seen, until
from unisono.model.time import Micros
from unisono.runtime.driver.forked import fork_writer, wait_for_writer
from unisono.runtime.driver.host import Host
from unisono.runtime.driver.log import FileLog, LogConfig

CONFIG = LogConfig(segment_bytes_max=2_000, fork_bytes_min=1)
PATIENCE_S = 20.0


def make(directory: Path, machine: Adder) -> Host:
    return Host("toy", machine, Seen(), FileLog(directory, "toy", Inputs, CONFIG))


def wait_for(path: Path) -> None:
    """In the copy, which has no loop."""
    begin = time.monotonic()
    while not path.exists() and time.monotonic() - begin < PATIENCE_S:
        time.sleep(0.005)


class Slow(Adder):
    """In a copy of the process its state is read when a file says so."""

    def __init__(self, go: Path) -> None:
        super().__init__()
        self._go = go

    def snapshot(self) -> object:
        wait_for(self._go)
        return super().snapshot()


def test_inputs_go_on_while_a_copy_writes_the_state_as_it_was(tmp_path: Path) -> None:
    async def run() -> None:
        machine = Slow(tmp_path / "go")
        host = make(tmp_path / "data", machine)
        await host.start()
        for _ in range(60):
            for _ in range(10):
                host.post(Add(1))
            await host.settle()
        assert machine.total == 600
        assert host.counters.snapshots == 0
        (tmp_path / "go").touch()
        await until(lambda: host.counters.snapshots >= 1)
        await host.stop(snapshot=False)
        again = make(tmp_path / "data", Adder())
        replayed = await again.start()
        assert 0 < replayed < 600
        assert isinstance(again.machine, Adder)
        assert again.machine.total == 600
        await again.stop()

    asyncio.run(run())


def test_a_state_that_no_copy_can_write_ends_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        host = make(tmp_path, Adder())
        await host.start()
        for amount in (2**63, 2**63, *[1] * 100):
            host.post(Add(amount))
            await host.settle()
        await until(lambda: host.counters.unwritable >= 1)
        assert (host.failure, host.counters.snapshots) == (None, 0)
        await host.stop(snapshot=False)

    asyncio.run(run())


def test_a_copy_that_cannot_write_ends_the_host(tmp_path: Path) -> None:
    class Broken(Adder):
        def snapshot(self) -> object:
            raise OSError("no room")

    async def run() -> None:
        host = make(tmp_path, Broken())
        await host.start()
        for _ in range(100):
            host.post(Add(1))
            await asyncio.sleep(0)
        await until(lambda: host.failure is not None)
        assert "ended with status 1" in str(host.failure)
        await host.stop(snapshot=False)

    asyncio.run(run())


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_copy_holds_no_connection_open(tmp_path: Path, is_ours: bool) -> None:
    """Whoever dies while a copy writes is dead for its peers."""
    ours, theirs = socket.socketpair()

    def take() -> bytes:
        wait_for(tmp_path / "go")
        return b"state"

    writer = fork_writer(1, tmp_path / "file", take, (TypeError,))
    (ours if is_ours else theirs).close()
    other = theirs if is_ours else ours
    other.settimeout(PATIENCE_S / 4)
    assert other.recv(1) == b""
    other.close()
    (tmp_path / "go").touch()
    assert wait_for_writer(writer)
    assert (tmp_path / "file").read_bytes() == b"state"


def test_small_states_and_logs_are_taken_in_the_loop(tmp_path: Path) -> None:
    log = FileLog(tmp_path, "toy", Inputs, LogConfig(segment_bytes_max=2_000))
    unread: Callable[[], object] = pytest.fail
    assert log.fork_snapshot(Micros(0), unread) is None
    log.close()
