"""Link sessions: CPU time per message for one link, both ends, in memory."""

import time
from typing import Any

from unisono.machine import Effect, Publish, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.structures.sessions import Sessions

MESSAGES = 50_000
A, B = Address("a"), Address("b")


class Forward:
    """Sends what it is asked to publish to the peer, and counts what arrives."""

    def __init__(self, peer: Address) -> None:
        self.peer, self.arrived = peer, 0

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if isinstance(message, Publish):
            return [Send(self.peer, message.message)]
        self.arrived += 1
        return []

    def snapshot(self) -> Any:
        return self.arrived

    def restore(self, snapshot: Any) -> None:
        self.arrived = snapshot


def run() -> list[dict[str, Any]]:
    ends = {A: Sessions(Forward(B), A, (B,), str, str), B: Sessions(Forward(A), B, (A,), str, str)}
    started = time.process_time()
    for number in range(MESSAGES):
        waiting = ends[A].handle(Publish(Topic(1), "x"), Micros(number))
        while waiting:
            effect = waiting.pop()
            if isinstance(effect, Send):
                waiting += ends[effect.to].handle(effect.message, Micros(number))
    spent = time.process_time() - started
    receiver = ends[B].inside
    if not isinstance(receiver, Forward) or receiver.arrived != MESSAGES:
        raise SystemExit("messages were lost: the numbers would mean nothing")
    return [
        {
            "case": "send, frame, acknowledge",
            "messages": MESSAGES,
            "cpu_us_per_message": round(spent / MESSAGES * 1e6, 3),
        }
    ]
