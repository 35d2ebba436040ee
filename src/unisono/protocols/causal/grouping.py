"""Groups of topics: patterns, each a group, and one for all that no pattern covers.

Fewer groups make vectors short and let subscribers wait for what they never asked for; more make them long and exact.
Group 0 is the rest; brokers are subscribed to all.
"""

from unisono.errors import MisuseError
from unisono.model.interest import check_interest, covers, is_pattern

GROUPS_MAX = 255
KNOWN_MAX = 4096
"""Topics whose group is remembered."""


class CausalGroups:
    """`CausalGroups(("flights.>",))`: flights are group 1, everything else is group 0."""

    def __init__(self, patterns: tuple[str, ...] = ()) -> None:
        if len(patterns) > GROUPS_MAX:
            raise MisuseError(f"{len(patterns)} groups are too many: {GROUPS_MAX} at most")
        self._patterns = tuple(check_interest(pattern) for pattern in patterns)
        self._known: dict[str, tuple[int, ...]] = {}

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(range(len(self._patterns) + 1))

    def of(self, topic: str) -> tuple[int, ...]:
        """The group of a topic; with a wildcard, every group that may have such a topic."""
        groups = self._known.get(topic)
        if groups is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            groups = self._known[topic] = self.all if is_pattern(topic) else (self._first(topic),)
        return groups

    def _first(self, topic: str) -> int:
        return next((i for i, pattern in enumerate(self._patterns, 1) if covers(pattern, topic)), 0)

    def name(self, group: int) -> str:
        return self._patterns[group - 1] if 0 < group <= len(self._patterns) else "everything else"
