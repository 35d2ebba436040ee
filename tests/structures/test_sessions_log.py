"""Link sessions persist what they promise on their own account, also around a machine that never asks for it."""

from typing import Any

from unisono.machine import PERSIST, Broadcast, Effect, Publish, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.structures.sessions import Frame, Handled, Sessions

ME, PEER, T = Address("me"), Address("peer"), Topic(0)


class Relay:
    """Stateless, with nothing to persist: passes publications on to the peer, those marked control to the broker."""

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=inner, control=True):
                return [Broadcast(topic, inner)]
            case Publish(message=inner):
                return [Send(PEER, inner)]
            case _:
                return []

    def snapshot(self) -> Any:
        return None

    def restore(self, snapshot: Any) -> None:
        pass


def relay() -> Sessions:
    return Sessions(Relay(), ME, (PEER,), str, str)


def test_a_numbered_frame_leaves_after_its_input_is_durable() -> None:
    effects = relay().handle(Publish(T, "x"), Micros(0))
    assert effects.index(PERSIST) < effects.index(Send(PEER, Frame(ME, 1, "x")))


def test_a_broadcast_leaves_after_its_input_is_durable() -> None:
    effects = relay().handle(Publish(T, "x", control=True), Micros(0))
    assert effects.index(PERSIST) < effects.index(Broadcast(T, "x"))


def test_a_frame_is_acknowledged_after_it_is_durable() -> None:
    effects = relay().handle(Frame(PEER, 1, "x"), Micros(0))
    assert effects.index(PERSIST) < effects.index(Send(PEER, Handled(ME, 1)))


def test_a_trimmed_outbox_stays_trimmed_after_a_replay() -> None:
    living, replayed = relay(), relay()
    for message in (Publish(T, "x"), Publish(T, "y"), Handled(PEER, 1)):
        if PERSIST in living.handle(message, Micros(0)):
            replayed.handle(message, Micros(0))
    assert replayed.snapshot() == living.snapshot()
