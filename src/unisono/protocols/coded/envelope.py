"""Coded packets inside events, for a layer beneath that carries `Event`s only, such as the sequencer.

    Stack(order=OrderingClient(…), events=Enveloped(me), coded=CodedNode(…))

Every packet is then an event with a place in the order, and all subscribers complete an event at the same packet: the
order beneath is the order above, as long as nothing is repaired: give the node a `quiet_us` longer than the order
takes. The other way round (order above coding) is cheaper and survives losses; this exists because blocks are
independent.
"""

from typing import Any

import msgspec

from unisono.machine import (
    PERSIST,
    Accepted,
    Broadcast,
    Deliver,
    Effect,
    Gap,
    Heard,
    Join,
    Joined,
    Leave,
    Publish,
    Refuse,
    Refused,
    Stalled,
    Subscribe,
    Unknown,
    Unsubscribe,
)
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.coded.messages import OnTopic

MARK = "coded"


class Enveloped:
    """Wraps what goes down, unwraps what comes up."""

    def __init__(self, me: Address) -> None:
        self._me = me
        self._issued = 0

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=inner, control=control):
                self._issued += 1
                event = Event(self._me, self._issued, str(topic), msgspec.msgpack.encode(inner), {MARK: True}, now)
                return [PERSIST, Broadcast(topic, event, control)]
            case Heard(message=Event(payload=payload, attributes=attributes)) if attributes.get(MARK) is True:
                try:
                    inner = msgspec.msgpack.decode(payload, type=OnTopic)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    return [Refuse("an event marked as coded holds something else")]
                return [Deliver(Heard(message.topic, inner, message.control, message.number, message.late))]
            case Heard() | Joined() | Gap() | Stalled() | Accepted() | Refused() | Unknown():
                return [Deliver(message)]
            case Subscribe(topics=topics):
                return [Join(topic) for topic in topics]
            case Unsubscribe(topics=topics):
                return [Leave(topic) for topic in topics]
            case _:
                return [Refuse(f"{type(message).__name__} is nothing to wrap")]

    def snapshot(self) -> Any:
        return self._issued

    def restore(self, snapshot: Any) -> None:
        self._issued = snapshot
