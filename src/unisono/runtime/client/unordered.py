"""FIFO beside the order: what a FIFO machine hears of topics that sequencers order."""

from collections.abc import Callable
from typing import Any

from unisono.machine import Heard, Machine
from unisono.model.event import Payloads
from unisono.model.ids import Address
from unisono.protocols.content.selector import Selector
from unisono.protocols.fifo.machine import FifoMachine, Numbered
from unisono.runtime.driver.host import Host
from unisono.runtime.links.links import is_named


def hears_unordered(machine: Machine) -> bool:
    return isinstance(machine.inside if isinstance(machine, Selector) else machine, FifoMachine)


class Unordered:
    """What a FIFO machine hears of a topic that sequencers order: the events, and none of the stamps.

    Events of one publisher are in line per topic. What precedes the first one heard is not ours to wait for: it was
    published before we joined, or it would have been handed over first.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._publishers: dict[str, None] = {}

    def post(self, message: Any) -> None:
        if not isinstance(message, Heard):
            self._host.post(message)
        elif isinstance(message.message, Payloads):
            for number, event in enumerate(message.message.events, message.message.request):
                publisher = event.publisher
                # A named publisher skips numbers, so nothing is known of what precedes.
                is_dense = publisher in self._publishers and number > 1 and not is_named(publisher)
                before = {message.topic: number - 1} if is_dense else {}
                self._publishers[publisher] = None
                self._host.post(Heard(message.topic, Numbered(Address(publisher), number, before, event)))

    @property
    def is_full(self) -> bool:
        return self._host.is_full

    def when_roomy(self, callback: Callable[[], None]) -> None:
        self._host.when_roomy(callback)
