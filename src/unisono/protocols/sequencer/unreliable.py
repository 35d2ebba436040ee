"""How long events wait when the broker is allowed to lose their predecessors (paper, section 4).

A buffer of `b` events with a time to live. An event leaves it in order when its predecessors have come, and out of it
by force when its time is up or when a newer one needs the room; what a forced delivery has to do to stay consistent
is in `subscriber`.
"""

from unisono.model.ids import Topic
from unisono.model.time import Micros


class Patience:
    """Events in the order of their arrival, each with the moment at which it will not wait any longer."""

    __slots__ = ("_events_max", "_ttl_us", "_waiting")

    def __init__(self, ttl_us: Micros, events_max: int) -> None:
        self._ttl_us = ttl_us
        self._events_max = events_max
        self._waiting: dict[tuple[Topic, int], Micros] = {}

    def add(self, topic: Topic, number: int, now: Micros) -> None:
        self._waiting.setdefault((topic, number), Micros(now + self._ttl_us))

    def discard(self, topic: Topic, number: int) -> None:
        self._waiting.pop((topic, number), None)

    def due(self, now: Micros) -> list[tuple[Topic, int]]:
        """Who has waited long enough, and who must make room, oldest first."""
        overflow = len(self._waiting) - self._events_max
        return [key for i, (key, deadline) in enumerate(self._waiting.items()) if i < overflow or deadline <= now]

    def deadline(self, now: Micros) -> Micros | None:
        """When somebody will have waited long enough; those whose time is up already get it once more."""
        for deadline in self._waiting.values():
            return deadline if deadline > now else Micros(now + self._ttl_us)
        return None
