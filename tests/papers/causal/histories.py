"""Random small worlds under the order alone, judged by explicit causal histories: sets of events, kept beside the
machines.

Brokers deliver and emit; clients deliver and publish through whichever broker they please. Every frame goes straight to
everybody, with its own losses, repetitions and delays, so what is tested is the order and not the gossip. An event's
history has what its client was told of or had published before (also what it never got an answer for), and what its
broker had delivered when it emitted it.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.causal.config import CausalConfig
from unisono.protocols.causal.messages import CausalEmitted, CausalFrame, CausalPublication, CausalRefused, FrameFate
from unisono.protocols.causal.order import CausalOrder, SettledFrame, precedes
from unisono.protocols.causal.publishing import CausalAuthor, CausalEmitter
from unisono.protocols.causal.wire import pack_frame, unpack_frame

TICK = 10
"""Moments of a tick: what happens within a tick has an order, too."""
BASE = CausalConfig(
    tick_us=Micros(1000), eps_ticks=2, life_ticks=12, spread_ticks=4, deadline_ticks_max=40, delay_ticks=40,
    publish_ticks=6,
)  # fmt: skip
"""Short lives: most that can go wrong with deadlines goes wrong within a few frames."""


class Case(Struct, frozen=True):
    """What a world is like."""

    config: CausalConfig = BASE
    brokers: int = 3
    clients: int = 4
    groups: int = 2
    ticks: int = 80
    rate: float = 0.5
    """Publications of all clients per tick."""
    own_deadlines: float = 0.0
    """This share of the events has a deadline of its own."""
    loss: float = 0.1
    repeats: float = 0.1
    delay: int = 60
    """Up to so many moments."""
    skew: int = 0
    """Clocks are off by up to so many moments, either way."""
    churn: float = 0.0
    """Changes of subscriptions per tick."""
    patience: int | None = None
    """Clients hold nothing back for longer, in ticks."""
    rejoins: float = 0.0
    """Clients that find their clock right again, per tick."""
    crashes: float = 0.0
    """Clients that crash and are back at once, per tick."""
    restarts: float = 0.0
    """The same of brokers."""
    roams: float = 0.3
    """This share of the publications goes through another broker than the last."""
    answers_lost: float = 0.1


class Member:
    """A broker or a client, with what it truly knows."""

    def __init__(self, world: "Histories", name: str, number: int | None, skew: int) -> None:
        self.world, self.name, self.skew, self.life = world, name, skew, 0
        self.number = number
        self.is_broker = number is not None
        self.told: dict[str, int] = {}  # event -> its place in what this member was notified of, over all lives
        self.begin(number)

    def begin(self, number: int | None) -> None:
        self.life += 1
        self.number = number
        self.order = CausalOrder(self.world.case.config, number, None if self.is_broker else self.world.case.patience)
        self.past: set[str] = set()
        self.accepted: list[CausalFrame] = []
        self.fates: dict[tuple[int, int], FrameFate] = {}
        if self.is_broker:
            self.emitter = CausalEmitter(self.order)
        else:
            self.author = CausalAuthor(Address(f"{self.name}/{self.life}"), self.order, lambda topic: (int(topic),))

    @property
    def clock(self) -> int:
        return max(0, self.world.now + self.skew) // TICK


class Histories:
    """One run."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.dice, self.now = case, Random(seed), 0
        self.problems: list[str] = []
        self.history: dict[str, set[str]] = {}
        self.counts: dict[str, int] = {}
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._counter = self._events = self._incarnations = 0
        dice, skew = self.dice, case.skew
        self.brokers = [Member(self, f"b{i}", self._new(), dice.randint(-skew, skew)) for i in range(case.brokers)]
        self.clients = [Member(self, f"c{i}", None, dice.randint(-skew, skew)) for i in range(case.clients)]
        self.now = 10 * TICK + case.skew
        for broker in self.brokers:
            broker.order.subscribe(range(case.groups), broker.clock)
        for client in self.clients:
            self._subscribe(client, *(g for g in range(case.groups) if dice.random() < 0.7))
            client.author.broker = dice.choice(self.brokers).number
        start = self.now + (case.config.eps_ticks + 2) * TICK
        for i in range(case.ticks * TICK):
            if i % TICK == 0:
                self.at(start + i, self._something)
        for moment in range(self.now, start + (case.ticks + 60) * TICK):
            self.at(moment, self._tick)

    def run(self) -> "Histories":
        while self._heap:
            self.now, _, action, arguments = heappop(self._heap)
            action(*arguments)
        return self

    def at(self, moment: int, action: Callable[..., None], *arguments: Any) -> None:
        self._counter += 1
        heappush(self._heap, (moment, self._counter, action, arguments))

    def _new(self) -> int:
        self._incarnations += 1
        return self._incarnations

    def _problem(self, text: str) -> None:
        self.problems.append(f"{self.now}: {text}")

    # what happens

    def _something(self) -> None:
        case, dice = self.case, self.dice
        if dice.random() < case.rate:
            self._publish(dice.choice(self.clients))
        if dice.random() < case.churn:
            client, group = dice.choice(self.clients), dice.randrange(case.groups)
            if group in client.order.floors:
                self._settle(client, client.order.unsubscribe((group,), client.clock))
            else:
                self._subscribe(client, group)
        if case.rejoins and dice.random() < case.rejoins:
            client = dice.choice(self.clients)
            self._settle(client, client.order.release(client.clock))
            client.order.rejoin(client.clock)
        if dice.random() < case.crashes:
            client = dice.choice(self.clients)
            groups, broker = list(client.order.floors), client.author.broker
            client.begin(None)
            client.author.broker = broker
            self._subscribe(client, *groups)
        if dice.random() < case.restarts:
            broker_member = dice.choice(self.brokers)
            broker_member.begin(self._new())
            broker_member.order.subscribe(range(case.groups), broker_member.clock)

    def _tick(self) -> None:
        for member in (*self.brokers, *self.clients):
            if (self.now + member.skew) % TICK == 0:
                self._settle(member, member.order.pump(member.clock))
                if member.is_broker:
                    self._emit(member)
                else:
                    self._hurry(member)
                if any(waiting.due < member.clock for waiting in member.order._waiting):
                    self._problem(f"{member.name} holds a frame after its deadline")

    def _subscribe(self, client: Member, *groups: int) -> None:
        client.order.subscribe(groups, client.clock)

    # publishing

    def _publish(self, client: Member) -> None:
        self._events += 1
        case, dice = self.case, self.dice
        born = Micros(max(0, self.now + client.skew) * case.config.tick_us // TICK)
        event = Event(client.author._me, self._events, str(dice.randrange(case.groups)), born_at=born)
        lasts = 0
        if dice.random() < case.own_deadlines:
            lasts = dice.randint(case.config.spread_ticks, case.config.deadline_ticks_max)
        self.history[event.id] = set(client.past)
        client.past.add(event.id)
        client.author.put(self._events, event, lasts)
        if dice.random() < case.roams:
            client.author.broker = dice.choice(self.brokers).number
        self._next(client)

    def _next(self, client: Member) -> None:
        live = [broker.number for broker in self.brokers]
        if client.author.broker not in live:  # it has been told that its broker is gone
            client.author.broker = self.dice.choice(live)
        publication = client.author.next(client.clock)
        if publication is not None and self.dice.random() >= self.case.answers_lost / 2:
            broker = next(each for each in self.brokers if each.number == publication.broker)
            for _ in range(1 + (self.dice.random() < self.case.repeats)):
                self.at(self.now + self._delay() // 2, self._asked, broker, client, client.life, publication)

    def _hurry(self, client: Member) -> None:
        overdue = client.author.overdue_at
        if overdue is not None and client.clock >= overdue:
            client.author.give_up()
            self._count("given-up")
            self._next(client)

    def _asked(self, broker: Member, client: Member, life: int, publication: CausalPublication) -> None:
        refused = broker.emitter.ask(publication, broker.clock)
        if refused is not None:
            self._answer(client, life, refused, set())
            return
        self._emit(broker)

    def _emit(self, broker: Member) -> None:
        before = set(broker.past)
        known: dict[int, set[str]] = {}  # at each stamp: an answer tells of its own frame, not of those after it
        frames, answers = broker.emitter.emit(broker.clock)
        for frame in frames:
            for event in frame.body:
                self.history[event.id] |= before
                before |= self.history[event.id]
            before |= {event.id for event in frame.body}
            known[frame.stamp] = set(before)
            travels = unpack_frame(pack_frame(frame, self.case.config), self.case.config)
            for member in (*self.brokers, *self.clients):
                if member is broker:
                    self._arrive(member, frame)
                elif self.dice.random() >= self.case.loss:
                    for _ in range(1 + (self.dice.random() < self.case.repeats)):
                        self.at(self.now + self._delay(), self._arrive, member, travels)
        for answer in answers:
            client, life = self._client(answer.client)
            self._answer(client, life, answer, known[answer.high] if isinstance(answer, CausalEmitted) else set())

    def _client(self, address: str) -> tuple[Member, int]:
        name, _, life = address.partition("/")
        return next(client for client in self.clients if client.name == name), int(life)

    def _answer(self, client: Member, life: int, answer: CausalEmitted | CausalRefused, past: set[str]) -> None:
        if self.dice.random() >= self.case.answers_lost:
            self.at(self.now + self._delay() // 2, self._answered, client, life, answer, past)

    def _answered(self, client: Member, life: int, answer: CausalEmitted | CausalRefused, past: set[str]) -> None:
        if life != client.life:
            return
        if isinstance(answer, CausalRefused):
            client.author.refused(answer)
            if client.author.has_lost(answer):
                client.author.give_up()
                self._count("given-up")
        elif client.author.emitted(answer):
            client.past |= past
        self._next(client)

    def _delay(self) -> int:
        return self.dice.randint(1, self.case.delay)

    # receiving

    def _arrive(self, member: Member, frame: CausalFrame) -> None:
        """Datagrams find whoever lives at an address now."""
        order, clock = member.order, member.clock
        self._settle(member, order.receive(frame, clock))
        fate = member.fates.get(frame.id)
        if fate is None:
            member.accepted.append(frame)
        elif fate is FrameFate.SUCC_DELIVERED and clock <= frame.deadline:
            self._justify(member, frame, clock)
        elif fate in (FrameFate.LATE, FrameFate.LATE_BLOCKED) and clock <= frame.deadline:
            self._problem(f"{member.name} turned {frame.id} away as late, and it was on time")

    def _justify(self, member: Member, frame: CausalFrame, clock: int) -> None:
        """On time, and turned away: something that depends on it must have been forced out."""
        self._count("on-time-discarded")
        if self.case.patience is not None:
            return
        later, found = [frame], [frame]
        while later:
            cause = later.pop()
            more = [each for each in member.accepted if each not in found and precedes(cause, each)]
            found += more
            later += more
        if any(each.deadline <= clock for each in found[1:]) or self._is_blamed(member, frame):
            return
        self._problem(f"{member.name} turned {frame.id} away on time, and nothing had forced it")

    def _is_blamed(self, member: Member, frame: CausalFrame) -> bool:
        """A client without an answer knows of a frame of that broker that need not be its own: it cannot tell its
        deadline,
        and whoever waits for it may wait less long than for the frame that is really there."""
        entries = [each.past.get((frame.sender, group)) for each in member.accepted for group in frame.groups]
        told = [entry for entry in entries if entry is not None and entry[0] >= frame.stamp]
        return "given-up" in self.counts and any(deadline < frame.deadline for _, deadline in told)

    def _settle(self, member: Member, settled: list[SettledFrame]) -> None:
        for each in settled:
            self._count(each.fate.value)
            if each.fate in (FrameFate.DUP, FrameFate.FUTURE):
                continue
            if each.frame.id in member.fates:
                self._problem(f"{member.name}: {each.frame.id} has ended twice")
            member.fates[each.frame.id] = each.fate
            if each.fate is FrameFate.DELIVERED:
                member.accepted.append(each.frame)
                for event in each.frame.body:
                    if member.order.owes(int(event.topic), each.frame.stamp):
                        self._notify(member, event)

    def _notify(self, member: Member, event: Event) -> None:
        if event.id in member.told:
            self._problem(f"{member.name} was notified of {event.id} twice")
            return
        for other in member.told:
            if event.id in self.history[other]:
                self._problem(f"{member.name} was notified of {other}, then of {event.id}, which it depends on")
                break
        member.told[event.id] = len(member.told)
        member.past |= self.history[event.id] | {event.id}

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def case_of(name: str) -> Case:
    """The families that are played."""
    unequal = Case(own_deadlines=0.5)
    return {
        "equal": Case(),
        "own deadlines": unequal,
        "late delivered": replace(unequal, config=replace(BASE, late="deliver", deadline_ticks_max=30), delay=200),
        "churn": replace(unequal, churn=0.3),
        "crashes": replace(unequal, crashes=0.1),
        "restarts": replace(unequal, restarts=0.05, answers_lost=0.3),
        "small buffer": replace(unequal, config=replace(BASE, pending_max=3), rate=0.9),
        "impatient": replace(unequal, patience=4, delay=120),
        "rejoins": replace(unequal, rejoins=0.1),
        "slow": replace(unequal, delay=300, loss=0.3),
        "skew": replace(unequal, skew=BASE.eps_ticks * TICK // 2),
        "far skew": replace(unequal, skew=4 * BASE.eps_ticks * TICK // 2, churn=0.2, crashes=0.05, restarts=0.02),
        "all": replace(
            unequal, churn=0.2, crashes=0.05, restarts=0.03, loss=0.2, delay=150, skew=10,
            config=replace(BASE, pending_max=8),
        ),
    }[name]  # fmt: skip


CASES = (
    "equal", "own deadlines", "late delivered", "churn", "crashes", "restarts", "small buffer", "impatient", "rejoins",
    "slow", "skew", "far skew", "all",
)  # fmt: skip


def play(name: str, seed: int) -> Histories:
    return Histories(case_of(name), seed).run()
