"""The timers of a client's half: one that runs is not set again, so asking for it costs a look."""

from unisono.machine import Effect, SetTimer
from unisono.model.time import Micros


class Timers:
    """Which timers run."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running: dict[str, None] = {}

    def set(self, key: str, at: Micros, out: list[Effect]) -> None:
        if key not in self.running:
            self.running[key] = None
            out.append(SetTimer(key, at))

    def fired(self, key: str) -> None:
        self.running.pop(key, None)
