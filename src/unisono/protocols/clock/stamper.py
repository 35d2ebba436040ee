"""A stamper: gives the events of its region keys, keeps its topics, tells its clock, and hears the others'.

A durable machine, inside `Sessions` towards the other stampers (`UNNUMBERED` passes beside: a lost beat is noticed).
Keys depend on logged inputs and their moments alone (`stamps`); a request is logged before its key leaves. A stamper
that has started promises and stamps nothing until it has heard the other clocks, or has waited for them.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from unisono.machine import PERSIST, Broadcast, Deliver, Effect, Fired, Refuse, Restarted, Send, SetTimer
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.clock.answers import base_of, fetched, lanes_open, look_of
from unisono.protocols.clock.beats import Beats
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.keeper import Keeper
from unisono.protocols.clock.messages import (
    AskBase,
    AskBeat,
    AskLanes,
    Beat,
    ClockBound,
    CloseLane,
    Create,
    FetchEntries,
    Granted,
    KeyRules,
    LaneEnded,
    LaneName,
    LaneStamps,
    Leased,
    Listen,
    NotKept,
    OpenLane,
    RenewLease,
    SetLean,
    StampDenied,
    Stamped,
    StampTaken,
    Tick,
    Wake,
)
from unisono.protocols.clock.requests import follows, joined, last_of, part_before, runs_after
from unisono.protocols.clock.stamps import Lane
from unisono.protocols.clock.state import STAMPS_MAX, StampedPublisher, StamperLook, StamperState
from unisono.structures.hosting import Announced, Forget, HostTopic, Lapse
from unisono.structures.sessions import LinkFree, LinkFull, PeerReborn, Reborn

UNNUMBERED = (Beat, Tick, Wake, AskBeat)
AGAIN_US = 1_000
"""With real-time order what may not be stamped yet is looked at again after this."""
NUMBERS = 22
"""An incarnation is a time in seconds; so many bits of places of lanes in each, and none is ever given twice."""


def repeats(message: Any) -> str | None:
    """A keeper that is away need not be asked twice to renew a lease."""
    return "renew" if isinstance(message, RenewLease) else None


class StamperMachine:
    """Number `me` of the stampers at `addresses`; `keeper_of` knows which of them keeps a topic. It keeps the topics
    `kept` from the start, and those that `HostTopic` tells it of."""

    def __init__(
        self,
        me: int,
        addresses: tuple[Address, ...],
        keeper_of: Callable[[Topic], int | None],
        kept: tuple[Topic, ...] = (),
        config: ClockConfig = ClockConfig(),
    ) -> None:
        self._me, self._addresses, self._keeper_of, self._config = me, addresses, keeper_of, config
        self._topics = kept
        self._numbers = {address: number for number, address in enumerate(addresses)}
        self._beats = Beats(me, addresses, config)
        self._beaten_at = Micros(0)
        self._set(StamperState(rules=KeyRules(config.causal, config.tolerance_us)))

    def _set(self, state: StamperState) -> None:
        self._state, self._clock, self._lanes = state, state.clock, state.lanes
        for topic in self._topics:
            self._lanes.setdefault(topic, Lane())
        self._keeper = Keeper(self._me, self._addresses, self._lanes, self._clock, state.keeper, self._config)

    def snapshot(self) -> Any:
        return msgspec.to_builtins(self._state)

    def restore(self, snapshot: Any) -> None:
        self._set(msgspec.convert(snapshot, StamperState, strict=False))

    def clients(self) -> list[Address]:
        """Everybody who is remembered here."""
        return [Address(client) for client in {**self._state.publishers, **self._state.waiting}]

    def seen(self, topic: Topic) -> tuple[int, int] | None:
        """Of a topic that is kept here: how many entries its own lane has, and how many publishers wait."""
        if not self._keeps(topic):
            return None
        waiting = sum(any(each == topic for each, _ in create.runs) for create in self._state.waiting.values())
        return self._lanes[topic].last, waiting

    def reading(self, now: Micros) -> int:
        """What its clock shows."""
        return self._clock.reading(now)

    def lanes(self) -> list[tuple[Topic, bool, int, int]]:
        """Topic, whether it is kept here, epoch and last entry of every open lane."""
        return [
            (Topic(topic), self._keeper_of(Topic(topic)) == self._me, lane.epoch, lane.last)
            for topic, lane in self._lanes.items()
        ]

    def leans(self) -> dict[Topic, int]:
        return {Topic(topic): lean for topic, lean in self._state.leans.items()}

    def listening(self) -> list[tuple[Topic, ...]]:
        """What each of those listens for who hear of clocks from here."""
        return self._beats.listening()

    def look(self, now: Micros, lanes_max: int = 1_000) -> StamperLook:
        """For whoever watches."""
        heard = {stamper: view.clock for stamper, view in self._beats.views.items() if stamper != self._me}
        return look_of(self._state, heard, self._beats.told, self._keeper_of, now, lanes_max)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Create():
                return self._create(message, now)
            case Beat():
                return self._on_beat(message, now)
            case Tick(source=source):
                return self._beats.hear_tick(message, now) if self._is_other(source) else self._nobody(source)
            case Wake(source=source):
                return self._wake(source, now)
            case Listen():
                return self._beats.listen(message, now, self._ahead(now))
            case FetchEntries():
                return fetched(self._state, self._me, message)
            case AskLanes():
                if not self._keeps(message.topic):
                    return [Refuse(f"topic {message.topic} is not kept here")]
                return lanes_open(self._state, self._keeper, message, now)
            case AskBase():
                return base_of(self._state, message, now)
            case AskBeat(source=source):
                return self._tell_all(source, now)
            case Fired(key=key):
                return self._fire(key, now)
            case OpenLane() | Granted() | NotKept() | CloseLane() | LaneEnded() | RenewLease() | Leased():
                return self._on_peer(message, now)
            case SetLean(topic=topic, lean=lean):
                return self._set_lean(topic, lean, now)
            case Restarted():
                return self._restart(now)
            case ClockBound(error=error):
                return self._bound_clock(error, now)
            case KeyRules():
                return self._set_rules(message, now)
            case HostTopic(topic=topic):
                return self._host(topic, now)
            case Forget(client=client) | Lapse(client=client):
                self._state.publishers.pop(client, None)
                self._state.waiting.pop(client, None)
                self._beats.forget(client)
                return [PERSIST]
            case Reborn(incarnation=incarnation):
                return self._begin_again(incarnation, now)
            case PeerReborn(peer=peer):
                return self._lose(self._numbers[peer], now)
            case LinkFull() | LinkFree():
                return []
            case _:
                return [Refuse(f"{type(message).__name__} is nothing a stamper understands")]

    # Life.

    def _restart(self, now: Micros) -> list[Effect]:
        """A new term: what the last one promised lies below the ceiling, and the clock begins there."""
        self._clock.restart()
        self._state.bound = -1
        self._state.unanswered.clear()  # who was away were we
        self._beats = Beats(self._me, self._addresses, self._config)
        self._state.is_warm = len(self._addresses) == 1
        if self._state.is_warm:
            self._warmed(now)
        self._state.sure_at = now + self._config.warm_up_us
        warm = [SetTimer("sure", Micros(self._state.sure_at)), SetTimer("warm", self._in(now, self._config.alone_us))]
        return [PERSIST, *self._beat(now), *warm, *self._rounds(now)]

    def _rounds(self, now: Micros) -> list[Effect]:
        return [
            SetTimer("ceiling", self._in(now, self._config.ceiling_us // 2)),
            SetTimer("renew", self._in(now, self._config.lease_us // 4)),
        ]

    def _fire(self, key: str, now: Micros) -> list[Effect]:
        match key:
            case "beat":
                return self._beat(now)
            case "tick":
                return self._tick(now)
            case "ceiling":
                return [*self._raise_ceiling(now), SetTimer("ceiling", self._in(now, self._config.ceiling_us // 2))]
            case "renew":
                return [*self._look_after(now), SetTimer("renew", self._in(now, self._config.lease_us // 4))]
            case "sure":
                return self._warm(now) if self._is_sure(now) else []
            case "warm":
                return self._warm(now)
            case "clock":
                return [PERSIST, *self._drain(now)]
            case _:
                return [Refuse(f"no timer of a stamper is called {key!r}")]

    def _is_sure(self, now: Micros) -> bool:
        """Whether we may begin: the moments of a log are as wrong as the clock was when it was written."""
        stampers = len(self._addresses)
        is_time = now >= self._state.sure_at or len(self._clock.others) == stampers - 1
        return is_time and self._clock.is_sure(now, self._config.skew_max_us, stampers)

    def _warm(self, now: Micros) -> list[Effect]:
        if self._state.is_warm:
            return []
        self._state.is_warm = True
        self._clock.correct(now, self._config.skew_max_us, has_promised=False)
        if self._state.is_reborn:
            self._rise(now)
        self._warmed(now)
        lost, self._state.lost = self._state.lost, []
        parked, self._state.parked = self._state.parked, []
        effects = [effect for peer in lost for effect in self._appended(self._keeper.lose(peer, now), now)]
        effects += [effect for message in parked for effect in self._on_peer(message, now)]
        return [PERSIST, *effects, *self._drain(now), *self._beat_soon(now)]

    def _warmed(self, now: Micros) -> None:
        self._clock.raise_ceiling(now, self._config.ceiling_us)
        for topic, lane in self._lanes.items():
            self._beats.change(lane.claim(Topic(topic)))

    def _raise_ceiling(self, now: Micros) -> list[Effect]:
        if not self._state.is_warm:
            return []
        self._clock.raise_ceiling(now, self._config.ceiling_us)
        return [PERSIST]

    def _in(self, now: int, span: int) -> Micros:
        return Micros(now + span)

    # Beats.

    def _beat(self, now: Micros) -> list[Effect]:
        self._beaten_at = now
        effects = self._beats.tell(
            self._clock.term, self._clock.reading(now), self._promise(now), self._state.error(now), now
        )
        return [*effects, self._next_beat(now)]

    def _tick(self, now: Micros) -> list[Effect]:
        effects = self._beats.tick(self._promise(now), now)
        return [*effects, SetTimer("tick", self._in(now, self._config.beat_us))] if self._beats.is_awake else effects

    def _wake(self, source: Address, now: Micros) -> list[Effect]:
        if not self._is_other(source):
            return self._nobody(source)
        return [] if self._beats.wake(source, now) else [SetTimer("tick", self._in(now, self._config.beat_us))]

    def _promise(self, now: Micros) -> int:
        return self._clock.promise(now) if self._state.is_warm else 0

    def _next_beat(self, now: Micros) -> Effect:
        """Again and again while somebody may wait: lanes lean differently, and each beat may end a wait for one. Those
        who keep us awake hear that in ticks."""
        owed, config = self._beats.owed() if self._state.is_warm else None, self._config
        pause = int(config.beat_us if owed is not None else config.idle_beat_us)
        if owed is not None and self._beats.may_rest:
            pause = min(max(owed - self._clock.reading(now) + 1, pause), config.idle_beat_us)
        return SetTimer("beat", max(now, self._in(self._beaten_at, pause)))

    def _beat_soon(self, now: Micros) -> list[Effect]:
        """At the end of the turn, for all that it has changed."""
        return [SetTimer("beat", now)]

    def _is_other(self, address: Address) -> bool:
        return self._numbers.get(address, self._me) != self._me

    def _nobody(self, address: Address) -> list[Effect]:
        return [Refuse(f"there is no other stamper {address}")]

    def _tell_all(self, to: Address, now: Micros) -> list[Effect]:
        if not self._is_other(to):
            return self._nobody(to)
        return self._beats.tell_all(
            to, self._clock.term, self._clock.reading(now), self._promise(now), self._state.error(now)
        )

    def _on_beat(self, beat: Beat, now: Micros) -> list[Effect]:
        if not self._is_other(beat.source):
            return self._nobody(beat.source)
        effects = self._beats.hear(beat, now)
        if self._beats.owed() is not None:
            effects.append(self._next_beat(now))
        stamper, is_warm = self._numbers[beat.source], self._state.is_warm
        if is_warm and not beat.clock:
            return effects  # it has only started, and goes by our clock, not we by its
        if self._clock.differs(stamper, beat.reading, now, self._config.skew_max_us // 8):
            self._clock.others[stamper] = (beat.reading, now)
            effects = [PERSIST, *effects]
            if is_warm:
                self._clock.correct(now, self._config.skew_max_us, has_promised=True)
            elif self._is_sure(now):
                effects += self._warm(now)
        return effects

    # Publishing.

    def _create(self, message: Create, now: Micros) -> list[Effect]:
        if message.stamper != self._addresses[self._me]:
            return [Refuse(f"these requests belong to {message.stamper}")]
        publisher = self._state.publishers.get(message.client) or StampedPublisher()
        if publisher.denied > message.settled:
            told: list[Effect] = [Send(message.client, StampDenied(publisher.denied, publisher.reason))]
            rest = part_before(message, publisher.denied)
            return [*told, *self._take_up(rest, publisher, now)] if rest is not None else told
        return self._take_up(message, publisher, now)

    def _take_up(self, message: Create, publisher: StampedPublisher, now: Micros) -> list[Effect]:
        """What can be stamped at once is; the rest waits."""
        upto = last_of(message)
        if upto <= publisher.last:
            return [Send(message.client, StampTaken(publisher.last, publisher.stamp))]
        following = max(publisher.last, message.settled) + 1
        runs = runs_after(message, following - 1)
        denial = next(((request, why) for request, topic, _ in runs if (why := self._why_not(topic, now))), None)
        waits = self._state.waiting.get(message.client)
        room, is_sound = publisher.last + self._config.window, message.after <= self._ahead(now)
        if waits is not None and follows(waits, message, room) and is_sound and denial is None:
            self._state.waiting[message.client] = joined(waits, message)
            return [PERSIST, *self._drain_one(message.client, now)]
        if message.first > following or upto < following:
            return []  # overtaken by, or older than, what comes again
        if denial is not None:
            if self._state.first and not publisher.last:
                return []  # it may have had a key before we forgot all topics
            denied = self._refuse(message.client, *denial)
            rest = part_before(message, denial[0])
            if rest is None:
                return denied
            return [*denied, *self._take_up(rest, self._state.publishers[message.client], now)]
        if message.after > self._ahead(now):
            return self._refuse(message.client, following, "the publisher has heard of a stamp that is far ahead")
        if waits is not None and last_of(waits) >= upto:
            return []
        if waits is None and len(self._state.waiting) >= self._config.waiting_max:
            return self._refuse(message.client, following, f"{self._config.waiting_max} publishers wait already")
        self._state.waiting[message.client] = message
        return [PERSIST, *self._drain_one(message.client, now)]

    def _refuse(self, client: str, request: int, reason: str) -> list[Effect]:
        """For good. Whatever waits of this publisher is asked for again, up to this request."""
        self._state.waiting.pop(client, None)
        publisher = self._state.publishers.setdefault(client, StampedPublisher())
        publisher.denied, publisher.reason = request, reason
        return [PERSIST, Send(Address(client), StampDenied(request, reason))]

    def _drain(self, now: Micros) -> list[Effect]:
        return [effect for client in list(self._state.waiting) for effect in self._drain_one(client, now)]

    def _drain_one(self, client: str, now: Micros) -> list[Effect]:
        """Stamps what can be stamped, in the order of the publisher's requests."""
        if not self._state.is_warm:
            return []
        message = self._state.waiting[client]
        publisher = self._state.publishers.setdefault(client, StampedPublisher())
        effects: list[Effect] = []
        made: dict[Topic, tuple[int, list[Stamped]]] = {}
        waits = False
        if message.settled > publisher.last:
            publisher.floor = max(publisher.floor, message.after)
        for request, topic, count in runs_after(message, max(publisher.last, message.settled)):
            if not waits:
                stamped = self._stamp(client, publisher, request, topic, count, message.after, made, now)
                waits = stamped < count
            if waits and topic not in self._lanes:  # their lanes are opened side by side
                effects += self._want(topic, now)
        if not waits:
            del self._state.waiting[client]
        elif (half := self._state.rules.tolerance_us // 2) and (error := self._state.error(now)) >= 0:
            effects.append(SetTimer("clock", self._in(now, max(AGAIN_US, error - half))))
        for topic, (place, entries) in made.items():
            lane = self._lanes[topic]
            stamps = LaneStamps(LaneName(topic, self._me, lane.epoch), place, tuple(entries))
            effects.append(Broadcast(topic, stamps, control=True))
            self._beats.change(lane.claim(topic))
        if made:
            effects += [Send(Address(client), StampTaken(publisher.last, publisher.stamp)), *self._beat_soon(now)]
        return effects

    def _stamp(
        self,
        client: str,
        publisher: StampedPublisher,
        request: int,
        topic: Topic,
        count: int,
        after: int,
        made: dict[Topic, tuple[int, list[Stamped]]],
        now: Micros,
    ) -> int:
        """Gives keys to as many of these as may have one now, and tells how many."""
        lane = self._lanes.get(topic)
        if lane is None:
            return 0
        above = max(after, publisher.stamp) if self._state.rules.causal else publisher.floor
        stamp = lane.next_stamp(self._clock.read(now), above)
        count = min(count, self._may_stamp(topic, stamp), self._state.within_tolerance(stamp, now))
        if not count:
            return 0
        entry = Stamped(stamp, Address(client), request, count)
        place = lane.append(entry, now, self._config.kept_max)
        made.setdefault(topic, (place, []))[1].append(entry)
        publisher.last, publisher.stamp = request + count - 1, max(publisher.stamp, stamp + count - 1)
        self._clock.stamped(stamp, lane.lean, now, count)
        return count

    def _kept_at(self, topic: Topic) -> int | None:
        """The topic's keeper; None: there is no such topic, as far as can be told here."""
        keeper = self._keeper_of(topic)
        return None if keeper == self._me and topic not in self._lanes else keeper

    def _why_not(self, topic: Topic, now: Micros) -> str | None:
        """Why nothing is stamped on that topic for now, nor soon."""
        keeper = self._kept_at(topic)
        if keeper is None:
            return f"nobody keeps topic {topic}"
        since = self._state.unanswered.get(keeper, now)
        is_away = now >= since + self._config.keeper_wait_us
        return f"{self._addresses[keeper]}, which keeps topic {topic}, does not answer" if is_away else None

    def _keeps(self, topic: Topic) -> bool:
        return self._kept_at(topic) == self._me

    def _may_stamp(self, topic: Topic, stamp: int) -> int:
        """How many stamps from this one on."""
        keeper = self._keeper_of(topic)
        return STAMPS_MAX if keeper == self._me else max(0, self._state.leases.get(keeper or 0, 0) - stamp + 1)

    def _want(self, topic: Topic, now: Micros) -> list[Effect]:
        keeper = self._keeper_of(topic)
        if topic in self._state.opening or keeper is None:
            return []
        self._state.opening[topic] = None
        return [Send(self._addresses[keeper], OpenLane(self._me, topic, self._lead(now)))]

    def _lead(self, now: Micros) -> int:
        return max(0, self._clock.read(now) + max(0, *self._state.leans.values(), 0))

    def _ahead(self, now: Micros) -> int:
        """Nobody can have heard of later stamps than this."""
        return self._lead(now) + self._config.skew_max_us

    # Other stampers.

    def _on_peer(
        self, message: OpenLane | Granted | NotKept | CloseLane | LaneEnded | RenewLease | Leased, now: Micros
    ) -> list[Effect]:
        match message:
            case OpenLane(topic=topic, stamper=stamper) if not self._keeps(topic):
                return [Send(to, NotKept(topic)) for to in self._addresses[stamper : stamper + 1]]
            case CloseLane(topic=topic) if not self._keeps(topic):
                return [Refuse(f"topic {topic} is not kept here")]
            case NotKept(topic=topic):
                self._state.opening.pop(topic, None)
                return self._deny(lambda each: f"nobody keeps topic {topic}" if each == topic else None)
            case OpenLane() | CloseLane() if not self._state.is_warm:
                self._state.parked.append(message)  # whatever we append to our lanes has a stamp of our clock
                return []
            case RenewLease() if not self._state.is_warm:
                return []  # it is repeated
            case OpenLane():
                return self._appended(self._keeper.open(message, now), now)
            case CloseLane():
                return self._appended(self._keeper.close(message, now), now)
            case RenewLease():
                return self._keeper.renew(message, now)
            case Leased(keeper=keeper, lease=lease):
                self._state.leases[keeper] = max(lease, self._state.leases.get(keeper, 0))
                self._state.unanswered.pop(keeper, None)
                return self._drain(now)
            case Granted(topic=topic, epoch=epoch, after=after, lease=lease):
                return self._granted(topic, epoch, after, lease, now)
            case LaneEnded(topic=topic, epoch=epoch):
                return self._ended(topic, epoch, now)

    def _appended(self, effects: list[Effect], now: Micros) -> list[Effect]:
        """What the keeper has appended to its lanes is listed."""
        for effect in effects:
            if isinstance(effect, Broadcast):
                self._beats.change(self._lanes[effect.topic].claim(effect.topic))
        return [*effects, *self._beat_soon(now)] if effects else []

    def _granted(self, topic: Topic, epoch: int, after: int, lease: int, now: Micros) -> list[Effect]:
        """Every grant is taken, also one that is not wanted any more: a lane that nobody lists stalls everybody."""
        keeper = self._keeper_of(topic)
        if keeper is None or keeper == self._me:
            return [Refuse(f"topic {topic} is not kept elsewhere")]
        self._state.opening.pop(topic, None)
        self._state.unanswered.pop(keeper, None)
        self._state.leases[keeper] = max(lease, self._state.leases.get(keeper, 0))
        lane = self._lanes[topic] = Lane(epoch, floor=after, lean=self._state.leans.get(topic, 0), used_at=now)
        self._beats.change(lane.claim(topic))
        return [*self._drain(now), *self._beat_soon(now)]

    def _ended(self, topic: Topic, epoch: int, now: Micros) -> list[Effect]:
        lane = self._lanes.get(topic)
        if lane is not None and lane.epoch == epoch:
            self._retire(topic, now)
        return self._drain(now)

    def _retire(self, topic: Topic, now: Micros) -> None:
        self._beats.end(topic, now)
        self._state.retire(topic)

    def _look_after(self, now: Micros) -> list[Effect]:
        """Renews leases, ends lanes that are idle, closes lanes of those who do not renew theirs."""
        if not self._state.is_warm:
            return []
        effects: list[Effect] = []
        keepers: dict[int, None] = {}
        for topic, lane in list(self._lanes.items()):
            keeper = self._keeper_of(Topic(topic))
            if keeper is None or keeper == self._me:
                continue
            if now > lane.used_at + self._config.idle_lane_us:
                self._retire(Topic(topic), now)
                ended = CloseLane(self._me, Topic(topic), lane.epoch, lane.last, max(lane.stamp, lane.floor))
                effects.append(Send(self._addresses[keeper], ended))
            else:
                keepers[keeper] = None
        effects += [Send(self._addresses[keeper], RenewLease(self._me, self._lead(now))) for keeper in keepers]
        before = self._state.unanswered
        asked = [*keepers, *map(self._keeper_of, map(Topic, self._state.opening))]
        self._state.unanswered = {keeper: before.get(keeper, now) for keeper in asked if keeper is not None}
        effects += self._deny(lambda topic: self._why_not(topic, now))
        if self._keeper.is_needed:
            effects += self._appended(self._keeper.look_after(now), now)
        return [PERSIST, *effects] if effects or before != self._state.unanswered else []

    # Real-time order.

    def _bound_clock(self, error: int, now: Micros) -> list[Effect]:
        was, half = self._state.error(now), self._state.rules.tolerance_us // 2
        if not half:
            return []  # no key depends on it
        self._state.bound, self._state.bound_at = error, now
        is_news = (0 <= was <= half) != (0 <= self._state.error(now) <= half)
        return [PERSIST, *self._drain(now), *(self._beat_soon(now) if is_news else [])]

    def _set_rules(self, rules: KeyRules, now: Micros) -> list[Effect]:
        """Lanes that leaned under others lean no more, where these do not go with leans."""
        self._state.rules = rules
        straight = [Topic(topic) for topic in self._state.leans] if rules.causal or rules.tolerance_us else []
        return [PERSIST, *(effect for topic in straight for effect in self._set_lean(topic, 0, now))]

    def _set_lean(self, topic: Topic, lean: int, now: Micros) -> list[Effect]:
        if lean and self._state.rules.tolerance_us:
            return [Refuse("with real-time order no lane leans")]
        self._state.leans[topic] = lean
        lane = self._lanes.get(topic)
        if lane is not None:
            lane.set_lean(lean, self._clock.promise(now))
            self._beats.change(lane.claim(topic))
        return [PERSIST, *self._beat_soon(now)]

    # Topics that are created, and memories that are lost.

    def _host(self, topic: Topic, now: Micros) -> list[Effect]:
        if self._keeper_of(topic) != self._me:
            return [Refuse(f"topic {topic} is not kept here")]
        if topic not in self._lanes:
            lane = self._lanes[topic] = Lane(last=self._state.first, used_at=now)
            if self._state.first:
                lane.begin_again(self._state.risen)
        if self._state.is_warm:
            self._beats.change(self._lanes[topic].claim(topic))
        return [PERSIST, Deliver(Announced(topic)), *self._beat_soon(now)]

    def _deny(self, why_not: Callable[[Topic], str | None]) -> list[Effect]:
        """What holds up all that its publisher has asked for since."""
        held_up = [(client, request, why_not(topic)) for client, request, topic in self._state.held_up()]
        return [effect for client, request, why in held_up if why for effect in self._refuse(client, request, why)]

    def _begin_again(self, incarnation: int, now: Micros) -> list[Effect]:
        """We have forgotten some of what we said: nothing that we say from now on may be taken for it.

        Places of our lanes go on where none has been given, so whoever holds some of them sees a hole, asks, and joins
        anew. The other stampers drop what we have granted, and ask for it again.
        """
        state = self._state
        state.first = incarnation << NUMBERS
        self._clock.term = max(self._clock.term, incarnation) + 1
        for topic, lane in list(self._lanes.items()):
            if self._keeps(Topic(topic)):
                lane.last, lane.kept = max(lane.last, state.first), []
            else:
                self._retire(Topic(topic), now)
        for lanes in state.keeper.open.values():
            lanes.clear()
        state.keeper.closing.clear()
        state.opening.clear()
        state.waiting.clear()
        state.publishers.clear()
        state.lost.clear()
        self._beats = Beats(self._me, self._addresses, self._config)
        state.is_reborn = True
        if state.is_warm:
            self._rise(now)
            self._warmed(now)
        return [PERSIST, *self._beat_soon(now)]

    def _rise(self, now: Micros) -> None:
        """Above whatever we promised and have forgotten, by a clock that can be trusted."""
        self._state.is_reborn = False
        self._clock.floor = self._clock.read(now) + self._config.ceiling_us
        self._state.risen = self._clock.floor - 1
        for topic, lane in self._lanes.items():
            if self._keeps(Topic(topic)):
                lane.begin_again(self._state.risen)

    def _lose(self, peer: int, now: Micros) -> list[Effect]:
        """It has forgotten what was agreed on with us: its topics have no lanes of ours, ours none of its."""
        state = self._state
        for topic in list(self._lanes):
            if self._keeper_of(Topic(topic)) == peer:
                self._retire(Topic(topic), now)
        state.leases.pop(peer, None)
        for topic in [topic for topic in state.opening if self._keeper_of(Topic(topic)) == peer]:
            del state.opening[topic]
        if not state.is_warm:
            state.lost.append(peer)
            return [PERSIST]
        closed = self._appended(self._keeper.lose(peer, now), now)
        return [PERSIST, *closed, *self._drain(now), *self._beat_soon(now)]
