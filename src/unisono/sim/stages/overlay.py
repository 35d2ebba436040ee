"""The overlay: a tree of brokers with clients on them; links that are lost, orphans that dial again.

Links are the simulator's FIFO links in *connections*: what was sent over a lost one may still arrive before the news of
the loss, never after. A broker that crashes comes back as a new broker and dials, as orphans do after `redial`. Clients
of a crashed broker are cut off. Brokers come from the deployment; without any, a random tree is grown.
"""

from functools import partial
from typing import Any

from unisono.machine import Advertise, Machine
from unisono.model.ids import Address
from unisono.model.predicate import EVERY_EVENT, Filter, parse, to_text
from unisono.protocols.overlay.broker import Broker
from unisono.protocols.overlay.client import OverlayClient
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.messages import LinkDown, LinkUp
from unisono.sim.host import SimulatedHost
from unisono.sim.scenario import Scenario
from unisono.sim.spec import Span, Spec
from unisono.sim.stages import Operation, Operations
from unisono.sim.trees import random_tree
from unisono.sim.world import World
from unisono.structures.connections import Carried, Connected, Connections


class OverlayStageOptions(Spec, frozen=True):
    """What a scenario may say about the overlay."""

    config: BrokerConfig = BrokerConfig()
    brokers_max: int = 7
    """How many brokers a random tree has at most, when the deployment names none."""
    content: bool = True
    """Every client narrows its topics to a random interval of the workload's attribute x; without, topics are all."""
    advertises_per_s: float = 0.0
    """Random clients say anew what they will publish on a topic, mostly less than they do."""
    cuts_per_s: float = 0.0
    """Random links lost while the workload lasts, both ends alive."""
    redial: Span | None = None
    """Orphans dial some broker of another part after this; without, they stay alone."""


def build(world: World, scenario: Scenario) -> Operations:
    return _Stage(world, scenario).build()


class _Stage:
    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world = world
        self.scenario = scenario
        self.options: OverlayStageOptions = scenario.config(OverlayStageOptions)
        self.dice = world.dice("tree")
        self.nodes = list(scenario.deployment.nodes) or random_tree(self.dice, 2, self.options.brokers_max)
        self.brokers = [node.name for node in self.nodes]
        self.above: dict[str, str] = {}
        self.connections: dict[tuple[str, str], int] = {}
        self.opened = 0

    def build(self) -> Operations:
        world, scenario = self.world, self.scenario
        for node in self.nodes:
            host = world.add(node.name, partial(self._broker, node.name), region=node.region, service=scenario.service)
            host.on_down = partial(self._lose_all, host)
        for node in self.nodes:
            if node.parent:
                self._dial(node.name, node.parent)
        for i, client in enumerate(scenario.clients):
            broker = self.brokers[i % len(self.brokers)] if i < len(self.brokers) else self.dice.choice(self.brokers)
            where = self._where() if self.options.content else EVERY_EVENT
            host = world.add(
                client.name, partial(self._client, client.name, broker, where), region=client.region,
                service=scenario.service,
            )  # fmt: skip
            host.where = None if where.is_everything else to_text(where)
            self._connect(client.name, broker, None)
        if self.options.advertises_per_s:
            world.at(scenario.workload.begin, self._advertise_some)
        if self.options.cuts_per_s:
            world.at(scenario.workload.begin, self._cut_some)
        return {"cut": self._cut_by_script, "dial": self._dial_by_script}

    def _broker(self, address: str, name: str) -> Machine:
        if Address(address) in self.world.hosts:  # a later life
            self._redial(address)
        return Connections(Broker(Address(address), self.options.config), Address(address), LinkDown)

    def _client(self, address: str, broker: str, where: Filter, name: str) -> Machine:
        inside = OverlayClient(Address(address), Address(broker), self.world.topic_name, where)
        return Connections(inside, Address(address), LinkDown)

    def _is_running(self) -> bool:
        workload = self.scenario.workload
        return self.world.now <= workload.begin + workload.duration

    # The tree.

    def _where(self) -> Filter:
        values = self.scenario.workload.attributes.get("x", 1)
        low = self.dice.randrange(values)
        return parse(f"x between {low} and {low + self.dice.randint(2, values)}")

    def _connect(self, lower: str, upper: str, is_broker: bool | None) -> None:
        self.opened += 1
        self.connections[lower, upper] = self.opened
        for me, peer, up in ((lower, upper, True), (upper, lower, False)):
            link_up = LinkUp(Address(peer), up) if is_broker else None
            self.world.host(me).receive(Connected(self.opened, Address(peer), link_up))

    def _dial(self, lower: str, upper: str) -> None:
        self.above[lower] = upper
        self._connect(lower, upper, True)

    def _lose(self, lower: str, upper: str) -> None:
        """Both ends read what is under way, then the loss."""
        connection = self.connections.pop((lower, upper))
        self.above.pop(lower, None)
        for source, to in ((lower, upper), (upper, lower)):
            down = Carried(connection, Address(source), LinkDown(Address(source)))
            self.world.network.carry(self.world.host(source), Address(to), down)

    def _lose_all(self, host: SimulatedHost) -> None:
        for lower, upper in list(self.connections):
            if host.address in (lower, upper):
                self._lose(lower, upper)
                if upper == host.address and lower in self.brokers:
                    self._redial(lower)

    def _redial(self, lower: str) -> None:
        if self.options.redial is not None:
            self.world.after(self.options.redial, self._dial_somebody, lower)

    def _dial_somebody(self, lower: str) -> None:
        host = self.world.host(lower)
        if lower in self.above or not host.is_up:
            return
        machine: Any = host.machine
        others = [b for b in self.brokers if self.world.host(b).is_up and lower not in self._upwards(b)]
        if machine.inside.parent is not None or not others:
            self._redial(lower)  # the loss has not been noticed yet
            return
        upper = self.dice.choice(others)
        there: Any = self.world.host(upper).machine
        if machine.connection(Address(upper)) is not None or there.connection(Address(lower)) is not None:
            self._redial(lower)
            return
        self._dial(lower, upper)

    def _upwards(self, name: str) -> list[str]:
        way = [name]
        while way[-1] in self.above:
            way.append(self.above[way[-1]])
        return way

    def _advertise_some(self) -> None:
        if not self._is_running():
            return
        client, topic = self.dice.choice(self.scenario.clients), self.dice.choice(self.scenario.topics)
        host = self.world.host(client.name)
        if host.is_up:
            host.tell(Advertise(self.world.topic(topic), client.name, self._where()))
        gap = max(1, round(self.dice.expovariate(self.options.advertises_per_s / 1_000_000)))
        self.world.after(gap, self._advertise_some)

    def _cut_some(self) -> None:
        if not self._is_running():
            return
        if self.above:
            lower = self.dice.choice(sorted(self.above))
            self.world.note("fault", note=f"the link {lower} - {self.above[lower]} is lost")
            self._lose(lower, self.above[lower])
            self._redial(lower)
        gap = max(1, round(self.dice.expovariate(self.options.cuts_per_s / 1_000_000)))
        self.world.after(gap, self._cut_some)

    def _cut_by_script(self, operation: Operation) -> None:
        self._lose(operation.who, self.above[operation.who])

    def _dial_by_script(self, operation: Operation) -> None:
        self._dial(operation.who, operation.to)
