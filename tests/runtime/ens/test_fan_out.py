"""When an embedded broker writes to many readers: seldom while there is much, at once while there is little."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from unisono.runtime.brokers.embedded.fan_out import AT_ONCE, HELD_BYTES_MAX, REST_S_MAX, SHARE, WRITE_S, FanOut, pack

PAYLOAD, STAMP = b"payload", b"stamp"
MANY, FEW = 200, 10


class StillLoop(asyncio.SelectorEventLoop):
    """A loop whose clock only moves when it is told to."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


class Reader:
    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.heard: list[bytes] = []

    def take_out(self) -> list[bytes]:
        out, self.out = self.out, []
        return out

    def write(self, frame: bytes) -> None:
        self.heard.append(frame)


class Crowd:
    """A fan-out with so many readers, who are all told the same."""

    def __init__(self, count: int) -> None:
        self.fan_out = FanOut()
        self.readers = [Reader() for _ in range(count)]

    def tell(self, message: bytes, is_stamped: bool = True, size: int = 100) -> None:
        for reader in self.readers:
            reader.out.append(message)
            self.fan_out.waiting[reader] = None
        self.fan_out.plan(len(self.readers), is_stamped, size)

    async def after(self, seconds: float) -> list[bytes]:
        """The frames that each has heard by then."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StillLoop)
        loop.now_s += seconds
        for _ in range(3):
            await asyncio.sleep(0)
        assert all(reader.heard == self.readers[0].heard for reader in self.readers)
        return self.readers[0].heard


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(main())


def test_a_payload_reaches_many_readers_in_one_write_with_its_stamp() -> None:
    async def main() -> None:
        crowd = Crowd(MANY)
        crowd.tell(PAYLOAD, is_stamped=False)
        assert await crowd.after(0.001) == []
        crowd.tell(STAMP)
        assert await crowd.after(0) == [pack([PAYLOAD, STAMP])]

    run(main)


@pytest.mark.parametrize(
    ("readers", "size", "wait_s"),
    [(MANY, 100, 2 * WRITE_S * MANY), (10_000, 100, REST_S_MAX), (FEW, 100, 0), (MANY, HELD_BYTES_MAX + 1, 0)],
    ids=["many readers", "very many", "few", "a long one"],
)
def test_a_payload_waits_for_its_stamp_no_longer_than_the_write_is_worth(
    readers: int, size: int, wait_s: float
) -> None:
    async def main() -> None:
        crowd = Crowd(readers)
        crowd.tell(PAYLOAD, is_stamped=False, size=size)
        if wait_s:
            assert await crowd.after(wait_s * 0.9) == []
        assert await crowd.after(wait_s * 0.11) == [pack([PAYLOAD])]

    run(main)


def test_where_there_is_little_to_pass_on_nothing_waits_for_an_earlier_pass() -> None:
    async def main() -> None:
        crowd = Crowd(MANY)
        for event in range(1, 20):
            for message in range(AT_ONCE):
                crowd.tell(STAMP)
                assert len(await crowd.after(0)) == AT_ONCE * (event - 1) + message + 1
            await crowd.after(AT_ONCE * SHARE * WRITE_S * MANY)

    run(main)


@pytest.mark.parametrize(("readers", "every_s"), [(MANY, SHARE * WRITE_S * MANY), (FEW, 0.001), (5000, None)])
def test_passes_over_many_readers_leave_the_loop_three_quarters_of_its_time(
    readers: int, every_s: float | None
) -> None:
    """A message a millisecond. Few readers hear each on its own; however many they are, nothing waits for long."""

    async def main() -> None:
        crowd, messages = Crowd(readers), 200
        for _ in range(messages):
            crowd.tell(STAMP)
            heard = await crowd.after(0.001)
        passes = len(heard)
        if every_s is None:
            assert passes >= messages * 0.001 / (REST_S_MAX + 0.001)
        else:
            assert messages * 0.001 / every_s * 0.7 <= passes <= messages * 0.001 / every_s + AT_ONCE + 1
        heard = await crowd.after(REST_S_MAX)
        assert b"".join(heard).count(STAMP) == messages

    run(main)
