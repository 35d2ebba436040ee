"""The asyncio driver of one machine: take what has arrived, handle it, make it durable, perform the effects.

Inputs wait in a bounded queue. One turn takes all that wait (up to `turn_inputs_max`), handles them at one moment, puts
those that asked for `Persist` into the log by one commit, and only then performs the effects of all of them, in order.
What arrives while the disk works is the next commit, which is the larger the busier we are; nobody waits for a
batch to fill. Inputs whose handling shows nothing to anybody (an acknowledgement trimming an outbox) are kept for the
next commit: losing them in a crash is the same as their never having arrived.

There is no task and no future per message. If the machine breaks (`InvariantError`, or any mistake of ours) or the disk
fails, the host stops: nothing of the turn leaves, the log stays as it is, and `failed` says why.
"""

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from msgspec import Struct

from unisono.errors import InvariantError, TransportError, UnisonoError
from unisono.machine import (
    PERSIST,
    Broadcast,
    CancelTimer,
    Deliver,
    DurableMachine,
    Effect,
    Fired,
    Join,
    Leave,
    Machine,
    Persist,
    Refuse,
    Restarted,
    Send,
    SetTimer,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.runtime.clock import Clock
from unisono.runtime.wal import InputLog, Logged
from unisono.structures.sessions import Handled

logger = logging.getLogger(__name__)

UNWRITABLE = (OverflowError, TypeError, ValueError)
"""What an encoder raises for a value that no format carries."""
UNSEEN = (Persist, SetTimer, CancelTimer)
"""Effects that nobody outside a host sees."""
REPLAYED_BETWEEN_LOOKS = 500
"""Inputs handled again before the loop looks at signals: whoever wants to stop a node waits for some milliseconds."""


class HostConfig(Struct, frozen=True):
    """Bounds of one host."""

    turn_inputs_max: int = 2_000
    """Inputs handled before the loop gets its turn; at 10 us each this is a pause of 20 ms."""
    queue_max: int = 20_000
    """Inputs waiting; beyond it links stop reading, and clients do not publish."""
    quiet_inputs_max: int = 4_000
    """Inputs kept back for the next commit because nobody saw anything of them."""


class Outside(Protocol):
    """Where effects go. Calls come from the loop, in the order of the effects, and must not block or raise."""

    def send(self, to: Address, message: Any) -> None: ...

    def broadcast(self, effect: Broadcast) -> None: ...

    def join(self, topic: Topic) -> None: ...

    def leave(self, topic: Topic) -> None: ...

    def deliver(self, item: Any, /) -> None: ...

    def refused(self, reason: str) -> None: ...

    def end_turn(self) -> None:
        """All effects of a turn have been performed."""
        ...

    def failed(self, error: Exception) -> None:
        """The host has stopped for good."""
        ...


class Counters(Struct):
    """What a host has done; `status` shows it."""

    inputs: int = 0
    turns: int = 0
    commits: int = 0
    snapshots: int = 0
    unwritable: int = 0
    refused: int = 0
    dropped: int = 0
    failures: int = 0


class Host:
    """Drives one machine. Give it to the loop with `start`, feed it with `post`."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        outside: Outside,
        log: InputLog | None = None,
        config: HostConfig = HostConfig(),
        gather: Callable[[list[Any]], list[Any]] | None = None,
    ) -> None:
        """`gather` may join inputs that are handled in one turn; what it returns is handled, and logged, instead."""
        self.name = name
        self.machine = machine
        self.counters = Counters()
        self.failure: Exception | None = None
        self.clock = Clock()
        self._outside, self._log, self._config, self._gather = outside, log, config, gather
        self._disk = ThreadPoolExecutor(1, f"log {name}") if log is not None else None
        self._queue: deque[Any] = deque()
        self._quiet: list[Logged] = []
        self._effects: list[Effect] = []
        self._timers: dict[str, Micros] = {}
        self._heap: list[tuple[Micros, str]] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._busy = True  # until start
        self._started = self._stopped = False
        self._snapshotting: asyncio.Future[None] | None = None
        self._roomy: list[Callable[[], None]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._last = Micros(0)

    async def start(self) -> int:
        """Restores the machine from its log; returns how many inputs were handled again."""
        self._loop = asyncio.get_running_loop()
        replayed = 0
        if self._log is not None:
            try:
                replayed = await self._recover(self._log)
            except (UnisonoError, OSError):
                raise
            except Exception as error:  # task boundary: what is in the log broke the machine, whatever it was
                logger.exception("%s does not come back", self.name)
                raise InvariantError(
                    f"the log of {self.name} can be read but not handled again ({error!r}): keep it, and report this"
                ) from error
            self.clock = Clock(not_before=self._last)
            self._queue.appendleft(Restarted())
        self._started = True
        self._busy = False
        self._wake()
        return replayed

    async def _recover(self, log: InputLog) -> int:
        assert isinstance(self.machine, DurableMachine)
        replayed = 0
        snapshot, inputs = log.recover()
        if snapshot is not None:
            self._last, state = snapshot
            self.machine.restore(state)
        for at, message in inputs:
            self.machine.handle(message, at)
            self._last = at
            replayed += 1
            if replayed % REPLAYED_BETWEEN_LOOKS == 0:
                await asyncio.sleep(0)
        return replayed

    def post(self, message: Any) -> None:
        """Hands the machine an input; it is handled in the next turn."""
        if self._stopped:
            self.counters.dropped += 1
            return
        self._queue.append(message)
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._begin)

    @property
    def is_full(self) -> bool:
        return len(self._queue) >= self._config.queue_max

    def when_roomy(self, callback: Callable[[], None]) -> None:
        """Calls once when at most half of the queue is in use."""
        self._roomy.append(callback)
        if not self._busy:
            self._loop.call_soon(self._tell_roomy)

    async def settle(self) -> None:
        """Returns when nothing waits and everything handled has been performed."""
        while (self._busy or self._queue) and self.failure is None:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    async def stop(self, snapshot: bool = True) -> None:
        """Handles what has arrived, takes a snapshot and closes the log; one that never started only closes it."""
        works = self._started and self.failure is None
        if works:
            await self.settle()
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._log is not None and self._disk is not None:
            if self._snapshotting is not None:
                await asyncio.wait([self._snapshotting])
            try:
                if works and self.failure is None:
                    await self._save(self._log, snapshot)
            finally:
                self._log.close()
                self._disk.shutdown()

    async def _save(self, log: InputLog, snapshot: bool) -> None:
        if self._quiet:
            await self._loop.run_in_executor(self._disk, log.commit, self._quiet)
        if snapshot:
            assert isinstance(self.machine, DurableMachine)
            try:
                block = log.begin_snapshot(self._last, self.machine.snapshot())
            except UNWRITABLE as error:
                self._unwritable(error)
                return
            await self._loop.run_in_executor(self._disk, log.finish_snapshot, block)

    # one turn

    def _begin(self) -> None:
        """A commit costs more than one more look at the sockets: what has arrived by now shares it."""
        if self._log is None:
            self._turn()
        else:
            self._loop.call_soon(self._turn)

    def _wake(self) -> None:
        if self._queue and not self._busy and not self._stopped:
            self._busy = True
            self._loop.call_soon(self._begin)
        if not self._queue and not self._busy:
            idle, self._idle = self._idle, []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)

    def _turn(self) -> None:
        if self._stopped:
            return
        try:
            commit = self._handle_all()
            if commit is None:
                self._perform()
            else:
                assert self._log is not None
                if not self._log.is_quick:
                    self._loop.run_in_executor(self._disk, self._log.commit, commit).add_done_callback(self._committed)
                    return
                self._log.commit(commit)
                if self._show_committed(self._log):
                    return
        except Exception as error:  # the task boundary: a machine that broke must not take the process with it
            self._fail(error)
            return
        self._end_turn()

    def _handle_all(self) -> list[Logged] | None:
        """Handles what waits; returns what must be durable before its effects, or None."""
        now = self._last = max(self.clock.now(), self._last)
        queue, handle, effects = self._queue, self.machine.handle, self._effects
        quiet, visible, keeps = self._quiet, False, self._log is not None
        count = min(len(queue), self._config.turn_inputs_max)
        inputs = [queue.popleft() for _ in range(count)]
        for message in inputs if self._gather is None else self._gather(inputs):
            if type(message) is _Due:
                if self._timers.get(message.key) != message.at:
                    continue  # cancelled or moved after it came due
                del self._timers[message.key]
                message = Fired(message.key)
            made = handle(message, now)
            if not made:
                continue
            if keeps and PERSIST in made:
                quiet.append(Logged(now, message))
            visible = visible or any(type(effect) not in UNSEEN for effect in made)
            effects += made
        self.counters.inputs += count
        self.counters.turns += 1
        if not quiet or not (visible or len(quiet) > self._config.quiet_inputs_max):
            return None
        self._quiet = []
        return quiet

    def _committed(self, done: asyncio.Future[None]) -> None:
        if self._stopped and done.cancelled():
            return
        try:
            done.result()
            assert self._log is not None
            if self._show_committed(self._log):
                return
        except Exception as error:  # the task boundary
            self._fail(error)
            return
        self._end_turn()

    def _show_committed(self, log: InputLog) -> bool:
        """Performs what waited for a commit; tells whether a snapshot is taken now, which then ends the turn."""
        self.counters.commits += 1
        self._perform()
        if log.snapshot_is_due and self._snapshotting is None and not self.counters.unwritable:
            self._start_snapshot(log)
            return True
        return False

    def _end_turn(self) -> None:
        self._busy = False
        self._tell_roomy()
        self._wake()

    def _tell_roomy(self) -> None:
        if self._roomy and len(self._queue) <= self._config.queue_max // 2:
            roomy, self._roomy = self._roomy, []
            for callback in roomy:
                callback()

    def _perform(self) -> None:
        effects, self._effects = self._effects, []
        outside = self._outside
        send, broadcast, deliver = outside.send, outside.broadcast, outside.deliver
        handled: dict[Address, Handled] = {}
        for effect in effects:  # the most frequent kinds first: a message costs a few of these comparisons
            if isinstance(effect, Deliver):
                deliver(effect.item)
            elif isinstance(effect, Send):
                message = effect.message
                # Of the acknowledgements of one turn the last says it all.
                if type(message) is Handled and not message.resend:
                    handled[effect.to] = message
                else:
                    send(effect.to, message)
            elif isinstance(effect, Broadcast):
                broadcast(effect)
            elif isinstance(effect, SetTimer):
                self._set_timer(effect.key, effect.at)
            elif isinstance(effect, CancelTimer):
                self._timers.pop(effect.key, None)
            elif isinstance(effect, Join):
                outside.join(effect.topic)
            elif isinstance(effect, Leave):
                outside.leave(effect.topic)
            elif isinstance(effect, Refuse):
                self.counters.refused += 1
                outside.refused(effect.reason)
        for to, acknowledgement in handled.items():
            outside.send(to, acknowledgement)
        outside.end_turn()

    def _start_snapshot(self, log: InputLog) -> None:
        """The state is read and the next segment opened before another input is handled; the rest goes on beside."""
        assert isinstance(self.machine, DurableMachine)
        state, at = self.machine.snapshot(), self._last
        begun = self._loop.run_in_executor(self._disk, log.begin_snapshot, at, state)
        begun.add_done_callback(self._snapshot_begun)

    def _snapshot_begun(self, begun: asyncio.Future[bytes]) -> None:
        try:
            block = begun.result()
        except UNWRITABLE as error:
            self._unwritable(error)
            self._end_turn()
            return
        except Exception as error:  # the task boundary
            self._fail(error)
            return
        assert self._log is not None
        self._snapshotting = self._loop.run_in_executor(None, self._log.finish_snapshot, block)
        self._snapshotting.add_done_callback(self._snapshot_finished)
        self._end_turn()

    def _unwritable(self, error: Exception) -> None:
        """Inputs are in the log, and lead there again: stopping would stop every later start, too."""
        self.counters.unwritable += 1
        logger.error("%s takes no more snapshots, and its log grows: its state cannot be written: %s", self.name, error)

    def _snapshot_finished(self, finished: asyncio.Future[None]) -> None:
        self._snapshotting = None
        error = finished.exception()
        if error is not None:
            self._fail(error if isinstance(error, Exception) else TransportError(str(error)))
        else:
            self.counters.snapshots += 1

    def fail(self, error: Exception) -> None:
        """Somebody beside the machine found that nothing more of it may be seen."""
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self.counters.failures += 1
        self._stopped = True
        self.counters.dropped += len(self._queue)
        self._queue.clear()
        self._effects.clear()
        logger.error("%s has stopped: %s", self.name, error, exc_info=not isinstance(error, UnisonoError))
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._outside.failed(error)

    # timers

    def _set_timer(self, key: str, at: Micros) -> None:
        self._timers[key] = at
        heapq.heappush(self._heap, (at, key))
        if self._heap[0] == (at, key):
            self._arm()
        if len(self._heap) > 64 + 2 * len(self._timers):  # moved and cancelled timers leave their old places behind
            self._heap = [(when, name) for name, when in self._timers.items()]
            heapq.heapify(self._heap)

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        delay = max(0, self._heap[0][0] - self.clock.now()) / 1e6
        self._alarm = self._loop.call_later(delay, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self.clock.now()
        while self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            if self._timers.get(key) == at:
                self.post(_Due(key, at))
        if self._heap:
            self._arm()


class _Due(Struct, frozen=True):
    """A timer that has come due, unless it is cancelled or moved before its turn."""

    key: str
    at: Micros
