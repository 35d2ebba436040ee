"""The planner of turns: what drivers do with a machine, and in which order. One, run by the simulator and by asyncio.

A driver hands over what arrives, says what time it is, makes inputs durable and performs effects; it decides nothing:

    planner.post(message)                 an input has arrived, and waits
    commit = planner.handle(now)          one turn: the inputs that have to be durable before anything of it is seen
    effects = planner.release()           when they are: what leaves, in the order in which it leaves
    planner.ring(now)                     at `planner.alarm`: timers that are due become inputs

**One turn** takes all inputs that wait, up to `inputs_max`, and handles them at one moment. Those that asked for
`Persist` are one commit, before which none of the effects leaves. What arrives while the disk works is the next commit,
which is the larger the busier we are; nobody waits for a batch to fill. Inputs whose handling shows nothing to anybody
(an acknowledgement that trims an outbox) are held back for the next commit: losing them in a crash is the same as their
never having arrived.

**What leaves** leaves in the order of the effects, but for two things. Of the acknowledgements of one turn the last
says it all: it leaves alone, after everything else. And a role may have an `Arrangement` that merges inputs and
effects. Where effects are merged, broadcasts are confirmed by turns: a machine hears that those of a turn are done when
the last item of that turn is (after a crash more is broadcast again than needed, never less).
"""

import heapq
from collections import deque
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from unisono.machine import Broadcast, CancelTimer, Deliver, Effect, Fired, Machine, Persist, Send, SetTimer
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.structures.sessions import BroadcastsDone, Handled

STALE_TIMERS_MAX = 64
"""Moved and cancelled timers leave old places in the heap; so many are kept before they are cleared away."""


class TurnBounds(Struct, frozen=True):
    """Bounds of the turns of one machine."""

    inputs_max: int = 2_000
    """Inputs of one turn; at 10 us each they keep everybody else waiting for 20 ms."""
    queue_max: int = 20_000
    """Inputs that wait; beyond it links stop reading, and clients do not publish."""
    quiet_inputs_max: int = 4_000
    """Inputs held back for the next commit because nobody saw anything of them."""


class Logged(NamedTuple):
    """One input as it was handled."""

    at: Micros
    message: Any


class Arrangement(Protocol):
    """What a role merges, and in which order its effects leave. Pure: it sees one turn at a time."""

    def gather(self, inputs: list[Any]) -> list[Any]:
        """What is handled, and logged, instead of these inputs."""
        ...

    def arrange(self, effects: list[Effect]) -> list[Effect]:
        """What leaves instead of these effects, in order. Timers and `Persist` are not among them."""
        ...


class TimerDue(Struct, frozen=True):
    """A timer that has come due, unless it is cancelled or moved before its turn."""

    key: str
    at: Micros


