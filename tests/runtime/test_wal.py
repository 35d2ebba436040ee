"""The log: what was committed comes back, what was torn is cut off, what was damaged is refused."""

import errno
import os
import resource
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from unisono.errors import FormatError, TransportError
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.naming import messages as naming
from unisono.runtime.driver.log import FileLog, LogConfig
from unisono.runtime.links import control
from unisono.runtime.node.ordering import TREE_LOG
from unisono.turns import Logged


class Add(Struct, frozen=True, tag="Add"):
    amount: int


class Name(Struct, frozen=True, tag="Name"):
    name: str


FAST = LogConfig(sync=False)


def open_log(directory: Path, machine: str = "toy 1", config: LogConfig = FAST) -> FileLog:
    return FileLog(directory, machine, Add | Name, config)


def read(directory: Path, machine: str = "toy 1") -> tuple[object, list[Logged]]:
    log = open_log(directory, machine)
    snapshot, inputs = log.recover()
    found = list(inputs)
    log.close()
    return snapshot, found


def batch(first: int, count: int) -> list[Logged]:
    return [Logged(Micros(number), Add(number)) for number in range(first, first + count)]


def write(directory: Path, *batches: list[Logged]) -> None:
    log = open_log(directory)
    _, inputs = log.recover()
    assert list(inputs) == []
    for each in batches:
        log.commit(each)
    log.close()


def test_committed_inputs_come_back_in_order_with_their_times(tmp_path: Path) -> None:
    write(tmp_path, batch(1, 3), [Logged(Micros(9), Name("x"))], batch(10, 2))
    assert read(tmp_path) == (None, [*batch(1, 3), Logged(Micros(9), Name("x")), *batch(10, 2)])


def test_commits_go_on_behind_what_was_recovered(tmp_path: Path) -> None:
    write(tmp_path, batch(1, 2))
    log = open_log(tmp_path)
    assert list(log.recover()[1]) == batch(1, 2)
    log.commit(batch(3, 2))
    log.close()
    assert read(tmp_path)[1] == batch(1, 4)


def synced(directory: Path) -> FileLog:
    return open_log(directory, config=LogConfig())


@pytest.mark.parametrize(("ahead_bytes", "lengths"), [(256 << 10, 1), (1 << 10, 5), (0, 100)])
def test_a_synced_log_grows_seldom_and_ends_with_its_last_block_when_it_is_closed(
    tmp_path: Path, ahead_bytes: int, lengths: int
) -> None:
    log = open_log(tmp_path, config=LogConfig(ahead_bytes=ahead_bytes))
    list(log.recover()[1])
    path = tmp_path / "log-00000000"
    found = set()
    for number in range(100):
        log.commit(batch(number, 1))
        found.add(path.stat().st_size)
    assert len(found) == lengths
    log.close()
    write(tmp_path / "unsynced", *(batch(number, 1) for number in range(100)))
    assert path.read_bytes() == (tmp_path / "unsynced" / path.name).read_bytes()


def test_a_log_larger_than_the_space_taken_at_once_comes_back_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=LogConfig(ahead_bytes=64))
    list(log.recover()[1])
    sizes = (1, 3, 50, 1)
    for size in sizes:
        log.commit(batch(1, size))
    log.close()
    assert read(tmp_path)[1] == [one for size in sizes for one in batch(1, size)]


def test_a_log_that_was_killed_with_space_ahead_goes_on_after_its_last_block(tmp_path: Path) -> None:
    log, left = synced(tmp_path / "run"), tmp_path / "left"
    list(log.recover()[1])
    for life in range(3):
        log.commit(batch(2 * life, 2))
        shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(tmp_path / "run", left)
        log.close()
        shutil.rmtree(tmp_path / "run")
        shutil.copytree(left, tmp_path / "run")
        log = synced(tmp_path / "run")
        assert list(log.recover()[1]) == batch(0, 2 * life + 2)
    log.close()


def test_a_log_whose_power_goes_while_a_snapshot_is_written_has_no_space_within(tmp_path: Path) -> None:
    """Zeros in a segment that others follow would be blocks that are lost."""
    log = synced(tmp_path / "run")
    list(log.recover()[1])
    log.commit(batch(1, 2))
    log.begin_snapshot(Micros(2), 3)
    log.commit(batch(3, 1))
    shutil.copytree(tmp_path / "run", tmp_path / "left")
    log.close()
    assert read(tmp_path / "left")[1] == batch(1, 3)


def test_a_disk_that_has_no_space_to_take_ahead_is_written_as_long_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    log = synced(tmp_path)
    list(log.recover()[1])
    log.commit(batch(1, 3))
    log.close()
    assert read(tmp_path)[1] == batch(1, 3)


def test_a_tail_torn_at_any_byte_is_cut_off_and_the_rest_kept(tmp_path: Path) -> None:
    write(tmp_path, batch(1, 2), batch(3, 2))
    (path,) = tmp_path.glob("log-*")
    whole = path.read_bytes()
    write(tmp_path / "short", batch(1, 2))
    kept = len(next((tmp_path / "short").glob("log-*")).read_bytes())
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        expected = batch(1, 2) if length >= kept else []
        assert read(tmp_path)[1] == expected, f"torn at byte {length}"
        log = open_log(tmp_path)
        list(log.recover()[1])
        log.commit(batch(7, 1))
        log.close()
        assert read(tmp_path)[1] == [*expected, *batch(7, 1)]


