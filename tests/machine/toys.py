"""Small machines that exist to try the contract on."""

from typing import Any

from unisono.machine import (
    PERSIST,
    Broadcast,
    Deliver,
    Effect,
    Fired,
    Heard,
    Join,
    Joined,
    Leave,
    Publish,
    Refuse,
    Restarted,
    Send,
    SetTimer,
    Subscribe,
    Unsubscribe,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.structures.sessions import LinkFree, LinkFull

PEER = Address("peer")


class Layer:
    """A block with the interface of the broker beneath it; marks what goes down, unmarks what comes up."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=inner, control=control):
                return [Broadcast(topic, [self._mark, inner], control)]
            case Heard(topic=topic, message=[mark, inner], control=control) if mark == self._mark:
                return [Deliver(Heard(topic, inner, control))]
            case Heard():
                return [Refuse(f"not marked {self._mark}")]
            case Subscribe(topics=topics):
                return [Join(topic) for topic in topics]
            case Unsubscribe(topics=topics):
                return [Leave(topic) for topic in topics]
            case Joined():
                return [Deliver(message)]
            case _:
                return [Refuse(f"{type(message).__name__} says nothing to me")]


class Counting:
    """Durable: numbers what it is asked to publish, sends and broadcasts the number, keeps the numbers that come."""

    def __init__(self, peer: Address) -> None:
        self.peer = peer
        self.sent = 0
        self.received: list[int] = []

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic):
                self.sent += 1
                return [Send(self.peer, self.sent), Broadcast(topic, self.sent), PERSIST]
            case int():
                self.received.append(message)
                return [PERSIST, Deliver(message)]
            case Restarted() | LinkFull() | LinkFree():
                return []
            case _:
                return [Refuse(f"{type(message).__name__} says nothing to me")]

    def snapshot(self) -> Any:
        return [self.sent, self.received]

    def restore(self, snapshot: Any) -> None:
        self.sent, self.received = snapshot[0], list(snapshot[1])


class Ledger:
    """Durable: a block that numbers what goes down and remembers the numbers and topics it has let up, each once."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.issued = 0
        self.topics: dict[Topic, None] = {}
        self.seen: dict[int, None] = {}

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=inner, control=control):
                self.issued += 1
                return [PERSIST, Broadcast(topic, [self.mark, self.issued, inner], control), Send(PEER, self.issued)]
            case Heard(topic=topic, message=[mark, int() as number, inner], control=control) if mark == self.mark:
                if topic not in self.topics or number in self.seen:
                    return [Refuse(f"{number} is nothing new to {self.mark}")]
                self.seen[number] = None
                return [PERSIST, Deliver(Heard(topic, inner, control))]
            case Subscribe(topics=topics):
                self.topics |= dict.fromkeys(topics)
                return [PERSIST, *(Join(topic) for topic in topics)]
            case Unsubscribe(topics=topics):
                for topic in topics:
                    self.topics.pop(topic, None)
                return [PERSIST, *(Leave(topic) for topic in topics)]
            case Joined():
                return [Deliver(message)]
            case int():
                return [Deliver(message)]
            case Restarted():
                return [SetTimer("wake", now), *(Join(topic) for topic in self.topics)]
            case Fired(key="wake"):
                return [Send(PEER, self.issued)]
            case _:
                return [Refuse(f"{type(message).__name__} says nothing to me")]

    def snapshot(self) -> Any:
        return [self.issued, list(self.topics), list(self.seen)]

    def restore(self, snapshot: Any) -> None:
        self.issued = snapshot[0]
        self.topics, self.seen = dict.fromkeys(snapshot[1]), dict.fromkeys(snapshot[2])
