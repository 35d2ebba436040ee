"""What clients and an archive say to each other; the rows need no Arrow to be read.

An answer is a piece of the archive's own order: every row of the topics asked for with `after` < seq <= `upto`. When
`upto` has reached `sealed`, the receiver stands at a consistent cut, and `covers` says which one: per topic the last
number that is in it, be it as an event, as a recorded gap or as a number that never was an event.
"""

import msgspec
from msgspec import Struct

from unisono.archive.headers import GAP as GAP
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.numbers import Integer, Number, NumberOrNone
from unisono.model.time import Micros
from unisono.protocols.groups.messages import Enlisted, ToGroups

ATTRIBUTES = "unisono-attributes"


class ArchiveRow(Struct, frozen=True, array_like=True):
    """One row of an archive."""

    seq: Number
    topic: str
    number: Number
    publisher: str
    publisher_seq: Number
    headers: dict[str, str]
    payload: bytes
    published_us: Integer = 0
    """0: nobody said."""


class Fetch(Struct, frozen=True, tag="Fetch"):
    """Rows after a sequence, of these topics, with numbers above those given; `after` -1 starts where those begin."""

    client: Address
    request: Number
    after: NumberOrNone
    topics: tuple[str, ...]
    above: dict[str, Number] = {}
    seal: bool = False
    """The client waits for what is not sealed yet."""


class Fetched(Struct, frozen=True, tag="Fetched"):
    """The answer to Fetch."""

    request: Number
    rows: tuple[ArchiveRow, ...]
    upto: Number
    sealed: Number
    covers: dict[str, Number]
    dropped: dict[str, Number]
    """Per topic the last number that retention has removed."""


class Locate(Struct, frozen=True, tag="Locate"):
    """Which row is number `number` of a topic, or the last one before it if that never was an event?"""

    client: Address
    request: Number
    topic: str
    number: Number


class Located(Struct, frozen=True, tag="Located"):
    """The answer to Locate; 0 if the archive does not have it. `covers`: the last number of the topic it offers."""

    request: Number
    seq: Number
    covers: Number


class Follow(Struct, frozen=True, tag="Follow"):
    """Topics that may be new: answered when the archive hears everything that is published on them from now on."""

    client: Address
    request: Number
    topics: tuple[str, ...]


class Following(Struct, frozen=True, tag="Following"):
    """The answer to Follow."""

    request: Number


class NotFetched(Struct, frozen=True, tag="NotFetched"):
    """The archive could not answer, and why; `code` is one of `model.limits.REASONS`."""

    request: Number
    reason: str
    code: str = "protocol"


ToArchive = Fetch | Locate | Follow | ToGroups
FromArchive = Fetched | Located | Following | NotFetched | Enlisted


def to_event(row: ArchiveRow) -> Event:
    """The event that a row keeps."""
    text = row.headers.get(ATTRIBUTES)
    attributes = msgspec.json.decode(text) if text is not None else {}
    return Event(row.publisher, row.publisher_seq, row.topic, row.payload, attributes, Micros(row.published_us))
