"""The subscribing half of a client: holds entries back until nothing with a smaller key can come, then notifies.

**In increasing key order, always**: no two subscribers can disagree, whatever clocks and networks do. What is waited
for are watermarks of the open lanes of its own topics; who may stamp on a topic is said in its keeper's lane, and takes
effect as soon as it is held there without holes. Joining is the subscriber's own business: it asks the keeper which
lanes there are, every stamper where its lane stands, and begins after the latest of the answers (`joining`).
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from unisono.machine import Deliver, Effect, Gap, Heard, Join, Joined, Leave, Refuse, Refused, Send, Stalled
from unisono.model.event import Event, Events
from unisono.model.ids import Address, Topic
from unisono.model.time import NEVER, Micros
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.lanes import LaneView
from unisono.protocols.clock.messages import (
    FORGOTTEN,
    STAMPERS_MAX,
    AskBase,
    AskLanes,
    Base,
    Closed,
    Entry,
    FetchEntries,
    Gone,
    LaneName,
    Lanes,
    LaneStamps,
    Listen,
    Opened,
    Stamped,
    Tide,
    before,
    number_of,
)

BEATS_MISSED = 3
"""A stamper of which nothing new was heard for so many of its idle beats is away."""


class _TopicView(Struct):
    """One topic of a subscriber, from the first question to the last notification."""

    topic: Topic
    keeper: int
    since: int = 0
    """When it was first heard."""
    token: int = 0
    """Of the question to the keeper that counts; 0: nothing was asked yet."""
    own: LaneView | None = None
    """The keeper's lane."""
    opened_before: int = 0
    """Lanes opened up to this place of the keeper's lane are either in the keeper's answer or past."""
    lanes: dict[tuple[int, int], LaneView] = field(default_factory=dict)
    """All others, by stamper and epoch."""
    least: int = 0
    """The cut may not be below."""
    new_until: int = -1
    """Nothing was ever stamped on it up to here; -1: something may have been."""
    cut: int = -1
    """Entries up to this stamp are past; -1: it is not known yet, and the topic is not notified of."""
    is_told: bool = False
    ready: list[tuple[LaneName, Stamped]] = field(default_factory=list)
    """Entries held before the cut was known."""
    gap_from: int = -1
    """Joined anew: whatever lies between this number and the new cut is missing."""
    gap_upto: int = 0
    """And what others have stamped on lanes that are forgotten may be missing up to this stamp."""
    had: int = 0
    """Joined anew: what was held of the keeper's lane then."""
    kept_upto: int = 0
    """Joined anew: entries up to this stamp were held then, and come in their place; the numbers between are a gap."""
    floor: int = 0
    """And up to this number all had come."""

    @property
    def base(self) -> int:
        return before(self.cut)

    def open_lanes(self) -> list[LaneView]:
        """Those that are waited for. A lane whose Opened is not held yet has later stamps than its keeper has said."""
        lanes = [lane for lane in self.lanes.values() if lane.last >= 0]
        return [self.own, *lanes] if self.own is not None else lanes


class _Held(NamedTuple):
    """Entries in a row that wait for their turn."""

    number: int
    """Of the first; they are `STAMPERS_MAX` apart."""
    topic: Topic
    publisher: Address
    request: int
    length: int
    view: _TopicView
    since: Micros

    @property
    def stamp(self) -> int:
        return self.number // STAMPERS_MAX

    def behind(self, count: int) -> "_Held":
        """Without the first of them."""
        number = self.number + count * STAMPERS_MAX
        return self._replace(number=number, request=self.request + count, length=self.length - count)

    def heard(self, events: list[Event]) -> Heard:
        if len(events) == 1:
            return Heard(self.topic, events[0], number=self.number)
        return Heard(self.topic, tuple(events), number=self.number, spacing=STAMPERS_MAX)

    def gap(self) -> Gap:
        reason = f"the payload of request {self.request} of {self.publisher} did not come"
        return Gap(self.topic, self.number, self.number, reason)


