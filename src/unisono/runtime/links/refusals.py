"""What a node has refused, counted by the codes of `model.limits.REASONS`; `unisono status --json` and the metric
`unisono_refusals_total` show it, and the log has the last reason."""

from unisono.model.limits import REASONS


class Refusals:
    """Counters by code; every code is there from the start, so that a rate can be watched."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(REASONS, 0)
        self.last: dict[str, str] = {}
        """Why, in words, the last time; by code."""

    def count(self, code: str, reason: str = "") -> None:
        code = code if code in self.counts else "protocol"
        self.counts[code] += 1
        self.last[code] = reason
