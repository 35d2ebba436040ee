"""The timers of a client's half: one that runs is not set again, so asking for it costs a look."""

from unisono.machine import Effect, SetTimer
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig

DOUBLINGS = 4
"""What is not answered is repeated after one pause, two, four, eight, and from then on sixteen."""

FORGIVEN = 64
"""After so many pauses without a question to a home the next one is asked as soon as the first."""


class Timers:
    """Which timers run."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running: dict[str, None] = {}

    def set(self, key: str, at: Micros, out: list[Effect]) -> None:
        if key not in self.running:
            self.move(key, at, out)

    def move(self, key: str, at: Micros, out: list[Effect]) -> None:
        """Whether it runs or not."""
        self.running[key] = None
        out.append(SetTimer(key, at))

    def fired(self, key: str) -> None:
        self.running.pop(key, None)


class Patience:
    """How long to wait before a question is repeated: longer every time, until there is an answer."""

    __slots__ = ("_doubled", "_pause_us")

    def __init__(self, pause_us: Micros) -> None:
        self._pause_us = pause_us
        self._doubled = 0

    @property
    def is_fresh(self) -> bool:
        """Nothing has been repeated since the last answer."""
        return not self._doubled

    @property
    def pause_us(self) -> Micros:
        return Micros(self._pause_us << self._doubled)

    def renew(self) -> Micros:
        """There was an answer, or it is another question."""
        self._doubled = 0
        return self.pause_us

    def lose(self) -> Micros:
        """It is repeated now: how long to wait for the next time."""
        self._doubled = min(self._doubled + 1, DOUBLINGS)
        return self.pause_us


class AskPatience:
    """How long to wait before a home is asked for more: longer after every question that taught nothing."""

    __slots__ = ("_asked_at", "_config", "_fruitless")

    def __init__(self, config: SequencerConfig) -> None:
        self._config = config
        self._fruitless = 0
        self._asked_at = Micros(0)

    def pause_us(self, now: Micros) -> Micros:
        """At most a quarter of what makes a home silent: it is asked often enough to show that it is there."""
        pause = min(self._config.ask_us << self._fruitless, self._config.stall_us // 4)
        if now - self._asked_at > FORGIVEN * pause:
            self._fruitless, pause = 0, self._config.ask_us
        return Micros(pause)

    def asked(self, now: Micros) -> None:
        """Once per look: what is asked for then was missing at the same time."""
        if now != self._asked_at:
            self._asked_at, self._fruitless = now, min(self._fruitless + 1, 2 * DOUBLINGS)
