"""How much memory an audit may take: what is free or can be freed at once, in the machine and in its container.

The disk cache is not in use: it goes when somebody needs the memory. A control group (containers have one) may allow
less than the machine has. Linux; elsewhere what the system calls free.
"""

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")
"""A container sees its own group here; the machine itself has no limit."""


def memory_bytes() -> int:
    """`memory_bytes()`: what the machine has, or what the container has left if that is less."""
    has = available(MEMINFO)
    if has is None:
        has = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    left = left_in_group(GROUP)
    return has if left is None else min(has, left)


def available(meminfo: Path) -> int | None:
    """What the kernel says can be taken without swapping."""
    return _named(meminfo, "MemAvailable:", 1024)


def left_in_group(group: Path) -> int | None:
    """Of what a control group may use, the part that it does not; None without a limit. Version 2, else version 1."""
    for folder, limit, used, cache in (
        (group, "memory.max", "memory.current", "inactive_file"),
        (group / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        may, has = _number(folder / limit), _number(folder / used)
        if may is not None and has is not None:
            return max(0, may - has + (_named(folder / "memory.stat", cache, 1) or 0))
    return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return None


def _named(path: Path, name: str, unit: int) -> int | None:
    """The number after a name at the beginning of a line."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * unit for line in lines if line.split()[:1] == [name]), None)
