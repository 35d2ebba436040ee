"""Ranges of the integers that travel. They are part of the types of messages, so every decoder checks them at the door.

Strangers choose numbers, and nodes add to them and write the sums into logs and snapshots: a number at the end of what
msgpack can carry makes a sum that cannot be written, at every restart again. What clients choose (`Request`) ends far
below what nodes count (`Number`), and that far below 64 bits: no sum of what has passed a door is refused at the next.
"""

from typing import Annotated

from msgspec import Meta

from unisono.model.ids import Topic
from unisono.model.time import Micros

Number = Annotated[int, Meta(ge=0, le=2**62)]
"""Counted by nodes: events of a topic, frames of a link."""
NumberOrNone = Annotated[int, Meta(ge=-1, le=2**62)]
"""The same, and -1 for "not even the first"."""
Request = Annotated[int, Meta(ge=0, le=2**53)]
"""Chosen by clients: requests, versions, numbers they ask for."""
Count = Annotated[int, Meta(ge=1, le=2**20)]
"""How many of them in one go."""
Span = Annotated[int, Meta(ge=0, le=2**53)]
"""Microseconds that somebody has measured: none, by a clock that is looked at once a turn, or a minute."""
TopicNumber = Annotated[Topic, Meta(ge=0, le=2**62)]
Moment = Annotated[Micros, Meta(ge=-(2**62), le=2**62)]
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A value in an event, such as an attribute; it is only handed on."""
