"""A site: a replica that publishes and applies operations, and a sequencer while it is in the coalition.

The thesis describes the protocol in section 4.2 (after [16], which was not available). A publisher gives its operation
to a sequencer at random; that one numbers it n * c + rank and gossips it: who hears it first passes it on to `fanout`
others. Digests repair what gossip missed. Operations are applied where their keys say, whatever was applied
before; so all sites have the same in the end and do not know when: *unconscious*.

What differs from the thesis, each because models without it diverged: the rank is that in the coalition; the creator
is part of the key; every message carries an index that is consecutive per sequencer, so holes are seen although numbers
jump; an operation numbered twice has the least of its keys. Cuts make it conscious: a cut is an event in total order
that names of every stream how far it goes; final is (cut, key), and what no cut names is tentative.
"""

from random import Random

from unisono.machine import (
    Accepted,
    Broadcast,
    Deliver,
    Effect,
    Fired,
    Heard,
    Join,
    Joined,
    Publish,
    Refuse,
    Restarted,
    Send,
    SetTimer,
)
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.uec.coalitions import Coalitions
from unisono.protocols.uec.config import UecConfig
from unisono.protocols.uec.log import KeyedLog, PlacedOperation
from unisono.protocols.uec.messages import (
    Coalition,
    CoalitionId,
    Cut,
    Digest,
    Formed,
    NumberRequest,
    Ordered,
    Placed,
    Seek,
    SettledOrder,
    StreamId,
    UecKey,
    UecMessage,
)


class _Stream:
    """What we have of one sequencer in one coalition."""

    __slots__ = ("have", "items", "settled")

    def __init__(self) -> None:
        self.items: dict[int, Ordered] = {}
        self.have = 0  # all up to here
        self.settled = 0

    def add(self, item: Ordered) -> None:
        self.items[item.index] = item
        while self.have + 1 in self.items:
            self.have += 1

    @property
    def beyond(self) -> tuple[int, ...]:
        return tuple(index for index in self.items if index > self.have)


