"""Stampers and subscribers of the clock order, alone, with everything that reaches them said by the test."""

from collections.abc import Sequence
from typing import Any

from unisono.machine import (
    Broadcast,
    Deliver,
    Effect,
    Fired,
    Heard,
    Joined,
    Persist,
    Restarted,
    Send,
    Subscribe,
    one_by_one,
)
from unisono.model.event import Event, Payload
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.clock.client import ClockClient
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.messages import (
    Base,
    Beat,
    Create,
    Entry,
    Granted,
    LaneClaim,
    LaneName,
    Lanes,
    LaneStamps,
    PeerMessage,
    Reading,
    Stamped,
    Tide,
)
from unisono.protocols.clock.stamper import StamperMachine

STAMPERS = (Address("n0"), Address("n1"), Address("n2"))
A, B = Topic(0), Topic(1)
HOMES = {A: 0, B: 1}
P, Q, ME = Address("p"), Address("q"), Address("me")
CONFIG = ClockConfig()
SECOND = 1_000_000


def kept(me: int) -> tuple[Topic, ...]:
    return tuple(topic for topic, home in HOMES.items() if home == me)


class StamperAlone:
    """Number `me` of three; remembers what it did."""

    def __init__(self, me: int = 0, warm: bool = True, at: int = 10_000 * SECOND, config: ClockConfig = CONFIG) -> None:
        self.machine = StamperMachine(me, STAMPERS, HOMES.get, kept(me), config)
        self.me, self.now, self.config = me, at, config
        self.log: list[tuple[int, Any]] = []
        self.say(Restarted())
        if warm:
            for other in range(3):
                if other != me:
                    self.say(Beat(STAMPERS[other], 1, 1, at, at - 1, (), True))

    def say(self, message: Any, after: int = 0) -> list[Effect]:
        self.now += after
        effects = self.machine.handle(message, Micros(self.now))
        # Frames of a session are durable whatever they do.
        if isinstance(message, PeerMessage) or any(isinstance(effect, Persist) for effect in effects):
            self.log.append((self.now, message))
        return effects

    def crash(self, at: int) -> list[Effect]:
        """Comes back from its log, `at` another moment."""
        self.machine = StamperMachine(self.me, STAMPERS, HOMES.get, kept(self.me), self.config)
        for then, message in self.log:
            self.machine.handle(message, Micros(then))
        self.now = at
        return self.say(Restarted())

    def create(
        self, *topics: Topic, first: int = 1, client: Address = P, after: int = 0, settled: int = 0
    ) -> list[Any]:
        return self.say(Create(client, STAMPERS[self.me], first, tuple((topic, 1) for topic in topics), after, settled))

    def grant(self, topic: Topic = B, epoch: int = 1, after: int = 0, lease: int | None = None) -> list[Effect]:
        return self.say(Granted(topic, epoch, after, self.now + SECOND if lease is None else lease))

    def beat(self) -> Beat:
        """The next one."""
        return next(m for _, m in sent(self.say(Fired("beat"))) if isinstance(m, Beat))


def sent(effects: Sequence[Effect], kind: type | tuple[type, ...] = object) -> list[tuple[Address, Any]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def stamped(effects: Sequence[Effect]) -> list[Entry]:
    """Entries that were broadcast."""
    found = [e.message for e in effects if isinstance(e, Broadcast) and isinstance(e.message, LaneStamps)]
    return [entry for message in found for entry in message.entries]


def promised(beat: Beat, topic: Topic) -> int:
    """The watermark that a beat says for a lane it lists."""
    claim = next(claim for claim in beat.lanes if claim.topic == topic)
    return max(claim.stamp, beat.clock + claim.lean)


class SubscriberAlone:
    """A client that has asked for topics; `heard` is what it was notified of."""

    def __init__(self, config: ClockConfig = CONFIG) -> None:
        self.machine = ClockClient(ME, 0, STAMPERS, HOMES.get, config)
        self.now = 200 * SECOND
        self.delivered: list[Any] = []
        self.sent: list[tuple[Address, Any]] = []
        self.token = 0

    def say(self, message: Any, after: int = 0) -> list[Effect]:
        self.now += after
        effects = self.machine.handle(message, Micros(self.now))
        self.delivered += [effect.item for effect in effects if isinstance(effect, Deliver)]
        self.sent += sent(effects)
        return effects

    @property
    def heard(self) -> list[str]:
        return [item.message.id for item in self.each_heard()]

    def each_heard(self) -> list[Heard]:
        """Every event on its own."""
        return [one for item in self.delivered for one in one_by_one(item) if isinstance(one, Heard)]

    def notices(self, kind: type) -> list[Any]:
        return [item for item in self.delivered if isinstance(item, kind)]

    def ask(self, topic: Topic) -> None:
        """Subscribes; the broker brings the topic from now on."""
        self.say(Subscribe((topic,)))
        self.say(Joined(topic))
        self.token += 1

    def join(self, topic: Topic, watermark: int = 100, last: int = 0, lanes: tuple[tuple[int, int], ...] = ()) -> None:
        self.ask(topic)
        self.say(Lanes(topic, self.token, last, watermark, lanes))

    def base(self, lane: LaneName, last: int, watermark: int) -> None:
        self.say(Base(lane, self.token, last, watermark))

    def stamps(self, lane: LaneName, first: int, *entries: Entry) -> None:
        self.say(Heard(lane.topic, LaneStamps(lane, first, entries), control=True))

    def event(self, lane: LaneName, place: int, stamp: int, publisher: Address = P, request: int = 1) -> str:
        """An event with its payload; returns its name."""
        event = Event(publisher, request, str(lane.topic))
        self.say(Heard(lane.topic, Payload(publisher, request, event)))
        self.stamps(lane, place, Stamped(stamp, publisher, request))
        return event.id

    def claim(self, lane: LaneName, last: int, clock: int, stamp: int = 0, lean: int = 0) -> None:
        claim = LaneClaim(lane.topic, lane.epoch, last, stamp, lean)
        self.say(Tide((Reading(lane.stamper, clock, (claim,)),)))


OWN_A, OWN_B = LaneName(A, 0, 0), LaneName(B, 1, 0)
