"""The keeper of a topic: says in its own lane who else may stamp, from when on, and when that has ended.

Opening and closing ask no subscriber: both are entries of the keeper's lane, and whoever has passed their stamp holds
them. A lease is a stamp, not a time: a stamper uses no stamp above it, and the keeper closes the lane once its own
stamps have passed it, so no clock is trusted, and none that stands still does harm.
"""

from msgspec import Struct, field

from unisono.machine import Broadcast, Effect, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.messages import (
    Closed,
    CloseLane,
    Entry,
    Granted,
    LaneEnded,
    LaneName,
    LaneStamps,
    Leased,
    Opened,
    OpenLane,
    RenewLease,
)
from unisono.protocols.clock.stamps import Lane, StampClock


class KeeperState(Struct):
    """What a keeper writes down beside the lanes."""

    open: dict[int, dict[int, int]] = field(default_factory=dict)
    """Topic -> stamper -> the epoch of its lane."""
    leases: dict[int, int] = field(default_factory=dict)
    """Stamper -> the last stamp it may use on our topics. It never shrinks."""
    closing: list[CloseLane] = field(default_factory=list)
    """Lanes that their stampers have ended; our clock has to pass their last stamp."""


class Keeper:
    """The lanes of others on the topics that are kept here; `lanes` are our own, by topic."""

    def __init__(
        self,
        me: int,
        addresses: tuple[Address, ...],
        lanes: dict[int, Lane],
        clock: StampClock,
        state: KeeperState,
        config: ClockConfig,
    ) -> None:
        self._me, self._addresses, self._lanes = me, addresses, lanes
        self._clock, self._state, self._config = clock, state, config

    @property
    def is_needed(self) -> bool:
        """Whether there is something to look after."""
        return any(self._state.open.values())

    def lanes_of(self, topic: Topic) -> tuple[tuple[int, int], ...]:
        return tuple(self._state.open.get(topic, {}).items())

    def open(self, message: OpenLane, now: Micros) -> list[Effect]:
        lanes = self._state.open.setdefault(message.topic, {})
        effects = self._close_ended(message.topic, message.stamper, now) if message.stamper in lanes else []
        if message.stamper in lanes:  # it has forgotten that it has one
            effects += self._close(message.topic, message.stamper, -1, self._state.leases[message.stamper], now)
        entry = Opened(self._lanes[message.topic].next_stamp(self._clock.read(now)), message.stamper)
        effects += self._append(message.topic, entry, now)
        epoch = lanes[message.stamper] = self._lanes[message.topic].last
        lease = self._extend(message.stamper, message.clock, now)
        granted = Granted(message.topic, epoch, entry.stamp, lease)
        return [*effects, *self._tell(message.stamper, granted)]

    def renew(self, message: RenewLease, now: Micros) -> list[Effect]:
        if not any(message.stamper in lanes for lanes in self._state.open.values()):
            return []
        lease = self._extend(message.stamper, message.clock, now)
        return self._tell(message.stamper, Leased(self._me, lease))

    def close(self, message: CloseLane, now: Micros) -> list[Effect]:
        """An epoch that is not open any more was closed by us."""
        if self._state.open.get(message.topic, {}).get(message.stamper) != message.epoch:
            return []
        self._state.closing.append(message)
        return self.look_after(now)

    def lose(self, stamper: int, now: Micros) -> list[Effect]:
        """It has forgotten its lanes: they are closed above whatever it may have stamped on them."""
        effects: list[Effect] = []
        for topic, lanes in self._state.open.items():
            if stamper in lanes:
                self._state.closing = [m for m in self._state.closing if (m.topic, m.stamper) != (topic, stamper)]
                effects += self._close(topic, stamper, -1, self._state.leases[stamper], now)
        return effects

    def look_after(self, now: Micros) -> list[Effect]:
        """Closes what can be closed: a Closed lies above every stamp of its epoch."""
        effects: list[Effect] = []
        for message in list(self._state.closing):
            if self._next(message.topic, now) > message.stamp:
                effects += self._close_ended(message.topic, message.stamper, now)
        for topic, lanes in self._state.open.items():
            for stamper, epoch in list(lanes.items()):
                lease = self._state.leases[stamper]
                if self._next(topic, now) > lease:
                    effects += self._close(topic, stamper, -1, lease, now)
                    effects += self._tell(stamper, LaneEnded(Topic(topic), epoch))
        return effects

    def _tell(self, stamper: int, message: Granted | Leased | LaneEnded) -> list[Effect]:
        """The last of the file may have been taken out of it since: its lanes end with their leases."""
        return [Send(self._addresses[stamper], message)] if stamper < len(self._addresses) else []

    def _next(self, topic: int, now: Micros) -> int:
        return self._lanes[topic].next_stamp(self._clock.read(now))

    def _extend(self, stamper: int, clock: int, now: Micros) -> int:
        """A stamper that is far ahead is not followed: everybody would have to wait for what it stamps."""
        mine, config = self._clock.read(now), self._config
        lease = min(max(mine, clock), mine + config.skew_max_us) + config.lease_us
        found = self._state.leases[stamper] = max(lease, self._state.leases.get(stamper, 0))
        return found

    def _close_ended(self, topic: int, stamper: int, now: Micros) -> list[Effect]:
        """The lane that its stamper has ended itself, if it has."""
        effects: list[Effect] = []
        for message in [each for each in self._state.closing if (each.topic, each.stamper) == (topic, stamper)]:
            self._state.closing.remove(message)
            if self._state.open[topic].get(stamper) == message.epoch:
                effects += self._close(topic, stamper, message.last, message.stamp, now)
        return effects

    def _close(self, topic: int, stamper: int, last: int, upto: int, now: Micros) -> list[Effect]:
        epoch = self._state.open[topic].pop(stamper)
        stamp = self._lanes[topic].next_stamp(self._clock.read(now), after=upto)
        return self._append(topic, Closed(stamp, stamper, epoch, last, upto), now)

    def _append(self, topic: int, entry: Entry, now: Micros) -> list[Effect]:
        lane = self._lanes[topic]
        place = lane.append(entry, now, self._config.kept_max)
        self._clock.stamped(entry.stamp, lane.lean, now)
        return [Broadcast(Topic(topic), LaneStamps(LaneName(Topic(topic), self._me, 0), place, (entry,)), control=True)]
