"""A client of one broker: publishes, subscribes by topic and content, hears in order, is told what is missing.

Its default advertisement is the whole topic, made with the first event there; the broker holds events back until every
broker knows it. If the link to its broker is lost a client is cut off for good: what another broker gave it could
contradict what it has heard. It starts anew under a new name.
"""

from collections.abc import Callable
from typing import Any

from unisono.errors import MisuseError
from unisono.machine import (
    Accepted,
    Deliver,
    Effect,
    Gap,
    Heard,
    Joined,
    Publish,
    Refuse,
    Refused,
    Send,
    Stalled,
    Subscribe,
    Unknown,
    Unsubscribe,
)
from unisono.model.event import Event
from unisono.model.ids import Address, EventId, Topic
from unisono.model.predicate import EVERY_EVENT, Filter, flatten, only
from unisono.model.predicate.values import point
from unisono.model.time import Micros
from unisono.protocols.overlay.messages import (
    TOPIC,
    Active,
    Adv,
    Cut,
    Delivery,
    LinkDown,
    Missing,
    NotTaken,
    Pub,
    Sub,
    Taken,
    Unsub,
)


class OverlayClient:
    """One client; `where` narrows every topic it subscribes to."""

    def __init__(
        self, me: Address, broker: Address, topic_name: Callable[[Topic], str], where: Filter = EVERY_EVENT
    ) -> None:
        self._me = me
        self._broker = broker
        self._topic_name = topic_name
        self._where = where
        self._subs: dict[Topic, str] = {}
        self._topics: dict[str, Topic] = {}  # name -> number, of topics subscribed now
        self._advertised: dict[str, None] = {}
        self._requests: dict[EventId, int] = {}
        self._made = 0
        self._cut_off = False

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Publish(message=Event() as event, request=request):
                return self._publish(event, request)
            case Subscribe(topics=topics):
                return [effect for topic in topics for effect in self._subscribe(topic)]
            case Unsubscribe(topics=topics):
                return [effect for topic in topics for effect in self._unsubscribe(topic)]
            case Delivery(event=event):
                known = self._topics.get(event.topic)
                return [] if known is None else [Deliver(Heard(known, event))]
            case Active(sub=sub):
                return [Deliver(Joined(topic)) for topic, name in self._subs.items() if name == sub]
            case Taken(event=name):
                return [Deliver(Accepted(self._requests.pop(name)))] if name in self._requests else []
            case NotTaken(event=name, reason=reason):
                return [Deliver(Refused(self._requests.pop(name), reason))] if name in self._requests else []
            case Missing(topic=name, sequence=sequence, reason=reason, event=event_id):
                known = self._topics.get(name)
                return [] if known is None else [Deliver(Gap(known, sequence, sequence, f"{event_id}: {reason}"))]
            case Cut(publishers=publishers):
                last = ", ".join(f"{publisher} (last {sequence})" for publisher, sequence in publishers)
                return self._stalled(f"a link was lost; no longer heard: {last}", now)
            case LinkDown():
                self._cut_off = True
                unknown = [Deliver(Unknown(request, "the broker is gone")) for request in self._requests.values()]
                self._requests.clear()
                return [*unknown, *self._stalled(f"the link to {self._broker} was lost", now)]
            case _:
                return [Refuse(f"{type(message).__name__} is nothing a client of the overlay understands")]

    def _publish(self, event: Event, request: int) -> list[Effect]:
        if self._cut_off:
            return [Deliver(Refused(request, f"the link to {self._broker} was lost"))]
        try:
            flatten(event.attributes)
        except MisuseError as error:
            return [Deliver(Refused(request, str(error)))]
        effects: list[Effect] = []
        if event.topic not in self._advertised:
            self._advertised[event.topic] = None
            self._made += 1
            whole_topic = only(TOPIC, point(event.topic))
            effects.append(self._say(Adv(self._me, f"{self._me}/{self._made}", event.publisher, whole_topic)))
        self._requests[event.id] = request
        effects.append(self._say(Pub(self._me, event)))
        return effects

    def _subscribe(self, topic: Topic) -> list[Effect]:
        if topic in self._subs or self._cut_off:
            return []
        self._made += 1
        name = self._topic_name(topic)
        self._subs[topic], self._topics[name] = f"{self._me}/{self._made}", topic
        filter = only(TOPIC, point(name)) & self._where
        return [self._say(Sub(self._me, self._subs[topic], str(self._me), filter))]

    def _unsubscribe(self, topic: Topic) -> list[Effect]:
        if topic not in self._subs:
            return []
        del self._topics[self._topic_name(topic)]
        return [self._say(Unsub(self._me, self._subs.pop(topic)))]

    def _stalled(self, reason: str, now: Micros) -> list[Effect]:
        return [Deliver(Stalled(topic, now, reason)) for topic in self._subs]

    def _say(self, message: Any) -> Send:
        return Send(self._broker, message)
