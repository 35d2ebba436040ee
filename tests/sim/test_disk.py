"""A host's disk: an input is logged once, and nothing leaves before it is there."""

from typing import Any

from unisono.machine import PERSIST, Deliver, Effect, Fired, Restarted
from unisono.model.time import Micros
from unisono.sim.disk import DriverSpec
from unisono.sim.spec import Span
from unisono.sim.world import World


class Counter:
    """Counts inputs and is very sure that each must be durable."""

    def __init__(self) -> None:
        self.count = 0

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if isinstance(message, Restarted):
            return []
        self.count += 1
        return [PERSIST, PERSIST, Deliver(self.count)]

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


def host_with(driver: DriverSpec) -> tuple[World, Any]:
    world = World(0, driver=driver)
    host = world.add("n", lambda name: Counter())
    world.run()
    return world, host


def test_inputs_that_come_while_a_commit_is_under_way_are_the_next_commit() -> None:
    world, host = host_with(DriverSpec(commit_us=Span(1_000)))
    delivered: list[tuple[int, int]] = []
    host.on_deliver = lambda count: delivered.append((count, world.now))
    host.commit_extra_us = 500
    for at in range(5):
        world.at(world.now + at, host.receive, Fired("again"))
    world.run()
    moments = [moment for _, moment in delivered]
    assert [count for count, _ in delivered] == [1, 2, 3, 4, 5]
    assert moments[0] < moments[1] == moments[4], "one commit for the first, one for all others"


def test_nothing_of_a_turn_leaves_whose_commit_the_disk_refuses() -> None:
    kept = []
    for seed in range(8):
        world = World(seed)
        host = world.add("n", lambda name: Counter())
        world.run()
        delivered: list[int] = []
        host.on_deliver = delivered.append
        host.receive(Fired("again"))
        host.commit_fails = True
        host.receive(Fired("again"))
        assert (host.is_up, delivered) == (False, [1])
        host.restart()
        host.receive(Fired("again"))
        kept.append(delivered[1])
    assert set(kept) == {2, 3}, "the process that comes back finds the commit, or does not"


def test_a_crash_during_a_commit_comes_before_it_or_after_it() -> None:
    kept = []
    for seed in range(8):
        world = World(seed, driver=DriverSpec(commit_us=Span(1)))
        host = world.add("n", lambda name: Counter())
        world.run()
        host.commit_extra_us = 100
        host.receive(Fired("again"))
        world.run(until=world.now + 50)
        host.crash()
        world.run()
        kept.append(len(host.disk.log))
    assert set(kept) == {0, 1}
