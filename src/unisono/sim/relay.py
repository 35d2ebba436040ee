"""Machines at the interior nodes of a multicast tree: what comes from above goes on as they say, hop by hop.

A forwarding machine hears a message as `Heard`; what it broadcasts goes to its node's children in the topic's tree. It
has timers and no other effect: a node of the overlay has no disk, and is always up.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unisono.errors import InvariantError
from unisono.machine import Broadcast, CancelTimer, Effect, Fired, Heard, Machine, Refuse, SetTimer
from unisono.model.time import Micros
from unisono.sim.scribe import NodeId, ScribePaths

if TYPE_CHECKING:
    from unisono.sim.host import SimulatedHost
    from unisono.sim.world import World


class Relay:
    """Carries the messages of an ENS through a tree of machines."""

    def __init__(
        self,
        world: "World",
        paths: ScribePaths,
        build: Callable[[str], Machine],
        arrive: Callable[["SimulatedHost", Heard, int], None],
        copied: Callable[[Any, int], None],
    ) -> None:
        self._world = world
        self._paths = paths
        self._build = build
        self._arrive = arrive
        self._copied = copied
        self._machines: dict[NodeId, Machine] = {}
        self._timers: dict[tuple[NodeId, str], int] = {}
        self._timer_count = 0

    def publish(self, source: "SimulatedHost", heard: Heard) -> None:
        before = self._paths.copies
        self._go_on(self._paths.to_root(source, heard.topic), heard, before)

    def _go_on(self, reached: list[tuple[NodeId, int]], heard: Heard, before: int) -> None:
        self._copied(heard.message, self._paths.copies - before)
        for node, delay in reached:
            self._world.after(delay, self._at, node, heard)

    def _at(self, node: NodeId, heard: Heard) -> None:
        host = self._paths.host_at(node)
        if host is not None:
            self._arrive(host, heard, 0)
        if self._paths.has_children(node, heard.topic):
            self._give(node, heard)

    def _give(self, node: NodeId, message: Heard | Fired) -> None:
        if node not in self._machines:
            self._machines[node] = self._build(f"{node:032x}")
        for effect in self._machines[node].handle(message, Micros(self._world.now)):
            self._perform(node, effect)

    def _perform(self, node: NodeId, effect: Effect) -> None:
        match effect:
            case Broadcast(topic=topic, message=inner, control=control):
                before = self._paths.copies
                self._go_on(self._paths.to_children(node, topic), Heard(topic, inner, control), before)
            case SetTimer(key=key, at=at):
                self._timer_count += 1
                self._timers[node, key] = self._timer_count
                self._world.at(at, self._fire, node, key, self._timer_count)
            case CancelTimer(key=key):
                self._timers.pop((node, key), None)
            case Refuse():
                pass
            case _:
                raise InvariantError(f"a forwarding machine cannot {type(effect).__name__}")

    def _fire(self, node: NodeId, key: str, count: int) -> None:
        if self._timers.get((node, key)) == count:
            del self._timers[node, key]
            self._give(node, Fired(key))
