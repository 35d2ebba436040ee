"""The paper's chain, to the letter: one topic manager per topic, T0 highest, requests hop between concerned managers.

For comparison only. Nothing travels by itself: a `Request` moves when it is told to `hop`, an event arrives when it is
given to a subscriber. The rules under dispute are arguments.
"""

from collections.abc import Iterable


class Request:
    """A timestamp under construction; `path` are the managers it still has to visit."""

    def __init__(self, topic: int, payload: str, ts: dict[int, int], path: list[int]) -> None:
        self.topic, self.payload, self.ts, self.path = topic, payload, ts, path


class Chain:
    """All topic managers. `order` lists topics from the highest to the lowest."""

    def __init__(self, topics: int, higher_only: bool = False) -> None:
        self.order = list(range(topics))
        self.clock = {t: dict.fromkeys(range(topics), 0) for t in range(topics)}  # manager -> topic -> number
        self.subscriptions: dict[int, dict[str, set[int]]] = {t: {} for t in range(topics)}
        self.higher_only = higher_only  # the thesis: entries for higher topics only

    def subscribed(self, name: str, *topics: int) -> None:
        """A subscription from before our time."""
        for t in topics:
            self.subscriptions[t][name] = set(topics)

    def group(self, topic: int) -> list[int]:
        members = self.subscriptions[topic].values()
        return [x for x in self.order if x == topic or sum(topic in s and x in s for s in members) >= 2]

    def create(self, topic: int, payload: str) -> Request:
        self.clock[topic][topic] += 1
        place = self.order.index
        higher = [x for x in self.group(topic) if place(x) < place(topic)]
        lower = [x for x in self.group(topic) if place(x) > place(topic) and not self.higher_only]
        ts = {topic: self.clock[topic][topic]} | {x: self.clock[topic][x] for x in lower}
        return Request(topic, payload, ts, higher[::-1])

    def hop(self, request: Request) -> None:
        """The request reaches the next manager on its path."""
        manager = request.path.pop(0)
        clock = self.clock[manager]
        for x, number in request.ts.items():
            clock[x] = max(clock[x], number) if x != manager else clock[x]
        request.ts[manager] = clock[manager]

    def finish(self, request: Request) -> Request:
        while request.path:
            self.hop(request)
        return request

    def publish(self, topic: int, payload: str) -> Request:
        return self.finish(self.create(topic, payload))

    def subscribe(self, name: str, *topics: int) -> Request:
        """A subscription: every manager of the subscription increments its number, from the lowest up."""
        ts: dict[int, int] = {}
        for t in sorted(topics, key=self.order.index, reverse=True):
            clock = self.clock[t]
            for x, number in ts.items():
                clock[x] = max(clock[x], number)
            clock[t] += 1
            ts[t] = clock[t]
        self.subscribed(name, *topics)
        return Request(-1, "dummy", ts, [])


class Listener:
    """A subscriber. `rule`: "equal" (the paper) or "at most". `dummy`: how the copies of a subscription count."""

    def __init__(self, *topics: int, rule: str = "equal", dummy: str = "own") -> None:
        self.clock = dict.fromkeys(topics, 0)
        self.rule, self.dummy = rule, dummy
        self.buffer: list[tuple[int, Request]] = []
        self.heard: list[str] = []

    def hear(self, *events: Request) -> "Listener":
        for event in events:
            topics: Iterable[int] = [event.topic] if event.topic >= 0 else sorted(event.ts)
            self.buffer += [(topic, event) for topic in topics if topic in self.clock]
            self._process()
        return self

    def hear_dummy(self, event: Request, topic: int) -> None:
        """One copy of a dummy, published on `topic`."""
        self.buffer.append((topic, event))
        self._process()

    def _process(self) -> None:
        ready = [item for item in self.buffer if self._ready(*item)]
        if not ready:
            return
        topic, event = ready[0]
        self.buffer.remove(ready[0])
        if event.topic < 0 and self.dummy == "merge":
            for x in self.clock:
                self.clock[x] = max(self.clock[x], event.ts.get(x, 0))
        else:
            self.clock[topic] = max(self.clock[topic], event.ts[topic])
        if event.topic >= 0:
            self.heard.append(event.payload)
        self._process()

    def _ready(self, topic: int, event: Request) -> bool:
        if event.topic < 0 and self.dummy == "merge":
            return True
        if event.ts[topic] != self.clock[topic] + 1:
            return False
        if event.topic < 0 and self.dummy == "own":
            return True
        others = {x: number for x, number in event.ts.items() if x != topic and x in self.clock}
        if self.rule == "equal":
            return all(number == self.clock[x] for x, number in others.items())
        return all(number <= self.clock[x] for x, number in others.items())
