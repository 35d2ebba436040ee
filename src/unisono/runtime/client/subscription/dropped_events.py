"""What nobody read in time: a slow subscriber is told what it missed before anything else."""

from unisono.machine import Gap
from unisono.model.ids import Topic
from unisono.model.payload import Decode
from unisono.runtime.client.subscription.journaling import SubscriptionJournal
from unisono.runtime.client.subscription.notification import Notification, NotificationRun
from unisono.runtime.client.subscription.position import SubscriptionProgress
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
