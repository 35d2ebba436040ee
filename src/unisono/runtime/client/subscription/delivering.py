"""The way from a stream's machine to its reader: items become notifications, in the order they came.

While a replay is under way what comes in live waits until it has ended (`subscription.replay`). A hole in a reliable
stream begins one: nothing later is delivered before the archive has been asked.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from msgspec.structs import replace

from unisono.errors import TransportError
from unisono.machine import CutOff, Gap, Heard, Stalled, one_by_one
from unisono.model.content import TRACE, content_of, deadline_of
from unisono.model.event import Event, EventRow, Events
from unisono.model.ids import Topic
from unisono.model.payload import Decode
from unisono.model.predicate import flatten
from unisono.model.time import Micros
from unisono.runtime.client.measures import StreamCounters
from unisono.runtime.client.subscription.delivery_buffer import DeliveryBuffer
from unisono.runtime.client.subscription.journaling import SubscriptionJournal
from unisono.runtime.client.subscription.notification import (
    DeliveredTurn,
    Notification,
    NotificationRun,
    SubscriptionProgress,
)
from unisono.runtime.client.subscription.replay import Past, Replay
from unisono.runtime.client.subscription.stream_session import StreamSession, SubscribedStream


class Delivering:
    """Turns what the machine of one stream delivers into notifications."""

    def __init__(
        self,
        stream: SubscribedStream,
        session: StreamSession,
        waiting: DeliveryBuffer,
        progress: SubscriptionProgress,
        journaling: SubscriptionJournal,
        decode: Decode,
    ) -> None:
        self.told = StreamCounters()
        self.replay: Replay | None = None
        """Under way, or over and not noticed yet."""
        self._told: dict[str, int] = {}
        """Per topic: what comes in live up to this number was told by a replay whose archive was ahead of us."""
        self._stream, self._session, self._decode = stream, session, decode
        self._waiting, self._progress, self._journaling = waiting, progress, journaling
        self._cells, self._journals = stream.cells, journaling.is_kept

    def deliver(self, item: Any) -> None:
        if self.replay is not None:
            parts = one_by_one(item)
            if len(parts) > 1:
                for part in parts:
                    self.deliver(part)
                return
            if self._hold(item):
                return
        if self._told and self._is_told(item):
            return
        if type(item) is not Heard:
            self._deliver_notice(item)
        elif type(item.message) is EventRow or type(item.message) is tuple:
            self._deliver_row(item.message, item.number, item.spacing)
        else:
            self._deliver_event(item)

    def _deliver_event(self, item: Heard) -> None:
        event: Event = item.message
        name, number, late, turn = event.topic, item.number, item.late, self._progress.turn
        if late:
            self.told.late += 1
        else:
            self.told.delivered += 1
            turn.steps.append((name, number))
        if self._journals:
            self._journaling.delivered(event, number, late)
        if self._session.tracing is not None and TRACE in event.attributes:
            self._session.tracing.received(event, number, late)
        shown = self._cells.get(name, name) if self._cells else name
        said = NotificationRun(
            shown, number, (event,), late, turn, len(turn.steps), self._decode, told_at=self._told_at((event,))
        )
        self._waiting.push(Notification(number, event.payload, said))

    def _deliver_notice(self, item: Any) -> None:
        """What is no event: a gap, a stall, a cut; or an answer that the stream waits for."""
        match item:
            case Gap(topic=topic):
                name = self._session.name_of(topic) or str(topic)
                archive = self._stream.archive
                if archive is not None and self._stream.promise.reliability == "reliable":
                    self._fill(archive, name, item)
                else:
                    self.tell_gap(name, item)
            case Stalled(topic=topic, reason=reason):
                name = self._session.name_of(topic) or str(topic)
                self._journaling.stalled(name, reason)
                self.told.stalls += 1
                self._waiting.push(self._notice(self._cells.get(name, name), stalled=item))
                if item.ends:
                    self._stream.fail(TransportError(f"{name}: {reason}, and this subscription ends. Subscribe again"))
            case CutOff(publishers=publishers, reason=reason):
                self._journaling.cut(publishers, reason)
                self._waiting.push(self._notice("", cut=item))
            case _:
                self._stream.answered(item)

    def _deliver_row(self, events: Events, number: int, spacing: int) -> None:
        """Events of one topic with numbers in a row, or without any."""
        if isinstance(events, EventRow):
            name, payloads = events.topic, events.payloads
        else:
            name, payloads = events[0].topic, tuple(event.payload for event in events)
        turn = self._progress.turn
        end = number + len(payloads) * spacing
        self.told.delivered += len(payloads)
        turn.steps.append((name, end - spacing))
        step = len(turn.steps)
        if self._journals:
            for i, event in enumerate(events):
                self._journaling.delivered(event, number + i * spacing, late=False)
        shown = self._cells.get(name, name) if self._cells else name
        told_at = Micros(0) if isinstance(events, EventRow) else self._told_at(events)
        if self._session.tracing is not None and not isinstance(events, EventRow):
            for i, event in enumerate(events):
                if TRACE in event.attributes:
                    self._session.tracing.received(event, number + i * spacing, late=False)
        if not spacing:  # by its number none of them would be found
            told = (NotificationRun(shown, 0, (e,), False, turn, step, self._decode, told_at=told_at) for e in events)
            self._waiting.push_all(list(map(Notification, repeat(0), payloads, told)))
            return
        said = NotificationRun(shown, number, events, False, turn, step, self._decode, spacing=spacing, told_at=told_at)
        self._waiting.push_all(list(map(Notification, range(number, end, spacing), payloads, repeat(said))))

    def _told_at(self, events: Sequence[Event]) -> Micros:
        """Now, if any of them has a deadline of its own; those that are over are counted."""
        deadlines = [deadline for event in events if event.attributes and (deadline := deadline_of(event)) is not None]
        if not deadlines:
            return Micros(0)
        now = self._session.now()
        self.told.overdue += sum(deadline < now for deadline in deadlines)
        return now

    def end_turn(self) -> None:
        progress = self._progress
        if progress.turn.steps:
            progress.numbers.update(progress.turn.steps)
            progress.turn = DeliveredTurn(dict(progress.numbers))
        if self._waiting.queue:
            self._waiting.wake()

    def tell_gap(self, name: str, gap: Gap) -> None:
        self._journaling.gap(name, gap)
        self.told.gaps += 1
        self.told.missing += gap.last - gap.first + 1
        upto = gap.last if gap.settled < 0 else max(gap.settled, self._progress.reached().get(name, 0))
        self._progress.turn.steps.append((name, upto))
        self._waiting.push(self._notice(self._cells.get(name, name), gap))

    def tell_stalled(self, name: str, stalled: Stalled) -> None:
        """At once: no turn of the machine ends after it."""
        self._journaling.stalled(name, stalled.reason)
        self._waiting.push(self._notice(name, stalled=stalled))
        self._waiting.wake()

    def stalled(self, reason: str) -> Notification:
        """A notice that all topics wait."""
        return self._notice(next(iter(self._stream.topics), ""), stalled=Stalled(Topic(0), Micros(0), reason))

    def _notice(
        self, shown: str, gap: Gap | None = None, stalled: Stalled | None = None, cut: CutOff | None = None
    ) -> Notification:
        number, turn = gap.last if gap is not None else 0, self._progress.turn
        said = NotificationRun(shown, number, (), False, turn, len(turn.steps), self._decode, gap, stalled, cut)
        return Notification(number, b"", said)

    # replay

    def begin_replay(self, archive: Past, above: dict[str, int]) -> Replay:
        """From the next item on everything is held: the past comes first, as soon as the replay is started."""
        self.replay = Replay(self._stream, self, archive, above, self._waiting.count_max // 2)
        return self.replay

    def _fill(self, archive: Past, name: str, gap: Gap) -> None:
        """A hole: nothing later is delivered before the archive has been asked."""
        replay = self.begin_replay(archive, self._progress.reached())
        replay.hold(name, gap)
        replay.start()

    def _hold(self, item: Any) -> bool:
        """Whether a replay keeps this for the end; the first thing after a replay ends it."""
        assert self.replay is not None
        if self.replay.is_over:
            self.replay = None
            return False
        if isinstance(item, Gap):
            self.replay.hold(self._session.name_of(item.topic) or str(item.topic), item)
            return True
        if isinstance(item, Heard) and not item.late:
            self.replay.hold(item.message.topic, item)
            return True
        return False

    def _is_told(self, item: Any) -> bool:
        """Whether a replay has told it, or the rest of it is told here. In a topic numbers count up, but for a gap of
        one stamper, in whose span events of others may follow."""
        if isinstance(item, Gap):
            upto = self._told.get(self._session.name_of(item.topic) or str(item.topic), 0)
            if item.first <= upto < item.last:
                self._deliver_notice(replace(item, first=upto + 1))
            return item.first <= upto
        if type(item) is not Heard:
            return False
        message = item.message
        name = message[0].topic if type(message) is tuple else message.topic
        upto = self._told.get(name, 0)
        if item.number > upto:
            if not item.late:
                self._told.pop(name, None)
            return False
        parts = one_by_one(item)
        for part in parts if len(parts) > 1 else ():
            self.deliver(part)
        return True

    def has_told(self, numbers: dict[str, int]) -> None:
        """Everything up to these numbers: where a subscription is after them, it brings some of it again."""
        self._told = {name: number for name, number in numbers.items() if name in self._stream.topics}

    def begins(self, name: str) -> None:
        """The topic is in force anew: all after its base is owed, whatever was told before."""
        self._told.pop(name, None)

    def pass_on(self, name: str, item: Heard | Gap) -> None:
        """A replay delivers; what a live subscription delivers goes the same way."""
        replay, self.replay = self.replay, None
        where = self._stream.where
        if isinstance(item, Gap):
            self.tell_gap(name, item)
        elif where.is_everything or where.matches(flatten(content_of(item.message))):
            self.deliver(item)
        else:
            self._progress.turn.steps.append((name, item.number))
        self.replay = replay

    def skip_to(self, numbers: dict[str, int]) -> None:
        """Numbers up to these are done with, whether they were events or not."""
        self._progress.skip_to({name: number for name, number in numbers.items() if name in self._stream.topics})

    async def room(self) -> None:
        """Returns when the reader has read at least half of what may wait."""
        await self._waiting.room()
