"""A client of the clock order: publishes through the stamper of its region, hears its topics in the global order."""

from collections.abc import Callable
from typing import Any

from unisono.machine import (
    Deliver,
    Effect,
    Fired,
    Heard,
    Joined,
    Missed,
    NotTaken,
    Paused,
    Publish,
    Refuse,
    SetTimer,
    Subscribe,
    Unsubscribe,
)
from unisono.model.event import Event, EventRow, Payload, Payloads
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.messages import (
    Base,
    Gone,
    Lanes,
    LaneStamps,
    Nearest,
    StampDenied,
    StampTaken,
    Tide,
    Witnessed,
)
from unisono.protocols.clock.publisher import ClockPublisher
from unisono.protocols.clock.subscriber import ClockSubscriber
from unisono.structures.sessions import PeerReborn, Reconnected


class ClockClient:
    """`stampers` are all, and `keeper_of` knows which of them keeps a topic. `node` is the one it publishes through and
    hears clocks from; None: it is told by `Nearest`."""

    def __init__(
        self,
        me: Address,
        node: int | None,
        stampers: tuple[Address, ...],
        keeper_of: Callable[[Topic], int | None],
        config: ClockConfig = ClockConfig(),
    ) -> None:
        self._config = config
        near = stampers[node] if node is not None else None
        self.publisher = ClockPublisher(me, near, config)
        self.subscriber = ClockSubscriber(me, near, stampers, keeper_of, config)
        self._ticks = False

    @property
    def held(self) -> int:
        """Events that wait for what may come before them."""
        return self.subscriber.held

    def passed(self, topic: Topic) -> int | None:
        """Nothing of the topic up to this number is still to be told; None: it is not in force."""
        return self.subscriber.passed(topic)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        effects = self._handle(message, now)
        self.publisher.heard = max(self.publisher.heard, self.subscriber.stamp)
        if not self._ticks and (self.publisher.is_waiting or self.subscriber.is_waiting):
            self._ticks = True
            effects.append(SetTimer("tick", Micros(now + self._config.resend_us)))
        return effects

    def _handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Heard(message=LaneStamps() as stamps) | (LaneStamps() as stamps):
                return self.subscriber.on_stamps(stamps, now)
            case Heard(topic=topic, message=Payloads(publisher=publisher, request=request, events=events)):
                return self.subscriber.on_payloads(topic, publisher, request, events, now)
            case Heard(topic=topic, message=Payload(publisher=publisher, request=request, event=event)):
                return self.subscriber.on_payloads(topic, publisher, request, (event,), now)
            case Tide():
                return self.subscriber.on_tide(message, now)
            case StampTaken():
                return self.publisher.on_taken(message, now)
            case StampDenied():
                return self.publisher.on_denied(message)
            case Publish(topic=topic, message=Event() as event, request=request):
                return self.publisher.publish(topic, (event,), request, now)
            case Publish(topic=topic, message=(tuple() | EventRow()) as events, request=first):
                return self.publisher.publish(topic, events, first, now)
            case NotTaken():
                return self.publisher.on_not_taken(message)
            case Witnessed(stamp=stamp):
                self.publisher.heard = max(self.publisher.heard, stamp)
                return []
            case Nearest(stamper=stamper):
                return [*self.publisher.stand_on(stamper), *self.subscriber.stand_on(stamper, now)]
            case PeerReborn(peer=peer):
                given_up = self.publisher.give_up(f"{peer} has forgotten it") if peer == self.publisher.stamper else []
                return [*given_up, Deliver(message)]  # what we ask from now on, we ask with that in mind
            case Subscribe(topics=topics):
                return [effect for topic in topics for effect in self.subscriber.subscribe(topic)]
            case Unsubscribe(topics=topics):
                return [effect for topic in topics for effect in self.subscriber.unsubscribe(topic, now)]
            case Joined(topic=topic):
                return self.subscriber.on_joined(topic, now)
            case Lanes():
                return self.subscriber.on_lanes(message, now)
            case Base():
                return self.subscriber.on_base(message, now)
            case Gone():
                return self.subscriber.on_gone(message, now)
            case Fired(key="tick"):
                self._ticks = False
                return [*self.publisher.tick(now), *self.subscriber.tick(now)]
            case Missed(topic=topic):
                self.subscriber.missed(topic, now)
                return []
            case Paused(is_paused=is_paused):
                self.subscriber.pause(is_paused, now)
                return []
            case Reconnected():
                return []  # what was not answered is asked again
            case _:
                return [Refuse(f"{type(message).__name__} is nothing a client of the clock order understands")]
