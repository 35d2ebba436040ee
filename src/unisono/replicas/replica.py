"""A database that follows the order of its topics: what people use.

Operations are events. The replica publishes its own, applies them at once as tentative, and settles them when its
subscription brings them in the order that all replicas have. A number that will not come stops it: whoever goes on
without an operation has another database from then on.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec import Struct

from unisono.errors import InvariantError, MisuseError, PlanError, TransportError, UnisonoError, WithdrawnError
from unisono.machine import Accepted, Refused, Unknown
from unisono.model.interest import check_topic_name
from unisono.model.promise import Reliability
from unisono.replicas.config import ReplicaConfig
from unisono.replicas.execution import Execution
from unisono.replicas.following import OrderFollower
from unisono.replicas.opening import name_of, open_store
from unisono.replicas.operation import (
    ReplicaMessage,
    SqlResult,
    StateCheck,
    StateHash,
    encode_replica_message,
    statement,
)
from unisono.replicas.operation import statements as checked_statements
from unisono.replicas.own import OwnOperations
from unisono.replicas.tail import RollbackCounts, Settled, TentativeTail
from unisono.replicas.votes import HashVotes
from unisono.runtime.client.session import Session
from unisono.runtime.client.subscription.event_stream import EventStream

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ReplicaStatus(Struct, frozen=True):
    """How a replica is."""

    operations: int
    """Followed so far, of all replicas."""
    tentative: int
    """Own operations whose order is not known yet."""
    waits_for: str | None
    """Why the order does not go on, if it does not."""
    ignored: int
    """Events of the topics that no replica has published."""
    rollbacks: RollbackCounts


class Replica:
    """One copy of a database, for one process.

    async with Replica(session, "app.db", topics=["stock"]) as replica:
        execution = await replica.execute("INSERT INTO items VALUES (?, ?)", (7, "lamp"))
        answer = await execution.stable()
    """

    def __init__(
        self,
        session: Session,
        place: str | Path,
        topics: Sequence[str],
        *,
        name: str | None = None,
        start: str = "earliest",
        reliability: Reliability = "reliable",
        optimistic: bool = False,
        config: ReplicaConfig = ReplicaConfig(),
    ) -> None:
        """`place` is an SQLite file, or an empty database at `postgres://user@host/name`. What is new begins at `start`
        ("latest" is right only before the first operation of a set).

        With `optimistic` operations of other replicas are tentative as soon as they are heard, too.
        With `reliability="best-effort"` nobody keeps operations: a replica that misses one stops for good.
        """
        if isinstance(topics, str) or not topics:
            raise MisuseError('topics: a list of names, like topics=["stock"]')
        for topic in topics:
            check_topic_name(topic)
        check_plan(session, topics, reliability)
        self._session, self._place, self._topics = session, place, tuple(dict.fromkeys(topics))
        self._start: str = start
        self._reliability: Reliability = reliability
        self._optimistic = optimistic
        self._config = config
        self._client = secrets.token_hex(8)
        self._name = name or f"{socket.gethostname()}:{name_of(place)}"
        self._asked = 0
        self._checks: dict[str, asyncio.Future[None]] = {}
        self._votes = HashVotes(self._client)
        self._streams: list[EventStream] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = ThreadPoolExecutor(1, "unisono-replica")
        self._reading = ThreadPoolExecutor(1, "unisono-replica-reads")
        self._news = asyncio.Condition()
        self._changes = self._settles = 0
        self._failure: UnisonoError | None = None
        self._is_open = False

    async def __aenter__(self) -> Self:
        try:
            self._database = await self.in_thread(
                lambda: open_store(self._place, {"topics": " ".join(sorted(self._topics))})
            )
        except BaseException:
            self._thread.shutdown()
            raise
        self._tail = TentativeTail(self._database, self._config.tail_max)
        self._own = OwnOperations(self._client, self._database.engine, self._tail, self._config.steps_max, self)
        self._following = OrderFollower(self._database, self._tail, self._config, self.in_thread, self)
        follows = self._session.subscribe(
            *self._topics, start=self._database.position or self._start, reliability=self._reliability
        )
        foresees = self._session.subscribe(*self._topics, order="fifo") if self._optimistic else None
        try:
            for stream in filter(None, (follows, foresees)):
                await stream.__aenter__()
                self._streams.append(stream)
        except BaseException:
            await self._close_streams()
            self._release()
            raise
        self._is_open = True
        self.spawn(self._follow(follows))
        if foresees is not None:
            self.spawn(self._following.foresee(foresees))
        self.spawn(self._bound_tail())
        return self

    async def _follow(self, stream: EventStream) -> None:
        await self._following.follow(stream)
        raise TransportError("the subscription has ended")

    async def _bound_tail(self) -> None:
        """Nothing stays tentative in the database for long."""
        while True:
            seen, applied = self._settles, self._tail.applied
            await asyncio.sleep(self._config.tail_max_s)
            if applied and self._settles == seen:
                await self.in_thread(self._tail.hold)
            if self._tail.foreseen:
                await self._own.settle((), await self.in_thread(self._tail.forget))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """What is not stable yet is taken back here; it comes again in the order if it was published."""
        if not self._is_open:
            return
        self._is_open = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._own.close()
        await self._close_streams()
        self._end(WithdrawnError("the replica was closed before the order was known", is_definite=False))
        self._release()

    async def _close_streams(self) -> None:
        for stream in self._streams:
            await stream.close()

    def _release(self) -> None:
        self._reading.shutdown()
        self._thread.submit(self._database.close).result()
        self._thread.shutdown()

    # what people call

    async def execute(self, sql: str, params: Any = (), topic: str | None = None) -> Execution:
        """One statement as a transaction of its own.

        execution = await replica.execute("UPDATE stock SET n = n - 1 WHERE id = :id", {"id": 7})
        """
        return await self.transaction([(sql, params)], topic)

    async def transaction(self, statements: Sequence[tuple[str, Any]], topic: str | None = None) -> Execution:
        """Several statements: all have an effect, or none. MisuseError: no replica should be asked to do that.

        await replica.transaction([("UPDATE a SET n = n - ?", (5,)), ("UPDATE b SET n = n + ?", (5,))])
        """
        topic = self._topics[0] if topic is None else topic
        if topic not in self._topics:
            raise MisuseError(f"topic {topic!r} is none of this replica's: {', '.join(self._topics)}")
        checked = checked_statements(statements)
        self.check_alive()
        return await self._own.make(topic, checked)

    async def query(self, sql: str, params: Any = (), tentative: bool = False) -> SqlResult:
        """Reads the stable state, or with `tentative` what the own operations would make of it.

        rows = (await replica.query("SELECT n FROM stock WHERE id = ?", (7,))).rows
        """
        self.check_alive()
        asked = statement(sql, params)
        thread = self._thread if tentative else self._reading
        read = partial(self._database.read, asked.sql, asked.params, tentative)
        return await asyncio.get_running_loop().run_in_executor(thread, read)

    async def watch(self, sql: str, params: Any = (), tentative: bool = False) -> AsyncIterator[SqlResult]:
        """What a query gives now, and again whenever that has changed. Tentative results may be taken back by the next.

        async for result in replica.watch("SELECT sum(n) FROM stock"): ...
        """
        told: SqlResult | None = None
        while True:
            seen = self._changes
            result = await self.query(sql, params, tentative)
            if result != told:
                told = result
                yield result
            async with self._news:
                while self._changes == seen:
                    await self._news.wait()
            self.check_alive()

    async def wait_stable(self) -> None:
        """Returns when the order of everything executed here before is known, and so all that came before it."""
        self.check_alive()
        waiting = [execution.stable() for execution in self._own.under_way()]
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, WithdrawnError):
                raise outcome

    async def catch_up(self) -> None:
        """Returns when everything that any replica had published before is applied here."""
        await (await self.transaction([])).stable()

    async def check(self) -> dict[str, str]:
        """Asks all replicas for the hash of their state at one place of the order: who has answered, with what.

        DivergedError: as many others have another state as have ours.
        """
        self.check_alive()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked += 1
        asked = StateCheck(self._client, self._asked)
        self._checks[asked.place] = done
        await self.publish(self._topics[0], asked)
        await done
        await asyncio.sleep(self._config.check_wait_s)
        self.check_alive()
        return self._votes.others(asked.place)

    async def copy_to(self, path: str | Path) -> None:
        """A copy of the stable state: a new replica that is given this file begins where the copy ends."""
        self.check_alive()
        target = Path(path)
        await self.in_thread(lambda: self._database.copy_to(target))

    def status(self) -> ReplicaStatus:
        """How far the replica is, and why it does not go on, if it does not."""
        following = self._following
        waits_for = str(self._failure) if self._failure is not None else following.waits_for
        return ReplicaStatus(self._database.count, len(self._tail), waits_for, following.ignored, self._tail.counts)

    # what the order brings

    async def settled(self, settled: Settled) -> None:
        self._settles += 1
        await self._own.settle(settled.stable, settled.changed)

    async def compare(self, check: StateCheck | None) -> None:
        """Says the hash of the state, and looks after a while at what the others have said."""
        place = check.place if check is not None else ""
        hashed = await self.in_thread(self._database.hash)
        said = StateHash(self._client, self._name, self._database.count, hashed, place)
        self._votes.hear(said)
        self.spawn(self._judge(said))
        if place in self._checks:
            self._checks.pop(place).set_result(None)

    async def _judge(self, said: StateHash) -> None:
        await self.publish(self._topics[0], said)
        await asyncio.sleep(self._config.check_wait_s)
        self._votes.judge(said.place)

    def hear_hash(self, said: StateHash) -> None:
        self._votes.hear(said)

    async def tell(self) -> None:
        """Whoever watches looks again."""
        async with self._news:
            self._changes += 1
            self._news.notify_all()

    # publishing

    async def publish(self, topic: str, message: ReplicaMessage) -> Accepted | Refused | Unknown:
        """Publishes again what has no outcome: whoever hears it twice applies it once."""
        payload = encode_replica_message(message)
        until = asyncio.get_running_loop().time() + self._config.publish_s
        while True:
            outcome = await self._session.publish(topic, payload)
            if not isinstance(outcome, Unknown) or asyncio.get_running_loop().time() >= until:
                return outcome
            logger.warning("replica %s: %s has no outcome (%s), published again", self._name, topic, outcome.reason)

    # inside

    def in_thread(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """What changes the database runs in one thread, one after the other; queries of what is stable in another."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._is_open:
            self.stop(error)

    def stop(self, error: BaseException) -> None:
        """It does nothing more, and says why."""
        if self._failure is None:
            self._failure = (
                error if isinstance(error, UnisonoError) else InvariantError(f"the replica broke: {error!r}")
            )
            logger.error("replica %s stops: %s", self._name, error)
            self._end(self._failure)
            for other in self._tasks:
                other.cancel()

    def _end(self, error: UnisonoError) -> None:
        """Nobody waits for what will not come."""
        self._own.end(error)
        for waiting in self._checks.values():
            waiting.set_exception(error)
        self._checks.clear()
        self._changes += 1
        telling = asyncio.create_task(self.tell())
        telling.add_done_callback(lambda _: None)

    def check_alive(self) -> None:
        """Raises what has stopped it."""
        if self._failure is not None:
            raise self._failure
        if not self._is_open:
            raise MisuseError("the replica is not open: use 'async with Replica(…) as replica:'")


def check_plan(session: Session, topics: Sequence[str], reliability: Reliability) -> None:
    """Replicas need one order of all their topics, and every operation in it; PlanError where they cannot have them."""
    deployment = session.deployment
    if deployment.kind != "sequencer":
        raise PlanError(
            f'replicas need one order, and deployments of kind {deployment.kind!r} have none: use kind = "sequencer"'
        )
    if len(topics) > 1 and deployment.sequencing.order != "global":
        raise PlanError(
            'replicas of several topics need sequencing.order = "global" in the deployment file, or one topic: '
            f"with {deployment.sequencing.order!r} operations are ordered from the second replica on only"
        )
    if reliability == "reliable" and not deployment.broker.keeps:
        raise PlanError(
            f'on broker.kind = "{deployment.broker.kind}" a publisher that is killed can leave a number without an '
            'operation, and every replica would stop there: use broker.kind = "jetstream", which has an operation '
            'before it gets a number, and a node with the role archive; for a trial: reliability="best-effort"'
        )