class UecSite:
    """One of `sites`, all of which know each other. Cuts are heard on `cuts`, in total order."""

    def __init__(
        self, me: Address, sites: tuple[Address, ...], cuts: Topic, dice: Random, config: UecConfig = UecConfig()
    ) -> None:
        self._me, self._cuts, self._dice, self._config = me, cuts, dice, config
        self._others = tuple(site for site in sites if site != me)
        self._coalitions = Coalitions(me, sites, config.coalition_size, dice)
        self._counters: dict[CoalitionId, tuple[int, int]] = {}  # our n and our index, by coalition
        self._streams: dict[StreamId, _Stream] = {}
        self._keys: dict[str, Ordered] = {}  # of each operation, the first we heard
        self._open: dict[str, tuple[Event, int, Address | None]] = {}  # ours, not numbered yet
        self._is_seeking = False
        self._pending_cuts: list[Cut] = []
        self._events: dict[str, Event] = {}
        self._since: dict[str, Micros] = {}  # what is tentative, since when
        self._final: dict[str, None] = {}
        self.log: KeyedLog[UecKey] = KeyedLog(config.hold_us, config.hold_max)

    def handle(self, message: UecMessage, now: Micros) -> list[Effect]:
        match message:
            case Publish(message=Event() as event, request=request):
                self._open[event.id] = (event, request, None)
                return self._ask(event, now)
            case NumberRequest(event=event):
                return self._number(event, now)
            case Ordered():
                return self._hear(message, now)
            case Digest():
                return self._compare(message)
            case Seek(seeker=seeker):
                current = self._coalitions.current
                return [Send(seeker, Formed(current))] if current is not None else []
            case Formed(coalition=coalition):
                return self._learn(coalition, now)
            case Fired(key=key):
                return self._fire(key, now)
            case Heard(topic=topic, message=Cut() as cut) if topic == self._cuts:
                self._pending_cuts.append(cut)
                return self._settle()
            case Restarted():
                return self._begin(now)
            case Joined():
                return []
            case _:
                return [Refuse(f"{type(message).__name__} is nothing a site understands")]

    def _begin(self, now: Micros) -> list[Effect]:
        effects: list[Effect] = [SetTimer("digest", Micros(now + self._dice.randrange(self._config.digest_us) + 1))]
        if self._config.cut_us:
            effects += [Join(self._cuts), SetTimer("cut", Micros(now + self._config.cut_us))]
        self._is_seeking = False  # after a crash no timer of before fires
        for event, _, _ in list(self._open.values()):
            effects += self._ask(event, now)
        return [*effects, *self._until_release()]

    # our operations

    def _ask(self, event: Event, now: Micros) -> list[Effect]:
        """Gives an operation to a sequencer, another one than before; without any, looks for a coalition."""
        _, request, before = self._open[event.id]
        member = self._coalitions.choose(before)
        if member is None:
            if self._is_seeking:
                return []
            self._is_seeking = True
            seek = Seek(self._me)
            until = SetTimer("discovery", Micros(now + self._config.discovery_us))
            return [*(Send(site, seek) for site in self._others), until]
        self._open[event.id] = (event, request, member)
        retry = SetTimer(f"retry {event.id}", Micros(now + self._config.retry_us))
        return [retry, *(self._number(event, now) if member == self._me else [Send(member, NumberRequest(event))])]

    def _learn(self, coalition: Coalition, now: Micros) -> list[Effect]:
        had = self._coalitions.current is not None
        effects = self._coalitions.hear(coalition)
        if not had:
            for event, _, _ in list(self._open.values()):
                effects += self._ask(event, now)
        return effects

    def _fire(self, key: str, now: Micros) -> list[Effect]:
        match key.split(" ", 1):
            case ["digest"]:
                again = SetTimer("digest", Micros(now + self._config.digest_us))
                return [Send(self._dice.choice(self._others), self._digest()), again] if self._others else []
            case ["cut"]:
                return [*self._propose(now), SetTimer("cut", Micros(now + self._config.cut_us))]
            case ["hold"]:
                return [*self._placed(self.log.release(now)), *self._until_release()]
            case ["discovery"] if self._coalitions.current is None:
                effects = self._coalitions.make()
                for event, _, _ in list(self._open.values()):
                    effects += self._ask(event, now)
                return effects
            case ["retry", name] if name in self._open:
                event, _, member = self._open[name]
                effects = []
                if member is not None and self._coalitions.strike(member) >= self._config.silent_max:
                    effects = self._coalitions.make(without=member)
                return [*effects, *self._ask(event, now)]
            case _:
                return []

    # sequencing

    def _number(self, event: Event, now: Micros) -> list[Effect]:
        known = self._keys.get(event.id)
        if known is not None:  # asked for again: the answer got lost
            return [Send(Address(event.publisher), known)] if event.publisher != self._me else []
        coalition, rank = self._coalitions.current, self._coalitions.rank
        if coalition is None or not rank:
            return []  # its publisher tries again elsewhere
        n, index = self._counters.get(coalition.id, (0, 0))
        n, index = n + 1, index + 1
        self._counters[coalition.id] = n, index
        number = n * len(coalition.members) + rank
        return self._hear(Ordered((*coalition.id, rank), index, number, event), now)

    def _follow(self, item: Ordered) -> None:
        """SYNC: a counter that lags behind those of the others would give numbers that belong before theirs."""
        coalition = self._coalitions.current
        epoch, creator, rank = item.stream
        if coalition is not None and coalition.id == (epoch, creator):
            n, index = self._counters.get(coalition.id, (0, 0))
            self._counters[coalition.id] = max(n, (item.number - rank) // len(coalition.members)), index

    # gossip

    def _hear(self, item: Ordered, now: Micros) -> list[Effect]:
        stream = self._streams.setdefault(item.stream, _Stream())
        known = stream.items.get(item.index)
        if known is not None:
            return [] if known.event.id == item.event.id else [Refuse(f"two operations are {item.stream} {item.index}")]
        stream.add(item)
        self._keys.setdefault(item.event.id, item)
        if self._config.sync:
            self._follow(item)
        count = min(self._config.fanout, len(self._others))
        effects: list[Effect] = [Send(site, item) for site in self._dice.sample(self._others, count)]
        ours = self._open.pop(item.event.id, None)
        if ours is not None:
            if ours[2] is not None:
                self._coalitions.heard_of(ours[2])
            effects.append(Deliver(Accepted(ours[1])))
        effects += self._apply(item, now)
        return [*effects, *self._settle()]

    def _apply(self, item: Ordered, now: Micros) -> list[Effect]:
        if item.event.id in self._final:
            return []
        self._events[item.event.id] = item.event
        self._since.setdefault(item.event.id, now)
        return [*self._placed(self.log.add(item.key, item.event.id, now)), *self._until_release()]

    def _until_release(self) -> list[Effect]:
        release = self.log.next_release
        return [] if release is None else [SetTimer("hold", release)]

    def _placed(self, changes: list[PlacedOperation[UecKey]]) -> list[Effect]:
        return [Deliver(Placed(change.key, self._events[change.operation], change.undone)) for change in changes]

    def _digest(self, is_answer: bool = False) -> Digest:
        known = tuple((name, stream.have, stream.beyond) for name, stream in self._streams.items())
        return Digest(self._me, self._coalitions.current, known, is_answer)

    def _compare(self, digest: Digest) -> list[Effect]:
        """Sends what the other one lacks, and asks for what we lack."""
        theirs = {name: (have, beyond) for name, have, beyond in digest.known}
        effects: list[Effect] = []
        for name, stream in self._streams.items():
            have, beyond = theirs.get(name, (0, ()))
            effects += [
                Send(digest.site, item)
                for index, item in stream.items.items()
                if index > have and index not in beyond and len(effects) < self._config.answer_max
            ]
        lacking = any(
            have > self._stream_have(name) or set(beyond) - self._indexes(name) for name, have, beyond in digest.known
        )
        if lacking and not digest.is_answer:
            effects.append(Send(digest.site, self._digest(is_answer=True)))
        if digest.coalition is not None:
            effects += self._coalitions.hear(digest.coalition)
        if self._coalitions.is_outdated(digest.coalition) and self._coalitions.current is not None:
            effects.append(Send(digest.site, Formed(self._coalitions.current)))
        return effects

    def _stream_have(self, name: StreamId) -> int:
        stream = self._streams.get(name)
        return stream.have if stream is not None else 0

    def _indexes(self, name: StreamId) -> set[int]:
        stream = self._streams.get(name)
        return set(stream.items) if stream is not None else set()

    # cuts

    def _propose(self, now: Micros) -> list[Effect]:
        """The first of the coalition does it; the others when they have waited for it, each longer."""
        rank = self._coalitions.rank
        oldest = min(self._since.values(), default=now)
        if not rank or now - oldest < rank * self._config.cut_us:
            return []
        upto = tuple((name, stream.have) for name, stream in self._streams.items() if stream.have > stream.settled)
        return [Broadcast(self._cuts, Cut(upto), control=True)] if upto else []

    def _settle(self) -> list[Effect]:
        """Cut after cut, as long as we have all they name; what is missing is asked for by digests."""
        effects: list[Effect] = []
        while self._pending_cuts:
            cut = self._pending_cuts[0]
            if any(self._stream_have(name) < upto for name, upto in cut.upto):
                break
            self._pending_cuts.pop(0)
            effects += self._final_by(cut)
        return effects

    def _final_by(self, cut: Cut) -> list[Effect]:
        named: list[Ordered] = []
        for name, upto in cut.upto:
            stream = self._streams[name]
            named += [stream.items[index] for index in range(stream.settled + 1, upto + 1)]
            stream.settled = max(stream.settled, upto)
        fresh: dict[str, Event] = {}
        for item in sorted(named, key=lambda item: item.key):
            if item.event.id not in self._final:
                fresh.setdefault(item.event.id, item.event)
        if not fresh:
            return []
        self.log.settle(list(fresh))
        for operation in fresh:
            self._final[operation] = None
            self._since.pop(operation, None)
            self._events.pop(operation, None)
        return [Deliver(SettledOrder(tuple(fresh.values())))]
