"""The archive role: a client inside a node that hears everything in total order, keeps it, and hands it out.

It subscribes to all topics and appends what it is notified of, gaps included, to its `ArchiveStore`; after a restart it
goes on after the last durable number of every topic, and what was published meanwhile becomes a recorded gap. All
work of the writer happens on one thread, in order; reading for clients on another. Only sealed rows are offered.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from unisono.archive.manifest import GROUPS
from unisono.archive.schema import ArchivedEvent
from unisono.errors import MisuseError, PeerError, TransportError, UnisonoError
from unisono.model.deployment import Deployment
from unisono.model.health import GroupSeen
from unisono.model.ids import Address
from unisono.model.interest import check_topic_name
from unisono.model.payload import payload_decoder
from unisono.model.promise import Promise
from unisono.model.time import Micros
from unisono.protocols.groups.coordinator import SharesView, merged_least
from unisono.protocols.groups.messages import ToGroups
from unisono.runtime.archiving.groups import Groups
from unisono.runtime.archiving.store import ArchiveAppender, ArchiveCut, answer, store_of
from unisono.runtime.archiving.unsettled import UnsettledGaps
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.nats.fenced import FencedError
from unisono.runtime.client.ordering import OrderingMachine
from unisono.runtime.client.sequenced import SequencedSession
from unisono.runtime.client.session import SessionConfig
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.driver.clock import Clock
from unisono.runtime.driver.shown_heights import ShownHeights
from unisono.runtime.links.archive_messages import (
    ATTRIBUTES,
    GAP,
    Fetch,
    Fetched,
    Follow,
    Following,
    Locate,
    Located,
    NotFetched,
    ToArchive,
)
from unisono.runtime.links.links import Links, owner

logger = logging.getLogger(__name__)

EVERYTHING = ">"
BUFFER = 65_536
"""Notifications waiting for the disk; beyond it the archive stops reading from the broker."""
BATCH = 5_000
"""Rows of one append: one write, one sync."""
TICK_S = 0.25
SEAL_S = 0.25
"""Whoever waits for what is not sealed asks again: all who do within this time have one file made for them."""
AGAIN_S = 0.5
AGAIN_S_MAX = 4.0
"""What fails is tried again after a pause, each twice as long as the one before, up to this."""
FOLLOWERS_MAX = 10_000
FOLLOW_S = 10.0
LOOK_AGAIN_S = 1.0
CUTS_MAX = 720
"""Cuts that are remembered to say since when a group lags: an hour, if every one takes `archive.seal_s`."""


class ArchiveCounters(Struct):
    """What an archive has done; `status` shows it."""

    rows: int = 0
    appends: int = 0
    gaps: int = 0
    late: int = 0
    stalled: int = 0
    answers: int = 0
    failures: int = 0


class Archivist:
    """Keeps what it hears and answers clients."""

    def __init__(
        self,
        deployment: Deployment,
        base: Path,
        token: str,
        directory: Path,
        reply: Callable[[Address, Any], None],
        witness: ShownHeights,
        guard: Guard,
        links: Links | None = None,
        refused: Callable[[Address, PeerError], None] = lambda client, error: None,
    ) -> None:
        """`reply` sends an answer to a client; `witness` keeps what nodes show us; `guard` hears what breaks; `links`
        are the node's own when nobody can dial it; `refused` is told who asks too much."""
        self.counters = ArchiveCounters()
        self._deployment, self._base, self._token, self._links, self._reply = deployment, base, token, links, reply
        self._heights, self._guard = witness, guard
        self._store = store_of(deployment, directory, token)
        self._refused = refused
        self._clock = Clock()
        self._groups = Groups(directory / GROUPS)
        self._disk = ThreadPoolExecutor(1, "archive")
        self._reading = ThreadPoolExecutor(1, "archive reader")
        self._tasks: list[asyncio.Task[None]] = []
        self._session: SequencedSession | None = None
        self._stream: Stream | None = None
        self._followers: list[tuple[Follow, float]] = []
        self._asked: dict[Address, dict[tuple[Address, type, int], None]] = {}  # by client
        self._replaced: str | None = None
        """Why this archive does nothing more: another one has the stream."""
        self._troubles: dict[str, str] = {}
        # Only the disk thread touches these three; `_cut` is replaced as a whole, so others may read it.
        self._writer: ArchiveAppender | None = None
        self._appended: dict[str, int] = {}
        self._unsettled = UnsettledGaps()
        self._cut = ArchiveCut(0, {})
        self._cuts: deque[tuple[float, ArchiveCut]] = deque(maxlen=CUTS_MAX)
        self._seen: tuple[GroupSeen, ...] = ()
        self._look_again_s = 0.0
        self._seal_again_s = 0.0

    def groups_seen(self) -> tuple[GroupSeen, ...]:
        """As of the last tick."""
        return self._seen

    @property
    def why_idle(self) -> str | None:
        """Why nothing is kept, if nothing is."""
        return self._replaced or next(iter(self._troubles.values()), None)

    async def start(self) -> None:
        """Opens the store if it can be reached; hearing begins as soon as the nodes can."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._disk, self._open)
        except TransportError as error:
            self._fails("store", error)
        self._tasks = [
            self._guard.spawn(self._keep_hearing(), "archive"),
            self._guard.spawn(self._keep_ticking(), "archive clock"),
        ]

    async def stop(self) -> None:
        """Seals what it has and lets go of the store."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._disk, self._close)
        await loop.run_in_executor(self._reading, self._store.close)
        self._disk.shutdown()
        self._reading.shutdown()

    # hearing

    def _fails(self, what: str, error: BaseException) -> None:
        """It is tried again, often; it is said once, unless something else is wrong by then."""
        self.counters.failures += 1
        if self._troubles.get(what) != str(error):
            self._troubles[what] = str(error)
            logger.warning("archive %s, %s: %s", self._store.where, what, error)

    def _works(self, what: str) -> None:
        if self._troubles.pop(what, None) is not None:
            logger.info("archive %s, %s: works again", self._store.where, what)

    async def _keep_hearing(self) -> None:
        pause_s = AGAIN_S
        while self._replaced is None:
            heard = self.counters.appends
            try:
                await self._hear()
            except (UnisonoError, OSError) as error:
                self._fails("hearing", error)
            if self.counters.appends > heard:
                pause_s = AGAIN_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S_MAX)

    async def _hear(self) -> None:
        loop = asyncio.get_running_loop()
        known = await loop.run_in_executor(self._disk, self._known)
        session = SequencedSession(self._deployment, self._base, self._token, SessionConfig(), self._links)
        session.archive = None  # we are the archive
        session.witness = self._heights
        await session.open()
        try:
            promise = Promise("total", None, "reliable", BUFFER)
            async with Stream(session, (EVERYTHING,), promise, {}, payload_decoder(bytes), None, False) as stream:
                self._session, self._stream = session, stream
                stream.on_joined = self._answer_followers
                bases: dict[str, None] = {}
                self._answer_followers()
                await self._append([], self._heads(stream, bases, known))
                self._works("hearing")
                async for batch in stream.batches(BATCH):
                    self._say_what_waits(batch)
                    await self._append(batch, self._heads(stream, bases, known))
        finally:
            self._session = self._stream = None
            await session.close()

    def _say_what_waits(self, batch: list[Notification]) -> None:
        """Nothing of these topics is kept at present; nobody else is told that we lack them."""
        for item in batch:
            if item.stalled is not None:
                self.counters.stalled += 1
                logger.warning("the archive waits for topic %r: %s", item.topic, item.stalled.reason)

    def _heads(self, stream: Stream, bases: dict[str, None], known: dict[str, int]) -> list[tuple[str, int, int]]:
        """Topics whose subscription has just begun after what we have: (name, first and last number we lack)."""
        heads: list[tuple[str, int, int]] = []
        if len(bases) == len(stream.bases):
            return heads
        for name, base in stream.bases.items():
            if name not in bases:
                bases[name] = None
                if base > known.get(name, 0):
                    heads.append((name, known.get(name, 0) + 1, base))
        return heads

    def _heard_upto(self) -> dict[str, int] | None:
        """Per topic the last number processed, if everything processed is on its way to the disk.

        Numbers that never were an event have no row: without this a replay that needs them would wait for ever.
        """
        stream, session = self._stream, self._session
        if stream is None or session is None or stream.waiting or stream.host is None:
            return None
        machine = stream.host.machine
        assert isinstance(machine, OrderingMachine)
        passed = {name: machine.passed(topic) for name, topic in stream.topics.items()}
        return {name: number for name, number in passed.items() if number is not None}

    async def _append(self, batch: list[Notification], heads: list[tuple[str, int, int]]) -> None:
        if batch or heads:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._disk, self._write, batch, heads)

    def _answer_followers(self) -> None:
        waiting, self._followers = self._followers, []
        now = asyncio.get_running_loop().time()
        for follow, until in waiting:
            if now < until:  # later the client asks no more
                self._follow(follow)

    def _follow(self, message: Follow) -> None:
        stream = self._stream
        if stream is not None and all(name in stream.bases for name in message.topics):
            self._reply(message.client, Following(message.request))
            return
        refused = self._why_not_followed(message)
        if refused is not None:
            self._refuse(message, refused)
        elif len(self._followers) < FOLLOWERS_MAX:
            # They are joined when they are created, as all are: no topic is created because we want to follow it.
            self._followers.append((message, asyncio.get_running_loop().time() + FOLLOW_S))

    def _why_not_followed(self, message: Follow) -> PeerError | None:
        limits = self._deployment.limits
        if len(message.topics) > limits.topics_max:
            return PeerError(f"a subscription has at most {limits.topics_max} topics", "topics")
        try:
            for name in message.topics:
                check_topic_name(name)
        except MisuseError as error:
            return PeerError(str(error))
        mine = sum(owner(follow.client) == owner(message.client) for follow, _ in self._followers)
        return self._too_many if mine >= limits.client_requests_max else None

    # the disk thread

    def _open(self) -> None:
        if self._replaced is not None:
            raise TransportError(self._replaced)
        self._writer = self._store.open()
        self._appended = self._writer.numbers()
        self._note_cut()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.seal(self._clock.now())
            self._writer.close()

    def _known(self) -> dict[str, int]:
        if self._writer is None:
            self._open()
        return dict(self._appended)

    @contextmanager
    def _writing(self) -> Iterator[ArchiveAppender | None]:
        """A disk that failed may hold half a record, a stream more than we know: they are read again first."""
        try:
            yield self._writer
            self._note_cut()
        except (OSError, TransportError) as error:
            if isinstance(error, FencedError):
                self._replaced = str(error)
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            raise

    def _write(self, batch: list[Notification], heads: list[tuple[str, int, int]]) -> None:
        with self._writing() as writer:
            if writer is None:
                raise TransportError(f"archive {self._store.where} is not open")
            writer.append(self._rows(writer.last, batch, heads), self._clock.now())

    def _rows(self, seq: int, batch: list[Notification], heads: list[tuple[str, int, int]]) -> list[ArchivedEvent]:
        now = self._clock.now()
        rows: list[ArchivedEvent] = []
        for topic, first, last in heads:
            rows.append(_gap_row(seq + len(rows) + 1, topic, first, last, "published while no archive heard it", now))
        for item in batch:
            at = seq + len(rows) + 1
            if item.gap is not None and item.gap.settled >= 0:
                self._unsettled.add(item.topic, item.gap)
            elif item.gap is not None:
                gap = item.gap
                rows.append(_gap_row(at, item.topic, gap.first, gap.last, gap.reason, now))
            elif item.event is not None and not item.out_of_order:
                parts = self._unsettled.settle(item.topic, item.number - 1, self._number_of(item.topic, rows))
                rows += [_gap_row(at + i, *part, now) for i, part in enumerate(parts)]
                rows.append(_row(seq + len(rows) + 1, item, now))
            elif item.out_of_order:
                self.counters.late += 1
        return self._counted(rows)

    def _number_of(self, topic: str, rows: list[ArchivedEvent]) -> int:
        """Of the last row of a topic, with these."""
        return next((row.number for row in reversed(rows) if row.topic == topic), self._appended.get(topic, 0))

    def _settled_rows(self, seq: int, numbers: dict[str, int]) -> list[ArchivedEvent]:
        """What is missing up to these numbers, and was not told yet."""
        now = self._clock.now()
        parts = [
            part
            for topic in self._unsettled.topics()
            for part in self._unsettled.settle(topic, numbers.get(topic, 0), self._appended.get(topic, 0))
        ]
        return self._counted([_gap_row(seq + i, *part, now) for i, part in enumerate(parts, 1)])

    def _counted(self, rows: list[ArchivedEvent]) -> list[ArchivedEvent]:
        self._appended.update({row.topic: row.number for row in rows})
        self.counters.rows += len(rows)
        self.counters.appends += bool(rows)
        self.counters.gaps += sum(GAP in row.headers for row in rows)
        return rows

    def _tick(self) -> None:
        self._known()  # opens it again if it failed
        with self._writing() as writer:
            assert writer is not None
            writer.tick(self._clock.now())
        now = time.monotonic()
        self._groups.tick(now)
        if now >= self._look_again_s:
            self._look_again_s = now + LOOK_AGAIN_S
            self._seen = tuple(self._group_seen(now, *group) for group in self._groups.seen(now))

    def _group_seen(self, now: float, name: str, view: SharesView, members: int) -> GroupSeen:
        """How far it is behind what is offered, by the share that is furthest behind; the time is that since the last
        cut it had whole."""
        done = merged_least(view)
        offered = self._cut.numbers
        lag = sum(max(0, offered.get(topic, 0) - number) for topic, number in done.items())
        lag_s = 0.0
        if lag:
            whole = (at for at, cut in reversed(self._cuts) if covers_all(done, cut.numbers))
            lag_s = now - next(whole, self._cuts[0][0] if self._cuts else now)
        active = tuple(dict.fromkeys(share.holder for share in view.shares if share.holder))
        return GroupSeen(name, ", ".join(active), members, lag, round(lag_s, 3))

    def _seal(self, numbers: dict[str, int] | None) -> None:
        with self._writing() as writer:
            if writer is None:
                return
            if numbers is not None:
                rows = self._settled_rows(writer.last, numbers)
                if rows:
                    writer.append(rows, self._clock.now())
                self._appended.update(numbers)
            writer.seal(self._clock.now())

    def _note_cut(self) -> None:
        """When all rows are sealed, what they cover is known."""
        if self._writer is not None and self._writer.offered == self._writer.last:
            if self._cut.numbers != self._appended:
                self._cuts.append((time.monotonic(), self._cut))
            self._cut = ArchiveCut(self._writer.last, dict(self._appended))

    # time

    async def _keep_ticking(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = TICK_S
        while self._replaced is None:
            await asyncio.sleep(pause_s)
            try:
                await loop.run_in_executor(self._disk, self._tick)
                self._works("store")
                pause_s = TICK_S
            except (OSError, TransportError) as error:
                self._fails("store", error)
                pause_s = min(2 * pause_s, AGAIN_S_MAX)

    # answering

    def post(self, message: ToArchive) -> bool:
        """A client asks; the answer goes out when it is there. Tells whether a file is sealed for it."""
        if self._replaced is not None:
            self._reply(message.client, NotFetched(message.request, self._replaced))
            return False
        if isinstance(message, Follow):
            self._follow(message)
            return False
        # Questions are repeated until they are answered; one that is being worked on is not begun again.
        asked = self._asked.setdefault(owner(message.client), {})
        question = (message.client, type(message), message.request)
        if question in asked:
            return False
        if len(asked) >= self._deployment.limits.client_requests_max:
            self._refuse(message, self._too_many)
            return False
        asked[question] = None
        loop = asyncio.get_running_loop()
        if isinstance(message, ToGroups):
            view = loop.run_in_executor(self._disk, self._groups.handle, message, time.monotonic())
            view.add_done_callback(lambda done: self._send(message, done))
            return False
        is_wanted = (
            message.seal if isinstance(message, Fetch) else self._cut.numbers.get(message.topic, 0) < message.number
        )
        seals = is_wanted and loop.time() >= self._seal_again_s
        if seals:
            self._seal_again_s = loop.time() + SEAL_S
            sealed = loop.run_in_executor(self._disk, self._seal, self._heard_upto())
            sealed.add_done_callback(self._sealed)
        self.counters.answers += 1
        task = loop.run_in_executor(self._reading, self._answer, message)
        task.add_done_callback(lambda done: self._send(message, done))
        return seals

    def _sealed(self, done: "asyncio.Future[None]") -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, OSError | TransportError):
            self._fails("store", error)
        elif isinstance(error, Exception):
            self._guard.failed(error)

    @property
    def _too_many(self) -> PeerError:
        most = self._deployment.limits.client_requests_max
        return PeerError(f"{most} questions wait, which is the most", "requests")

    def _refuse(self, message: ToArchive, error: PeerError) -> None:
        self._refused(message.client, error)
        self._reply(message.client, NotFetched(message.request, str(error), error.code))

    def _send(self, message: ToArchive, done: "asyncio.Future[Any]") -> None:
        party = owner(message.client)
        asked = self._asked.get(party, {})
        asked.pop((message.client, type(message), message.request), None)
        if not asked:
            self._asked.pop(party, None)
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._reply(message.client, done.result())
        else:
            self.counters.failures += 1
            logger.error("archive %s: %s", self._store.where, error)
            self._reply(message.client, NotFetched(message.request, str(error)))

    def _answer(self, message: Fetch | Locate) -> Fetched | Located:
        cut = self._cut
        return answer(self._store.view(), cut, message)


def covers_all(done: dict[str, int], numbers: dict[str, int]) -> bool:
    """Whether a position is after everything that a cut has of its topics."""
    return all(number >= numbers.get(topic, 0) for topic, number in done.items())


def _row(seq: int, item: Notification, now: Micros) -> ArchivedEvent:
    event = item.event
    assert event is not None
    headers = {ATTRIBUTES: msgspec.json.encode(event.attributes).decode()} if event.attributes else {}
    return ArchivedEvent(
        seq,
        item.topic,
        item.number,
        event.publisher,
        event.sequence,
        event.born_at or None,
        now,
        item.deadline_us,
        headers,
        event.payload,
    )


def _gap_row(seq: int, topic: str, first: int, last: int, reason: str, now: Micros) -> ArchivedEvent:
    return ArchivedEvent(seq, topic, last, "", 0, None, now, None, {GAP: str(first)}, reason.encode())


def archive_directory(base: Path, data: str | None, name: str) -> Path:
    """Where a node with the role `archive` keeps it, or with a stream at least the views of its groups."""
    if data is None:
        raise MisuseError(f"node {name!r} has the role archive and no data directory to keep it in")
    return base / data / name / "archive"
