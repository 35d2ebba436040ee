"""Names of things. Inside the machines topics are small integers; their names live at the edge only."""

from typing import NewType

Topic = NewType("Topic", int)
"""An interned topic, unique in a deployment and never reused."""

Address = NewType("Address", str)
"""Whom a message can be sent to: a node or a client, unique in a deployment."""

EventId = NewType("EventId", str)
"""Names one event for ever: `publisher:sequence`."""


def event_id(publisher: str, sequence: int) -> EventId:
    return EventId(f"{publisher}:{sequence}")
