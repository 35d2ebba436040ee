"""FIFO: what one publisher says, on whatever topics, is heard in the order it was said, or reported missing.

The publisher half numbers its events from 1 over all topics; each event names the number before it on every topic of
its publisher. So a subscriber, whatever it subscribes to, knows which event comes just before: the highest of those
numbers over its own topics. It holds back what is early. A wait ends `deadline_us` after the event that waits longest
arrived: what is missing before it is reported in `Gap`s, numbers of the publisher, and never delivered afterwards. At
`held_max` the longest wait ends at once.

Assumes of the broker only that numbers are not forged: it may lose, repeat and reorder. A loss is noticed by what comes
after it; the last event of a publisher can be lost in silence. A subscriber that comes late cannot know whether what
precedes the first event it hears is lost, late, or older than its subscription: it waits for it once per publisher, and
reports it. A publisher that starts anew must use a new name. Price: an entry per topic of the publisher in each event.
"""

from typing import Any, assert_never

from msgspec import Struct

from unisono.machine import (
    Accepted,
    Broadcast,
    CancelTimer,
    CutOff,
    Deliver,
    Effect,
    Fired,
    Gap,
    Heard,
    Join,
    Joined,
    Leave,
    Missed,
    Notice,
    NotTaken,
    Paused,
    Publish,
    Refuse,
    Refused,
    Selected,
    SetTimer,
    Stalled,
    Subscribe,
    Unknown,
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


class Numbered(Struct, frozen=True, tag="Numbered"):
    """The `number`-th event of `source`; `before` has the last number before it on each topic that has one."""

    source: Address
    number: int
    before: dict[Topic, int]
    message: Any


FifoMessage = Publish | Subscribe | Unsubscribe | Fired | Missed | NotTaken | Paused | Notice
"""From above, from the driver, and from beneath."""


class _Held(Struct):
    """An event that is early."""

    topic: Topic
    arrived: Micros
    before: dict[Topic, int]
    message: Any
    control: bool


class _Stream:
    """What one publisher says."""

    __slots__ = ("done", "held")

    def __init__(self) -> None:
        self.done = 0  # the highest number delivered or given up
        self.held: dict[int, _Held] = {}  # by number, in order of arrival


class FifoMachine:
    """Both halves, for one client called `me`."""

    def __init__(self, me: Address, config: FifoConfig = FifoConfig()) -> None:
        self._me = me
        self._config = config
        self._issued = 0
        self._last: dict[Topic, int] = {}  # our last number on each topic
        self._joined: dict[Topic, bool] = {}  # False: asked for, not yet in force
        self._streams: dict[Address, _Stream] = {}
        self._held = 0

    def handle(self, message: FifoMessage, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=inner, request=request, control=control):
                self._issued += 1
                numbered = Numbered(self._me, self._issued, dict(self._last), inner)
                self._last[topic] = self._issued
                return [Broadcast(topic, numbered, control), Deliver(Accepted(request, "sent"))]
            case Heard():
                return self._hear(message, now)
            case Fired(key=key):
                stream = self._streams.get(Address(key))
                if stream is None or not stream.held:
                    return [Refuse(f"no timer {key!r} is set")]
                return self._give_up(Address(key), stream)
            case Subscribe(topics=topics):
                return self._subscribe(topics)
            case Joined(topic=topic):
                if topic not in self._joined:
                    return [Refuse(f"topic {topic} was not asked for")]
                self._joined[topic] = True
                return [Deliver(message)]
            case Unsubscribe(topics=topics):
                return self._unsubscribe([topic for topic in dict.fromkeys(topics) if topic in self._joined])
            case Gap() | CutOff() | Stalled() | Selected():
                return [Deliver(message)]
            case Missed() | NotTaken() | Paused():
                return []  # nobody can be asked: the next event of a publisher shows what is missing before it
            case Accepted() | Refused() | Unknown():
                return []  # of our broadcasts, which the layer beneath may answer; we have answered for them already
            case _:
                assert_never(message)

    def _subscribe(self, topics: tuple[Topic, ...]) -> list[Effect]:
        effects: list[Effect] = []
        for topic in dict.fromkeys(topics):
            if topic not in self._joined:
                self._joined[topic] = False
                effects.append(Join(topic))
            elif self._joined[topic]:
                effects.append(Deliver(Joined(topic)))
        return effects

    def _unsubscribe(self, topics: list[Topic]) -> list[Effect]:
        """What was held back for the topics is dropped, and what waited for them waits no longer."""
        effects: list[Effect] = [Leave(topic) for topic in topics]
        for topic in topics:
            del self._joined[topic]
        for source, stream in self._streams.items():
            if stream.held:
                for number in [number for number, held in stream.held.items() if held.topic not in self._joined]:
                    del stream.held[number]
                    self._held -= 1
                effects += self._release(source, stream)
        return effects

    def _hear(self, heard: Heard, now: Micros) -> list[Effect]:
        numbered = heard.message
        if heard.topic not in self._joined:
            return [Refuse(f"topic {heard.topic} was not asked for")]
        if not isinstance(numbered, Numbered) or any(not 0 < n < numbered.number for n in numbered.before.values()):
            return [Refuse(f"no numbered event: {numbered!r:.80}")]
        stream = self._streams.get(numbered.source)
        if stream is None:
            stream = self._streams[numbered.source] = _Stream()
        if numbered.number <= stream.done or numbered.number in stream.held:
            return []
        if not stream.held and self._is_next(numbered.before, stream):
            stream.done = numbered.number
            return [Deliver(Heard(heard.topic, numbered.message, heard.control))]
        stream.held[numbered.number] = _Held(heard.topic, now, numbered.before, numbered.message, heard.control)
        self._held += 1
        effects = self._release(numbered.source, stream)
        if self._held > self._config.held_max:
            waiting = ((source, stream) for source, stream in self._streams.items() if stream.held)
            source, longest = min(waiting, key=lambda item: next(iter(item[1].held.values())).arrived)
            effects += self._give_up(source, longest)
        return effects

    def _is_next(self, before: dict[Topic, int], stream: _Stream) -> bool:
        return all(number <= stream.done for topic, number in before.items() if topic in self._joined)

    def _release(self, source: Address, stream: _Stream) -> list[Effect]:
        """Delivers what is next, and keeps one timer while anything is held: for the event that waits longest."""
        effects: list[Effect] = []
        while stream.held:
            lowest = min(stream.held)
            if not self._is_next(stream.held[lowest].before, stream):
                break
            effects.append(self._deliver(lowest, stream))
        if stream.held:
            longest = next(iter(stream.held.values())).arrived
            effects.append(SetTimer(source, Micros(longest + self._config.deadline_us)))
        else:
            effects.append(CancelTimer(source))
        return effects

    def _deliver(self, number: int, stream: _Stream) -> Deliver:
        held = stream.held.pop(number)
        stream.done = number
        self._held -= 1
        return Deliver(Heard(held.topic, held.message, held.control))

    def _give_up(self, source: Address, stream: _Stream) -> list[Effect]:
        """Ends the wait of the event held longest: what is missing before it is reported, topic by topic."""
        effects: list[Effect] = []
        longest = next(iter(stream.held))
        while longest in stream.held:
            lowest = min(stream.held)
            for topic, number in stream.held[lowest].before.items():
                if topic in self._joined and number > stream.done:
                    effects.append(
                        Deliver(Gap(topic, stream.done + 1, number, f"publisher {source}: not heard in time"))
                    )
            effects.append(self._deliver(lowest, stream))
        return effects + self._release(source, stream)
