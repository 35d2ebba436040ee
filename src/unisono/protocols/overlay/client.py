"""A client of one broker: publishes, subscribes by topic and content, hears in order, is told what is missing.

Its default advertisement is the whole topic, made with the first event there; the broker holds events back until every
broker knows it. An event outside a narrower advertisement widens it to the whole topic first, and waits likewise. If
the link to its broker is lost a client is cut off for good: what another broker gave it could contradict what it has
heard. It starts anew under a new name.

A topic may be a pattern: brokers route by its words before the first wildcard, and the client leaves the rest aside.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from unisono.machine import (
    Accepted,
    Advertise,
    CutOff,
    Deliver,
    Effect,
    Gap,
    Heard,
    Joined,
    Publish,
    Refuse,
    Refused,
    Select,
    Selected,
    Send,
    Stalled,
    Subscribe,
    Unknown,
    Unsubscribe,
)
from unisono.model.event import Event, EventRow
from unisono.model.ids import Address, EventId, Topic
from unisono.model.interest import covers, is_pattern
from unisono.model.predicate import EVERY_EVENT, Filter, only
from unisono.model.predicate.values import point
from unisono.model.time import Micros
from unisono.protocols.overlay.messages import (
    Active,
    Adv,
    LinkDown,
    Missing,
    OverlayCut,
    OverlayDelivery,
    OverlayDenied,
    OverlayNotTaken,
    OverlayTaken,
    Pub,
    Sub,
    Unadv,
    Unsub,
)
from unisono.structures.content import TOPIC, EventLimits, about, flat, why_not


class _Advertised(Struct):
    """What a client has advertised on one topic: its own words, and the whole topic if an event lay outside."""

    where: Filter
    ads: list[str]
    is_whole: bool


class OverlayClient:
    """One client; `where` narrows every topic it subscribes to."""

    def __init__(
        self,
        me: Address,
        broker: Address,
        topic_name: Callable[[Topic], str],
        where: Filter = EVERY_EVENT,
        limits: EventLimits = EventLimits(),
    ) -> None:
        self._me = me
        self._broker = broker
        self._topic_name = topic_name
        self._where = where
        self._limits = limits
        self._subs: dict[Topic, str] = {}
        self._names: dict[str, Topic] = {}  # names and patterns subscribed to now
        self._patterns: dict[str, Topic] = {}
        self._joining: dict[Topic, None] = {}  # asked for, not yet in force under any filter
        self._before: dict[str, None] = {}  # subscriptions of earlier filters; they end when the new ones are active
        self._awaited: dict[str, None] = {}  # subscriptions of the new filter, not active yet
        self._accepted: tuple[Filter, ...] = ()  # after a change, since events of ended subscriptions are under way
        self._advertised: dict[tuple[str, str], _Advertised] = {}  # by topic and publisher
        self._requests: dict[EventId, int] = {}
        self._made = 0
        self.is_cut_off = False

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if self.is_cut_off and not isinstance(message, Publish | LinkDown):
            return []
        match message:
            case Publish(message=Event() as event, request=request):
                return self._publish(event, request)
            case Publish(message=(tuple() | EventRow()) as events, request=first):
                return [effect for i, event in enumerate(events) for effect in self._publish(event, first + i)]
            case Advertise(topic=topic, publisher=publisher, where=where):
                return self._advertise(self._topic_name(topic), publisher, where)
            case Subscribe(topics=topics):
                return [effect for topic in topics for effect in self._subscribe(topic)]
            case Unsubscribe(topics=topics):
                return [effect for topic in topics for effect in self._unsubscribe(topic)]
            case Select(where=where):
                return self._select(where)
            case OverlayDelivery(event=event):
                return self._deliver(event)
            case Active(sub=sub):
                return self._on_active(sub)
            case OverlayTaken(event=name):
                return [Deliver(Accepted(self._requests.pop(name)))] if name in self._requests else []
            case OverlayNotTaken(event=name, reason=reason):
                return [Deliver(Refused(self._requests.pop(name), reason))] if name in self._requests else []
            case OverlayDenied(name=name, reason=reason):
                return [Deliver(Refused(0, reason))] if name in self._subs.values() else []
            case Missing(event=event_id, publisher=publisher, topic=name, sequence=sequence, reason=reason):
                known = self._topic_of(name)
                gap = Gap(known, sequence, sequence, f"{event_id}: {reason}", publisher) if known is not None else None
                return [Deliver(gap)] if gap is not None else []
            case OverlayCut(publishers=publishers):
                return [Deliver(CutOff(publishers, "a link between brokers was lost"))] if self._subs else []
            case LinkDown():
                return self._on_link_down(now)
            case _:
                return [Refuse(f"{type(message).__name__} is nothing a client of the overlay understands")]

    def _on_link_down(self, now: Micros) -> list[Effect]:
        self.is_cut_off = True
        lost = f"the link to {self._broker} was lost"
        effects: list[Effect] = [Deliver(Unknown(request, lost)) for request in self._requests.values()]
        self._requests.clear()
        effects += [Deliver(Stalled(topic, now, lost)) for topic in self._subs]
        return effects

    # publishing

    def _publish(self, event: Event, request: int) -> list[Effect]:
        if self.is_cut_off:
            return [Deliver(Refused(request, f"the link to {self._broker} was lost"))]
        reason = why_not(event, self._limits)
        if reason is not None:
            return [Deliver(Refused(request, reason))]
        effects: list[Effect] = []
        known = self._advertised.get((event.topic, event.publisher))
        if known is None or not (known.is_whole or known.where.matches(flat(event))):
            effects += self._announce(event.topic, event.publisher, EVERY_EVENT)
        self._requests[event.id] = request
        effects.append(self._say(Pub(self._me, event)))
        return effects

    def _advertise(self, name: str, publisher: str, where: Filter) -> list[Effect]:
        """The new words first, then away with the old: what was published in between lies in one of the two."""
        before = self._advertised.pop((name, publisher), None)
        effects = self._announce(name, publisher, where)
        if before is not None:
            effects.append(self._say(Unadv(self._me, tuple(before.ads))))
        return effects

    def _announce(self, name: str, publisher: str, where: Filter) -> list[Effect]:
        known = self._advertised.setdefault((name, publisher), _Advertised(where, [], False))
        known.ads.append(self._next_name())
        known.is_whole = where.is_everything
        return [self._say(Adv(self._me, known.ads[-1], publisher, only(TOPIC, point(name)) & where))]

    # subscribing

    def _subscribe(self, topic: Topic) -> list[Effect]:
        if topic in self._subs:
            return []
        name = self._topic_name(topic)
        self._names[name] = topic
        self._joining[topic] = None
        if is_pattern(name):
            self._patterns[name] = topic
        return [self._ask_for(topic)]

    def _ask_for(self, topic: Topic) -> Send:
        self._subs[topic] = self._next_name()
        return self._say(Sub(self._me, self._subs[topic], str(self._me), about(self._topic_name(topic)) & self._where))

    def _unsubscribe(self, topic: Topic) -> list[Effect]:
        if topic not in self._subs:
            return []
        name = self._topic_name(topic)
        del self._names[name]
        self._patterns.pop(name, None)
        self._joining.pop(topic, None)
        gone = self._subs.pop(topic)
        effects: list[Effect] = [self._say(Unsub(self._me, gone))]
        if self._awaited.pop(gone, gone) is None and not self._awaited:
            effects += self._selected()
        return effects

    def _select(self, where: Filter) -> list[Effect]:
        """Everything is asked for anew; the old subscriptions end when all the new ones are active."""
        self._accepted = (*self._accepted, self._where, where)[-3:]
        self._where = where
        self._before.update(dict.fromkeys(self._subs.values()))
        asked: list[Effect] = [self._ask_for(topic) for topic in self._subs]
        self._awaited = dict.fromkeys(self._subs.values())
        return asked if asked else self._selected()

    def _selected(self) -> list[Effect]:
        ended: list[Effect] = [self._say(Unsub(self._me, name)) for name in self._before]
        self._before.clear()
        self._accepted = (self._where,)
        return [*ended, Deliver(Selected())]

    def _on_active(self, sub: str) -> list[Effect]:
        effects: list[Effect] = []
        for topic in [topic for topic in self._joining if self._subs[topic] == sub]:
            del self._joining[topic]
            effects.append(Deliver(Joined(topic)))
        if self._awaited.pop(sub, sub) is None and not self._awaited:
            effects += self._selected()
        return effects

    def _deliver(self, event: Event) -> list[Effect]:
        topic = self._topic_of(event.topic)
        if topic is None:
            return []
        if self._accepted:
            attributes = flat(event)
            if not any(where.matches(attributes) for where in self._accepted):
                return []
        return [Deliver(Heard(topic, event))]

    def _topic_of(self, name: str) -> Topic | None:
        topic = self._names.get(name)
        if topic is None and self._patterns:
            return next((topic for pattern, topic in self._patterns.items() if covers(pattern, name)), None)
        return topic

    def _next_name(self) -> str:
        self._made += 1
        return f"{self._me}/{self._made}"

    def _say(self, message: Any) -> Send:
        return Send(self._broker, message)
