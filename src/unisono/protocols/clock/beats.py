"""What a stamper tells of its clock, what it hears of the others', and what its listeners are told of all.

None of it is durable: a restart begins a new term, and its first beat is whole. A beat speaks for the lanes that were
listed, in it or before it in its term, and for no others; so who misses one applies nothing more of that stamper until
it has a whole one.

Whoever begins to tell its clock when an event is heard of is late by the way that took. So a node whose listeners wait
keeps those awake that they wait for: these tick, to it, until nothing has come for a while. Of ticks a listener is told
those that let it go on.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable

from msgspec import Struct, field

from unisono.machine import Effect, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.messages import AskBeat, Beat, LaneClaim, Listen, Reading, Tick, Tide, Wake

WAITS_MAX, WAITS_KEPT = 1_000, 32
"""Stamps that a listener may wait for, beyond which the oldest are told with those after them; and how many it may have
gone past before one looks."""


class _View(Struct):
    """One stamper as of its last beat that was applied."""

    term: int
    number: int
    clock: int
    lanes: dict[Topic, LaneClaim]
    error: int = -1


class _Listener(Struct):
    topics: tuple[Topic, ...]
    heard_at: Micros
    waits: list[int] = field(default_factory=list)
    """Stamps on its topics, or where it joins, that it may not have gone past, in order."""
    told: dict[int, int] = field(default_factory=dict)
    """Stamper -> its clock as it was told last."""

    def claims(self, view: _View) -> tuple[LaneClaim, ...]:
        return tuple(view.lanes[topic] for topic in self.topics if topic in view.lanes)

    def goes_on(self, stamper: int, view: _View) -> bool:
        """Whether that clock promises something that it waits for."""
        told, waits = self.told.get(stamper, 0), self.waits
        if not waits or told >= view.clock:
            return False
        return any(
            bisect_right(waits, told + claim.lean) < bisect_right(waits, view.clock + claim.lean)
            for claim in self.claims(view)
        )

    def wait_for(self, stamp: int) -> None:
        insort(self.waits, stamp)
        if len(self.waits) > WAITS_MAX:
            del self.waits[0]

    def go_past(self, views: dict[int, _View]) -> None:
        """Forgets what all clocks that it was told of have passed."""
        told = [
            self.told.get(stamper, 0) + claim.lean for stamper, view in views.items() for claim in self.claims(view)
        ]
        del self.waits[: bisect_right(self.waits, min(told, default=0))]


class Beats:
    """One stamper's part in them."""

    def __init__(self, me: int, addresses: tuple[Address, ...], config: ClockConfig) -> None:
        self._me, self._addresses, self._config = me, addresses, config
        self._numbers = {address: number for number, address in enumerate(addresses)}
        self._views: dict[int, _View] = {}
        self._asked: dict[int, Micros] = {}  # stampers that were asked for a whole beat, and when
        self._listeners: dict[Address, _Listener] = {}
        self._number = 0
        self._mine: dict[Topic, LaneClaim] = {}
        self._changed: dict[Topic, None] = {}
        self._ended: dict[Topic, Micros] = {}  # lanes of ours, and when they ended
        self._ticks = 0
        self._told = 0  # the clock of our last beat
        self._wakers: dict[Address, int] = {}  # to whom we tick, and until when
        self._woken: dict[int, Micros] = {}  # whom we have woken, and when
        self.wanted = 0
        """Somebody may wait until we have promised this stamp."""

    def change(self, claim: LaneClaim) -> None:
        """A lane of ours is new, or has another last entry or lean: the next beat lists it."""
        self._mine[claim.topic] = claim
        self._changed[claim.topic] = None
        self._ended.pop(claim.topic, None)
        self.wanted = max(self.wanted, claim.stamp)

    def end(self, topic: Topic, now: Micros) -> None:
        """A lane of ours has ended. What was said of it stays true, and our clock counts for it, too, as nothing is
        stamped on it any more: until its keeper has said so to all, its subscribers would wait."""
        if topic in self._mine:
            self._ended[topic] = now

    def tell(self, term: int, reading: int, clock: int, error: int, now: Micros) -> list[Effect]:
        """The next beat, to everybody."""
        self._number += 1
        lanes = tuple(self._mine[topic] for topic in self._changed)
        self._changed.clear()
        ended = tuple(topic for topic, at in self._ended.items() if at + self._config.lease_us <= now)
        for topic in ended:
            del self._ended[topic], self._mine[topic]
        whole, self._told = self._number == 1, clock
        beat = Beat(self._addresses[self._me], term, self._number, reading, clock, lanes, whole, error, ended)
        self._views[self._me] = _View(term, self._number, clock, self._mine, error)
        others = [address for i, address in enumerate(self._addresses) if i != self._me]
        told = self._pass_on(self._me)
        return [*(Send(address, beat) for address in others), *told, *self._await(self._me, lanes, now)]

    def tick(self, clock: int, now: Micros) -> list[Effect]:
        """Our clock, between beats, to those who keep us awake. It says nothing of what no beat has listed yet."""
        for address in [address for address, until in self._wakers.items() if until <= now]:
            del self._wakers[address]
        view = self._views.get(self._me)
        if view is None or self._changed:
            return []
        self._ticks += len(self._wakers)
        view.clock = max(view.clock, clock)
        tick = Tick(self._addresses[self._me], view.term, view.number, view.clock)
        return [*(Send(address, tick) for address in self._wakers), *self._let_on(self._me)]

    def wake(self, source: Address, now: Micros) -> bool:
        """Tells whether we were awake."""
        was_awake = self.is_awake
        self._wakers[source] = now + self._config.awake_us
        return was_awake

    @property
    def told(self) -> tuple[int, int]:
        """How many beats, and how many ticks."""
        return self._number, self._ticks

    @property
    def is_awake(self) -> bool:
        return bool(self._wakers)

    @property
    def may_rest(self) -> bool:
        """Whether ticks say all that there is to say."""
        return self.is_awake and not self._changed

    def tell_all(self, to: Address, term: int, reading: int, clock: int, error: int) -> list[Effect]:
        """To one who has missed some; the beat after it is the one after ours, for him as for all."""
        if not self._number:
            return []
        me = self._addresses[self._me]
        lanes = tuple(self._mine.values())
        return [Send(to, Beat(me, term, self._number, reading, clock, lanes, True, error))]

    def owed(self) -> int | None:
        """The clock that we have to promise next, if somebody may wait for it."""
        needed = self.wanted - min((claim.lean for claim in self._mine.values()), default=0)
        return needed if self._told < needed else None

    def hear(self, beat: Beat, now: Micros) -> list[Effect]:
        stamper = self._numbers[beat.source]
        view = self._views.get(stamper)
        known = view.lanes if view is not None else {}
        news = tuple([claim for claim in beat.lanes if known.get(claim.topic) != claim])
        if beat.whole and (view is None or (view.term, view.number) <= (beat.term, beat.number)):
            lanes = {claim.topic: claim for claim in beat.lanes}
            view = self._views[stamper] = _View(beat.term, beat.number, beat.clock, lanes, beat.error)
        elif view is not None and (view.term, view.number + 1) == (beat.term, beat.number):
            view.number, view.clock, view.error = beat.number, max(view.clock, beat.clock), beat.error
            for topic in beat.ended:
                view.lanes.pop(Topic(topic), None)
            view.lanes.update({claim.topic: claim for claim in beat.lanes})
        elif view is not None and (beat.term, beat.number) <= (view.term, view.number):
            return []
        else:
            return self._ask(stamper, now)
        self._asked.pop(stamper, None)
        self.wanted = max(self.wanted, *(claim.stamp for claim in beat.lanes), 0)
        return [*self._pass_on(stamper), *self._await(stamper, news, now)]

    def hear_tick(self, tick: Tick, now: Micros) -> list[Effect]:
        """Worth what the beat is worth that it follows."""
        stamper = self._numbers[tick.source]
        view = self._views.get(stamper)
        if view is None or (view.term, view.number) < (tick.term, tick.number):
            return self._ask(stamper, now)
        if (view.term, view.number) > (tick.term, tick.number):
            return []
        view.clock = max(view.clock, tick.clock)
        return self._let_on(stamper)

    def _ask(self, stamper: int, now: Micros) -> list[Effect]:
        asked = self._asked.get(stamper)
        if asked is not None and now < asked + self._config.resend_us:
            return []
        self._asked[stamper] = now
        return [Send(self._addresses[stamper], AskBeat(self._addresses[self._me]))]

    def listen(self, message: Listen, now: Micros, ahead: int) -> list[Effect]:
        """Whoever listens says so again and again; one that is silent is forgotten. No clock is beyond `ahead`."""
        before = self._listeners.pop(message.client, None)
        for client in [c for c, each in self._listeners.items() if each.heard_at + self._config.stall_us < now]:
            del self._listeners[client]
        if len(self._listeners) >= self._config.listeners_max:
            return []
        listener = self._listeners[message.client] = _Listener(message.topics, now)
        if before is not None:
            listener.waits = before.waits
        effects = self._tide(message.client, listener, self._views)
        if 0 < message.waits <= ahead:
            self.wanted = max(self.wanted, message.waits)
            listener.wait_for(message.waits)
            needed = [stamper for stamper, view in self._views.items() if listener.claims(view)]
            effects += self._keep_awake(needed, now)
        return effects

    @property
    def views(self) -> dict[int, _View]:
        """Every stamper as of its last beat, this one included."""
        return self._views

    def listening(self) -> list[tuple[Topic, ...]]:
        return [listener.topics for listener in self._listeners.values()]

    def forget(self, client: Address) -> None:
        self._listeners.pop(client, None)

    def _pass_on(self, stamper: int) -> list[Effect]:
        return [
            effect
            for client, listener in self._listeners.items()
            for effect in self._tide(client, listener, (stamper,))
        ]

    def _let_on(self, stamper: int) -> list[Effect]:
        """To those whom this clock lets go on."""
        view = self._views[stamper]
        return [
            effect
            for client, listener in self._listeners.items()
            if listener.goes_on(stamper, view)
            for effect in self._tide(client, listener, (stamper,))
        ]

    def _await(self, stamper: int, listed: tuple[LaneClaim, ...], now: Micros) -> list[Effect]:
        """Listeners of these lanes may wait now, for clocks that they have not been told of and for others to come."""
        claims = {claim.topic: claim for claim in listed if claim.stamp}
        effects: list[Effect] = []
        needed: dict[int, None] = {}
        for client, listener in self._listeners.items() if claims else ():
            new = [claims[topic] for topic in listener.topics if topic in claims]
            for claim in new:
                listener.wait_for(claim.stamp)
            if not new:
                continue
            if len(listener.waits) > WAITS_KEPT:
                listener.go_past(self._views)
            ahead = max(claim.lean for claim in new)
            for other, view in self._views.items():
                lanes = listener.claims(view)
                if lanes and (other != stamper or min(claim.lean for claim in lanes) < ahead):
                    needed[other] = None
            known = [other for other, view in self._views.items() if listener.goes_on(other, view)]
            effects += self._tide(client, listener, known)
        return effects + self._keep_awake(needed, now)

    def _keep_awake(self, stampers: Iterable[int], now: Micros) -> list[Effect]:
        effects: list[Effect] = []
        for stamper in stampers:
            woken = self._woken.get(stamper)
            if stamper != self._me and (woken is None or now >= woken + self._config.awake_us // 2):
                self._woken[stamper] = now
                effects.append(Send(self._addresses[stamper], Wake(self._addresses[self._me])))
        return effects

    def _tide(self, client: Address, listener: _Listener, stampers: Iterable[int]) -> list[Effect]:
        readings = []
        for stamper in stampers:
            view = self._views[stamper]
            if claims := listener.claims(view):
                readings.append(Reading(stamper, view.clock, claims, view.error))
                listener.told[stamper] = view.clock
        return [Send(client, Tide(tuple(readings)))] if readings else []
