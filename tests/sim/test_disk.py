"""A host's disk: an input is logged once, however many layers ask for it."""

from typing import Any

from unisono.machine import PERSIST, Effect, Fired, Restarted
from unisono.model.time import Micros
from unisono.sim.world import World


class Counter:
    """Counts inputs and is very sure that each must be durable."""

    def __init__(self) -> None:
        self.count = 0

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if isinstance(message, Restarted):
            return []
        self.count += 1
        return [PERSIST, PERSIST]

    def snapshot(self) -> Any:
        return self.count

    def restore(self, snapshot: Any) -> None:
        self.count = snapshot


def test_an_input_that_two_layers_persist_is_replayed_once() -> None:
    world = World(0)
    host = world.add("n", lambda name: Counter())
    world.run()
    for _ in range(3):
        host.receive(Fired("again"))
    host.crash()
    host.restart()
    world.run()
    assert isinstance(host.machine, Counter)
    assert host.machine.count == 3
