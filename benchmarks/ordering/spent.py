"""What a process has used."""

import time


def cpu_s(pid: int) -> float:
    """CPU seconds, all threads included, from the clock that the kernel keeps for it: `/proc` counts hundredths."""
    return time.clock_gettime((~pid << 3) | 2)
