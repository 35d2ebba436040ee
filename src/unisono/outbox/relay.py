"""Rows that are committed in a table become events: each once, in the order of the commits, whoever is killed when.

The slot gives commits in their order, again and again until it is told to go on. Their rows get numbers, which are
those of a named publisher: what is published twice under a number is one event. Before anything is published it is
written down up to where, and under which numbers, so whoever goes on after a crash says exactly the same.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from unisono.errors import ForgottenError, MisuseError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.interest import check_topic_name
from unisono.outbox.changes import CommittedRows, InsertedRow, payload_of
from unisono.outbox.source import OutboxSource, lsn_text
from unisono.runtime.client.publishing.named import NamedEvent, NamedPublisher, named_publisher

logger = logging.getLogger(__name__)

T = TypeVar("T")


class OutboxConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How a relay works."""

    rows_max: int = 1000
    """Rows per batch, and what is over in the last transaction of it. Price: memory here."""
    poll_s: float = 0.2
    """How often the slot is asked when nothing was new. Price: a query each time."""
    retry_s: float = 1.0
    """How long after a failure of the server or of nodes it is tried again."""
    idle_bytes: int = 16 * 1024 * 1024
    """When the server keeps more than this, none of it of the table, it is told that it need not."""


class OutboxStatus(Struct, frozen=True):
    """How a relay is."""

    published: int
    """Rows of all time."""
    upto: str
    """The place in the server's log up to which commits are relayed."""
    kept_bytes: int
    """What of its log the server keeps for this relay."""
    waits_for: str | None


