"""Order within each topic only: its home numbers events, subscribers hold them back. Topics know nothing of each other.

Payload and number travel apart, as in the sequencer's stamp mode, so the difference to it is the price of ordering
across topics.
"""

from typing import assert_never

from msgspec import Struct

from unisono.machine import Accepted, Broadcast, Deliver, Effect, Heard, Join, Joined, Publish, Send, Subscribe
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros


class HomeRequest(Struct, frozen=True, tag="Request"):
    """To the home: this event wants a number."""

    topic: Topic
    event: str


class Number(Struct, frozen=True, tag="Number"):
    """On the broker: the event has this number."""

    event: str
    number: int


class TopicHome:
    """Numbers the events of its topics in order of arrival."""

    def __init__(self) -> None:
        self._issued: dict[Topic, int] = {}

    def handle(self, message: HomeRequest, now: Micros) -> list[Effect]:
        number = self._issued[message.topic] = self._issued.get(message.topic, 0) + 1
        return [Broadcast(message.topic, Number(message.event, number), control=True)]


class _Feed:
    __slots__ = ("done", "events", "numbers")

    def __init__(self) -> None:
        self.done = 0
        self.events: dict[str, Event] = {}
        self.numbers: dict[int, str] = {}


class TopicOrderClient:
    """Publishes at once and asks for a number; delivers each topic in the order of its numbers."""

    def __init__(self, homes: dict[Topic, Address]) -> None:
        self._homes = homes
        self._feeds: dict[Topic, _Feed] = {}

    def handle(self, message: Publish | Subscribe | Heard | Joined, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=event, request=request):
                ask = HomeRequest(topic, event.id)
                return [Broadcast(topic, event), Send(self._homes[topic], ask), Deliver(Accepted(request))]
            case Heard(topic=topic, message=heard):
                feed = self._feeds[topic]
                if isinstance(heard, Number):
                    feed.numbers[heard.number] = heard.event
                else:
                    feed.events[heard.id] = heard
                return self._release(topic, feed)
            case Subscribe(topics=topics):
                self._feeds |= {topic: _Feed() for topic in topics}
                return [Join(topic) for topic in topics]
            case Joined():
                return [Deliver(message)]
            case _:
                assert_never(message)

    def _release(self, topic: Topic, feed: _Feed) -> list[Effect]:
        effects: list[Effect] = []
        while (name := feed.numbers.get(feed.done + 1)) in feed.events:
            feed.done += 1
            del feed.numbers[feed.done]
            effects.append(Deliver(Heard(topic, feed.events.pop(name), number=feed.done)))
        return effects