class TurnPlanner:
    """Plans the turns of one machine."""

    def __init__(
        self,
        machine: Machine,
        *,
        is_logged: bool,
        is_confirmed: bool = False,
        arrangement: Arrangement | None = None,
        bounds: TurnBounds = TurnBounds(),
    ) -> None:
        """`is_logged`: inputs are made durable. `is_confirmed`: the machine keeps broadcasts until they are done."""
        self.machine, self.bounds = machine, bounds
        self.waiting: deque[Any] = deque()
        self.post = self.waiting.append
        self.last = Micros(0)
        """The moment of the last turn; time does not go back before it."""
        self._is_logged, self._is_confirmed, self._arrangement = is_logged, is_confirmed, arrangement
        self._quiet: list[Logged] = []
        self._effects: list[Effect] = []
        self._acknowledgements: dict[Address, Send] = {}
        self._broadcasts = 0  # of this turn
        self._owed: deque[int] = deque()  # per open item: how many broadcasts are done when it is confirmed
        self._timers: dict[str, Micros] = {}
        self._heap: list[tuple[Micros, str]] = []

    # what waits

    @property
    def is_full(self) -> bool:
        return len(self.waiting) >= self.bounds.queue_max

    @property
    def is_roomy(self) -> bool:
        """At most half of the queue is in use."""
        return len(self.waiting) <= self.bounds.queue_max // 2

    def confirmed(self, items: int) -> bool:
        """The service beneath has the oldest `items` items; tells whether that is an input."""
        done = sum([self._owed.popleft() for _ in range(items)])
        if done:
            self.post(BroadcastsDone(done))
        return done > 0

    # timers

    @property
    def alarm(self) -> Micros | None:
        """When to `ring` next."""
        return self._heap[0][0] if self._heap else None

    def ring(self, now: Micros) -> None:
        """What is due takes its place after what waits."""
        while self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            if self._timers.get(key) == at:
                self.post(TimerDue(key, at))

    def set_clock(self, by: int) -> None:
        """Somebody has set the clock ahead, or back: what was to come after a while still does."""
        self.last = Micros(self.last + by)
        self._timers = {key: Micros(at + by) for key, at in self._timers.items()}
        self._heap = [(Micros(at + by), key) for at, key in self._heap]
        for i, message in enumerate(self.waiting):
            if type(message) is TimerDue:
                self.waiting[i] = TimerDue(message.key, Micros(message.at + by))

    def _set(self, key: str, at: Micros) -> None:
        self._timers[key] = at
        heapq.heappush(self._heap, (at, key))
        if len(self._heap) > STALE_TIMERS_MAX + 2 * len(self._timers):
            self._heap = [(when, name) for name, when in self._timers.items()]
            heapq.heapify(self._heap)

    # a turn

    def handle(self, now: Micros) -> list[Logged]:
        """Handles what waits; what it returns has to be durable before `release`."""
        now = self.last = max(now, self.last)
        take, handle, effects = self.waiting.popleft, self.machine.handle, self._effects
        inputs = [take() for _ in range(min(len(self.waiting), self.bounds.inputs_max))]
        for message in inputs if self._arrangement is None else self._arrangement.gather(inputs):
            if type(message) is TimerDue:
                if self._timers.get(message.key) != message.at:
                    continue  # cancelled or moved after it came due
                del self._timers[message.key]
                message = Fired(message.key)
            is_durable = False
            for effect in handle(message, now):
                if isinstance(effect, Deliver):
                    effects.append(effect)
                elif isinstance(effect, Send):
                    if type(effect.message) is Handled and not effect.message.resend:
                        self._acknowledgements[effect.to] = effect
                    else:
                        effects.append(effect)
                elif isinstance(effect, Persist):
                    is_durable = True
                elif isinstance(effect, SetTimer):
                    self._set(effect.key, effect.at)
                elif isinstance(effect, CancelTimer):
                    self._timers.pop(effect.key, None)
                else:
                    self._broadcasts += isinstance(effect, Broadcast)
                    effects.append(effect)
            if is_durable and self._is_logged:
                self._quiet.append(Logged(now, message))
        is_seen = effects or self._acknowledgements
        return self.rest() if is_seen or len(self._quiet) > self.bounds.quiet_inputs_max else []

    def rest(self) -> list[Logged]:
        """What is durable only once it is committed."""
        commit, self._quiet = self._quiet, []
        return commit

    def release(self) -> list[Effect]:
        """What may leave now, in order."""
        effects = self._effects
        if self._acknowledgements:
            effects += self._acknowledgements.values()
            self._acknowledgements = {}
        self._effects = []
        if self._arrangement is not None:
            effects = self._arrangement.arrange(effects)
        if self._broadcasts and self._is_confirmed:
            items = sum([type(effect) is Broadcast for effect in effects])
            self._owed += [0] * (items - 1) + [self._broadcasts]
        self._broadcasts = 0
        return effects

    def drop(self) -> int:
        """Nothing more of it may leave; returns how many inputs were not handled."""
        count = len(self.waiting)
        self.waiting.clear()
        self._effects.clear()
        return count
