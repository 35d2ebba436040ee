"""What a live audit keeps between two batches: all of it plain data, so that it can be written down."""

import msgspec
from msgspec import Struct, field

from unisono.audit.judges.fifo import Latest
from unisono.errors import FormatError
from unisono.model.journal import Record

STATE_VERSION = 1


class LiveLimits(Struct, frozen=True):
    """How long a live audit waits, and how much it keeps."""

    lateness_us: int = 5_000_000
    """An event is judged when everything told of it is this much older than the newest row of the slowest region. At
    least: how far apart the notifications of one event are, plus how far clocks are. Price: verdicts come that late."""
    silence_us: int = 60_000_000
    """A region that is this far behind the foremost one no longer holds the others up. What it tells of events that
    were judged meanwhile is late."""
    rows_max: int = 1_000_000
    """Rows of events that are still open. Beyond it the older half is judged at once. About 400 bytes a row."""
    remembered_max: int = 1_000_000
    """Notifications of events that were judged: who is notified of one of them again, or late, is told. Beyond it the
    oldest are forgotten. About 200 bytes each."""
    lines_max: int = 1_000_000
    """Pairs of a subscriber and a publisher (and topic) whose order is known; beyond it the longest unused are
    forgotten. About 200 bytes each."""
    causal_window: int = 1000
    """Of each subscriber so many last notifications wait for causes that come too late. A clock each."""


class JournalRow(Struct, frozen=True, array_like=True, gc=False):
    """A row as it was taken: the how-manieth, and where it came from."""

    ordinal: int
    region: str
    record: Record

    @property
    def moment(self) -> int:
        return moment_of(self.record)


def moment_of(record: Record) -> int:
    """When it happened; 0 says nobody knows."""
    return record.at_us if record.delivered_us is None else record.delivered_us


class Notified(Struct, frozen=True, array_like=True, gc=False):
    """One subscriber's first notification of an event that was judged."""

    ordinal: int
    position: int | None
    is_tag: bool


class JudgedEvent(Struct):
    """What is remembered of an event that was judged."""

    notified: dict[str, Notified] = field(default_factory=dict)
    notifications: int = 0
    is_refused: bool = False
    deadline_us: int | None = None


class Sum(Struct):
    """What one judge has found so far."""

    violations: int = 0
    witness: str = ""


class LiveState(Struct):
    """Everything; see `LiveAudit` for what is done with it."""

    version: int = STATE_VERSION
    batch: int = -1
    """The last batch that was judged."""
    ordinal: int = 0
    is_timed: bool = False
    has_clocks: bool = False
    has_authors: bool = False
    regions: dict[str, int | None] = field(default_factory=dict)
    """Region -> the newest moment it told of; None if it told nothing yet."""
    watermark: int | None = None
    open: dict[str, list[JournalRow]] = field(default_factory=dict)
    """Event -> what was told of it."""
    loose: list[JournalRow] = field(default_factory=list)
    """Rows that name no event: restarts, gaps, stalls."""
    judged: dict[str, JudgedEvent] = field(default_factory=dict)
    """The oldest first."""
    remembered: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    """Subscriber -> the position up to which its stream was judged."""
    fifo: Latest = field(default_factory=dict)
    publisher_order: Latest = field(default_factory=dict)
    clocks: dict[str, list[tuple[str, int, dict[str, int]]]] = field(default_factory=dict)
    """Subscriber -> event, position and clock of its last notifications, whose causes all came before them so far."""
    needs: dict[str, dict[str, int]] = field(default_factory=dict)
    """Subscriber -> publisher -> the highest number that one of these clocks has of it, or had."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Process -> its last restart."""
    homes: dict[str, str] = field(default_factory=dict)
    """Publisher -> the region its publications were told from."""
    sums: dict[str, Sum] = field(default_factory=dict)
    """Judge -> what it found; a judge without columns is not here."""
    deliveries: int = 0
    events: int = 0
    late: int = 0
    forced: int = 0
    forgotten: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LiveState)


def encode_state(state: LiveState) -> bytes:
    return _encoder.encode(state)


def decode_state(data: bytes, where: str) -> LiveState:
    """`where` names it in errors."""
    try:
        state = _decoder.decode(data)
    except msgspec.MsgspecError as problem:
        raise FormatError(where, f"is no state of a live audit: {problem}") from None
    if state.version != STATE_VERSION:
        raise FormatError(where, f"a state of version {state.version}; this program reads version {STATE_VERSION}")
    return state
