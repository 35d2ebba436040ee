"""The clock of a process: microseconds since the epoch at start, then the monotonic clock only."""

import time

from unisono.model.time import Micros


class Clock:
    """Never goes back: not when the system's time is set, and not behind the last moment of a log that is replayed."""

    def __init__(self, not_before: Micros = Micros(0)) -> None:
        self._offset = max(time.time_ns() // 1000, not_before + 1) - time.monotonic_ns() // 1000

    def now(self) -> Micros:
        return Micros(self._offset + time.monotonic_ns() // 1000)
