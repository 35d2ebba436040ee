"""The driver: durable before visible, in order, in batches; broken machines stop and keep their log."""

import asyncio
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.toy import Add, Adder, Break, Inputs, Later, Look, Never, Note, Seen, until
from unisono.errors import InvariantError, TransportError
from unisono.model.time import Micros
from unisono.runtime.driver.host import Host
from unisono.runtime.driver.log import FileLog, LogConfig
from unisono.turns import Logged, TurnBounds

QUICK_US = 0


@pytest.fixture(autouse=True, params=[0, 10**9], ids=["committed beside the loop", "committed in the loop"])
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "QUICK_US", request.param)


def make(directory: Path | None, seen: Seen, segment_bytes: int = 1 << 20, **config: Any) -> Host:
    settings = LogConfig(segment_bytes, sync=False, quick_us=QUICK_US)
    log = FileLog(directory, "toy 1", Inputs, settings) if directory is not None else None
    return Host("toy", Adder(), seen, log, TurnBounds(**config))


def total(host: Host) -> int:
    assert isinstance(host.machine, Adder)
    return host.machine.total


def committed(directory: Path) -> list[Any]:
    log = FileLog(directory, "toy 1", Inputs)
    found = [message for _, message in log.recover()[1]]
    log.close()
    return found


def test_a_restarted_host_has_the_same_state_and_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        host = make(tmp_path, Seen())
        await host.start()
        for amount in range(50):
            host.post(Add(amount))
            if amount % 7 == 0:
                await asyncio.sleep(0)
        await host.stop(snapshot=False)
        seen = Seen()
        again = make(tmp_path, seen)
        assert await again.start() == 50
        assert isinstance(again.machine, Adder)
        assert isinstance(host.machine, Adder)
        assert again.machine.snapshot() == host.machine.snapshot()
        again.post(Look())
        await again.settle()
        assert seen.delivered == ["restarted", 1225]
        await again.stop()

    asyncio.run(run())


def test_nothing_is_visible_before_it_is_on_the_disk(tmp_path: Path) -> None:
    class Watching(Seen):
        def deliver(self, item: Any) -> None:
            super().deliver(item)
            data = (tmp_path / "log-00000000").read_bytes()
            assert item == "restarted" or data.count(b"Add") >= item

    async def run() -> None:
        seen = Watching()
        host = make(tmp_path, seen)
        await host.start()
        for _ in range(30):
            host.post(Add(1))
            await asyncio.sleep(0)
        await host.settle()
        assert seen.failure is None
        assert seen.delivered == ["restarted", *range(1, 31)]
        await host.stop()

    asyncio.run(run())


def test_inputs_that_wait_together_are_committed_together(tmp_path: Path) -> None:
    async def run() -> None:
        host = make(tmp_path, Seen())
        await host.start()
        for _ in range(1000):
            host.post(Add(1))
        await host.settle()
        assert host.counters.commits == 1
        await host.stop()

    asyncio.run(run())


def test_what_arrives_while_a_host_wakes_up_shares_its_commit(tmp_path: Path) -> None:
    async def run() -> None:
        host = make(tmp_path, Seen())
        await host.start()
        await host.settle()
        host.post(Add(1))
        await asyncio.sleep(0)  # a look at the sockets
        host.post(Add(2))
        await host.settle()
        assert host.counters.commits == 1
        await host.stop()

    asyncio.run(run())


def test_inputs_that_show_nothing_wait_for_the_next_commit_and_precede_it(tmp_path: Path) -> None:
    async def run() -> None:
        host = make(tmp_path, Seen())
        await host.start()
        await host.settle()
        host.post(Note(1))
        await host.settle()
        host.post(Later("nobody sees a timer", 10**15))
        await host.settle()
        assert host.counters.commits == 0
        host.post(Look())
        await host.settle()
        assert host.counters.commits == 1, "what is shown depends on the note"
        host.post(Note(2))
        await host.settle()
        host.post(Add(4))
        await host.settle()
        assert host.counters.commits == 2
        await host.stop(snapshot=False)
        assert committed(tmp_path) == [Note(1), Note(2), Add(4)]

    asyncio.run(run())


def test_quiet_inputs_are_bounded(tmp_path: Path) -> None:
    async def run() -> None:
        host = make(tmp_path, Seen(), quiet_inputs_max=10)
        await host.start()
        await host.settle()
        for _ in range(100):
            host.post(Note(1))
            await host.settle()
        assert host.counters.commits == 9
        await host.stop(snapshot=False)
        assert len(committed(tmp_path)) == 100

    asyncio.run(run())


def test_a_broken_invariant_stops_the_machine_and_keeps_its_log(tmp_path: Path) -> None:
    async def run() -> None:
        seen = Seen()
        host = make(tmp_path, seen)
        await host.start()
        host.post(Add(1))
        await host.settle()
        host.post(Add(2))
        host.post(Break())
        host.post(Add(3))
        await until(lambda: seen.failure is not None)
        assert isinstance(seen.failure, InvariantError)
        assert seen.delivered == ["restarted", 1], "nothing of the broken turn left"
        host.post(Add(4))
        await host.stop()
        assert committed(tmp_path) == [Add(1)]

    asyncio.run(run())


