"""How a replica follows the order: what its subscription brings, part by part, into the database.

A part ends where all replicas compare their states, so that each takes its hash after the same operations.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from unisono.errors import DataLossError, FormatError, MisuseError
from unisono.replicas.config import ReplicaConfig
from unisono.replicas.operation import SqlOperation, StateCheck, StateHash, decode_replica_message
from unisono.replicas.store import ReplicaStore
from unisono.replicas.tail import Settled, TentativeTail
from unisono.runtime.client.subscription.event_stream import EventStream
from unisono.runtime.client.subscription.notification import Notification

logger = logging.getLogger(__name__)


class ReplicaListener(Protocol):
    """Who is told what the order has brought."""

    async def settled(self, settled: Settled) -> None: ...

    async def compare(self, check: StateCheck | None) -> None:
        """This is a place where states are compared; `check` is who asked for it."""

    def hear_hash(self, said: StateHash) -> None: ...

    async def tell(self) -> None:
        """What is tentative is something else now."""


class OrderFollower:
    """The reader of one subscription, the only one that settles operations."""

    def __init__(
        self,
        database: ReplicaStore,
        tail: TentativeTail,
        config: ReplicaConfig,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        listener: ReplicaListener,
    ) -> None:
        self._database, self._tail, self._config = database, tail, config
        self._in_thread, self._listener = in_thread, listener
        self.waits_for: str | None = None
        self.ignored = 0

    async def follow(self, stream: EventStream) -> None:
        """Ends with the stream; raises DataLossError where a number will not come."""
        async for batch in stream.batches(self._config.batch_max):
            await self._take(batch)

    async def foresee(self, stream: EventStream) -> None:
        """Reads what others have published before its order is known; whatever else comes is for `follow`."""
        async for batch in stream.batches(self._config.batch_max):
            operations: list[SqlOperation] = []
            for notification in batch:
                with suppress(FormatError):
                    message = decode_replica_message(notification.payload)
                    if isinstance(message, SqlOperation) and message.engine == self._database.engine:
                        operations.append(message)
            if operations:
                await self._in_thread(partial(self._tail.foresee, operations))
                await self._listener.tell()

    async def _take(self, batch: list[Notification]) -> None:
        part: list[SqlOperation] = []
        last: Notification | None = None
        for notification in batch:
            if not self._is_next(notification):
                continue
            last = notification
            match decode_replica_message(notification.payload):
                case SqlOperation() as operation:
                    if not self._database.count and not part:
                        self._check_engine(operation)
                    part.append(operation)
                    if self._config.check_every and not (self._database.count + len(part)) % self._config.check_every:
                        await self._settle(part, notification)
                        part, last = [], None
                        await self._listener.compare(None)
                case StateCheck() as check:
                    await self._settle(part, notification)
                    part, last = [], None
                    await self._listener.compare(check)
                case StateHash() as said:
                    self._listener.hear_hash(said)
                case None:
                    self.ignored += 1
        if last is not None:
            await self._settle(part, last)

    def _check_engine(self, first: SqlOperation) -> None:
        """The first operation of all says what the set runs; whoever has it, or a copy, runs the same."""
        mine = self._database.engine
        if first.engine and first.engine != mine:
            raise MisuseError(
                f"the replicas of these topics run {first.engine}, and this one runs {mine}: an operation could do "
                "something else here; run the same, or begin a set of your own on other topics"
            )

    def _is_next(self, notification: Notification) -> bool:
        """It is an event in its place; DataLossError where one is missing."""
        if notification.stalled is not None:
            self.waits_for = f"{notification.topic}: {notification.stalled.reason}"
            return False
        if notification.gap is not None:
            gap = notification.gap
            raise DataLossError(
                f"operations {gap.first} to {gap.last} of {notification.topic} will not come ({gap.reason}): this "
                "replica stops, before it differs from the others; begin again with a copy of one that has them"
            )
        if notification.out_of_order or notification.event is None:
            self.ignored += 1  # it has no place in the order, at no replica
            return False
        self.waits_for = None
        return True

    async def _settle(self, part: list[SqlOperation], upto: Notification) -> None:
        position = upto.position
        await self._listener.settled(await self._in_thread(lambda: self._tail.settle(part, position)))
