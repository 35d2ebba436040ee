"""A client of a hierarchy: a publisher, its entourage and a subscriber that share one link to a broker.

When the link is lost it goes on at another broker: streams are opened and attached anew, and what was missed is asked
of its publishers. Only a client that ends is forgotten. It may publish and subscribe before there is a link.
"""

from collections.abc import Callable
from typing import Any

from unisono.machine import (
    Advertise,
    Deliver,
    Effect,
    Fired,
    Publish,
    Select,
    Subscribe,
    Unknown,
    Unsubscribe,
)
from unisono.model.event import Event, EventRow
from unisono.model.ids import Address, Topic
from unisono.model.predicate import EVERY_EVENT, Filter, only
from unisono.model.predicate.values import point
from unisono.model.time import Micros
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.entourage import COUNT, Entourage
from unisono.protocols.regions.messages import (
    Attached,
    CountReply,
    DirectAccept,
    DirectBreak,
    DirectDone,
    DirectEnded,
    DirectLost,
    DirectNoStart,
    DirectReady,
    DirectRefuse,
    DirectSaid,
    Recover,
    RegionLeave,
    RegionLinkDown,
    RegionLinkUp,
    RegionMeasured,
    RegionSaid,
    Reopen,
    RootAck,
    StirEntourage,
    StreamSaid,
    UnpruneStream,
)
from unisono.protocols.regions.neighbours import RegionOutbox
from unisono.protocols.regions.publisher import RegionPublisher
from unisono.protocols.regions.subscriber import RegionSubscriber
from unisono.structures.content import TOPIC

_TO_PUBLISHER = (DirectAccept, DirectDone, DirectReady, DirectRefuse, DirectNoStart, DirectEnded)


class RegionClient:
    """One client in one life: its address is the name of its stream."""

    def __init__(
        self,
        me: Address,
        topic_name: Callable[[Topic], str],
        config: RegionsConfig = RegionsConfig(),
        where: Filter = EVERY_EVENT,
        accepts_direct: bool = False,
    ) -> None:
        self.me, self._topic_name = me, topic_name
        self._out = RegionOutbox()
        self.publisher = RegionPublisher(me, config, self._out)
        self.entourage = Entourage(me, config, self.publisher, self._out)
        self.subscriber = RegionSubscriber(me, config, self._out, topic_name, where, accepts_direct)

    @property
    def broker(self) -> Address | None:
        return self.subscriber.broker

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        self._out.begin(now)
        match message:
            case Publish(message=Event() as event, request=request):
                self._publish(event, request)
            case Publish(message=(tuple() | EventRow()) as events, request=first):
                for place, event in enumerate(events):
                    self._publish(event, first + place)
            case Subscribe(topics=topics):
                self.subscriber.subscribe(topics)
            case Unsubscribe(topics=topics):
                self.subscriber.unsubscribe(topics)
            case Select(where=where):
                self.subscriber.select(where)
            case Advertise(topic=topic, publisher=publisher, where=where):
                name = self._topic_name(topic)
                self.entourage.advertise(name, publisher, only(TOPIC, point(name)) & where)
            case RegionLinkUp(peer=peer):
                self._link_up(peer)
            case RegionLinkDown(peer=peer):
                self._link_down(peer)
            case DirectLost(peer=peer, stream=stream):
                if stream in (None, self.me):
                    self.publisher.direct_lost(peer)
                if stream != self.me:
                    self.subscriber.ports.direct_lost(peer)
            case Fired(key=key):
                self._fired(key)
            case RegionLeave():
                self._leave()
            case RegionMeasured(copy_us=copy_us):
                self.entourage.measured(copy_us)
            case RegionSaid():
                self._said(message)
            case _:
                self._out.refuse(f"{type(message).__name__} is nothing a client understands")
        return self._out.effects

    def _leave(self) -> None:
        """Publications without an outcome are unknown."""
        self.publisher.leave()
        for target in list(self.publisher.sessions):
            self.publisher.break_off(target)
        for request in self.publisher.unconfirmed:
            self._out.add(Deliver(Unknown(request, "the client has ended")))

    def _publish(self, event: Event, request: int) -> None:
        before = self.publisher.last
        self.publisher.publish(event, request)
        if self.publisher.last != before:
            self.entourage.published(event)

    def _link_up(self, peer: Address) -> None:
        if self.broker is not None:
            self._out.refuse(f"a second broker, {peer}, beside {self.broker}")
            return
        self.subscriber.link_up(peer)
        self.publisher.link_up(peer)
        self.publisher.break_off(peer)
        self.entourage.count_soon()

    def _link_down(self, peer: Address) -> None:
        if peer == self.broker:
            self.publisher.link_lost()
            self.subscriber.link_lost(peer)
            self.entourage.lost_broker()

    def _fired(self, key: str) -> None:
        what, _, name = key.partition(" ")
        if key == COUNT:
            self.entourage.fired()
        elif what == "session":
            self.publisher.session_fired(Address(name))
        else:
            self.subscriber.ports.fired(what, Address(name))

    def _said(self, message: RegionSaid) -> None:
        from_broker = message.source == self.broker
        match message:
            case DirectSaid():
                self._directly(message)
            case Recover(stream=stream) if stream == self.me:
                self.publisher.on_recover(message)
            case StirEntourage():
                if message.source in self.publisher.sessions:
                    self.entourage.stirred()
            case _ if not from_broker:
                if not self.subscriber.ports.replay_directly(message):
                    self._out.refuse(f"{message.source} is not our broker")
            case Attached():
                self.subscriber.on_attached(message)
            case RootAck(stream=stream) if stream == self.me:
                self.publisher.on_root_ack(message)
            case Reopen(stream=stream) if stream == self.me:
                self.publisher.on_reopen(message)
            case UnpruneStream(stream=stream) if stream == self.me:
                self.publisher.on_unprune(message)
            case CountReply(stream=stream) if stream == self.me:
                self.entourage.on_reply(message)
            case StreamSaid():
                if not self.subscriber.ports.handle(message):
                    self._out.refuse(f"{type(message).__name__} is nothing a client understands")
            case _:
                self._out.refuse(f"{type(message).__name__} is nothing a client understands")

    def _directly(self, message: DirectSaid) -> None:
        is_answer = isinstance(message, _TO_PUBLISHER) or (
            isinstance(message, DirectBreak) and message.stream == self.me
        )
        if is_answer and message.stream == self.me:
            self.publisher.on_direct(message, self.entourage.advertised)
        elif message.source == message.stream:
            self.subscriber.ports.handle(message)
        else:
            self._out.refuse(f"{message.source} is not {message.stream}, and speaks for it", "forged")