class ClockSubscriber:
    """Of one client: `node` is that of its region, `stampers` are all, `keeper_of` knows which of them keeps
    a topic."""

    def __init__(
        self,
        me: Address,
        node: Address | None,
        stampers: tuple[Address, ...],
        keeper_of: Callable[[Topic], int | None],
        config: ClockConfig,
    ) -> None:
        self._me, self._node, self._stampers, self._keeper_of, self._config = me, node, stampers, keeper_of, config
        self._topics: dict[Topic, _TopicView] = {}
        self._held: list[tuple[int, Topic, int, _Held]] = []
        self._payloads: dict[tuple[Address, int], Event] = {}
        self._done: dict[
            tuple[Address, Topic], int
        ] = {}  # the last request we passed; in a topic keys count up with them
        self._missed: dict[Topic, Micros] = {}
        self._brought_since = Micros(0)  # before that the broker was not read from
        self._lacking: tuple[Address, int] | None = None  # the payload that the next entry waits for, and nothing else
        self._tokens = 0
        self._listened_at = -(1 << 62)
        self._frontier = 0
        self.stamp = 0
        """Of the last notification: nothing up to it comes any more."""

    @property
    def is_waiting(self) -> bool:
        return bool(self._topics)

    @property
    def held(self) -> int:
        """Entries that wait for their turn."""
        return len(self._held)

    def passed(self, topic: Topic) -> int | None:
        """Nothing of the topic up to this number is still to be told; None: it is not in force."""
        view = self._topics.get(topic)
        if view is None or view.cut < 0:
            return None
        if self.stamp < view.kept_upto and self._held:
            return max(view.floor, min(before(self.stamp), self._held[0][0] - 1))
        upto = before(self._frontier)
        return max(view.base, min(upto, self._held[0][0] - 1) if self._held else upto)

    def stand_on(self, node: Address, now: Micros) -> list[Effect]:
        """Hears of clocks from this node; what was heard from another stays true."""
        self._node = node
        return self._listen(now) if self._topics else []

    # From above.

    def subscribe(self, topic: Topic) -> list[Effect]:
        keeper = self._keeper_of(topic)
        if keeper is None:
            return [Refuse(f"nobody keeps topic {topic}")]
        if topic in self._topics:
            return []
        self._topics[topic] = _TopicView(topic, keeper)
        return [Join(topic)]

    def unsubscribe(self, topic: Topic, now: Micros) -> list[Effect]:
        if self._topics.pop(topic, None) is None:
            return []
        return [Leave(topic), *self._listen(now), *self._advance(now)]

    # Joining.

    def on_joined(self, topic: Topic, now: Micros) -> list[Effect]:
        """The broker brings everything from now on."""
        view = self._topics.get(topic)
        if view is None or view.token:
            return []
        view.since = now
        return [*self._ask_lanes(view), *self._listen(now)]

    def _ask_lanes(self, view: _TopicView) -> list[Effect]:
        if not view.token:
            self._tokens += 1
            view.token = self._tokens
        return [Send(self._stampers[view.keeper], AskLanes(self._me, view.topic, view.token))]

    def _ask_base(self, view: _TopicView, lane: LaneView) -> Effect:
        stamper = lane.name.stamper
        if stamper >= len(self._stampers):
            return Deliver(Refused(0, f"{self._who(stamper)} stamps on it: connect again, to know where it is"))
        return Send(self._stampers[stamper], AskBase(self._me, lane.name, view.token))

    def _who(self, stamper: int) -> str:
        """Others may know of nodes that were added since we connected."""
        return str(self._stampers[stamper]) if stamper < len(self._stampers) else "a node that was added"

    def on_lanes(self, message: Lanes, now: Micros) -> list[Effect]:
        view = self._topics.get(message.topic)
        if view is None or view.token != message.token or self._own(view).last >= 0:
            return []
        last, watermark, lanes = message.last, message.watermark, message.lanes
        if view.gap_from >= 0 and message.begun > view.had:  # it has forgotten, and all that came after that is there
            last, watermark, lanes = message.begun, message.above, ()
        view.gap_upto = message.watermark
        view.opened_before = last
        view.least = max(view.least, watermark)
        if not last:
            view.new_until = watermark
        open_then = dict.fromkeys(lanes)
        for key in list(view.lanes):
            if key not in open_then and key[1] <= last:
                del view.lanes[key]  # closed before we asked
        effects: list[Effect] = []
        for stamper, epoch in open_then:
            name = LaneName(view.topic, stamper, epoch)
            effects.append(self._ask_base(view, view.lanes.setdefault((stamper, epoch), LaneView(name))))
        own = self._own(view)
        own.hear(message.last, message.watermark)
        self._take(view, own, own.begin(last, watermark), now)
        return [*effects, *self._settle(view, now), *self._advance(now)]

    def on_base(self, message: Base, now: Micros) -> list[Effect]:
        """Only an answer to our own question: whatever else is on its way was sent before we could hear the topic."""
        view = self._topics.get(message.lane.topic)
        if view is None or view.token != message.token:
            return []
        lane = view.lanes.get((message.lane.stamper, message.lane.epoch))
        if lane is None:
            return []
        if lane.last >= 0:
            if lane.closed is None or not message.has_ended:
                return []
            lane.closed = replace(lane.closed, last=message.last)
            return self._advance(now)
        view.least = max(view.least, message.watermark)
        self._take(view, lane, lane.begin(message.last, message.watermark), now)
        return [*self._settle(view, now), *self._advance(now)]

    def _settle(self, view: _TopicView, now: Micros) -> list[Effect]:
        """Makes the cut once every lane has a beginning."""
        own = self._own(view).last
        if view.cut >= 0 or own < 0 or any(lane.last < 0 for (_, epoch), lane in view.lanes.items() if epoch <= own):
            return []
        view.cut = max(self.stamp, view.least)
        ready, view.ready = view.ready, []
        for name, entry in ready:
            self._hold(view, name, entry, now)
        is_waiting = any(lane.watermark < view.cut for lane in view.open_lanes())
        asked = self._listen(now) if is_waiting and not view.is_told else []
        if view.gap_from < 0:
            return asked
        last, settled = max(view.base, before(view.gap_upto)), view.base
        if self.stamp < view.kept_upto:
            settled = self.passed(view.topic) or 0
        gap = Gap(view.topic, view.gap_from + 1, last, "entries of the topic's keeper were lost", settled=settled)
        view.gap_from = -1
        return [*asked, Deliver(gap)] if gap.last >= gap.first else asked

    def _tell_joined(self) -> list[Effect]:
        """Whatever is published from now on comes after the cut."""
        effects: list[Effect] = []
        for view in self._topics.values():
            if view.cut < 0 or view.is_told:
                continue
            lanes = view.open_lanes()
            if self._config.is_realtime and not all(map(self._is_near, lanes)):
                continue
            if all(lane.watermark >= view.cut or lane.has_ended for lane in lanes):
                view.is_told = True
                effects.append(Deliver(Joined(view.topic, 0 if view.cut <= view.new_until else view.base)))
        return effects

    # Entries.

    def _own(self, view: _TopicView) -> LaneView:
        if view.own is None:
            view.own = LaneView(LaneName(view.topic, view.keeper, 0))
        return view.own

    def _lane(self, view: _TopicView, name: LaneName) -> LaneView | None:
        """The lane, made if it may still matter."""
        if name.epoch == 0:
            return self._own(view) if name.stamper == view.keeper else None
        key = (name.stamper, name.epoch)
        if key not in view.lanes:
            if name.epoch <= self._own(view).last:
                return None  # it has ended, before we joined or since
            view.lanes[key] = LaneView(name)
        return view.lanes[key]

    def on_stamps(self, message: LaneStamps, now: Micros) -> list[Effect]:
        view = self._topics.get(message.lane.topic)
        lane = self._lane(view, message.lane) if view is not None else None
        if view is None or lane is None:
            return []
        self._take(view, lane, lane.add(message.first, message.entries, self._config.held_max), now)
        return [*self._settle(view, now), *self._advance(now)]

    def _take(self, view: _TopicView, lane: LaneView, entries: list[tuple[int, Entry]], now: Micros) -> None:
        """Entries held without a hole. Opened and Closed take effect here, not when their stamp is reached."""
        for place, entry in entries:
            match entry:
                case Stamped():
                    if view.cut >= 0:
                        self._hold(view, lane.name, entry, now)
                    else:
                        view.ready.append((lane.name, entry))
                case Opened(stamp=stamp, stamper=stamper):
                    name = LaneName(view.topic, stamper, place)
                    new = view.lanes.setdefault((stamper, place), LaneView(name))
                    self._take(view, new, new.begin(0, stamp), now)
                case Closed(stamper=stamper, epoch=epoch, stamp=stamp):
                    ended = view.lanes.get((stamper, epoch))
                    if ended is not None and ended.last < 0:  # before its stamper has answered
                        del view.lanes[stamper, epoch]
                        view.least = max(view.least, stamp)
                    elif ended is not None:
                        ended.closed = entry

    def _hold(self, view: _TopicView, name: LaneName, entry: Stamped, now: Micros) -> None:
        past = min(entry.count, max(0, view.cut + 1 - entry.stamp))
        for request in range(entry.request, entry.request + past):
            self._payloads.pop((entry.publisher, request), None)
        number = number_of(entry.stamp, name.stamper)
        held = _Held(number, view.topic, entry.publisher, entry.request, entry.count, view, now)
        if past < entry.count:
            self._push(held.behind(past))

    def _push(self, held: _Held) -> None:
        heapq.heappush(self._held, (held.number, held.topic, held.request, held))

    def on_payloads(self, topic: Topic, publisher: Address, first: int, events: Events, now: Micros) -> list[Effect]:
        done = self._done.get((publisher, topic), 0)
        for request, event in enumerate(events, first):
            if request > done:
                self._payloads[publisher, request] = event
        is_lacking = self._lacking is not None and self._lacking in self._payloads
        effects = self._advance(now) if is_lacking or self._is_full else []
        while self._is_full:
            del self._payloads[next(iter(self._payloads))]
        return effects

    @property
    def _is_full(self) -> bool:
        """Then a payload would be lost for certain, and waited for in its turn as long as the one that holds it up: so
        nothing waits any more for one that may be lost."""
        return len(self._payloads) > self._config.held_max

    def on_tide(self, message: Tide, now: Micros) -> list[Effect]:
        for stamper, clock, claims, error in message.readings:
            for claim in claims:
                view = self._topics.get(claim.topic)
                lane = self._lane(view, LaneName(claim.topic, stamper, claim.epoch)) if view is not None else None
                if lane is not None:
                    lane.error, lane.is_heard = error, True
                    if lane.hear(claim.last, max(claim.stamp, clock + claim.lean)):
                        lane.heard_at = now
        return [*self._look_at_clocks(now), *self._advance(now)]

    def _is_near(self, lane: LaneView) -> bool:
        """Whether its stamper's clock is near enough for real-time order; whether it stamps is up to itself."""
        return 0 <= lane.error <= self._config.tolerance_us // 2

    def _look_at_clocks(self, now: Micros) -> list[Effect]:
        """With real-time order whoever waits for a clock to be right is told so."""
        effects: list[Effect] = []
        for view in self._topics.values() if self._config.is_realtime else ():
            for lane in view.open_lanes() if view.is_told else ():
                was, lane.is_lost = lane.is_lost, lane.is_heard and not self._is_near(lane)
                if lane.is_lost and not was:
                    effects.append(Deliver(Stalled(view.topic, now, self._far(lane))))
        return effects

    def _far(self, lane: LaneView) -> str:
        who, half_ms = self._who(lane.name.stamper), self._config.tolerance_us / 2_000
        how = f"{lane.error / 1000:g} ms off" if lane.error >= 0 else "off by nobody knows how much"
        return f"the clock of {who} may be {how}, and real-time order allows {half_ms:g} ms: it stamps nothing"

    # Notifying.

    def _advance(self, now: Micros) -> list[Effect]:
        """Notifies whatever no lane can still come before."""
        effects: list[Effect] = []
        lanes: list[LaneView] = []
        for view in self._topics.values():
            if view.cut >= 0:
                for key, lane in list(view.lanes.items()):
                    if lane.has_ended:
                        del view.lanes[key]
                lanes += view.open_lanes()
        self._frontier = frontier = min((lane.watermark for lane in lanes), default=0 if self._topics else 1 << 51)
        self._lacking = None
        while self._held:
            held = self._held[0][3]
            if self._topics.get(held.topic) is not held.view:
                heapq.heappop(self._held)  # left, or joined anew
                continue
            if held.stamp > frontier:
                break
            events = self._events(held, min(held.length, frontier - held.stamp + 1))
            if not events and now < self._given_up_at(held) and not self._is_full:
                self._lacking = (held.publisher, held.request)
                break
            heapq.heappop(self._held)
            count = max(1, len(events))
            if count < held.length:
                self._push(held.behind(count))
            self.stamp = max(self.stamp, held.stamp + count - 1)
            self._done[held.publisher, held.topic] = held.request + count - 1
            effects.append(Deliver(held.heard(events) if events else held.gap()))
        self._note_waits(lanes, now)
        return [*effects, *self._tell_joined()]

    def missed(self, topic: Topic, now: Micros) -> None:
        """The broker may have lost what was published lately, and will not bring it again."""
        self._missed[topic] = now

    def pause(self, is_paused: bool, now: Micros) -> None:
        """What our own reader has no room for is not lost, however long that takes."""
        self._brought_since = NEVER if is_paused else now

    def _given_up_at(self, held: _Held) -> int:
        """When its payload has been waited for long enough."""
        config, missed_at, since = self._config, self._missed.get(held.topic), max(held.since, self._brought_since)
        given_up_at = since + config.payload_wait_us
        if missed_at is not None and held.since <= missed_at + config.missed_wait_us:
            return min(given_up_at, max(since, missed_at) + config.missed_wait_us)
        return given_up_at

    def _events(self, held: _Held, most: int) -> list[Event]:
        """As many in a row as are there and come before anything else that is held."""
        if most > 1 and len(self._held) > 1:
            nearest = min(entry[0] for entry in self._held[1:3])
            most = max(1, min(most, -((held.number - nearest) // STAMPERS_MAX)))
        events: list[Event] = []
        take = self._payloads.pop
        for request in range(held.request, held.request + most):
            event = take((held.publisher, request), None)
            if event is None:
                break
            events.append(event)
        return events

    def _note_waits(self, lanes: list[LaneView], now: Micros) -> None:
        waits_for = self._held[0][3].stamp if self._held else -1
        for lane in lanes:
            if lane.watermark >= waits_for:
                lane.waits_since, lane.is_stalled = None, False
            elif lane.waits_since is None:
                lane.waits_since = now

    # Time.

    def tick(self, now: Micros) -> list[Effect]:
        """Asks again for what is missing, and gives up what has been missing for too long."""
        effects: list[Effect] = []
        if now >= self._listened_at + self._config.idle_beat_us:
            effects += self._listen(now)
        for view in list(self._topics.values()):
            if not view.token:
                continue
            if self._own(view).last < 0:
                effects += self._ask_lanes(view)
            for lane in list(view.lanes.values()):
                if lane.last < 0 and lane.name.epoch <= view.opened_before:
                    effects.append(self._ask_base(view, lane))
                elif lane.last >= 0:
                    effects += self._mend(view, lane, now)
                    effects += self._end(view, lane, now)
            effects += self._mend(view, self._own(view), now)
            effects += self._settle(view, now)
        effects += self._stalled(now)
        effects += self._refuse(now)
        return [*effects, *self._advance(now)]

    def _listen(self, now: Micros) -> list[Effect]:
        if self._node is None:
            return []
        self._listened_at = now
        topics = tuple(topic for topic, view in self._topics.items() if view.token)
        waits = max((view.cut for view in self._topics.values() if not view.is_told), default=0)
        return [Send(self._node, Listen(self._me, topics, max(0, waits)))]

    def _mend(self, view: _TopicView, lane: LaneView, now: Micros) -> list[Effect]:
        """A hole in a lane: ask its stamper; at last tell a gap, but never of a keeper's lane: who is missing there
        would not be waited for. A keeper that is away has what is missing, and is waited for; one that is there, and
        has neither that nor a word about it, has lost it."""
        if not lane.has_hole:
            lane.hole_since = None
            return []
        is_away = lane is view.own and now >= lane.heard_at + BEATS_MISSED * self._config.idle_beat_us
        if lane.hole_since is None or is_away:
            lane.hole_since = now
        is_unheard = lane is view.own and lane.heard_at <= lane.hole_since
        if is_unheard or now < lane.hole_since + self._config.hole_wait_us:
            last = min(lane.early) - 1 if lane.early else lane.known
            if lane.name.stamper >= len(self._stampers):
                return []  # nobody to ask: in the end it is told as a gap
            return [Send(self._stampers[lane.name.stamper], FetchEntries(self._me, lane.name, lane.last + 1, last))]
        return self._join_anew(view, now) if lane is view.own else self._give_up(view, lane, now)

    def _give_up(self, view: _TopicView, lane: LaneView, now: Micros) -> list[Effect]:
        after, upto = lane.give_up()
        first, last = max(before(after), view.base) + 1, before(upto)
        self._take(view, lane, lane.advance(), now)
        if view.cut < 0 or last < first:
            return []
        return [self._missing(view, first, last, f"entries of {self._who(lane.name.stamper)} were lost")]

    def on_gone(self, message: Gone, now: Micros) -> list[Effect]:
        """Nobody has them any more."""
        view = self._topics.get(message.lane.topic)
        lane = self._lane(view, message.lane) if view is not None else None
        if view is None or lane is None:
            return []
        if message.upto == FORGOTTEN and lane.is_closed_out:
            return self._close_out(view, lane) + self._advance(now)
        if not lane.has_hole or message.upto <= lane.last:
            return []
        return (self._join_anew(view, now) if lane is view.own else self._give_up(view, lane, now)) + self._advance(now)

    def _end(self, view: _TopicView, lane: LaneView, now: Micros) -> list[Effect]:
        """A lane whose stamper was closed out, and has said nothing, is waited for, for a while."""
        if not lane.is_closed_out:
            return []
        if lane.ends_since is None:
            lane.ends_since = now
        is_waited_for = now < lane.ends_since + self._config.hole_wait_us
        return [self._ask_base(view, lane)] if is_waited_for else self._close_out(view, lane)

    def _close_out(self, view: _TopicView, lane: LaneView) -> list[Effect]:
        """Whatever its stamper may have stamped up to its lease is a gap, whether anything is known of it or not."""
        del view.lanes[lane.name.stamper, lane.name.epoch]
        upto = lane.closed.upto if lane.closed is not None else 0
        first, last = max(before(lane.stamp), view.base) + 1, before(upto)
        if view.cut < 0 or last < first:
            return []
        return [self._missing(view, first, last, f"{self._who(lane.name.stamper)} has not said how its lane ended")]

    def _missing(self, view: _TopicView, first: int, last: int, reason: str) -> Effect:
        """Entries of one lane. Those of other lanes may lie between them, and come: whoever goes on from here later on
        is owed them, so what is settled is what lay before them."""
        return Deliver(Gap(view.topic, first, last, reason, settled=min(last, self.passed(view.topic) or 0)))

    def _join_anew(self, view: _TopicView, now: Micros, why: str = "") -> list[Effect]:
        """The topic is waited for no longer; it goes on after a cut. What is held of it comes in its place, and what is
        missing between is a gap."""
        is_keeping = self.stamp < view.kept_upto
        since = max(before(self.stamp), view.base) if view.cut >= 0 else view.gap_from
        kept = max((held.stamp + held.length - 1 for *_, held in self._held if held.view is view), default=0)
        again = _TopicView(view.topic, view.keeper, gap_from=max(since, before(kept)), is_told=view.is_told)
        again.had = max(view.had, self._own(view).last)
        again.kept_upto, again.floor = kept, view.floor if is_keeping else since
        self._held = [
            (number, topic, request, held._replace(view=again) if held.view is view else held)
            for number, topic, request, held in self._held
        ]
        self._topics[view.topic] = again
        lost = f"entries of {self._stampers[view.keeper]}, which keeps the topic, were lost"
        effects: list[Effect] = [Deliver(Stalled(view.topic, now, why or f"{lost}: joining anew"))]
        if again.gap_from > since:
            effects.append(Deliver(Gap(view.topic, since + 1, again.gap_from, why or lost, settled=again.floor)))
        return [*effects, *self._ask_lanes(again), *self._listen(now)]

    def _refuse(self, now: Micros) -> list[Effect]:
        """A promise that cannot be kept here is not begun with."""
        for view in self._topics.values() if self._config.is_realtime else ():
            far = next((lane for lane in view.open_lanes() if not self._is_near(lane)), None)
            patience_us = self._config.ceiling_us + self._config.warm_up_us
            if far is not None and not view.is_told and view.since and now > view.since + patience_us:
                return [Deliver(Refused(0, self._far(far)))]
        return []

    def _stalled(self, now: Micros) -> list[Effect]:
        effects: list[Effect] = []
        for view in list(self._topics.values()):
            for lane in view.open_lanes() if view.cut >= 0 else ():
                since = lane.waits_since
                if since is None or lane.is_stalled or now < since + self._config.stall_us:
                    continue
                lane.is_stalled = True
                reason = f"{self._who(lane.name.stamper)} has not said how far its clock is"
                if self._config.leaves_stalled:
                    effects += self._join_anew(view, now, f"{reason}: the topic is left until it has")
                    break
                effects.append(Deliver(Stalled(view.topic, Micros(since), reason)))
        return effects
