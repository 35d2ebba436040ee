"""A broker: takes part in every group, and emits what clients publish.

What is published in a tick leaves as one frame per deadline: to the other brokers at once where the network multicasts,
to everybody with the next gossip. A broker keeps nothing: when it comes back it is a new incarnation, and publications
that waited have died with the old one.
"""

from random import Random
from typing import Any

from unisono.errors import InvariantError, MisuseError
from unisono.machine import Broadcast, Effect, Fired, Heard, Join, Joined, Refuse, Restarted, Send, SetTimer
from unisono.model.ids import Address, Topic
from unisono.model.interest import check_topic_name
from unisono.model.time import Micros
from unisono.protocols.causal.clocks import REMEDY
from unisono.protocols.causal.config import EVENT_LIMITS, CausalConfig
from unisono.protocols.causal.grouping import CausalGroups
from unisono.protocols.causal.mesh import DUE, ROUND, CausalMesh, order_of
from unisono.protocols.causal.messages import (
    CausalEnter,
    CausalFrames,
    CausalGoodbye,
    CausalGossip,
    CausalMember,
    CausalPublication,
    CausalRefused,
    CausalRequest,
    CausalSeeds,
    CausalWelcome,
    FrameFate,
)
from unisono.protocols.causal.publishing import CausalEmitter
from unisono.protocols.causal.wire import vector_bytes
from unisono.structures.content import why_not

BROKERS = Topic(0)
"""What brokers multicast to each other on, on the service beneath, where it has no other use for that number."""
EMIT = "emit"


class CausalBroker:
    """One broker, in one incarnation."""

    def __init__(
        self,
        me: Address,
        incarnation: int,
        groups: CausalGroups,
        config: CausalConfig,
        dice: Random,
        *,
        region: str = "local",
        seeds: tuple[CausalMember, ...] = (),
        multicast: bool = False,
        channel: Topic = BROKERS,
    ) -> None:
        self._channel = channel
        self._me, self.incarnation, self._groups = me, incarnation, groups
        self._multicast = multicast
        self.mesh = CausalMesh(me, region, order_of(config, incarnation), seeds, dice)
        self._emitter = CausalEmitter(self.mesh.order)
        self._emits_at: int | None = None
        self.counts: dict[str, int] = {}

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        clock = self.mesh.clock(now)
        effects: list[Effect] = []
        match message:
            case CausalGossip() | CausalRequest() | CausalFrames():
                effects += self.mesh.hear(message, clock)[1]
            case Heard(topic=topic, message=CausalFrames() as frames) if topic == self._channel:
                effects += self.mesh.hear(frames, clock)[1]
                self._count("multicast_heard", len(frames.frames))
            case CausalPublication():
                effects += self._ask(message, clock)
            case CausalGoodbye():
                effects += self.mesh.farewell(clock)
            case CausalSeeds(members=members):
                self.mesh.gossip.view.seed(members)
            case CausalEnter(client=client):
                effects.append(Send(client, CausalWelcome(client, self.incarnation)))
            case Fired(key=key) if key == ROUND:
                effects += self.mesh.round(now)
                if self.mesh.judge_clock() == "right":
                    self.mesh.order.release(clock)
                    self.mesh.order.rejoin(clock)
            case Fired(key=key) if key == DUE:
                self.mesh.woke()
                self.mesh.order.pump(clock)
            case Fired(key=key) if key == EMIT:
                self._emits_at = None
            case Restarted():
                effects += self._start(now)
            case Joined():
                pass
            case _:
                return [Refuse(f"{type(message).__name__} is nothing a causal broker understands")]
        effects += self._emit(clock)
        return effects + self.mesh.wake()

    def _start(self, now: Micros) -> list[Effect]:
        self.mesh.order.subscribe(self._groups.all, self.mesh.clock(now))
        joins: list[Effect] = [Join(self._channel)] if self._multicast else []
        return joins + self.mesh.start(now)

    def _ask(self, publication: CausalPublication, clock: int) -> list[Effect]:
        self._count("publications")
        how = self.mesh.wrong_clock
        wrong = f"the clock of this broker {how}" if how is not None else self._why_not_its(publication)
        refused = self._emitter.ask(publication, clock, wrong)
        if refused is None:
            return []
        self._count("publications_refused")
        return [Send(publication.client, refused)]

    def _why_not_its(self, publication: CausalPublication) -> str | None:
        """Events go to the groups of their topics, in the name of who publishes them."""
        groups: dict[int, None] = {}
        for topic in dict.fromkeys(event.topic for event in publication.events):
            try:
                check_topic_name(topic)
            except MisuseError as error:
                return str(error)
            groups |= dict.fromkeys(self._groups.of(topic))
        for event in publication.events:
            if event.publisher.partition(".")[0] != publication.client:
                return f"{publication.client} publishes in the name of {event.publisher}"
            if (wrong := why_not(event, EVENT_LIMITS)) is not None:
                return wrong
        return None if tuple(sorted(groups)) == publication.groups else "its groups are not those of its topics"

    def _emit(self, clock: int) -> list[Effect]:
        if not len(self._emitter):
            return []
        effects: list[Effect] = []
        frames, answers = self._emitter.emit(clock)
        for frame in frames:
            settled = self.mesh.take((frame,), clock)
            if any(each.frame is frame and each.fate is FrameFate.DUP for each in settled):
                raise InvariantError(f"{frame.id} was sent twice: two brokers have incarnation {self.incarnation}")
            self._count("emitted")
            self._count("emitted_events", len(frame.body))
            self._count("emitted_vector_bytes", vector_bytes(frame))
        if frames and self._multicast:
            effects.append(Broadcast(self._channel, CausalFrames(self._me, tuple(frames)), control=True))
        for answer in answers:
            self._count("publications_refused", isinstance(answer, CausalRefused))
            effects.append(Send(answer.client, answer))
        at = self._emitter.wakes_at()
        if at is not None and at != self._emits_at:
            self._emits_at = at
            effects.append(SetTimer(EMIT, Micros(max(at, clock + 1) * self.mesh.config.tick_us)))
        return effects

    def _count(self, what: str, many: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + many

    @property
    def why_idle(self) -> str | None:
        """Why it takes no publications, if it does not."""
        how = self.mesh.wrong_clock
        return f"has a clock that {how}: {REMEDY}" if how is not None else None

    @property
    def refusals(self) -> dict[str, int]:
        """By code."""
        return {"publications": self.counts.get("publications_refused", 0)}

    def report(self) -> dict[str, int]:
        return {"incarnation": self.incarnation, "waiting": len(self._emitter), **self.mesh.report(), **self.counts}