def test_a_last_block_with_missing_pages_is_cut_off(tmp_path: Path) -> None:
    write(tmp_path, batch(1, 2), batch(3, 50))
    (path,) = tmp_path.glob("log-*")
    data = bytearray(path.read_bytes())
    data[-300:-100] = bytes(200)
    path.write_bytes(bytes(data))
    assert read(tmp_path)[1] == batch(1, 2)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_is_refused_or_cuts_the_last_block_never_changes_an_input(
    tmp_path: Path, data: st.DataObject
) -> None:
    directory = tmp_path / "flip"
    if not directory.exists():
        write(directory, batch(1, 2), batch(3, 2), batch(5, 2))
        (directory / "keep").write_bytes((directory / "log-00000000").read_bytes())
    whole = (directory / "keep").read_bytes()
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    (directory / "log-00000000").write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
    try:
        inputs = read(directory)[1]
    except FormatError:
        return
    assert inputs == batch(1, 4), "only the last block may go"


def test_damage_in_the_middle_is_refused(tmp_path: Path) -> None:
    write(tmp_path, batch(1, 2), batch(3, 2))
    (path,) = tmp_path.glob("log-*")
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match="damaged at byte"):
        read(tmp_path)


@pytest.mark.parametrize("change", ["left out", "twice"])
def test_a_log_with_a_whole_block_left_out_or_twice_is_refused(tmp_path: Path, change: str) -> None:
    lengths = []
    for count in range(4):
        write(tmp_path / str(count), *(batch(1 + 2 * i, 2) for i in range(count)))
        lengths.append((tmp_path / str(count) / "log-00000000").stat().st_size)
    path = tmp_path / "3" / "log-00000000"
    data = path.read_bytes()
    head, second, rest = data[: lengths[1]], data[lengths[1] : lengths[2]], data[lengths[2] :]
    path.write_bytes(head + rest if change == "left out" else head + second + second)
    with pytest.raises(FormatError, match=r"where block \d belongs"):
        read(tmp_path / "3")


def test_a_snapshot_replaces_what_it_covers(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    list(log.recover()[1])
    log.commit(batch(1, 5))
    block = log.begin_snapshot(Micros(5), {"sum": 15})
    log.commit(batch(6, 1))
    log.finish_snapshot(block)
    log.commit(batch(7, 1))
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log-00000001", "snapshot-00000001"]
    assert read(tmp_path) == ((5, {"sum": 15}), batch(6, 2))


def test_a_crash_at_any_step_of_a_snapshot_loses_nothing(tmp_path: Path) -> None:
    """The steps: new segment, temporary file (cut anywhere), rename, deletions. Each leaves a readable directory."""
    log = open_log(tmp_path)
    list(log.recover()[1])
    log.commit(batch(1, 2))
    before = (tmp_path / "log-00000000").read_bytes()
    block = log.begin_snapshot(Micros(2), 3)
    log.commit(batch(3, 1))
    behind = (tmp_path / "log-00000001").read_bytes()
    log.close()
    everything = (None, batch(1, 3))
    for cut in (0, 1, len(block) // 2, len(block)):
        (tmp_path / "snapshot-00000001.tmp").write_bytes(block[:cut])
        assert read(tmp_path) == everything
    (tmp_path / "snapshot-00000001").write_bytes(block)
    (tmp_path / "log-00000000").write_bytes(before)
    assert read(tmp_path) == ((2, 3), batch(3, 1))
    assert not (tmp_path / "log-00000000").exists()
    (tmp_path / "snapshot-00000001").unlink()
    (tmp_path / "log-00000000").write_bytes(before)
    for cut in range(len(behind)):
        (tmp_path / "log-00000001").write_bytes(behind[:cut])
        assert read(tmp_path)[1] in (batch(1, 2), batch(1, 3))


def test_an_older_segment_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    list(log.recover()[1])
    log.commit(batch(1, 2))
    log.begin_snapshot(Micros(2), 3)
    log.close()
    path = tmp_path / "log-00000000"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match="damaged"):
        read(tmp_path)


def test_a_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    list(log.recover()[1])
    log.finish_snapshot(log.begin_snapshot(Micros(2), "state"))
    log.close()
    path = tmp_path / "snapshot-00000001"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match="snapshot is damaged"):
        read(tmp_path)


def test_another_machines_log_is_refused(tmp_path: Path) -> None:
    write(tmp_path, batch(1, 1))
    with pytest.raises(FormatError, match=r"belongs to 'toy 1'.*name the data directory of this node"):
        read(tmp_path, "other 1")


def test_a_log_of_the_sequencer_of_another_release_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for snapshot in (False, True):
        directory = tmp_path / str(snapshot)
        log = FileLog(directory, "sequencer 3", control.Logged)
        list(log.recover()[1])
        log.commit([Logged(Micros(1), naming.OpenTopics(Address("c"), 1, ("trades",)))])
        if snapshot:
            log.finish_snapshot(log.begin_snapshot(Micros(2), {}))
        log.close()
        advice = "written by 'sequencer 3'.*start the release that wrote it, or.*new data directory"
        with pytest.raises(FormatError, match=advice):
            list(FileLog(directory, TREE_LOG, control.Logged).recover()[1])


def test_the_log_is_bounded_by_snapshots(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes_max=4096, sync=False)
    log = open_log(tmp_path, config=config)
    list(log.recover()[1])
    for number in range(2000):
        log.commit(batch(number, 1))
        if log.snapshot_is_due:
            log.finish_snapshot(log.begin_snapshot(Micros(number), number))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3 * 4096
    log.close()


def test_a_full_disk_kills_the_log_and_keeps_what_was_committed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    list(log.recover()[1])
    log.commit(batch(1, 3))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(TransportError, match="failed"):
            log.commit(batch(4, 500))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(TransportError, match="nothing more"):
        log.commit(batch(4, 1))
    log.close()
    assert read(tmp_path)[1] == batch(1, 3)
