"""Homes that move by themselves, in the simulator: the planner of the root hears every node that is up, and is obeyed.

Nothing of it is durable: when the root is down the planner forgets, as in a deployment.
"""

from collections.abc import Sequence
from typing import Any

from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.model.time import MILLISECOND, Micros
from unisono.planning.demand import DemandCounter
from unisono.planning.homes import HomePlanner, HomesConfig
from unisono.protocols.sequencer.messages import Relocate
from unisono.sim.world import World

SHIFT_US = 500 * MILLISECOND
"""So often clients turn up in another region."""


class Placer:
    """Looks at the nodes of a world every period, until the workload ends."""

    def __init__(self, world: World, nodes: Sequence[NodeSpec], config: HomesConfig, end_us: int) -> None:
        self._world, self._config, self._end_us = world, config, end_us
        self._parents = {Address(node.name): Address(node.parent) if node.parent else None for node in nodes}
        self._names = list(self._parents)
        self._root = next(name for name, parent in self._parents.items() if parent is None)
        self._counters = {name: DemandCounter(name) for name in self._names}
        self._planner = self._fresh()

    def start(self) -> None:
        self._world.after(self._config.period_us, self._look)

    def _fresh(self) -> HomePlanner:
        return HomePlanner(self._parents, {name: name for name in self._names}, {}, self._config)

    def _region_of(self, client: Address) -> str:
        turn = sum(client.encode()) + self._world.now // SHIFT_US
        return self._names[turn % len(self._names)]

    def _look(self) -> None:
        world, now = self._world, Micros(self._world.now)
        if now > self._end_us:
            return
        for name in self._names:
            host = world.host(name)
            if host.is_up:
                machine: Any = host.machine
                self._planner.hear(self._counters[name].look(machine.inside.hosted, self._region_of), now)
        root = world.host(self._root)
        if not root.is_up:
            self._planner = self._fresh()
        else:
            for move in self._planner.plan(now):
                topic = world.topic_name(move.topic)
                world.note("move", self._root, topic=topic, peer=move.to)
                root.tell(Relocate(move.topic, move.path))
        world.after(self._config.period_us, self._look)
