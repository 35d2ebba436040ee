"""A client: subscribes by topic and content, is told in causal order, and publishes through whichever broker it has.

What it knows is its own, so another broker needs nothing of the last one: publications that were under way there are
unknown when their time is over, and those that come after them depend on whatever may have become of them.
"""

from collections.abc import Callable
from itertools import groupby
from random import Random
from typing import Any

from msgspec import Struct

from unisono.machine import (
    Accepted,
    Deliver,
    Effect,
    Fired,
    Gap,
    Heard,
    Joined,
    Publish,
    Refuse,
    Refused,
    Restarted,
    Select,
    Selected,
    Send,
    SetTimer,
    Subscribe,
    Unknown,
    Unsubscribe,
)
from unisono.model.event import Event, EventRow
from unisono.model.ids import Address, Topic
from unisono.model.interest import covers, is_pattern
from unisono.model.predicate import EVERY_EVENT, Filter
from unisono.model.time import Micros
from unisono.protocols.causal.clocks import REMEDY
from unisono.protocols.causal.config import EVENT_LIMITS, CausalConfig
from unisono.protocols.causal.grouping import CausalGroups
from unisono.protocols.causal.knowledge import CausalKnowledge
from unisono.protocols.causal.mesh import DUE, ROUND, CausalMesh, order_of
from unisono.protocols.causal.messages import (
    CausalEmitted,
    CausalEnter,
    CausalFrames,
    CausalGoodbye,
    CausalGossip,
    CausalMember,
    CausalRefused,
    CausalRequest,
    CausalSeeds,
    CausalWelcome,
    FrameFate,
)
from unisono.protocols.causal.order import SettledFrame
from unisono.protocols.causal.publishing import CausalAuthor
from unisono.structures.content import flat, why_not

ENTER, OVERDUE, JOIN = "enter", "overdue", "join"
TOLD = (FrameFate.LATE, FrameFate.LATE_BLOCKED, FrameFate.SUCC_DELIVERED, FrameFate.OVERFLOW)
"""Ends that a subscriber is told of: something it was owed does not come."""


class CausalVia(Struct, frozen=True, tag="causal.Via"):
    """From above: publish through this broker from now on, or through nobody."""

    broker: Address | None


