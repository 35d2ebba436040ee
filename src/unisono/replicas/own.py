"""The operations that a replica makes itself: each is tried, gets the next number, and is published.

Those that are made while the database is busy go to it together, and are published together: the way to the thread of
the database and back costs more than an operation does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from unisono.errors import MisuseError, UnisonoError, WithdrawnError
from unisono.machine import Accepted, Refused, Unknown
from unisono.replicas.execution import Execution
from unisono.replicas.operation import OperationName, ReplicaMessage, SqlOperation, SqlStatement
from unisono.replicas.tail import Answered, TentativeTail

T = TypeVar("T")

AT_ONCE = 100
"""Operations that are tried in a row; then it is the turn of what the order has brought."""


class ReplicaHost(Protocol):
    """The replica that the operations are made by."""

    def in_thread(self, work: Callable[[], T]) -> Awaitable[T]: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    async def publish(self, topic: str, message: ReplicaMessage) -> Accepted | Refused | Unknown: ...

    async def tell(self) -> None:
        """Whoever watches looks again."""

    def stop(self, error: BaseException) -> None: ...

    def check_alive(self) -> None: ...


class MadeOperation(Struct, eq=False):
    """One that somebody waits for: it is tried next."""

    topic: str
    statements: tuple[SqlStatement, ...]
    execution: Execution
    tried: asyncio.Future[Execution]


class OwnOperations:
    """What became of the operations of one replica."""

    def __init__(self, client: str, engine: str, tail: TentativeTail, steps_max: int, host: ReplicaHost) -> None:
        self._client, self._engine, self._tail = client, engine, tail
        self._steps_max, self._host = steps_max, host
        self._number = 0
        self._made: list[MadeOperation] = []
        self._in_trial: list[MadeOperation] = []
        self._trying: asyncio.Task[None] | None = None
        self._executions: dict[OperationName, Execution] = {}

    async def make(self, topic: str, statements: tuple[SqlStatement, ...]) -> Execution:
        """Returns when it was tried here. Who does not wait for that may not know whether it has an effect."""
        tried: asyncio.Future[Execution] = asyncio.get_running_loop().create_future()
        self._made.append(MadeOperation(topic, statements, Execution(), tried))
        if self._trying is None or self._trying.done():
            self._trying = asyncio.create_task(self._try())
            self._trying.add_done_callback(self._ended)
        return await tried

    def under_way(self) -> list[Execution]:
        return list(self._executions.values())

    async def settle(self, stable: Sequence[Answered], changed: Sequence[Answered]) -> None:
        for operation, answer in stable:
            execution = self._executions.pop(operation.name, None)
            if execution is not None:
                execution.settle(answer)
        for operation, answer in changed:
            execution = self._executions.get(operation.name)
            if execution is not None:
                execution.change(answer)
        await self._host.tell()

    def end(self, error: UnisonoError) -> None:
        """Nobody waits for what will not come; what is being tried is told when that is over."""
        for execution in self.under_way():
            execution.fail(error)
        self._executions.clear()

    async def close(self) -> None:
        """Returns when nothing is being tried."""
        if self._trying is not None:
            await asyncio.wait([self._trying])

    async def _try(self) -> None:
        while self._made:
            made = self._in_trial = [one for one in self._made[:AT_ONCE] if not one.tried.done()]
            del self._made[:AT_ONCE]
            try:
                self._host.check_alive()
                outcomes = await self._host.in_thread(partial(self._try_in_thread, made))
            except UnisonoError as error:
                outcomes = [error] * len(made)
            for one, outcome in zip(made, outcomes):
                self._tried(one, outcome)
            await self._host.tell()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Nobody waits for a trial that broke."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._host.stop(error)
            for one in (*self._in_trial, *self._made):
                if not one.tried.done():
                    one.tried.set_exception(error)

    def _try_in_thread(self, made: list[MadeOperation]) -> list[SqlOperation | UnisonoError]:
        """A number is taken by what was not refused: numbers of a client have no holes."""
        outcomes: list[SqlOperation | UnisonoError] = []
        for one in made:
            operation = SqlOperation(self._client, self._number + 1, one.statements, self._engine)
            try:
                answer = self._tail.add(operation, self._steps_max)
            except UnisonoError as error:
                outcomes.append(error)
                continue
            self._number += 1
            self._executions[operation.name] = one.execution
            if answer is not None:
                one.execution.answer = answer  # before anything may replace it
            outcomes.append(operation)
        return outcomes

    def _tried(self, one: MadeOperation, outcome: SqlOperation | UnisonoError) -> None:
        try:
            if isinstance(outcome, UnisonoError):
                if not isinstance(outcome, MisuseError):
                    self._host.stop(outcome)
                raise outcome
            self._host.check_alive()
        except UnisonoError as error:
            if isinstance(outcome, SqlOperation):
                self._executions.pop(outcome.name, None)
            if not one.tried.done():
                one.tried.set_exception(error)
            return
        self._host.spawn(self._publish(one.topic, outcome, one.execution))
        if not one.tried.done():
            one.tried.set_result(one.execution)

    async def _publish(self, topic: str, operation: SqlOperation, execution: Execution) -> None:
        try:
            outcome = await self._host.publish(topic, operation)
        except UnisonoError as error:
            outcome = Refused(0, str(error)) if isinstance(error, MisuseError) else Unknown(0, str(error))
        if isinstance(outcome, Accepted) or operation.name not in self._executions:
            return
        changed = await self._host.in_thread(lambda: self._tail.drop(operation.name))
        self._executions.pop(operation.name, None)
        execution.fail(WithdrawnError(outcome.reason, is_definite=isinstance(outcome, Refused)))
        await self.settle((), changed)
