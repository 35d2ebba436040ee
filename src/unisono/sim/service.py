"""What arrives at a host and waits: nothing while the host keeps up, else a queue that is worked off at its pace.

A host may take time to serve a message and may have a bounded queue (`ServiceSpec`; off by default, then messages cost
nothing and only links and waiting make latency). A paused host serves nothing, and goes on where it was.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from unisono.sim.spec import Span, Spec

if TYPE_CHECKING:
    from unisono.sim.world import World


class ServiceSpec(Spec, frozen=True):
    """How a host works off its messages."""

    per_message_us: Span = Span(0)
    queue_max: int = 1_000
    when_full: Literal["drop", "push back"] = "drop"
    """`drop` loses what finds the queue full; `push back` leaves it with its sender until there is room."""


class ServiceQueue:
    """The messages of one host that have arrived and are not handled."""

    def __init__(
        self, world: "World", spec: ServiceSpec | None, handle: Callable[[Any], None], full: Callable[[Any], None]
    ) -> None:
        """`full` is told of every message that is lost because the queue is full."""
        self.dropped = 0
        self._world, self._spec, self._handle, self._full = world, spec, handle, full
        self._waiting: deque[Any] = deque()
        self._overflow: deque[Any] = deque()
        self._is_serving = False
        self._life = 0  # how often everything that waited was lost
        self._pauses = 0
        self._resumed: list[Callable[[], None]] = []  # what has to wait while it is paused

    @property
    def is_paused(self) -> bool:
        return self._pauses > 0

    @property
    def keeps_up(self) -> bool:
        """Nothing waits, and what comes now could be handled now."""
        return not self._pauses and not self._waiting

    def put(self, message: Any) -> None:
        """Handled at once, or queued if the host is paused, busy or slow."""
        if self._spec is None and self.keeps_up:
            self._handle(message)
            return
        if self._spec is not None and len(self._waiting) >= self._spec.queue_max:
            if self._spec.when_full == "push back":
                self._overflow.append(message)
            else:
                self.dropped += 1
                self._full(message)
            return
        self._waiting.append(message)
        if not self._is_serving and not self._pauses:
            self._serve()

    def append(self, message: Any) -> None:
        """It waits its turn, and needs no room."""
        self._waiting.append(message)

    def _serve(self) -> None:
        """Works off the queue: all of it at once without service time, else one message per service time."""
        if self._spec is None or not self._spec.per_message_us:
            while self._waiting and not self._pauses:
                self._handle(self._waiting.popleft())
        elif self._waiting:
            self._is_serving = True
            self._world.after(self._spec.per_message_us, self._served, self._life)

    def _served(self, life: int) -> None:
        if life != self._life:
            return
        self._is_serving = False
        self._handle(self._waiting.popleft())
        if not self._pauses:
            if self._overflow:
                self._waiting.append(self._overflow.popleft())
            self._serve()

    def lose_all(self) -> None:
        """The host has crashed."""
        self._life += 1
        self._resumed.clear()
        self._waiting.clear()
        self._overflow.clear()
        self._is_serving = False

    def pause(self) -> None:
        self._pauses += 1

    def resume(self) -> bool:
        """Tells whether the host goes on: as many ends of pauses have come as pauses."""
        self._pauses -= 1
        if self._pauses:
            return False
        resumed, self._resumed = self._resumed, []
        for action in resumed:
            action()
        if not self._is_serving:
            self._serve()
        return True

    def is_postponed(self, action: Callable[[], None]) -> bool:
        """Whether it is paused; then this happens as soon as it goes on."""
        if self._pauses:
            self._resumed.append(action)
        return self._pauses > 0