class CausalClient:
    """One client. `where` narrows what it is told of; it passes everything on all the same."""

    def __init__(
        self,
        me: Address,
        topic_name: Callable[[Topic], str],
        groups: CausalGroups,
        config: CausalConfig,
        dice: Random,
        *,
        region: str = "local",
        seeds: tuple[CausalMember, ...] = (),
        where: Filter = EVERY_EVENT,
        patience_us: int | None = None,
        called: Address | None = None,
        knowledge: CausalKnowledge | None = None,
    ) -> None:
        """`called`: its name to brokers, if members know it by another one. `knowledge`: what other clients of the same
        program are told counts as known here, and the other way round."""
        self._called = called or me
        self._topic_name, self._groups, self._where = topic_name, groups, where
        self.mesh = CausalMesh(me, region, order_of(config, None, patience_us, knowledge), seeds, dice)
        self._order, self._config = self.mesh.order, config
        self._author = CausalAuthor(self._called, self._order, groups.of, dice.getrandbits(40))
        self._via: Address | None = None
        self._names: dict[str, Topic] = {}  # names and patterns subscribed to
        self._patterns: dict[str, Topic] = {}
        self._joining: dict[Topic, int] = {}  # topic -> the tick from which everything published will come

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        clock = self.mesh.clock(now)
        effects: list[Effect] = []
        match message:
            case CausalGossip() | CausalRequest() | CausalFrames():
                settled, sends = self.mesh.hear(message, clock)
                effects += self._told(settled) + sends
            case Publish(message=Event() as event, request=request, deadline_us=deadline):
                effects += self._publish((event,), request, deadline, clock)
            case Publish(message=(tuple() | EventRow()) as events, request=request, deadline_us=deadline):
                effects += self._publish(tuple(events), request, deadline, clock)
            case CausalWelcome(incarnation=incarnation):
                self._author.broker = incarnation
            case CausalEmitted():
                effects += accepted(self._author.emitted(message))
            case CausalRefused(reason=reason) if self._author.has_lost(message):
                self._author.broker = None
                effects += self._given_up(reason) + self._enter(now)
            case CausalRefused(reason=reason):
                effects += [Deliver(Refused(request, reason)) for request in self._author.refused(message)]
            case Subscribe(topics=topics):
                effects += self._subscribe(topics, now)
            case Unsubscribe(topics=topics):
                effects += self._unsubscribe(topics, clock)
            case Select(where=where):
                self._where = where
                effects.append(Deliver(Selected()))
            case CausalVia(broker=broker):
                self._via, self._author.broker = broker, None
                effects += self._enter(now)
            case CausalGoodbye():
                effects += self.mesh.farewell(clock)
            case CausalSeeds(members=members):
                self.mesh.gossip.view.seed(members)
            case Fired(key=key):
                effects += self._fired(key, now)
            case Restarted():
                effects += self.mesh.start(now)
            case _:
                return [Refuse(f"{type(message).__name__} is nothing a causal client understands")]
        return effects + self._move(now) + self.mesh.wake()

    def _fired(self, key: str, now: Micros) -> list[Effect]:
        clock = self.mesh.clock(now)
        if key == ROUND:
            return self.mesh.round(now) + self._judge_clock(clock)
        if key == DUE:
            self.mesh.woke()
            return self._told(self._order.pump(clock))
        if key == ENTER:
            return self._enter(now) if self._author.broker is None else []
        if key == JOIN:
            return self._join(clock)
        overdue = self._author.overdue_at
        if key == OVERDUE and overdue is not None and clock >= overdue:
            return self._given_up("no answer of the broker")
        return []

    # publishing

    def _given_up(self, reason: str) -> list[Effect]:
        return [Deliver(Unknown(request, reason)) for request in self._author.give_up()]

    def _publish(self, events: tuple[Event, ...], request: int, deadline_us: int, clock: int) -> list[Effect]:
        effects: list[Effect] = []
        life = self._config.life_us
        for i, event in enumerate(events):
            if deadline_us and deadline_us < life:
                reason = (
                    f"a deadline of {deadline_us // 1000} ms is shorter than the life of events here, {life // 1000} ms"
                )
                effects.append(Deliver(Refused(request + i, reason)))
            elif deadline_us > self._config.deadline_ticks_max * self._config.tick_us:
                longest = self._config.deadline_ticks_max * self._config.tick_us // 1000
                effects.append(Deliver(Refused(request + i, f"no deadline here is longer than {longest} ms")))
            elif (wrong := why_not(event, EVENT_LIMITS)) is not None:
                effects.append(Deliver(Refused(request + i, wrong)))
            elif (how := self.mesh.wrong_clock) is not None:
                effects.append(Deliver(Refused(request + i, f"the clock of this machine {how}: {REMEDY}")))
            else:
                self._author.put(request + i, event, deadline_us // self._config.tick_us, clock)
        return effects

    def _enter(self, now: Micros) -> list[Effect]:
        if self._via is None:
            return []
        again = Micros(now + self._config.publish_ticks * self._config.tick_us)
        return [Send(self._via, CausalEnter(self._called)), SetTimer(ENTER, again)]

    def _move(self, now: Micros) -> list[Effect]:
        """The next publication, if nothing is under way."""
        if not len(self._author):
            return []
        clock = self.mesh.clock(now)
        patience = self._config.queue_ticks * self._config.tick_us // 1000
        why = f"no broker has taken it within {patience} ms"
        effects: list[Effect] = [Deliver(Refused(request, why)) for request in self._author.stale(clock)]
        publication = self._author.next(clock) if self._via is not None else None
        overdue = self._author.overdue_at
        if publication is None or self._via is None or overdue is None:
            return effects
        return [*effects, Send(self._via, publication), SetTimer(OVERDUE, Micros(overdue * self._config.tick_us))]

    # subscribing

    def _subscribe(self, topics: tuple[Topic, ...], now: Micros) -> list[Effect]:
        clock = self.mesh.clock(now)
        effects = self.mesh.start(now)
        for topic in topics:
            name = self._topic_name(topic)
            if name in self._names:
                continue
            self._names[name] = topic
            if is_pattern(name):
                self._patterns[name] = topic
            self._order.subscribe(self._groups.of(name), clock)
            # Whoever stamps from now on by a clock within eps of ours stamps above the floor.
            self._joining[topic] = clock + 2 * self._config.eps_ticks + 1
            effects.append(SetTimer(JOIN, Micros(self._joining[topic] * self._config.tick_us)))
        return effects

    def _join(self, clock: int) -> list[Effect]:
        joined = [topic for topic, at in self._joining.items() if at <= clock]
        for topic in joined:
            del self._joining[topic]
        return [Deliver(Joined(topic)) for topic in joined]

    def _judge_clock(self, clock: int) -> list[Effect]:
        """Whoever's clock is off hears nothing, or all of it too late: that is told, and when it is over."""
        match self.mesh.judge_clock():
            case "off":
                how = self.mesh.wrong_clock
                return self._gaps(clock, f"the clock of this machine {how}: what is published does not come; {REMEDY}")
            case "right":
                told = self._told(self._order.release(clock))
                self._order.rejoin(clock)
                reason = "the clock of this machine was off: what was published until it was right is not told"
                return told + self._gaps(clock + self._config.eps_ticks, reason)
            case None:
                return []

    def _gaps(self, until: int, reason: str) -> list[Effect]:
        return [Deliver(Gap(topic, until, until, reason)) for topic in self._names.values()]

    def _unsubscribe(self, topics: tuple[Topic, ...], clock: int) -> list[Effect]:
        for topic in topics:
            name = self._topic_name(topic)
            self._names.pop(name, None)
            self._patterns.pop(name, None)
            self._joining.pop(topic, None)
        used = {group: None for name in self._names for group in self._groups.of(name)}
        left = [group for group in self._order.floors if group not in used]
        return self._told(self._order.unsubscribe(left, clock)) if left else []

    # being told

    def _told(self, settled: list[SettledFrame]) -> list[Effect]:
        effects: list[Effect] = []
        for each in settled:
            for (sender, stamp), group in each.bypassed:
                effects += self._missed(sender, stamp, group)
            if each.fate is FrameFate.DELIVERED:
                effects += self._heard(each)
            elif each.fate in TOLD and not self._order.is_forgotten(each.frame.stamp):
                reason = each.fate.value
                effects += [
                    Deliver(Gap(topic, event.sequence, event.sequence, reason, event.publisher))
                    for topic, event in self._mine(each)
                ]
        return effects

    def _heard(self, settled: SettledFrame) -> list[Effect]:
        """Events of one topic in a row are delivered as one; they have no numbers."""
        mine = self._mine(settled)
        if settled.late:
            return [Deliver(Heard(topic, event, late=True)) for topic, event in mine]
        effects: list[Effect] = []
        for (topic, _), run in groupby(mine, key=lambda one: (one[0], one[1].topic)):
            first, *others = [event for _, event in run]
            effects.append(Deliver(Heard(topic, (first, *others), spacing=0) if others else Heard(topic, first)))
        return effects

    def _mine(self, settled: SettledFrame) -> list[tuple[Topic, Event]]:
        """The events of a frame that are for this subscriber."""
        mine = []
        for event in settled.frame.body:
            topic = self._topic_of(event.topic)
            if topic is None or not self._order.owes(self._groups.of(event.topic)[0], settled.frame.stamp):
                continue
            if self._where.is_everything or self._where.matches(flat(event)):
                mine.append((topic, event))
        return mine

    def _missed(self, sender: int, stamp: int, group: int) -> list[Effect]:
        """Something of a broker is waited for no longer; nobody knows here what it was."""
        topic = next((t for name, t in self._names.items() if group in self._groups.of(name)), None)
        reason = f"something that broker {sender} stamped up to {stamp} has not come, and was waited for"
        return [] if topic is None else [Deliver(Gap(topic, stamp, stamp, reason, f"broker-{sender}"))]

    def _topic_of(self, name: str) -> Topic | None:
        topic = self._names.get(name)
        if topic is None and self._patterns:
            return next((topic for pattern, topic in self._patterns.items() if covers(pattern, name)), None)
        return topic

    @property
    def has_company(self) -> bool:
        """Whether some other member was heard of lately."""
        return len(self.mesh.gossip.view) > 0

    @property
    def held(self) -> int:
        """Frames that have come and wait for others."""
        return len(self._order)

    def report(self) -> dict[str, int]:
        return {"to_publish": len(self._author), **self.mesh.report()}


def accepted(requests: tuple[int, ...]) -> list[Effect]:
    """Requests in a row have one outcome together."""
    effects: list[Effect] = []
    first = 0
    for at in range(1, len(requests) + 1):
        if at == len(requests) or requests[at] != requests[at - 1] + 1:
            effects.append(Deliver(Accepted(requests[first], "sent", at - first)))
            first = at
    return effects
