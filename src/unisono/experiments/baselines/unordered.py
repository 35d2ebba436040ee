"""No order at all: what the broker brings is delivered. The yardstick."""

from typing import assert_never

from unisono.machine import (
    Accepted,
    Broadcast,
    Deliver,
    Effect,
    Heard,
    Join,
    Joined,
    Leave,
    Publish,
    Subscribe,
    Unsubscribe,
)
from unisono.model.time import Micros

Input = Publish | Subscribe | Unsubscribe | Heard | Joined


class UnorderedClient:
    """Passes everything on."""

    def handle(self, message: Input, now: Micros) -> list[Effect]:
        match message:
            case Publish(topic=topic, message=event, request=request):
                return [Broadcast(topic, event), Deliver(Accepted(request))]
            case Heard() | Joined():
                return [Deliver(message)]
            case Subscribe(topics=topics):
                return [Join(topic) for topic in topics]
            case Unsubscribe(topics=topics):
                return [Leave(topic) for topic in topics]
            case _:
                assert_never(message)
