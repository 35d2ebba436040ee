"""The asyncio driver of one machine: what `unisono.turns` plans, with a loop, a disk and a clock.

Inputs wait in a bounded queue; a turn of the planner takes them, its commit goes into the log, and when that is durable
the effects are performed as the planner gives them. Nothing is decided here.

There is no task and no future per message. If the machine breaks (`InvariantError`, or any mistake of ours) or the disk
fails, the host stops: nothing of the turn leaves, the log stays as it is, and `failed` says why.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from unisono.errors import InvariantError, TransportError, UnisonoError
from unisono.machine import Broadcast, Deliver, DurableMachine, Join, Leave, Machine, Refuse, Restarted, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.runtime.driver.clock import Clock
from unisono.runtime.driver.forked import ForkedWriter
from unisono.runtime.driver.log import UNWRITABLE, InputLog
from unisono.turns import Arrangement, Logged, TurnBounds, TurnPlanner

logger = logging.getLogger(__name__)

REPLAYED_BETWEEN_LOOKS = 500
"""Inputs handled again before the loop looks at signals: whoever wants to stop a node waits for some milliseconds."""


class Outside(Protocol):
    """Where effects go. Calls come from the loop, in the order of the effects, and must not block or raise."""

    def send(self, to: Address, message: Any) -> None: ...

    def broadcast(self, effect: Broadcast) -> None: ...

    def join(self, topic: Topic) -> None: ...

    def leave(self, topic: Topic) -> None: ...

    def deliver(self, item: Any, /) -> None: ...

    def refused(self, reason: str, /) -> None: ...

    def end_turn(self) -> None:
        """All effects of a turn have been performed."""
        ...

    def failed(self, error: Exception, /) -> None:
        """The host has stopped for good."""
        ...


class LinksOnly:
    """The part of an outside that a machine never uses which sends and delivers, and has no broker beneath it."""

    def broadcast(self, effect: Broadcast) -> None:
        raise InvariantError("this machine has no broker to broadcast to")

    def join(self, topic: Topic) -> None:
        raise InvariantError("this machine has no broker to hear a topic from")

    def leave(self, topic: Topic) -> None:
        raise InvariantError("this machine has no broker to hear a topic from")


class HostCounters(Struct):
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
        bounds: TurnBounds = TurnBounds(),
        arrangement: Arrangement | None = None,
        is_confirmed: bool = False,
    ) -> None:
        """`arrangement` merges what a role may merge; `is_confirmed`: `confirmed` is called for broadcasts."""
        self.name = name
        self.machine = machine
        self.counters = HostCounters()
        self.failure: Exception | None = None
        self.clock = Clock()
        self.turns = TurnPlanner(
            machine, is_logged=log is not None, is_confirmed=is_confirmed, arrangement=arrangement, bounds=bounds
        )
        self._outside, self._log = outside, log
        self._disk = ThreadPoolExecutor(1, f"log {name}") if log is not None else None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at: Micros | None = None
        self._busy = True  # until start
        self._started = self._stopped = False
        self._snapshotting: asyncio.Future[Any] | None = None
        self._roomy: list[Callable[[], None]] = []
        self._idle: list[asyncio.Future[None]] = []

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
            self.clock = Clock(not_before=self.turns.last)
            self.turns.waiting.appendleft(Restarted())
        self._started = True
        self._busy = False
        self._wake()
        return replayed

    async def _recover(self, log: InputLog) -> int:
        assert isinstance(self.machine, DurableMachine)
        replayed = 0
        snapshot, inputs = log.recover()
        if snapshot is not None:
            self.turns.last, state = snapshot
            self.machine.restore(state)
        for at, message in inputs:
            self.machine.handle(message, at)
            self.turns.last = at
            replayed += 1
            if replayed % REPLAYED_BETWEEN_LOOKS == 0:
                await asyncio.sleep(0)
        return replayed

    def post(self, message: Any) -> None:
        """Hands the machine an input; it is handled in the next turn."""
        if self._stopped:
            self.counters.dropped += 1
            return
        self.turns.post(message)
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._begin)

    def confirmed(self, items: int) -> None:
        """The service beneath has taken the oldest `items` items."""
        if not self._stopped and self.turns.confirmed(items):
            self._wake()

    @property
    def is_full(self) -> bool:
        return self.turns.is_full

    @property
    def waiting(self) -> int:
        """Inputs that have not been handled."""
        return len(self.turns.waiting)

    def when_roomy(self, callback: Callable[[], None]) -> None:
        """Calls once when at most half of the queue is in use."""
        self._roomy.append(callback)
        if not self._busy:
            self._loop.call_soon(self._tell_roomy)

    async def settle(self) -> None:
        """Returns when nothing waits and everything handled has been performed."""
        while (self._busy or self.turns.waiting) and self.failure is None:
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
        rest = self.turns.rest()
        if rest:
            await self._loop.run_in_executor(self._disk, log.commit, rest)
        if snapshot:
            assert isinstance(self.machine, DurableMachine)
            try:
                block = log.begin_snapshot(self.turns.last, self.machine.snapshot())
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
        if self.turns.waiting and not self._busy and not self._stopped:
            self._busy = True
            self._loop.call_soon(self._begin)
        if not self.turns.waiting and not self._busy:
            idle, self._idle = self._idle, []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)

    def _turn(self) -> None:
        if self._stopped:
            return
        try:
            commit = self._handle()
            if not commit:
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

    def _handle(self) -> list[Logged]:
        turns = self.turns
        before = len(turns.waiting)
        commit = turns.handle(self.clock.now())
        self.counters.inputs += before - len(turns.waiting)
        self.counters.turns += 1
        if turns.alarm is not None and turns.alarm != self._alarm_at:
            self._arm(turns.alarm)
        return commit

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
        if self._roomy and self.turns.is_roomy:
            roomy, self._roomy = self._roomy, []
            for callback in roomy:
                callback()

    def _perform(self) -> None:
        outside = self._outside
        send, broadcast, deliver = outside.send, outside.broadcast, outside.deliver
        for effect in self.turns.release():  # the most frequent kinds first: a message costs a few of these comparisons
            if isinstance(effect, Deliver):
                deliver(effect.item)
            elif isinstance(effect, Send):
                send(effect.to, effect.message)
            elif isinstance(effect, Broadcast):
                broadcast(effect)
            elif isinstance(effect, Join):
                outside.join(effect.topic)
            elif isinstance(effect, Leave):
                outside.leave(effect.topic)
            elif isinstance(effect, Refuse):
                self.counters.refused += 1
                outside.refused(effect.reason)
        outside.end_turn()

    def _start_snapshot(self, log: InputLog) -> None:
        """The state is read and the next segment opened before another input is handled; the rest goes on beside."""
        assert isinstance(self.machine, DurableMachine)
        at = self.turns.last
        writer = log.fork_snapshot(at, self.machine.snapshot)
        if writer is not None:
            begun_aside = self._loop.run_in_executor(self._disk, log.begin_forked)
            begun_aside.add_done_callback(partial(self._forked_begun, log, writer))
            return
        state = self.machine.snapshot()
        begun = self._loop.run_in_executor(self._disk, log.begin_snapshot, at, state)
        begun.add_done_callback(self._snapshot_begun)

    def _forked_begun(self, log: InputLog, writer: ForkedWriter, begun: asyncio.Future[None]) -> None:
        finished = self._loop.run_in_executor(None, log.finish_forked, writer)
        finished.add_done_callback(self._forked_finished)
        self._snapshotting = finished
        error = begun.exception()
        if error is not None:
            self._fail(error if isinstance(error, Exception) else TransportError(str(error)))
            return
        self._end_turn()

    def _forked_finished(self, finished: asyncio.Future[bool]) -> None:
        if finished.exception() is not None or finished.result():
            self._snapshot_finished(finished)
            return
        self._snapshotting = None
        self._unwritable(TypeError("a value that no format carries"))

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

    def _snapshot_finished(self, finished: asyncio.Future[Any]) -> None:
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
        self.counters.dropped += self.turns.drop()
        logger.error("%s has stopped: %s", self.name, error, exc_info=not isinstance(error, UnisonoError))
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._outside.failed(error)

    # timers

    def _arm(self, at: Micros) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_later(max(0, at - self.clock.now()) / 1e6, self._ring)

    def _ring(self) -> None:
        self._alarm = self._alarm_at = None
        self.turns.ring(self.clock.now())
        if self.turns.alarm is not None:
            self._arm(self.turns.alarm)
        self._wake()
