"""FIFO: what one publisher says on one topic is heard in the order it was said, or reported missing.

The publisher half numbers events per topic from 1. The subscriber half delivers the next number of each stream (topic,
publisher) and holds back what is early. A wait ends `deadline_us` after the longest held event of the stream arrived:
the numbers before it are reported in a `Gap` and never delivered afterwards. At `held_max` the longest wait ends
at once.

Assumes nothing of the broker but that numbers are not forged: it may lose, repeat and reorder. A subscriber that comes
late cannot know whether the numbers before the first one it hears are lost, late or older than its subscription; it
waits for them and reports them like any others. Publishers that start anew must use a new name.
"""

from typing import Any, assert_never

from msgspec import Struct

from unisono.machine import (
    Accepted,
    Broadcast,
    CancelTimer,
    Deliver,
    Effect,
    Fired,
    Gap,
    Heard,
    Join,
    Joined,
    Leave,
    Publish,
    Refuse,
    SetTimer,
    Subscribe,
    Unsubscribe,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import SECOND, Micros


class FifoConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of one client."""

    deadline_us: Micros = SECOND
    """The longest an event is held back. Price: what is later than this is lost to the application."""
    held_max: int = 10_000
    """Events held back in all streams together. Price: memory for so many payloads."""


class Numbered(Struct, frozen=True, tag=True):
    """The `number`-th message of `source` on its topic."""

    source: Address
    number: int
    message: Any


FifoMessage = Publish | Subscribe | Unsubscribe | Heard | Joined | Fired


class _Stream:
    """What one publisher says on one topic."""

    __slots__ = ("held", "next")

    def __init__(self) -> None:
        self.next = 1
        self.held: dict[int, tuple[Micros, Any]] = {}  # number -> (arrived at, message), in order of arrival

    def oldest(self) -> Micros:
        return next(iter(self.held.values()))[0]


class FifoMachine:
    """Both halves, for one client called `me`."""

    def __init__(self, me: Address, config: FifoConfig = FifoConfig()) -> None:
        self._me = me
        self._config = config
        self._issued: dict[Topic, int] = {}
        self._joined: dict[Topic, bool] = {}  # False: asked for, not yet in force
        self._streams: dict[tuple[Topic, Address], _Stream] = {}
        self._held = 0

    def handle(self, message: FifoMessage, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=inner, request=request, control=control):
                number = self._issued[topic] = self._issued.get(topic, 0) + 1
                return [Broadcast(topic, Numbered(self._me, number, inner), control), Deliver(Accepted(request))]
            case Heard():
                return self._hear(message, now)
            case Fired(key=key):
                head, _, source = key.partition(" ")
                stream_key = (Topic(int(head)) if head.isdecimal() else Topic(-1), Address(source))
                if stream_key not in self._streams:
                    return [Refuse(f"no timer {key!r} was set")]
                return self._give_up(*stream_key, self._streams[stream_key])
            case Subscribe(topics=topics):
                return self._subscribe(topics)
            case Joined(topic=topic):
                if topic not in self._joined:
                    return [Refuse(f"topic {topic} was not asked for")]
                self._joined[topic] = True
                return [Deliver(message)]
            case Unsubscribe(topics=topics):
                return [effect for topic in topics if topic in self._joined for effect in self._leave(topic)]
            case _:
                assert_never(message)

    def _subscribe(self, topics: tuple[Topic, ...]) -> list[Effect]:
        effects: list[Effect] = []
        for topic in topics:
            if topic not in self._joined:
                self._joined[topic] = False
                effects.append(Join(topic))
            elif self._joined[topic]:
                effects.append(Deliver(Joined(topic)))
        return effects

    def _leave(self, topic: Topic) -> list[Effect]:
        effects: list[Effect] = [Leave(topic)]
        del self._joined[topic]
        for key in [key for key in self._streams if key[0] == topic]:
            stream = self._streams.pop(key)
            if stream.held:
                self._held -= len(stream.held)
                effects.append(CancelTimer(f"{topic} {key[1]}"))
        return effects

    def _hear(self, heard: Heard, now: Micros) -> list[Effect]:
        topic, numbered = heard.topic, heard.message
        if topic not in self._joined:
            return [Refuse(f"topic {topic} was not asked for")]
        if not isinstance(numbered, Numbered) or numbered.number < 1:
            return [Refuse(f"no numbered event: {numbered!r:.80}")]
        stream = self._streams.get((topic, numbered.source))
        if stream is None:
            stream = self._streams[topic, numbered.source] = _Stream()
        number = numbered.number
        if number < stream.next or number in stream.held:
            return []
        if number == stream.next and not stream.held:  # the common case, without the detour through `held`
            stream.next += 1
            return [Deliver(Heard(topic, numbered.message, heard.control, number))]
        waited = bool(stream.held)
        stream.held[number] = (now, numbered.message)
        self._held += 1
        effects = self._release(topic, numbered.source, stream, waited)
        if self._held > self._config.held_max:
            (topic, source), longest = min(
                ((key, stream) for key, stream in self._streams.items() if stream.held),
                key=lambda item: item[1].oldest(),
            )
            effects += self._give_up(topic, source, longest)
        return effects

    def _release(self, topic: Topic, source: Address, stream: _Stream, waited: bool) -> list[Effect]:
        """Delivers what is next, and keeps one timer while anything is held: for the event that waits longest."""
        effects: list[Effect] = []
        while stream.next in stream.held:
            _, message = stream.held.pop(stream.next)
            effects.append(Deliver(Heard(topic, message, number=stream.next)))
            stream.next += 1
        self._held -= len(effects)
        if stream.held and (effects or not waited):
            effects.append(SetTimer(f"{topic} {source}", Micros(stream.oldest() + self._config.deadline_us)))
        elif waited and not stream.held:
            effects.append(CancelTimer(f"{topic} {source}"))
        return effects

    def _give_up(self, topic: Topic, source: Address, stream: _Stream) -> list[Effect]:
        """Ends the wait of the longest held event: every number missing before it is reported."""
        effects: list[Effect] = []
        longest = next(iter(stream.held), 0)
        while longest in stream.held:
            first, stream.next = stream.next, min(stream.held)
            if first < stream.next:
                effects.append(Deliver(Gap(topic, first, stream.next - 1, f"of publisher {source}: not heard in time")))
            effects += self._release(topic, source, stream, waited=True)
        return effects
