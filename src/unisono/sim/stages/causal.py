"""The causal mesh: brokers and clients that gossip over links that lose, clients that publish through one broker each.

Brokers come from the deployment; without any, `brokers` of them are made. Between brokers frames are multicast over the
simulated service beneath (`multicast`), everything else goes by links. A client whose publication is not answered takes
another broker; with `moves_per_s` random clients do so for no reason. A host that comes back after a crash is a new
member: a broker in a new incarnation, a client that subscribes to what it had before.
"""

from functools import partial
from random import Random
from typing import Any

from unisono.machine import Joined, Machine, Restarted, Unknown
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.protocols.causal.broker import CausalBroker
from unisono.protocols.causal.client import CausalClient, CausalVia
from unisono.protocols.causal.config import CausalConfig, check_causal
from unisono.protocols.causal.grouping import CausalGroups
from unisono.protocols.causal.mesh import seeds_of
from unisono.sim.host import SimulatedHost
from unisono.sim.scenario import Scenario
from unisono.sim.spec import Spec
from unisono.sim.stages import Operation, Operations
from unisono.sim.world import World


class CausalStageOptions(Spec, frozen=True):
    """What a scenario may say about the causal mesh."""

    config: CausalConfig = CausalConfig()
    brokers: int = 4
    """How many, when the deployment names none."""
    groups: tuple[str, ...] = ()
    """Patterns of topics, each a group of its own."""
    multicast: bool = True
    """Brokers multicast new frames to each other; without, these travel by gossip alone."""
    moves_per_s: float = 0.0
    """Random clients that change their broker, while the workload lasts."""


def build(world: World, scenario: Scenario) -> Operations:
    return _Stage(world, scenario).build()


class _Stage:
    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world, self.scenario = world, scenario
        self.options: CausalStageOptions = scenario.config(CausalStageOptions)
        self.config = check_causal(self.options.config)
        self.groups = CausalGroups(self.options.groups)
        self.dice = world.dice("mesh")
        self.nodes = list(scenario.deployment.nodes) or [NodeSpec(f"n{i}") for i in range(self.options.brokers)]
        self.brokers = [Address(node.name) for node in self.nodes]
        self.seeds = seeds_of(tuple((Address(node.name), node.region) for node in self.nodes))
        self.channel = world.topic("brokers of the causal mesh")
        self.via: dict[str, Address] = {}
        self.topics: dict[str, list[str]] = {}  # of every client, by its address
        self.incarnations = 0

    def build(self) -> Operations:
        world, scenario, config = self.world, self.scenario, self.config
        world.life_us = config.publication_us
        world.skew_us = (config.eps_ticks + 1) * config.tick_us
        for node in self.nodes:
            world.add(node.name, partial(self._broker, node), region=node.region, service=scenario.service)
            self._begin(node.name)
        for client in scenario.clients:
            near = [Address(node.name) for node in self.nodes if node.region == client.region]
            self.via[client.name] = self.dice.choice(near or self.brokers)
            build_client = partial(self._client, client.name, client.region)
            host = world.add(client.name, build_client, region=client.region, service=scenario.service)
            host.on_deliver = partial(self._notice, host)
            self._begin(client.name)
        if self.options.moves_per_s:
            world.at(scenario.workload.begin, self._move_some)
        return {"move": self._move_by_script}

    def _broker(self, node: NodeSpec, name: str) -> Machine:
        self.incarnations += 1
        if Address(node.name) in self.world.hosts:  # a later life
            self._begin(node.name)
        return CausalBroker(
            Address(node.name), self.incarnations, self.groups, self.config, Random(f"{self.world.seed}/{name}"),
            region=node.region, seeds=self.seeds, multicast=self.options.multicast, channel=self.channel,
        )  # fmt: skip

    def _client(self, address: str, region: str, name: str) -> Machine:
        if Address(address) in self.world.hosts:
            self._begin(address)
            topics = self.topics.pop(address, [])
            if topics:
                self.world.after(0, self._resubscribe, address, topics)
        return CausalClient(
            Address(address), self.world.topic_name, self.groups, self.config, Random(f"{self.world.seed}/{name}"),
            region=region, seeds=self.seeds, called=Address(name),
        )  # fmt: skip

    def _begin(self, address: str) -> None:
        self.world.after(0, self._start, address)

    def _start(self, address: str) -> None:
        host = self.world.host(address)
        host.receive(Restarted())
        if address in self.via:
            host.receive(CausalVia(self.via[address]))

    def _resubscribe(self, address: str, topics: list[str]) -> None:
        self.world.host(address).subscribe(*topics)

    def _notice(self, host: SimulatedHost, item: Any) -> None:
        match item:
            case Joined(topic=topic):
                self.topics.setdefault(host.address, []).append(self.world.topic_name(topic))
            case Unknown():
                self._move(host.address)

    # mobility

    def _move(self, address: str, to: Address | None = None) -> None:
        others = [broker for broker in self.brokers if broker != self.via[address]]
        if others:
            self.via[address] = to or self.dice.choice(others)
            self.world.host(address).tell(CausalVia(self.via[address]))

    def _move_some(self) -> None:
        workload = self.scenario.workload
        if self.world.now > workload.begin + workload.duration:
            return
        client = self.dice.choice(self.scenario.clients).name
        if self.world.host(client).is_up:
            self._move(client)
        gap = self.dice.expovariate(self.options.moves_per_s / 1_000_000)
        self.world.after(max(1, round(gap)), self._move_some)

    def _move_by_script(self, operation: Operation) -> None:
        self._move(operation.who, Address(operation.to) if operation.to else None)