def test_a_full_disk_stops_the_host_before_anything_leaves(tmp_path: Path) -> None:
    async def run() -> None:
        seen = Seen()
        host = make(tmp_path, seen)
        await host.start()
        host.post(Add(1))
        await host.settle()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
        try:
            for _ in range(100):
                host.post(Add(1))
            await until(lambda: seen.failure is not None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert isinstance(seen.failure, TransportError)
        assert seen.delivered == ["restarted", 1]
        await host.stop()
        assert committed(tmp_path) == [Add(1)]

    asyncio.run(run())


def test_a_state_that_cannot_be_written_does_not_end_the_host_nor_any_later_start(tmp_path: Path) -> None:
    """An input that got past every door and makes a number that no snapshot can hold is in the log for ever."""

    async def run() -> None:
        for start in range(3):
            seen = Seen()
            host = make(tmp_path, seen, segment_bytes=200)
            assert await host.start() == (0 if start == 0 else 20 + 2 * start)
            for amount in (2**63, 2**63) if start == 0 else ():
                host.post(Add(amount))
            for _ in range(20 if start == 0 else 2):
                host.post(Add(1))
                await host.settle()
            await until(lambda host=host: host.counters.unwritable >= 1)
            assert host.failure is None
            assert total(host) == 2**64 + 20 + 2 * start
            await host.stop()

    asyncio.run(run())


def test_snapshots_bound_the_log_and_a_restart_agrees(tmp_path: Path) -> None:
    async def run() -> None:
        host = make(tmp_path, Seen(), segment_bytes=2_000, inputs_max=10)
        await host.start()
        for _ in range(60):
            for _ in range(10):
                host.post(Add(1))
            await host.settle()
        await until(lambda: host.counters.snapshots >= 1)  # the disk may be slower than sixty turns
        await host.stop(snapshot=False)
        again = make(tmp_path, Seen())
        replayed = await again.start()
        assert replayed < 600
        assert total(again) == 600
        await again.stop()

    asyncio.run(run())


def test_a_clean_stop_leaves_nothing_to_replay(tmp_path: Path) -> None:
    async def run() -> None:
        host = make(tmp_path, Seen())
        await host.start()
        host.post(Add(5))
        host.post(Note(2))
        await host.stop()
        again = make(tmp_path, Seen())
        assert await again.start() == 0
        assert total(again) == 7
        await again.stop()

    asyncio.run(run())


def test_time_never_goes_back_behind_the_log(tmp_path: Path) -> None:
    async def run() -> None:
        future = Micros(1 << 60)
        log = FileLog(tmp_path, "toy 1", Inputs)
        assert list(log.recover()[1]) == []
        log.commit([Logged(future, Add(1))])
        log.close()
        host = make(tmp_path, Seen())
        await host.start()
        host.post(Add(1))
        await host.settle()
        assert isinstance(host.machine, Adder)
        assert host.machine.times[1] > future
        await host.stop()

    asyncio.run(run())


def test_timers_fire_once_in_order_and_not_when_cancelled_or_moved() -> None:
    async def run() -> None:
        seen = Seen()
        host = make(None, seen)
        await host.start()
        for message in (
            Later("c", 30_000),
            Later("a", 5_000),
            Later("b", 15_000),
            Later("moved", 1_000),
            Later("moved", 45_000),
            Later("gone", 2_000),
            Never("gone"),
        ):
            host.post(message)
        await until(lambda: len(seen.delivered) == 4)
        assert seen.delivered == ["a", "b", "c", "moved"]
        await host.stop()

    asyncio.run(run())


def test_a_timer_cancelled_after_it_came_due_does_not_fire() -> None:
    async def run() -> None:
        seen = Seen()
        host = make(None, seen, inputs_max=1)
        await host.start()
        host.post(Later("x", 0))
        for _ in range(50):  # x comes due meanwhile, and takes its place behind what waits
            host.post(Look())
        host.post(Never("x"))
        host.post(Later("y", 1_000))
        await until(lambda: len(seen.delivered) >= 51)
        assert seen.delivered == [*[0] * 50, "y"]
        await host.stop()

    asyncio.run(run())


def test_a_full_host_says_so_and_calls_back_when_there_is_room() -> None:
    async def run() -> None:
        host = make(None, Seen(), queue_max=100, inputs_max=10)
        await host.start()
        for _ in range(100):
            host.post(Add(1))
        assert host.is_full
        left: list[int] = []
        host.when_roomy(lambda: left.append(100 - total(host)))
        await host.settle()
        assert left == [50]
        await host.stop()

    asyncio.run(run())


def test_refusals_are_counted_and_change_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        seen = Seen()
        host = make(tmp_path, seen)
        await host.start()
        host.post("rubbish")
        await host.settle()
        assert host.counters.refused == 1
        assert seen.refusals == ["'rubbish' is no input of a toy"]
        await host.stop(snapshot=False)
        assert committed(tmp_path) == []

    asyncio.run(run())


def test_a_log_of_another_machine_does_not_start(tmp_path: Path) -> None:
    async def run() -> None:
        host = make(tmp_path, Seen())
        await host.start()
        await host.stop()
        log = FileLog(tmp_path, "other 1", Inputs)
        with pytest.raises(Exception, match="belongs to 'toy 1'"):
            await Host("toy", Adder(), Seen(), log).start()

    asyncio.run(run())


def test_a_host_that_handles_its_log_again_can_be_stopped_and_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    async def run() -> None:
        host = make(tmp_path, Seen())
        await host.start()
        for _ in range(3000):
            host.post(Add(1))
        await host.stop(snapshot=False)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        again = make(tmp_path, Seen())
        starting = asyncio.create_task(again.start())
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        async with asyncio.timeout(60):
            await again.stop()
        assert 0 < total(again) < 3000
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    asyncio.run(run())
