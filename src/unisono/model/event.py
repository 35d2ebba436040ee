"""An event: what a publisher says once and a subscriber hears. Payload bytes are never interpreted."""

from msgspec import Struct

from unisono.model.ids import EventId, event_id
from unisono.model.time import Micros

Scalar = str | int | float | bool
"""What an attribute may hold; content filters speak of these."""


class Event(Struct, frozen=True, gc=False):
    """One publication. `publisher` and `sequence` name it for ever; sequences of a publisher count up from 1."""

    publisher: str
    sequence: int
    topic: str
    payload: bytes = b""
    attributes: dict[str, Scalar] = {}
    born_at: Micros = Micros(0)

    @property
    def id(self) -> EventId:
        return event_id(self.publisher, self.sequence)
