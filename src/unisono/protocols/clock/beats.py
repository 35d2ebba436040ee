"""What a stamper tells of its clock, what it hears of the others', and what its listeners are told of all.

None of it is durable: a restart begins a new term, and its first beat is whole. A beat speaks for the lanes that were
listed, in it or before it in its term, and for no others; so who misses one applies nothing more of that stamper until
it has a whole one.
"""

from collections.abc import Iterable

from msgspec import Struct

from unisono.machine import Effect, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.messages import AskBeat, Beat, LaneClaim, Listen, Reading, Tide


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
        self.wanted = 0
        """Somebody may wait until we have promised this stamp."""

    def change(self, claim: LaneClaim) -> None:
        """A lane of ours is new, or has another last entry or lean: the next beat lists it."""
        self._mine[claim.topic] = claim
        self._changed[claim.topic] = None
        self.wanted = max(self.wanted, claim.stamp)

    def drop(self, topic: Topic) -> None:
        """A lane of ours has ended. Nobody has to be told: what was said of it stays true."""
        self._mine.pop(topic, None)
        self._changed.pop(topic, None)

    def tell(self, term: int, reading: int, clock: int, error: int) -> list[Effect]:
        """The next beat, to everybody."""
        self._number += 1
        lanes = tuple(self._mine[topic] for topic in self._changed)
        self._changed.clear()
        whole = self._number == 1
        beat = Beat(self._addresses[self._me], term, self._number, reading, clock, lanes, whole, error)
        self._views[self._me] = _View(term, self._number, clock, self._mine, error)
        others = [address for i, address in enumerate(self._addresses) if i != self._me]
        return [*(Send(address, beat) for address in others), *self._pass_on(self._me)]

    def tell_all(self, to: Address, term: int, reading: int, clock: int, error: int) -> list[Effect]:
        """To one who has missed some; the beat after it is the one after ours, for him as for all."""
        if not self._number:
            return []
        me = self._addresses[self._me]
        lanes = tuple(self._mine.values())
        return [Send(to, Beat(me, term, self._number, reading, clock, lanes, True, error))]

    def owed(self) -> int | None:
        """The clock that we have to promise next, if somebody may wait for it."""
        told = self._views[self._me].clock if self._me in self._views else 0
        needed = self.wanted - min((claim.lean for claim in self._mine.values()), default=0)
        return needed if told < needed else None

    def hear(self, beat: Beat, now: Micros) -> list[Effect]:
        stamper = self._numbers[beat.source]
        view = self._views.get(stamper)
        if beat.whole and (view is None or (view.term, view.number) <= (beat.term, beat.number)):
            lanes = {claim.topic: claim for claim in beat.lanes}
            view = self._views[stamper] = _View(beat.term, beat.number, beat.clock, lanes, beat.error)
        elif view is not None and (view.term, view.number + 1) == (beat.term, beat.number):
            view.number, view.clock, view.error = beat.number, max(view.clock, beat.clock), beat.error
            view.lanes.update({claim.topic: claim for claim in beat.lanes})
        elif view is not None and (beat.term, beat.number) <= (view.term, view.number):
            return []
        else:
            return self._ask(stamper, now)
        self._asked.pop(stamper, None)
        self.wanted = max(self.wanted, *(claim.stamp for claim in beat.lanes), 0)
        return self._pass_on(stamper)

    def _ask(self, stamper: int, now: Micros) -> list[Effect]:
        asked = self._asked.get(stamper)
        if asked is not None and now < asked + self._config.resend_us:
            return []
        self._asked[stamper] = now
        return [Send(self._addresses[stamper], AskBeat(self._addresses[self._me]))]

    def listen(self, message: Listen, now: Micros) -> list[Effect]:
        """Whoever listens says so again and again; one that is silent is forgotten."""
        self._listeners.pop(message.client, None)
        for client in [c for c, each in self._listeners.items() if each.heard_at + self._config.stall_us < now]:
            del self._listeners[client]
        if len(self._listeners) >= self._config.listeners_max:
            return []
        self._listeners[message.client] = _Listener(message.topics, now)
        return self._tide(message.client, message.topics, self._views)

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
            for effect in self._tide(client, listener.topics, (stamper,))
        ]

    def _tide(self, client: Address, topics: tuple[Topic, ...], stampers: Iterable[int]) -> list[Effect]:
        readings = []
        for stamper in stampers:
            view = self._views[stamper]
            claims = tuple(view.lanes[topic] for topic in topics if topic in view.lanes)
            if claims:
                readings.append(Reading(stamper, view.clock, claims, view.error))
        return [Send(client, Tide(tuple(readings)))] if readings else []
