"""The clock order: a stamper per region, keepers of topics, clients that notify in the order of keys.

Nodes come from the deployment; without any, some are made. Topics without a home there get a keeper by lot, and every
client the node of its region, or one by lot. Beside the usual records the stage writes `timestamp` (the number an event
has in its topic), and changes leans, by script (`do = "lean"`) or at random.
"""

from functools import partial

from unisono.errors import MisuseError
from unisono.machine import Broadcast, Effect
from unisono.model.event import Payloads
from unisono.model.ids import Address, Topic
from unisono.model.settings import NodeSpec
from unisono.protocols.clock.arrangements import ClockClientArrangement, StamperArrangement
from unisono.protocols.clock.client import ClockClient
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.messages import (
    BrokerMessage,
    ClockBound,
    LaneStamps,
    PeerMessage,
    SetLean,
    Stamped,
    number_of,
)
from unisono.protocols.clock.stamper import UNNUMBERED, StamperMachine, repeats
from unisono.sim.scenario import Scenario
from unisono.sim.spec import Span, Spec
from unisono.sim.stages import Operation, Operations
from unisono.sim.world import World
from unisono.structures.sessions import Sessions, SessionsConfig

BOUND_US = 250_000
"""With real-time order stampers are told this often how wrong their clocks may be."""


class ClockStageOptions(Spec, frozen=True):
    """What a scenario may say about the clock order."""

    config: ClockConfig = ClockConfig()
    sessions: SessionsConfig = SessionsConfig()
    nodes_max: int = 4
    """How many stampers there are at most, when the deployment names no nodes."""
    leans_per_s: float = 0.0
    """Random changes of leans, while the workload lasts."""
    lean: Span = Span(50_000)
    """How far a random lean is from 0 at most."""


def build(world: World, scenario: Scenario) -> Operations:
    return _Stage(world, scenario).build()


class _Stage:
    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world = world
        self.scenario = scenario
        self.options: ClockStageOptions = scenario.config(ClockStageOptions)
        self.dice = world.dice("tree")
        some = [NodeSpec(f"n{i}") for i in range(self.dice.randint(1, self.options.nodes_max))]
        self.nodes = list(scenario.deployment.nodes) or some
        self.addresses = tuple(Address(node.name) for node in self.nodes)
        planned = {spec.name: spec.home for spec in scenario.deployment.topics}
        self.homes = {
            world.topic(name): self.addresses.index(Address(planned.get(name) or self.dice.choice(self.addresses)))
            for name in scenario.topics
        }
        self.events: dict[tuple[Address, int], str] = {}

    def build(self) -> Operations:
        world, scenario = self.world, self.scenario
        for i, node in enumerate(self.nodes):
            host = world.add(
                node.name,
                partial(self._stamper, i),
                region=node.region,
                service=scenario.service,
                snapshot_every=scenario.snapshot_every,
                arrange=lambda machine: StamperArrangement(),
            )
            host.on_effect = self._observe
        for client in scenario.clients:
            near = [i for i, node in enumerate(self.nodes) if node.region == client.region]
            node_number = self.dice.choice(near or range(len(self.nodes)))
            host = world.add(
                client.name,
                partial(self._client, node_number),
                region=client.region,
                service=scenario.service,
                arrange=lambda machine: ClockClientArrangement(),
            )
            host.on_effect = self._observe
        if self.options.config.tolerance_us:
            world.tolerance_us = self.options.config.tolerance_us
            world.after(1, self._bound_clocks)
        if self.options.leans_per_s:
            world.at(scenario.workload.begin, self._lean_some)
        return {"lean": self._lean}

    def _stamper(self, me: int, name: str) -> Sessions:
        kept = tuple(topic for topic, home in self.homes.items() if home == me)
        inside = StamperMachine(me, self.addresses, self.homes.get, kept, self.options.config)
        peers = tuple(address for i, address in enumerate(self.addresses) if i != me)
        return Sessions(
            inside, self.addresses[me], peers, PeerMessage, BrokerMessage, self.options.sessions, repeats, UNNUMBERED
        )

    def _client(self, node: int, name: str) -> ClockClient:
        return ClockClient(Address(name), node, self.addresses, self.homes.get, self.options.config)

    # Clocks.

    def _bound_clocks(self) -> None:
        """What nodes would find out by asking each other; here it is known."""
        for address in self.addresses:
            host = self.world.host(address)
            if host.is_up:
                host.tell(ClockBound(abs(host.skew_us)))
        if self.world.now < self.scenario.workload.begin + self.scenario.workload.duration + self.scenario.settle // 2:
            self.world.after(BOUND_US, self._bound_clocks)

    # Leans.

    def _lean(self, operation: Operation) -> None:
        if not operation.payload.lstrip("-").isdigit():
            raise MisuseError(f"a lean is a number of microseconds in `payload`, not {operation.payload!r}")
        for name in operation.topics:
            self.world.host(operation.who).tell(SetLean(self.world.topic(name), int(operation.payload)))

    def _lean_some(self) -> None:
        workload = self.scenario.workload
        if self.world.now > workload.begin + workload.duration:
            return
        host = self.world.host(self.dice.choice(self.addresses))
        if host.is_up:
            lean = self.dice.randint(-self.options.lean, self.options.lean)
            host.tell(SetLean(self.dice.choice(list(self.homes)), lean))
        gap = self.dice.expovariate(self.options.leans_per_s / 1_000_000)
        self.world.after(max(1, round(gap)), self._lean_some)

    # The journal.

    def _observe(self, effect: Effect) -> None:
        match effect:
            case Broadcast(message=Payloads(publisher=publisher, request=first, events=events)):
                self.events.update(((publisher, request), event.id) for request, event in enumerate(events, first))
            case Broadcast(topic=topic, message=LaneStamps(lane=lane, entries=entries)):
                for entry in entries:
                    if isinstance(entry, Stamped):
                        for i in range(entry.count):
                            number = number_of(entry.stamp + i, lane.stamper)
                            self._note(topic, number, entry.publisher, entry.request + i)

    def _note(self, topic: Topic, number: int, publisher: Address, request: int) -> None:
        event = self.events.get((publisher, request))
        if event is None:
            raise MisuseError(f"request {request} of {publisher} has a key, and nobody published it")
        self.world.note("timestamp", topic=self.world.topic_name(topic), number=number, event=event)
