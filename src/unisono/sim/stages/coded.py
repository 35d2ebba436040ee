"""Coded dissemination and gossip recovery: no nodes, only clients on an ENS that loses, and forwarders inside it."""

from random import Random

from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.forwarder import Forwarder
from unisono.protocols.coded.node import CodedNode
from unisono.sim.scenario import Scenario
from unisono.sim.stages import Operations
from unisono.sim.world import World


def build(world: World, scenario: Scenario) -> Operations:
    config = scenario.config(CodedConfig)
    if config.recode:
        world.ens.forward_by(lambda name: Forwarder(config, Random(f"{world.seed}/{name}")))
    for client in scenario.clients:
        world.add(
            client.name,
            lambda name: CodedNode(Address(name), config, Random(f"{world.seed}/{name}"), Event),
            region=client.region,
            service=scenario.service,
            snapshot_every=scenario.snapshot_every,
        )
    return {}
