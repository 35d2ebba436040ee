"""What a session adds to its journal when it records everything: events as they leave, and as they arrive.

With the rows of nodes (`unisono node --journal all`) `unisono story` tells an event's way across regions. Off unless
asked for (`connect(…, journal=, record="all")`): it costs a row for each event, at both ends.
"""

from collections.abc import Callable
from typing import Any, Protocol

from unisono.machine import Heard
from unisono.model.event import Payloads
from unisono.model.ids import Address
from unisono.model.journal import Record
from unisono.model.time import Micros
from unisono.runtime.links.links import LetterReceiver


class RecordingSession(Protocol):
    """Where the rows go."""

    def now(self) -> Micros: ...

    def note(self, record: Record) -> None: ...


def place(region: str | None) -> str | None:
    """A region, as a note."""
    return f"in {region}" if region is not None else None


class RecordedArrivals:
    """Stands before a machine: what the broker brings is noted, and handed on."""

    def __init__(self, inside: LetterReceiver, session: RecordingSession, sid: Address, region: str | None) -> None:
        self._inside, self._session, self._sid, self._where = inside, session, sid, place(region)

    def post(self, message: Any) -> None:
        if type(message) is Heard and type(message.message) is Payloads:
            now = self._session.now()
            for event in message.message.events:
                self._session.note(
                    Record("arrive", now, self._sid, self._sid, event.id, topic=event.topic, note=self._where)
                )
        self._inside.post(message)

    @property
    def is_full(self) -> bool:
        return self._inside.is_full

    def when_roomy(self, callback: Callable[[], None]) -> None:
        self._inside.when_roomy(callback)


def note_sent(session: RecordingSession, who: Address, region: str | None, message: Any) -> None:
    """Payloads are handed to the broker."""
    if type(message) is Payloads:
        now, where = session.now(), place(region)
        for event in message.events:
            session.note(Record("send", now, who, event=event.id, topic=event.topic, peer="the broker", note=where))
