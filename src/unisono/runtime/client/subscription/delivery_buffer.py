"""What waits between a stream and its reader: bounded, and never less than was delivered without a word about it.

At the bound a best-effort stream drops the oldest and says so by a gap; a reliable one stops reading from the broker
until half of what may wait has been read.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from unisono.errors import MisuseError, UnisonoError
from unisono.machine import Gap
from unisono.model.event import Scalar
from unisono.model.ids import Topic
from unisono.model.payload import Decode
from unisono.model.promise import Promise
from unisono.runtime.client.subscription.journaling import SubscriptionJournal
from unisono.runtime.client.subscription.notification import Notification, NotificationRun, SubscriptionProgress
from unisono.runtime.client.subscription.stream_session import StreamSession

REASON = "the subscriber was too slow"


class DroppedEvents:
    """Dropped events as one gap each topic, or each publisher where topics have no numbers."""

    def __init__(
        self,
        session: StreamSession,
        cells: dict[str, str],
        decode: Decode,
        progress: SubscriptionProgress,
        journaling: SubscriptionJournal,
    ) -> None:
        self.notices: dict[str, Notification] = {}
        """Not told yet."""
        self._session, self._cells, self._decode = session, cells, decode
        self._progress, self._journaling = progress, journaling

    def add(self, oldest: Notification) -> None:
        name, event, gap = oldest.topic, oldest.event, oldest.gap
        if self._cells:  # gaps are of cells
            name = event.topic if event is not None else (gap and self._session.name_of(gap.topic)) or name
        if gap is None and event is None:
            self.notices[f"{type(oldest.cut or oldest.stalled).__name__} {name} {len(self.notices)}"] = oldest
            return
        publisher = gap.publisher if gap is not None else ""
        first, last = (gap.first, gap.last) if gap is not None else (oldest.number, oldest.number)
        if event is not None and not last:
            publisher, first, last = event.publisher, event.sequence, event.sequence
        topic = self._session.topic_of(name) or Topic(0)
        if gap is None:
            self._journaling.gap(name, Gap(topic, first, last, REASON, publisher))
        held = self.notices.get(publisher or name)
        if held is not None and held.gap is not None:
            first = held.gap.first
        whole = Gap(topic, first, last, REASON, publisher)
        said = NotificationRun(
            self._cells.get(name, name), last, (), False, self._progress.turn, 0, self._decode, whole
        )
        self.notices[publisher or name] = Notification(last, b"", said)


class Latest:
    """The newest event that waits, per topic and key: the attribute `key`, if it has one. Older ones are left out when
    their turn comes, so that nothing is searched for."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, Scalar | None], Notification] = {}

    def add(self, notification: Notification) -> None:
        self._newest[self._key(notification)] = notification

    def is_kept(self, notification: Notification) -> bool:
        return notification.event is None or self._newest.get(self._key(notification)) is notification

    def take(self, notification: Notification) -> Notification | None:
        if not self.is_kept(notification):
            return None
        return self._newest.pop(self._key(notification))

    def _key(self, notification: Notification) -> tuple[str, Scalar | None]:
        assert notification.event is not None
        return notification.topic, notification.event.attributes.get("key")


class DeliveryBuffer:
    """Notifications in the order of their delivery, and the reader that waits for the next one."""

    def __init__(
        self,
        promise: Promise,
        latest_only: bool,
        dropped: DroppedEvents,
        pause: Callable[[], None],
        resume: Callable[[], None],
    ) -> None:
        """`pause` and `resume`: whether the stream is read from the broker."""
        self.queue: deque[Notification] = deque()
        self.count_max = promise.buffer_events_max
        self.is_pausing = False
        self.is_over = False
        """Nothing more comes after what waits."""
        self.error: UnisonoError | None = None
        """What the reader gets after what waits."""
        self._is_reliable = promise.reliability == "reliable"
        self._latest = Latest() if latest_only else None
        self._dropped, self._notices = dropped, dropped.notices
        self._pause, self._resume = pause, resume
        self._reader: asyncio.Future[None] | None = None

    # the reader

    def take(self) -> Notification | None:
        """The oldest; None if nothing waits."""
        if self._notices:
            return self._notices.pop(next(iter(self._notices)))
        while self.queue:
            notification = self.queue.popleft()
            if self.is_pausing:
                self._let_in()
            if self._latest is None or notification.event is None:
                return notification
            newest = self._latest.take(notification)
            if newest is not None:
                return newest
        return None

    def take_behind(self, first: Notification, count_max: int) -> list[Notification]:
        """What has been taken, and what waits after it: at most as many in all."""
        batch = [first]
        if self._latest is None:
            take = self.queue.popleft
            batch += [take() for _ in range(min(len(self.queue), count_max - 1))]
        else:
            while self.queue and len(batch) < count_max:
                notification = self.queue.popleft()
                newest = self._latest.take(notification) if notification.event is not None else notification
                if newest is not None:
                    batch.append(newest)
        if self.is_pausing:
            self._let_in()
        return batch

    def arrival(self) -> "asyncio.Future[None]":
        """Done when it is worth looking again. There is one reader: of two, neither would see an order."""
        if self._reader is not None and not self._reader.done():
            raise MisuseError("somebody reads this stream already: one task reads, and hands on to others")
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    async def room(self) -> None:
        """Returns when the reader has read at least half of what may wait."""
        await asyncio.sleep(0)
        while 2 * len(self.queue) > self.count_max and not self.is_over:
            await asyncio.sleep(0.002)

    def _let_in(self) -> None:
        """Reads from the broker again when there is room, or when nobody will read what waits."""
        if self.is_over or 2 * len(self.queue) <= self.count_max:
            self.is_pausing = False
            self._resume()

    # the stream

    def push(self, notification: Notification) -> None:
        queue = self.queue
        if self._latest is not None:
            if notification.event is not None:
                self._latest.add(notification)
            if len(queue) >= self.count_max:
                queue = self.queue = deque(filter(self._latest.is_kept, queue))
        if len(queue) >= self.count_max:
            if self._is_reliable:
                if not self.is_pausing:
                    self.is_pausing = True
                    self._pause()
            else:
                self._dropped.add(queue.popleft())
        queue.append(notification)

    def push_all(self, row: list[Notification]) -> None:
        """The same for many, at the cost of one if there is room."""
        if self._latest is None and len(self.queue) + len(row) <= self.count_max:
            self.queue.extend(row)
        else:
            for notification in row:
                self.push(notification)

    def wake(self) -> None:
        """The reader looks again."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def fail(self, error: UnisonoError) -> None:
        self.error = error
        self.wake()

    def end(self) -> None:
        self.is_over = True
        if self.is_pausing:
            self._let_in()
        self.wake()
