"""FIFO per publisher: no nodes, only clients on the ENS."""

from unisono.model.ids import Address
from unisono.protocols.fifo.machine import FifoConfig, FifoMachine
from unisono.sim.scenario import Scenario
from unisono.sim.stages import Operations
from unisono.sim.world import World


def build(world: World, scenario: Scenario) -> Operations:
    config = scenario.config(FifoConfig)
    for client in scenario.clients:
        world.add(
            client.name,
            lambda name: FifoMachine(Address(name), config),
            region=client.region,
            service=scenario.service,
        )
    return {}
