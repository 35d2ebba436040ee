"""The invariants of spec section 6 as assertions over the states of real machines (`Watched` checks after every step).

I5 speaks of one moment, the handling of an Install; it is checked there. I9 has become stronger with the proof of
clients' numbers: what is in `bar` and `hist` has passed the meeting point, with early stamps too; without them its
timestamp is complete as well. Every node's effects begin with `Persist` if its state has changed.
"""

import math
from typing import Any

import msgspec

from tests.papers.sequencer.pump import Deployment, Letter
from unisono.machine import Persist, Send
from unisono.protocols.sequencer.messages import Fill, Install, Moved, Part


class Watched(Deployment):
    """A deployment in which every step is followed by every assertion."""

    def __init__(self, *arguments: Any, **machines: Any) -> None:
        super().__init__(*arguments, **machines)
        self.clocks: dict[tuple[str, int], int] = {}
        self.issued: dict[tuple[int, int], tuple[str, int]] = {}
        self.stamps: dict[tuple[int, int], dict[Any, int]] = {}
        self.locals: dict[tuple[str, int, int], int] = {}
        self.passed: dict[tuple[str, int], int] = {}
        self.persisted = False
        self.checks = 0

    def deliver(self, letter: Letter) -> None:
        message = letter.message
        if letter.to in self.nodes:
            if isinstance(message, Fill | Part):
                numbers = {message.topic: message.run.last} if isinstance(message, Fill) else message.collected
                for topic, number in numbers.items():
                    before = self.passed.get((letter.to, topic), 0)
                    assert number >= before, f"I1: {topic}:{number} passes {letter.to} after {before}"
                    self.passed[letter.to, topic] = number
            if isinstance(message, Install) and any(topic in self.nodes[letter.to].hosted for topic in message.here):
                self._i5(message)
        before = self._durable(letter.to)
        super().deliver(letter)
        if not self.persisted:
            assert self._durable(letter.to) == before, f"{message} changed {letter.to} and was not durable first"
        self.check()

    def perform(self, who: str, effects: Any) -> None:
        effects = list(effects)
        told = [x for x in effects if not (isinstance(x, Send) and isinstance(x.message, Moved))]  # where a home is
        self.persisted = who not in self.nodes or (bool(told) and isinstance(told[0], Persist))
        super().perform(who, effects)

    def _durable(self, name: str) -> bytes:
        """What a node must not forget; timers and marks are made again."""
        node = self.nodes.get(name)
        if node is None:
            return b""
        snapshot = node.snapshot()
        del snapshot["timers"], snapshot["marking"]
        return msgspec.msgpack.encode(snapshot)

    def check(self) -> None:
        self.checks += 1
        for name, node in self.nodes.items():
            for topic, number in node.clock.items():
                assert number >= self.clocks.get((name, topic), 0), f"I1: {name} unlearns {topic}"
                self.clocks[name, topic] = number
            for topic in node.clock:
                assert (topic in node.hosted) != (topic in node.below), "I8: a topic is hosted here or below, not both"
            for topic, home in node.hosted.items():
                self._i2_i4_i6(int(topic), home)
                self._i9(name, home)
        for name, client in self.clients.items():
            hold = client.subscriber.hold
            for topic, feed in client.subscriber.feeds.items():
                if feed.live:
                    period = (name, int(topic), id(feed))
                    step = hold.local[topic] - self.locals.get(period, feed.base)
                    assert step >= 0, "I7: a clock never goes back"
                    self.locals[period] = hold.local[topic]
        for name, numbers in self.numbers.items():
            assert len(set(numbers)) == len(numbers), f"I7: {name} processed a number twice"

    def _i2_i4_i6(self, topic: int, home: Any) -> None:
        previous: dict[Any, int] = {}
        for run in home.issued.values():
            key = (topic, run.first)
            owner = self.issued.setdefault(key, (run.publisher, run.request))
            assert owner == (run.publisher, run.request), f"I4: {key} was issued to {owner}"
            if run.first in home.open:
                continue
            assert self.stamps.setdefault(key, run.entries) == run.entries, f"I4: the timestamp of {key} has changed"
            for x, number in run.entries.items():
                assert number <= self.home(x).clock[x] if self._settled(x) else True, f"I6: {key} depends on the future"
                # What was seen of a topic that was left may be less than what an earlier event asked of it.
                if not self.config.early and number != home.hist.get(x):
                    assert number >= previous.get(x, 0), f"I2: {key} asks less of {x} than its predecessors"
            previous.update({x: max(number, previous.get(x, 0)) for x, number in run.entries.items()})

    def _settled(self, topic: int) -> bool:
        return any(topic in node.hosted for node in self.nodes.values())

    def _i5(self, install: Install) -> None:
        """Every old topic of the subscription is registered, and its number known on the way to the meeting point."""
        old = [x for x in install.topics if x not in self.clients[install.sid].subscriber.joining]
        for x in old:
            if not self._settled(x):
                continue
            version, topics = self.home(x).hosted[x].group.registrations[install.sid]
            assert version >= install.version, f"I5: {x} was not collected before the Install of {install.here}"
            assert version > install.version or all(topic in topics for topic in install.here)

    def _i9(self, node: str, home: Any) -> None:
        """What must be waited for has passed the node where the two topics meet, and (unless stamps are early) has
        its whole timestamp: it no longer climbs."""
        for x, number in (home.bar | home.hist).items():
            if not self._settled(x):
                continue  # it is moving, and its number with it
            at = node
            while x not in self.nodes[at].clock:
                at = self.tree[at] or ""
            # An event that nobody orders against others does not climb; its home has said that it exists.
            seen = max(self.nodes[at].clock[x], home.proven.get(x, 0))
            assert number <= seen, f"I9: {x}:{number} in hist[{home.topic}] has not passed {at}"
            if not self.config.early:
                assert number < self._climbing(x), f"I9: {x}:{number} in hist[{home.topic}] is not complete"

    def _climbing(self, topic: int) -> float:
        """The lowest number of a topic whose timestamp is on its way up."""
        climbing = [x.message.run.first for x in self.letters if isinstance(x.message, Fill) and x.topic == topic]
        return min(climbing, default=math.inf)


def contradictions(world: Deployment) -> list[str]:
    """I3: two events that passed the meeting point wait in one direction, never in both."""
    stamps = {(t, n): run.entries for t in world.homes for n, run in world._runs(t)}
    wrong = []
    for (t, n), entries in stamps.items():
        for x, number in entries.items():
            for back in range(1, number + 1):
                other = stamps.get((x, back), {})
                if other.get(t, 0) >= n and x != t:
                    wrong.append(f"I3: {t}:{n} and {x}:{back} wait for each other")
    return wrong
