"""What a subscription writes into the journal of its session: judges read there what it was promised, and was told."""

from collections.abc import Iterable

from unisono.machine import Gap
from unisono.model.content import note_of
from unisono.model.event import Event
from unisono.model.ids import event_id
from unisono.model.journal import Record
from unisono.runtime.client.subscription.stream_session import StreamSession, SubscribedStream


class SubscriptionJournal:
    """The records of one stream."""

    def __init__(self, session: StreamSession, stream: SubscribedStream) -> None:
        self.is_kept = session.journals
        """Without it deliveries, which are many, are not worth a record."""
        self._session, self._stream = session, stream
        self._count = 0

    def subscribed(self, name: str, base: int) -> None:
        """From the number after `base` on everything that is selected is owed."""
        now, sid, note = self._session.now(), self._stream.sid, note_of(self._stream.where)
        self._session.note(Record("subscribe", now, sid, sid, topic=name, number=base, note=note))

    def selected(self, bases: Iterable[tuple[str, int]]) -> None:
        """A new filter decides from now on."""
        now, sid, note = self._session.now(), self._stream.sid, note_of(self._stream.where)
        for name, base in bases:
            self._session.note(Record("subscribe", now, sid, sid, topic=name, number=base, published_us=now, note=note))

    def unsubscribed(self, names: Iterable[str]) -> None:
        """Nothing more of these is owed."""
        now, sid = self._session.now(), self._stream.sid
        for name in names:
            self._session.note(Record("unsubscribe", now, sid, sid, topic=name))

    def delivered(self, event: Event, number: int, late: bool) -> None:
        self._count += 1
        now, sid = self._session.now(), self._stream.sid
        self._session.note(
            Record(
                "tag" if late else "deliver",
                now,
                who=sid,
                subscriber=sid,
                event=event.id,
                position=self._count,
                topic=event.topic,
                number=number or None,
                publisher=event.publisher,
                publisher_seq=event.sequence,
                published_us=event.born_at or None,
                delivered_us=now,
            )
        )

    def gap(self, name: str, gap: Gap) -> None:
        now, sid = self._session.now(), self._stream.sid
        if gap.publisher:
            for number in range(gap.first, gap.last + 1):
                event = event_id(gap.publisher, number)
                self._session.note(Record("gap", now, sid, sid, event, topic=name, note=gap.reason))
            return
        self._session.note(
            Record("gap", now, sid, sid, topic=name, number=gap.first, last_number=gap.last, note=gap.reason)
        )

    def stalled(self, name: str, reason: str) -> None:
        sid = self._stream.sid
        self._session.note(Record("stalled", self._session.now(), sid, sid, topic=name, note=reason))

    def cut(self, publishers: Iterable[tuple[str, int]], reason: str) -> None:
        sid = self._stream.sid
        self._session.note(Record("cut", self._session.now(), sid, sid, clock=dict(publishers), note=reason))

    def committed(self, position: str) -> None:
        sid = self._stream.sid
        self._session.note(Record("commit", self._session.now(), sid, sid, note=position))