class Outbox:
    """The relay of one table.

    async with Outbox("unisono://127.0.0.1:7474", "postgres://app@db/shop", table="outbox") as outbox:
        await outbox.run()
    """

    def __init__(
        self,
        where: str | Path | Deployment,
        url: str,
        table: str,
        *,
        topic: str | None = None,
        otherwise: str | None = None,
        name: str | None = None,
        token: str | None = None,
        authority: str | Path | None = None,
        config: OutboxConfig = OutboxConfig(),
    ) -> None:
        """Rows go to `topic`, or to what their column `topic` says, and where that is no topic to `otherwise`.
        `name` is for ever, and of one table only."""
        for given in (topic, otherwise):
            if given is not None:
                check_topic_name(given)
        self._where, self._url, self._table, self._topic, self._otherwise = where, url, table, topic, otherwise
        self._name = name or _named_after(url, table)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,48}", self._name):
            raise MisuseError(f"{self._name!r} is no name for an outbox: up to 48 letters, digits, - and _")
        self._token, self._authority, self._config = token, authority, config
        self._thread = ThreadPoolExecutor(1, "unisono-outbox")
        self._source: OutboxSource | None = None
        self._published, self._upto, self._kept = 0, 0, 0
        self._waits_for: str | None = None

    async def __aenter__(self) -> Self:
        """Returns when publication, slot and state are there; raises what keeps it from being relayed."""
        try:
            source = await self._in_thread(self._open)
        except BaseException:
            self._thread.shutdown()
            raise
        self._source = source
        self._published, self._upto = source.state.number, source.state.upto
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._source is not None:
            await self._in_thread(self._source.close)
        self._thread.shutdown()

    async def run(self) -> None:
        """Relays until it is cancelled. What the server or nodes cannot do now is tried again; MisuseError,
        ForgottenError and DataLossError end it."""
        while True:
            try:
                source = await self._opened()
                named = named_publisher(self._where, self._name, token=self._token, authority=self._authority)
                async with named as publisher:
                    await self._relay(source, publisher)
            except TransportError as error:
                self._waits_for = str(error)
                logger.warning("outbox %s waits: %s", self._name, error)
                if self._source is not None:
                    await self._in_thread(self._source.close)
                    self._source = None
                await asyncio.sleep(self._config.retry_s)

    def status(self) -> OutboxStatus:
        return OutboxStatus(self._published, lsn_text(self._upto), self._kept, self._waits_for)

    async def _opened(self) -> OutboxSource:
        source = self._source
        if source is None:
            source = await self._in_thread(self._open)
            self._source = source
        return source

    def _open(self) -> OutboxSource:
        return OutboxSource(self._url, self._table, self._name)

    async def _relay(self, source: OutboxSource, publisher: NamedPublisher) -> None:
        checked: set[str] = set()
        for topic in source.state.topics:
            await self._check_mark(source, publisher, topic, checked)
        if source.state.next_number > source.state.number:
            await self._repeat(source, publisher, checked)
        while True:
            self._waits_for = None
            end, self._kept = await self._in_thread(source.lag)
            self._published, self._upto = source.state.number, source.state.upto
            commits = await self._in_thread(lambda: source.peek(self._config.rows_max))
            if any(commit.rows for commit in commits):
                events = self._events(source, commits)
                upto = commits[-1].end
                await self._in_thread(partial(source.intend, upto, source.state.number + len(events)))
                await self._publish(source, publisher, events, checked)
                continue
            await self._in_thread(source.check_table)
            if end - source.state.upto > self._config.idle_bytes:
                await self._in_thread(partial(source.skip, end))
            await asyncio.sleep(self._config.poll_s)

    async def _repeat(self, source: OutboxSource, publisher: NamedPublisher, checked: set[str]) -> None:
        """A relay before us was killed with this under way: the same rows have the same numbers."""
        state = source.state
        commits = await self._in_thread(lambda: source.peek(self._config.rows_max, state.next_upto))
        events = self._events(source, commits)
        if len(events) != state.next_number - state.number:
            raise ForgottenError(
                f"{source.place}: {state.next_number - state.number} rows up to {lsn_text(state.next_upto)} were about "
                f"to be published, and the slot has {len(events)} of them: the database is not the one it was"
            )
        await self._publish(source, publisher, events, checked)

    async def _publish(
        self, source: OutboxSource, publisher: NamedPublisher, events: list[NamedEvent], checked: set[str]
    ) -> None:
        topics = {event.topic: event.request for event in events}
        for topic in topics:
            await self._check_mark(source, publisher, topic, checked)
        await publisher.publish(events)
        await self._in_thread(lambda: source.done(topics))

    async def _check_mark(self, source: OutboxSource, publisher: NamedPublisher, topic: str, checked: set[str]) -> None:
        """What was published of this name is what the database remembers."""
        if topic in checked:
            return
        mark, state = await publisher.mark(topic), source.state
        if not state.topics.get(topic, 0) <= mark <= state.next_number:
            raise ForgottenError(
                f"{source.place} remembers that outbox {self._name!r} has published {state.topics.get(topic, 0)} to "
                f"{state.next_number} on {topic}, and its home knows {mark}: the database or the home was restored, or "
                "another database has an outbox of this name (--name)"
            )
        checked.add(topic)

    def _events(self, source: OutboxSource, commits: list[CommittedRows]) -> list[NamedEvent]:
        number = source.state.number
        events: list[NamedEvent] = []
        for commit in commits:
            for row in commit.rows:
                number += 1
                topic = self._topic if self._topic is not None else self._topic_of(row)
                events.append(NamedEvent(topic, number, payload_of(row)))
        return events

    def _topic_of(self, row: InsertedRow) -> str:
        try:
            return check_topic_name(row.value("topic") or "")
        except MisuseError as error:
            if self._otherwise is not None:
                return self._otherwise
            shown = payload_of(row)[:80].decode(errors="replace")
            raise MisuseError(
                f"a row of {self._table} has no topic: {shown} ({error}). It waits in the log, and all after "
                "it: begin again with --otherwise TOPIC for such rows, or with --topic for all"
            ) from None

    def _in_thread(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._thread, work)


def _named_after(url: str, table: str) -> str:
    database = urlsplit(url).path.strip("/")
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{database}-{table}")[:48]
