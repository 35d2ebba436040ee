"""Merge by clocks: publishers stamp events with their clocks, subscribers deliver in the order of the stamps.

An event may be delivered when every publisher has been heard of with a later stamp, so publishers that have nothing to
say beat all the time, and everybody waits for the farthest one. Correct whatever the clocks show, fast only as far as
they agree; one silent publisher stops everybody. Needs FIFO from each publisher to each subscriber, over all topics.
"""

from heapq import heappop, heappush
from typing import assert_never

from msgspec import Struct

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
    SetTimer,
    Subscribe,
)
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros


class MergeStamped(Struct, frozen=True, tag="Stamped"):
    """An event and its publisher's clock."""

    publisher: Address
    at: int
    event: Event


class MergeBeat(Struct, frozen=True, tag="Beat"):
    """Nothing of this publisher will have a stamp up to `at` any more."""

    publisher: Address
    at: int


class MergePublisher:
    """Stamps, and beats on a topic of its own kind from the first `Fired("beat")` until `until`."""

    def __init__(self, me: Address, beats: Topic, every_us: int, until: int) -> None:
        self._me = me
        self._beats = beats
        self._every_us = every_us
        self._until = until
        self._last = 0

    def handle(self, message: Publish | Fired, now: Micros) -> list[Effect]:
        self._last = max(now, self._last + 1)
        match message:
            case Publish(topic=topic, message=event, request=request):
                return [Broadcast(topic, MergeStamped(self._me, self._last, event)), Deliver(Accepted(request))]
            case Fired(key=key):
                beat = Broadcast(self._beats, MergeBeat(self._me, self._last), control=True)
                return [beat, SetTimer(key, Micros(now + self._every_us))] if now < self._until else [beat]
            case _:
                assert_never(message)


class MergeSubscriber:
    """Holds back what any of the `publishers` might still precede."""

    def __init__(self, publishers: tuple[Address, ...], beats: Topic) -> None:
        self._beats = beats
        self._heard = dict.fromkeys(publishers, -1)
        self._held: list[tuple[int, Address, Topic, Event]] = []

    def handle(self, message: Subscribe | Heard | Joined, now: Micros) -> list[Effect]:
        match message:
            case Heard(topic=topic, message=heard):
                self._heard[heard.publisher] = heard.at
                if isinstance(heard, MergeStamped):
                    heappush(self._held, (heard.at, heard.publisher, topic, heard.event))
                return self._release()
            case Subscribe(topics=topics):
                return [Join(topic) for topic in (self._beats, *topics)]
            case Joined(topic=topic):
                return [] if topic == self._beats else [Deliver(message)]
            case _:
                assert_never(message)

    def _release(self) -> list[Effect]:
        effects: list[Effect] = []
        settled = min(self._heard.values())
        while self._held and self._held[0][0] <= settled:
            _, _, topic, event = heappop(self._held)
            effects.append(Deliver(Heard(topic, event)))
        return effects
