"""A toy durable machine and a toy outside, for what holds of every machine."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from unisono.errors import InvariantError
from unisono.machine import (
    PERSIST,
    Broadcast,
    CancelTimer,
    Deliver,
    Effect,
    Fired,
    Refuse,
    Restarted,
    Send,
    SetTimer,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.structures.sessions import BroadcastsDone, Frame, Handled


class Add(Struct, frozen=True, tag="Add"):
    """Durable; the new total is delivered, and sent on to the toy's peer."""

    amount: int


class Look(Struct, frozen=True, tag="Look"):
    """Not durable: delivers the total."""


class Note(Struct, frozen=True, tag="Note"):
    """Durable, and shows nothing."""

    amount: int


class Break(Struct, frozen=True, tag="Break"):
    pass


class Later(Struct, frozen=True, tag="Later"):
    key: str
    at: int


class Never(Struct, frozen=True, tag="Never"):
    key: str


Toys = Add | Look | Note | Break | Later | Never
Inputs = Frame[Toys] | Handled | BroadcastsDone | Fired | Restarted | Add | Look | Note | Break | Later | Never


class Adder:
    """Adds; passes what was added on to a peer and to topic 1."""

    def __init__(self, peer: Address | None = None, broadcasts: bool = False) -> None:
        self.total = 0
        self.times: list[Micros] = []
        self._peer, self._broadcasts = peer, broadcasts

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Add(amount=amount):
                self.total += amount
                self.times.append(now)
                effects: list[Effect] = [PERSIST, Deliver(self.total)]
                if self._peer is not None:
                    effects.append(Send(self._peer, Add(amount)))
                if self._broadcasts:
                    effects.append(Broadcast(Topic(1), Add(amount)))
                return effects
            case Note(amount=amount):
                self.total += amount
                return [PERSIST]
            case Look():
                return [Deliver(self.total)]
            case Break():
                raise InvariantError("broken on purpose")
            case Later(key=key, at=at):
                return [SetTimer(key, Micros(now + at))]
            case Never(key=key):
                return [CancelTimer(key)]
            case Fired(key=key):
                return [Deliver(key)]
            case Restarted():
                return [Deliver("restarted")]
            case _:
                return [Refuse(f"{message!r} is no input of a toy")]

    def snapshot(self) -> Any:
        return [self.total, self.times]

    def restore(self, snapshot: Any) -> None:
        self.total, self.times = snapshot


class Seen:
    """An outside that remembers."""

    def __init__(self, send: Callable[[Address, Any], None] | None = None) -> None:
        self.delivered: list[Any] = []
        self.sent: list[tuple[Address, Any]] = []
        self.broadcasts: list[Broadcast] = []
        self.refusals: list[str] = []
        self.failure: Exception | None = None
        self.turns = 0
        self._send = send

    def send(self, to: Address, message: Any) -> None:
        self.sent.append((to, message))
        if self._send is not None:
            self._send(to, message)

    def broadcast(self, effect: Broadcast) -> None:
        self.broadcasts.append(effect)

    def join(self, topic: Topic) -> None: ...

    def leave(self, topic: Topic) -> None: ...

    def deliver(self, item: Any) -> None:
        self.delivered.append(item)

    def refused(self, reason: str) -> None:
        self.refusals.append(reason)

    def end_turn(self) -> None:
        self.turns += 1

    def failed(self, error: Exception) -> None:
        self.failure = error


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Waits for a condition, with a bound."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)
