"""What a node has refused, counted by the codes of `model.limits.REASONS`; `unisono status --json` shows it."""

from unisono.model.limits import REASONS


class Refusals:
    """Counters by code; every code is there from the start, so that a rate can be watched."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(REASONS, 0)

    def count(self, code: str) -> None:
        self.counts[code if code in self.counts else "protocol"] += 1
