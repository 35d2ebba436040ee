"""The disk of a simulated host, and how long it and the loop take: what makes batches of the planner's turns.

With the defaults every input is a turn of its own, and durable at once. With others, inputs that come together are
handled together, and what arrives while a commit is under way is the next turn, as in a node under load.
"""

from typing import Any

from unisono.model.time import Micros
from unisono.sim.spec import Span, Spec
from unisono.turns import Logged, TurnBounds


class DriverSpec(Spec, frozen=True):
    """How hosts take their turns (`unisono.turns`)."""

    wake_us: Span = Span(0)
    """A turn begins up to this long after its first input: what arrives by then is handled with it."""
    commit_us: Span = Span(0)
    """A commit takes up to this long, and effects wait for it. A crash meanwhile comes before or after it is whole."""
    inputs_max: int = TurnBounds().inputs_max
    quiet_inputs_max: int = TurnBounds().quiet_inputs_max


class SimulatedDisk:
    """What survives a crash."""

    def __init__(self) -> None:
        self.snapshot: bytes | None = None
        self.log: list[tuple[Micros, Any]] = []
        self._replaced = 0  # inputs that the snapshot stands for

    @property
    def height(self) -> int:
        """How many inputs it has been given."""
        return self._replaced + len(self.log)

    def write(self, commit: list[Logged]) -> None:
        self.log += commit

    def save(self, snapshot: bytes) -> None:
        """Instead of the log."""
        self.snapshot = snapshot
        self._replaced += len(self.log)
        self.log.clear()

    def copy(self, inputs: int | None = None) -> "SimulatedDisk":
        """As it is now, or with this many inputs of its log."""
        copied = SimulatedDisk()
        copied.snapshot, copied.log, copied._replaced = self.snapshot, self.log[:inputs], self._replaced
        return copied
