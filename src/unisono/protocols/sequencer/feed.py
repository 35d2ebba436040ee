"""What a subscriber has heard on one topic and not yet processed: runs as far as they are known, and payloads."""

from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.messages import Entries, Run


class Item:
    """A run as far as it is known."""

    __slots__ = ("entries", "first", "last", "missing", "publisher", "request", "settled", "since", "void")

    def __init__(self, run: Run, now: Micros) -> None:
        self.since = now  # when we first knew of it: its deadlines run from here
        self.first = run.first
        self.last = run.first + run.count - 1
        self.publisher = run.publisher
        self.request = run.request
        self.entries: Entries = run.entries  # shared with the message: never changed in place
        self.missing: dict[Topic, None] | None = None  # None: not known yet
        self.settled: dict[Topic, None] = {}  # by pieces that came before the home's
        self.void = False


def singles(run: Run) -> list[Run]:
    if run.count == 1:
        return [run]
    return [Run(run.first + i, 1, run.publisher, run.request + i, run.entries) for i in range(run.count)]


class Feed:
    """What has come in on one topic."""

    __slots__ = (
        "awaited",
        "base",
        "cleared",
        "gate",
        "head",
        "heard",
        "items",
        "live",
        "lost",
        "mark",
        "muted",
        "payloads",
        "skipped",
        "stalled",
        "waiting_for",
        "waiting_since",
    )

    def __init__(self) -> None:
        self.live = False  # joining until the subscription is complete
        self.muted = False  # the application has left already
        self.base = 0
        self.gate: Entries = {}
        self.items: dict[int, Item] = {}
        self.head = 0  # the first number of the run that is being processed
        self.cleared = 0  # the same, if its timestamp holds nothing back any more
        self.awaited: tuple[Address, int] | None = None  # the payload that is all the head waits for
        self.payloads: dict[tuple[Address, int], tuple[Event, Micros]] = {}
        self.lost: dict[int, None] = {}  # numbers whose payload will not come
        self.skipped: dict[tuple[Address, int], int] = {}  # requests whose numbers went by without their payload
        self.mark = 0  # the highest number known to exist
        self.waiting_for = 0  # the number we wait for, and since when
        self.waiting_since = Micros(0)
        self.stalled = False
        self.heard = Micros(0)  # when the home last answered
