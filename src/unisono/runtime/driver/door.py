"""The asyncio driver of a machine that stands in front of another one, and keeps nothing.

Every input is handled at once, and its effects are performed before the next; nothing is logged. What it delivers is
for whoever drives the machine that it stands in front of.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from unisono.machine import CancelTimer, Deliver, Fired, Machine, Send, SetTimer
from unisono.model.ids import Address
from unisono.runtime.driver.clock import Clock


class Door:
    """Drives one machine; give it inputs with `post`."""

    def __init__(
        self,
        machine: Machine,
        deliver: Callable[[Any], None],
        send: Callable[[Address, Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.machine = machine
        self._deliver, self._send, self._failed = deliver, send, failed
        self._clock = Clock()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def post(self, message: Any) -> None:
        now = self._clock.now()
        for effect in self.machine.handle(message, now):
            match effect:
                case Deliver(item=item):
                    self._deliver(item)
                case Send(to=to, message=letter):
                    self._send(to, letter)
                case SetTimer(key=key, at=at):
                    if key in self._timers:
                        self._timers[key].cancel()
                    loop = asyncio.get_running_loop()
                    self._timers[key] = loop.call_later(max(0, at - now) / 1e6, self._fire, key)
                case CancelTimer(key=key):
                    if key in self._timers:
                        self._timers.pop(key).cancel()

    def _fire(self, key: str) -> None:
        del self._timers[key]
        try:
            self.post(Fired(key))
        except Exception as error:  # the task boundary
            self._failed(error)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
