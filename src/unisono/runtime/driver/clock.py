"""The clock of a process: microseconds since the epoch at start, then the monotonic clock, which the wall clock
corrects by at most 500 parts in a million: whoever sets the system's time moves us by half a millisecond a second.
"""

import time

from unisono.model.time import Micros

CORRECTED_PPM = 500
LOOK_US = 10_000
"""The wall clock is looked at this often."""


class Clock:
    """Never goes back, however the system's time is set, nor to before the last moment of a log that is replayed."""

    def __init__(self, not_before: Micros = Micros(0)) -> None:
        self._looked_at = monotonic = time.monotonic_ns() // 1000
        self._offset = max(time.time_ns() // 1000, not_before + 1) - monotonic

    def now(self) -> Micros:
        monotonic = time.monotonic_ns() // 1000
        passed = monotonic - self._looked_at
        if passed >= LOOK_US:
            self._looked_at = monotonic
            most = passed * CORRECTED_PPM // 1_000_000
            self._offset += max(-most, min(most, time.time_ns() // 1000 - monotonic - self._offset))
        return Micros(self._offset + monotonic)

    @property
    def error_us(self) -> int:
        """How far the wall clock is from it."""
        return abs(time.time_ns() // 1000 - time.monotonic_ns() // 1000 - self._offset)
