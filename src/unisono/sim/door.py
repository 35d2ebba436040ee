"""What stands in front of the machine of a simulated host: letters come in by it, and a crash takes what it knows."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unisono.machine import CancelTimer, Deliver, Fired, Machine, Send, SetTimer
from unisono.model.time import Micros

if TYPE_CHECKING:
    from unisono.sim.host import SimulatedHost


class SimulatedDoor:
    """A machine whose messages cost no turn and whose inputs are not logged."""

    def __init__(
        self,
        host: "SimulatedHost",
        make: Callable[[Any], Machine],
        is_for_driver: Callable[[Any], bool] = lambda item: False,
    ) -> None:
        """`make` is given the host's machine of this life. What the door delivers is an input of that machine, unless
        `is_for_driver`, which sees all of it, says otherwise."""
        self._host, self._make, self._is_for_driver = host, make, is_for_driver
        self.open()

    def open(self) -> None:
        """A life of the host begins."""
        self._machine = self._make(self._host.machine)
        self._timers: dict[str, Micros] = {}

    def ask(self, message: Any) -> None:
        host = self._host
        life = host.life
        for effect in self._machine.handle(message, host.clock()):
            if life != host.life:
                return
            match effect:
                case Deliver(item=item):
                    if not self._is_for_driver(item):
                        host.turns.post(item)
                case Send(to=to, message=letter):
                    host.world.network.carry(host, to, letter)
                case SetTimer(key=key, at=at):
                    self._timers[key] = at
                    host.world.at(at - host.skew_us, self._fire, key, at, life)
                case CancelTimer(key=key):
                    self._timers.pop(key, None)
        if life == host.life:
            host.wake()

    def _fire(self, key: str, at: Micros, life: int) -> None:
        if life != self._host.life or self._timers.get(key) != at:
            return
        if not self._host.queue.is_postponed(lambda: self._fire(key, at, life)):
            del self._timers[key]
            self.ask(Fired(key))
