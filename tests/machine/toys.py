"""Small machines that exist to try the contract on."""

from typing import Any

from unisono.machine import (
    PERSIST,
    Broadcast,
    Deliver,
    Effect,
    Heard,
    Join,
    Joined,
    Leave,
    Publish,
    Refuse,
    Restarted,
    Send,
    Subscribe,
    Unsubscribe,
)
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.structures.sessions import LinkFree, LinkFull


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
