"""Ports for processes that are started later, or again: nobody gets them meanwhile who asks for any.

Whoever binds port 0 or dials is given one of the kernel's own range, and a connection holds it for a minute after it
was closed. On a busy machine a tenth of that range cannot be bound (measured), so a port that was free when it was
drawn there is another's by the time a process has started. These are drawn beneath it.
"""

import socket
from random import SystemRandom

FIRST, LAST = 12_000, 31_000
PAGE_ABOVE = 1000
"""Where a node serves its pages unless it is told otherwise (`NodeSpec.observed_at`)."""


def free_ports(count: int) -> list[int]:
    """Ports that can be bound now, each with the next one, and the one of its pages."""
    found: dict[int, None] = {}
    while len(found) < count:
        port = SystemRandom().randrange(FIRST, LAST)
        own = (port, port + 1, port + PAGE_ABOVE)
        if not any(_is_near(port, other) for other in found) and all(map(_can_be_bound, own)):
            found[port] = None
    return list(found)


def _is_near(port: int, other: int) -> bool:
    return abs(abs(port - other) - PAGE_ABOVE) <= 1 or abs(port - other) <= 1


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
