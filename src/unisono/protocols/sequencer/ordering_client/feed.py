"""What a subscriber has heard on one topic and not yet processed: runs as far as they are known, and payloads."""

from collections.abc import Callable

from msgspec import Struct

from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.time import NEVER, Micros
from unisono.protocols.sequencer.messages import Entries, Numbers, Run, Topics
from unisono.protocols.sequencer.ordering_client.held import Held


class KnownRun(Struct, gc=False):
    """A run as far as it is known."""

    first: int
    last: int
    publisher: Address
    request: int
    topics: Topics
    numbers: Numbers
    since: Micros
    """When we first knew of it: its deadlines run from here."""
    missing: Topics | None = None
    """Topics whose entries are still to come; None: not known yet."""
    settled: Topics = ()
    """By pieces that came before the home's."""
    met: int = 0
    """So many entries, the first ones, are known to have been reached."""
    short: bool = False
    """As the run."""


def singles(run: Run) -> list[Run]:
    if run.count == 1:
        return [run]
    return [Run(run.first + i, 1, run.publisher, run.request + i, run.topics, run.numbers) for i in range(run.count)]


ASKS_MAX = 100
"""Numbers of one topic that are asked for at once: the pace of catching up after a long silence of the broker."""
LOOKS_MAX = 1_000
"""Runs of one topic that are looked at for that."""


class Feed:
    """What has come in on one topic."""

    __slots__ = (
        "answers_since",
        "asked_at",
        "awaited",
        "base",
        "brought",
        "cleared",
        "gate",
        "head",
        "heard",
        "items",
        "lease_end",
        "live",
        "lost",
        "mark",
        "mark_before",
        "missed",
        "missed_at",
        "muted",
        "payloads",
        "skipped",
        "stalled",
        "tagged",
        "waiting_for",
        "waiting_since",
    )

    def __init__(self) -> None:
        self.live = False  # joining until the subscription is complete
        self.muted = False  # the application has left already
        self.base = 0
        self.gate: Entries = {}
        self.items: dict[int, KnownRun] = {}
        self.head = 0  # the first number of the run that is being processed
        self.cleared = 0  # the same, if its timestamp holds nothing back any more
        self.awaited: tuple[Address, int] | None = None  # the payload that is all the head waits for
        self.payloads = Held()
        self.lost: dict[int, None] = {}  # numbers whose payload will not come
        self.skipped: dict[tuple[Address, int], int] = {}  # requests whose numbers went by without their payload
        self.mark = 0  # the highest number known to exist
        self.brought = 0  # the highest number that its home has told of over the broker
        self.mark_before = 0  # when we looked last
        self.missed_at = Micros(-NEVER)  # when the broker last said that it may have lost something
        self.missed = False  # the broker may have lost something, and the home has not said yet how far the topic is
        self.waiting_for = 0  # the number we wait for, and since when
        self.waiting_since = Micros(0)
        self.stalled = False
        self.tagged: dict[tuple[Address, int], None] = {}  # told out of order while the topic was stalled
        self.asked_at = Micros(-NEVER)  # when the home was last asked
        self.heard = Micros(0)  # when the home last answered
        self.answers_since = Micros(0)  # when the last silence of the home ended
        self.lease_end = NEVER  # from then on the home may have forgotten us

    def skip(self, key: tuple[Address, int], number: int, bound: int) -> None:
        """The number has gone by without its payload."""
        self.skipped[key] = number
        if len(self.skipped) > bound:
            del self.skipped[next(iter(self.skipped))]

    def drop_unnumbered(self, most: int) -> None:
        """Forgets payloads that nobody has numbered, if they are most of what waits."""
        numbered: dict[Address, int] = {}
        for item in self.items.values():
            last = item.request + item.last - item.first
            numbered[item.publisher] = max(last, numbered.get(item.publisher, 0))
        self.payloads.drop_unnumbered(numbered, most)

    def tag_all(self, bound: int) -> list[Event]:
        """Everything held back, to be told out of order; beyond the bound the oldest will end in a gap as well."""
        events = []
        for publisher, request, event in self.payloads.take_all():
            self.tagged[publisher, request] = None
            events.append(event)
        while len(self.tagged) > bound:
            del self.tagged[next(iter(self.tagged))]
        return events

    def overdue(self, number: int, lacks: Callable[[KnownRun | None], bool]) -> list[int]:
        """Numbers from `number` on that existed when we looked last, and whose timestamps, as far as they concern our
        topics, we still lack: asked for together, they wait together."""
        upto, self.mark_before = self.mark_before, self.mark
        unknown: list[int] = []
        for _ in range(LOOKS_MAX):
            if number > upto or len(unknown) == ASKS_MAX:
                break
            item = self.items.get(number)
            if lacks(item):
                unknown.append(number)
            number = number + 1 if item is None else item.last + 1
        return unknown
