"""What a stamper writes down: it is the same again after a crash, since logged inputs alone change it."""

from itertools import islice
from typing import NamedTuple

from msgspec import Struct, field

from unisono.model.ids import Topic
from unisono.protocols.clock.keeper import KeeperState
from unisono.protocols.clock.messages import CloseLane, Create, KeyRules, LaneName, OpenLane
from unisono.protocols.clock.requests import runs_after
from unisono.protocols.clock.stamps import Lane, StampClock

BOUND_LASTS_US = 5_000_000
"""What the driver has said of the clock's error is true for so long."""
DRIFT = 1_000
"""Clocks go apart by at most one part in so many."""
STAMPS_MAX = 1 << 20
"""In a row, where nothing ends them."""
PAST_MAX = 1_000
"""Lanes that have ended and are kept for those who missed some of them."""


class StampedPublisher(Struct):
    """Stamps of one publisher count up with its requests (without causal order: with those of a topic), so the last one
    says it all."""

    last: int = 0
    stamp: int = 0
    """The latest of its stamps here."""
    floor: int = 0
    """What it had heard of when it came from another stamper: those stamps are before all that it gets here."""
    denied: int = 0
    """A request that was told to have no key gets none, however often it is asked for: what is asked again may still be
    on its way. The publisher settles it before it asks for what is later, so the last one says it all."""
    reason: str = ""


class StamperState(Struct):
    """Everything that is durable."""

    clock: StampClock = field(default_factory=StampClock)
    rules: KeyRules = KeyRules(True, 0)
    """Those of its config until it is told."""
    lanes: dict[int, Lane] = field(default_factory=dict)
    """By topic: our own for the topics that we keep, and those that others have granted."""
    past: list[tuple[int, Lane]] = field(default_factory=list)
    leases: dict[int, int] = field(default_factory=dict)
    """Keeper -> the last stamp that we may use on its topics."""
    opening: dict[int, None] = field(default_factory=dict)
    unanswered: dict[int, int] = field(default_factory=dict)
    """Keeper -> since when it has not answered what we ask of it."""
    leans: dict[int, int] = field(default_factory=dict)
    publishers: dict[str, StampedPublisher] = field(default_factory=dict)
    waiting: dict[str, Create] = field(default_factory=dict)
    """Publishers whose next request cannot be stamped yet."""
    keeper: KeeperState = field(default_factory=KeeperState)
    parked: list[OpenLane | CloseLane] = field(default_factory=list)
    """Asked before our clock could be trusted."""
    lost: list[int] = field(default_factory=list)
    """Stampers that had forgotten everything before that; their lanes are to be closed."""
    risen: int = 0
    """Everything since we have forgotten is later than this."""
    is_reborn: bool = False
    """We have forgotten, and have not risen above it yet."""
    is_warm: bool = False
    sure_at: int = 0
    """From this moment on what is known of the other clocks may do to begin with."""
    first: int = 0
    """Lanes of topics that are created begin after this place: who has forgotten cannot tell new from old."""
    bound: int = -1
    """Of our clock's error, as it was told at the moment beside it: which requests wait depends on it."""
    bound_at: int = 0

    def held_up(self) -> list[tuple[str, int, Topic]]:
        """Of each publisher that waits: the request that the others wait for, and its topic."""
        found = []
        for client, message in self.waiting.items():
            publisher = self.publishers.get(client) or StampedPublisher()
            for request, topic, _ in islice(runs_after(message, max(publisher.last, message.settled)), 1):
                found.append((client, request, topic))
        return found

    def retire(self, topic: Topic) -> None:
        """Our lane there has ended; what was stamped on it is kept for a while."""
        self.past.append((topic, self.lanes.pop(topic)))
        if len(self.past) > PAST_MAX:
            del self.past[0]

    def find(self, name: LaneName) -> Lane | None:
        """A lane of ours, open or past."""
        lane = self.lanes.get(name.topic)
        return lane if lane is not None and lane.epoch == name.epoch else self.find_past(name)

    def find_past(self, name: LaneName) -> Lane | None:
        return next((lane for topic, lane in self.past if (topic, lane.epoch) == (name.topic, name.epoch)), None)

    def error_of(self, stamp: int, now: int) -> int:
        """How far a stamp given now may be from the clock of all: clocks drift, and ours may stand and wait for its
        time to come. -1: nobody knows."""
        if self.bound < 0 or now > self.bound_at + BOUND_LASTS_US:
            return -1
        return self.bound + (now - self.bound_at) // DRIFT + max(0, stamp - self.clock.reading(now))

    def within_tolerance(self, stamp: int, now: int) -> int:
        """How many stamps from this one on are not further from the clock of all than half of the tolerance."""
        half = self.rules.tolerance_us // 2
        if not half:
            return STAMPS_MAX
        error = self.error_of(stamp, now)
        return 0 if error < 0 else max(0, half - error + 1)

    def error(self, now: int) -> int:
        return self.error_of(self.clock.read(now), now)


class StamperLook(NamedTuple):
    """A stamper as it is now: moments are those of its clock."""

    term: int
    is_warm: bool
    reading: int
    clock: int
    error: int
    waiting: int
    heard: dict[int, int]
    """What the others have promised."""
    lanes: list[tuple[Topic, int, int, int, int, int]]
    """Topic, keeper, epoch, last entry, watermark, lean."""
    beats: int
    ticks: int
    """Beats of this term, each to all others; ticks, those to all who hear them together."""
