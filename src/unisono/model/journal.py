"""The journal: one record type for everything that ever happened, and a header that says what was promised.

Drivers write journals, judges read them, `story` tells one event's life from them, Spark reads them as they are.
A JSONL journal is one header line and one line per record. The Arrow form has the same columns, in the order of
the fields here, and the header as JSON under the schema metadata key `unisono.journal`. Absent means null.
"""

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

JOURNAL_VERSION = 1
HEADER_KEY = "unisono.journal"

Kind = Literal[
    "publish",  # a publisher handed an event to its client
    "outcome",  # the client told the publisher: note is accepted ordered, accepted stored, refused or unknown
    "timestamp",  # a number was issued to an event (number)
    "send",  # a message left `who` for `peer`
    "arrive",  # a message or payload reached `who`
    "deliver",  # a subscriber was notified, in order (position counts its notifications from 1)
    "tag",  # a subscriber was notified, marked out of order
    "gap",  # a subscriber was told that number..last_number of topic will not come
    "cut",  # a subscriber was told that publishers cannot be heard any more; clock has the last number of each
    "stalled",  # a subscriber was told that topic waits for somebody unreachable
    "void",  # a number was declared empty for everybody
    "subscribe",  # a subscription took effect; number is its base: nothing up to it is owed
    "unsubscribe",  # it ended
    "commit",  # a subscriber made position its resume point
    "refuse",  # an illegal message or an impossible request was turned away; note says why
    "crash",  # `who` stopped without warning
    "restart",  # it came back
    "fault",  # the world did something to the network; note says what
    "move",  # a topic changed its home to peer
    "kept",  # a reader found the event in the archive, or in the broker that retains it
    "searched",  # a reader went through everything that is kept of topic: what it did not find is not there
    "call",  # `who` asked for something of the key `topic`; note says what (see the judge linearizable)
    "answer",  # it was told note
    "end",  # the run reached quiescence: nothing is under way any more
]
KINDS: tuple[str, ...] = get_args(Kind)
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Numbers of a journal: every form has to hold them, and columns are 64 bits wide."""


class Header(Struct, frozen=True, omit_defaults=True):
    """What the run was, and which judges it claims to satisfy."""

    journal: int = JOURNAL_VERSION
    promises: tuple[str, ...] = ("pairwise-order",)
    """Names of judges (see `unisono.audit`): the promise the exit status of `unisono audit` depends on."""
    scenario: str | None = None
    seed: int | None = None
    note: str | None = None
    skew_us: int = 0
    """How far apart the clocks of two hosts may be: `timely` compares the moments of publisher and subscriber."""
    tolerance_us: int | None = None
    """What `realtime` allows: who publishes so long after another's event was accepted is heard after it."""


class Record(Struct, frozen=True, omit_defaults=True, gc=False):
    """One thing that happened, at `who`. Only the columns that mean something for the kind are set."""

    kind: Kind = "deliver"
    at_us: Int64 = 0
    who: str | None = None
    subscriber: str | None = None
    event: str | None = None
    position: Int64 | None = None
    topic: str | None = None
    number: Int64 | None = None
    last_number: Int64 | None = None
    publisher: str | None = None
    publisher_seq: Int64 | None = None
    published_us: Int64 | None = None
    delivered_us: Int64 | None = None
    deadline_us: Int64 | None = None
    clock: dict[str, Int64] | None = None
    depends_on: tuple[str, ...] | None = None
    peer: str | None = None
    note: str | None = None


class Journal(Struct):
    """A header and its records, in the order they were written."""

    header: Header
    records: list[Record]


_encoder = msgspec.json.Encoder()


def encode_line(item: Header | Record) -> bytes:
    """One JSONL line, newline included. `kind` and `at_us` are always written: a line speaks for itself."""
    if isinstance(item, Header):
        return (
            _encoder.encode({"journal": item.journal, "promises": item.promises, **msgspec.to_builtins(item)}) + b"\n"
        )
    # The encoder leaves defaults out; putting two back by hand is several times faster than encoding a dict.
    line = _encoder.encode(item)[1:]
    if item.at_us == 0:
        line = b'"at_us":0' + (b"," if line != b"}" else b"") + line
    if item.kind == "deliver":
        line = b'"kind":"deliver",' + line
    return b"{" + line + b"\n"
