"""What is known of others' frames, for sending only: K and h of the specification, never part of the receive test."""

from collections.abc import Mapping

from unisono.protocols.causal.messages import Key, Past


class CausalKnowledge:
    """Of one sender. Whoever is told in several places and publishes in another has one for all of them."""

    __slots__ = ("clock_off_by", "high", "past")

    def __init__(self) -> None:
        self.past: Past = {}
        self.high = 0
        """The largest stamp known."""
        self.clock_off_by = 0
        """Ticks by which the clock of this machine is off, as whoever of them gossips has found."""


def merge_past(into: Past, entries: Mapping[Key, tuple[int, int]]) -> None:
    """The newest stamp and the LARGEST deadline: an older frame may be waited for longer than the newest."""
    for key, (stamp, deadline) in entries.items():
        own = into.get(key)
        if own is None:
            into[key] = (stamp, deadline)
        elif stamp > own[0] or deadline > own[1]:
            into[key] = (max(stamp, own[0]), max(deadline, own[1]))
