"""Indexed hold-back: queues of numbered items whose heads wait for other queues to reach a number.

Only the item after the last processed one can be ready, so a queue is examined when its head may have changed, or
when the one thing its head was found to wait for has happened. A blocked head is filed under one unmet condition;
when that is met the next unmet one is looked for. Nothing is ever rescanned.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from unisono.model.ids import Topic


class HoldBack:
    """Who waits for whom, and which queues should be examined next."""

    __slots__ = ("_asleep", "_due", "_filed", "local")

    def __init__(self) -> None:
        self.local: dict[Topic, int] = {}
        """The last number processed, per open queue."""
        self._asleep: dict[Topic, list[tuple[int, Topic]]] = {}  # awaited -> heap of (number, sleeper)
        self._filed: dict[Topic, tuple[Topic, int]] = {}  # sleeper -> what it waits for
        self._due: deque[Topic] = deque()

    def open(self, topic: Topic, base: int) -> None:
        """Starts a queue whose first item will be `base + 1`."""
        self.local[topic] = base
        self._wake_sleepers(topic, base)

    def close(self, topic: Topic) -> None:
        """Ends a queue; nobody waits for it any more."""
        del self.local[topic]
        self._filed.pop(topic, None)
        for _, sleeper in self._asleep.pop(topic, []):
            self._filed.pop(sleeper, None)
            self._due.append(sleeper)

    def wake(self, topic: Topic) -> bool:
        """The head of this queue may be ready for a reason of its own; False: not while it waits for another."""
        if topic in self._filed:
            return False
        self._due.append(topic)
        return True

    def wake_all(self) -> None:
        self._due.extend(self.local)

    def sleep(self, topic: Topic, awaited: Topic, number: int) -> None:
        """The head of `topic` cannot go on before `awaited` has reached `number`."""
        if self._filed.get(topic) == (awaited, number):
            return
        self._filed[topic] = (awaited, number)
        heappush(self._asleep.setdefault(awaited, []), (number, topic))

    def awaited(self, topic: Topic) -> Topic:
        """The queue that this one waits for in the end, through others; itself if it waits for none."""
        for _ in self._filed:
            if topic not in self._filed:
                break
            topic = self._filed[topic][0]
        return topic

    def advance(self, topic: Topic, number: int) -> None:
        """The item `number` has been processed."""
        self.local[topic] = number
        if topic in self._asleep:
            self._wake_sleepers(topic, number)

    def due(self) -> Iterator[Topic]:
        """The queues to examine, until all is quiet. A queue may be named more often than needed."""
        while self._due:
            topic = self._due.popleft()
            if topic in self.local:
                yield topic

    def _wake_sleepers(self, topic: Topic, number: int) -> None:
        heap = self._asleep.get(topic)
        while heap and heap[0][0] <= number:
            sleeper = heappop(heap)[1]
            self._filed.pop(sleeper, None)
            self._due.append(sleeper)
        if not heap:
            self._asleep.pop(topic, None)
