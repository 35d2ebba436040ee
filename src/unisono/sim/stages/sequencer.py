"""The sequencer: a tree of nodes that number, clients that hold back.

Nodes come from the deployment; without any, a random tree is grown, so that seeds also vary its shape. Topics without
a home in the deployment get one by lot. Beside the usual records the stage writes what only this protocol knows:
`timestamp` (a number's complete entries, once all of them are decided) and `void`; and it moves topics, by script
(`do = "move"`) or at random.
"""

from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from unisono.errors import MisuseError
from unisono.machine import Broadcast, Effect
from unisono.model.deployment import NodeSpec
from unisono.model.grid import Grid, cell_name
from unisono.model.ids import Address, Topic
from unisono.model.predicate import EVERY_EVENT, Filter, parse, to_text
from unisono.protocols.content.selector import Cells, Selector
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig, ordered
from unisono.protocols.sequencer.inputs import Migrate
from unisono.protocols.sequencer.messages import (
    BrokerMessage,
    Entries,
    Payload,
    PeerMessage,
    Pieces,
    Run,
    Stamps,
    Void,
    repeats,
)
from unisono.protocols.sequencer.node import TopicManager
from unisono.sim.scenario import Scenario
from unisono.sim.spec import Spec
from unisono.sim.stages import Operation, Operations
from unisono.sim.world import World
from unisono.structures.sessions import Sessions, SessionsConfig


class Options(Spec, frozen=True):
    """What a scenario may say about the sequencer."""

    config: SequencerConfig = SequencerConfig()
    """Waiting times and bounds; how order is made is said by the deployment, as for real nodes."""
    sessions: SessionsConfig = SessionsConfig()
    nodes_max: int = 7
    """How many nodes a random tree has at most, when the deployment names none."""
    moves_per_s: float = 0.0
    """Random moves of a topic over one link, while the workload lasts."""
    content: bool = False
    """Clients select by content: each by a random filter over the workload's attributes, its topics by their grids."""
    width: float = 0.5
    """How much of an attribute a random filter lets through at most."""
    selects_per_s: float = 0.0
    """Random changes of filters, while the workload lasts."""


def build(world: World, scenario: Scenario) -> Operations:
    return _Stage(world, scenario).build()


class _Open(Struct):
    """A timestamp in the making, as the broker sees it."""

    run: Run
    entries: Entries
    missing: dict[Topic, None]


class _Stage:
    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world = world
        self.scenario = scenario
        self.options: Options = scenario.config(Options)
        if (self.options.config.sgmin, self.options.config.causal) != (2, False):
            raise MisuseError(f"{scenario.name}: say sgmin and causal by deployment.sequencing.order")
        how = scenario.deployment.sequencing
        self.config = ordered(replace(self.options.config, early=how.early, encoding=how.encoding), how.order)
        self.dice = world.dice("tree")
        self.taste = world.dice("content")  # filters do not depend on how topics are cut
        self.nodes = list(scenario.deployment.nodes) or self._grow()
        self.grids: dict[Topic, Cells] = {}
        self.homes = self._choose_homes()
        self.events: dict[tuple[Address, Topic, int], str] = {}
        self.open: dict[tuple[Topic, int], _Open] = {}
        self.early: dict[tuple[Topic, int], list[tuple[Entries, tuple[Topic, ...]]]] = {}
        self.noted: dict[tuple[Topic, int], None] = {}

    def build(self) -> Operations:
        world, scenario = self.world, self.scenario
        for node in self.nodes:
            host = world.add(
                node.name,
                partial(self._node, node),
                region=node.region,
                service=scenario.service,
                snapshot_every=scenario.snapshot_every,
            )
            host.on_effect = self._observe
        for client in scenario.clients:
            where = self._where() if self.options.content else EVERY_EVENT
            host = world.add(client.name, partial(self._client, where), region=client.region, service=scenario.service)
            host.on_effect = self._observe
            host.where = None if where.is_everything else to_text(where)
        if self.options.selects_per_s:
            world.at(scenario.workload.begin, self._select_some)
        if self.options.moves_per_s:
            world.at(scenario.workload.begin, self._move_some)
        return {"move": self._move}

    # The tree.

    def _grow(self) -> list[NodeSpec]:
        """A random tree: sometimes a star, sometimes a line, mostly neither."""
        count = self.dice.randint(1, self.options.nodes_max)
        shape = self.dice.choice(["star", "line", "any", "any"])
        nodes = [NodeSpec("n0")]
        for i in range(1, count):
            above = {"star": 0, "line": i - 1, "any": self.dice.randrange(i)}[shape]
            nodes.append(NodeSpec(f"n{i}", parent=f"n{above}"))
        return nodes

    def _choose_homes(self) -> dict[Topic, Address]:
        planned = {spec.name: spec.home for spec in self.scenario.deployment.topics}
        # An empty hub is a case of its own: everything is decided at a node that hosts nothing.
        spare_root = len(self.nodes) > 1 and self.dice.random() < 0.4
        able = [node.name for node in self.nodes[1 if spare_root else 0 :]]
        homes = {
            self.world.topic(name): Address(planned.get(name) or self.dice.choice(able))
            for name in self.scenario.topics
        }
        for spec in self.scenario.deployment.topics:
            if spec.grid and self.options.content:
                grid, world = Grid(spec.grid), self.world
                names = {cell: cell_name(spec.name, cell) for cell in grid.cells}
                world.cells[spec.name] = tuple(names.values())
                self.grids[world.topic(spec.name)] = Cells(grid, {c: world.topic(name) for c, name in names.items()})
                for name in names.values():
                    homes[world.topic(name)] = Address(spec.home or self.dice.choice(able))
        return homes

    # Content.

    def _client(self, where: Filter, name: str) -> OrderingClient | Selector:
        inside = OrderingClient(Address(name), dict(self.homes), self.config)
        if not self.options.content:
            return inside
        selector = Selector(inside, where)
        for topic, cells in self.grids.items():
            selector.know(topic, cells)
        return selector

    def _where(self) -> Filter:
        """An interval of some of the attributes events have."""
        texts = []
        for name, count in self.scenario.workload.attributes.items():
            if self.taste.random() < 0.8:
                low = self.taste.randrange(count)
                texts.append(f"{name} between {low} and {low + self.taste.randint(0, int(count * self.options.width))}")
        return parse(" and ".join(texts)) if texts else EVERY_EVENT

    def _select_some(self) -> None:
        workload = self.scenario.workload
        if self.world.now > workload.begin + workload.duration:
            return
        self.world.host(self.taste.choice(self.scenario.clients).name).select(self._where())
        gap = self.taste.expovariate(self.options.selects_per_s / 1_000_000)
        self.world.after(max(1, round(gap)), self._select_some)

    def _node(self, node: NodeSpec, name: str) -> Sessions:
        me, parent = Address(name), Address(node.parent) if node.parent else None
        children = tuple(Address(other.name) for other in self.nodes if other.parent == node.name)
        parents = {other.name: other.parent for other in self.nodes}
        below: dict[Topic, Address] = {}
        for topic, home in self.homes.items():
            at: str | None = home
            while at is not None and at != node.name:
                if parents[at] == node.name:
                    below[topic] = Address(at)
                at = parents[at]
        hosted = tuple(topic for topic, home in self.homes.items() if home == node.name)
        inside = TopicManager(me, parent, children, hosted, below, self.config)
        peers = (*((parent,) if parent else ()), *children)
        return Sessions(inside, me, peers, PeerMessage, BrokerMessage, self.options.sessions, repeats)

    # Moves.

    def _move(self, operation: Operation) -> None:
        for name in operation.topics:
            self.world.host(operation.who).tell(Migrate(self.world.topic(name), Address(operation.to)))

    def _move_some(self) -> None:
        workload = self.scenario.workload
        if self.world.now > workload.begin + workload.duration:
            return
        topic = self.dice.choice(list(self.homes))
        for node in self.nodes:
            host = self.world.host(node.name)
            machine: Any = host.machine
            if host.is_up and topic in machine.inside.hosted:
                ways = [n.name for n in self.nodes if n.parent == node.name] + ([node.parent] if node.parent else [])
                if ways:
                    to = self.dice.choice(ways)
                    self.world.note("move", node.name, topic=self.world.topic_name(topic), peer=to)
                    host.tell(Migrate(topic, Address(to)))
                break
        gap = self.dice.expovariate(self.options.moves_per_s / 1_000_000)
        self.world.after(max(1, round(gap)), self._move_some)

    # The journal.

    def _observe(self, effect: Effect) -> None:
        if not isinstance(effect, Broadcast):
            return
        topic = effect.topic
        match effect.message:
            case Payload(publisher=publisher, request=request, event=event):
                self.events[publisher, topic, request] = event.id
            case Stamps(runs=runs):
                for run in runs:
                    self._note(topic, run, run.entries)
            case Pieces(pieces=pieces):
                for piece in pieces:
                    self._merge(topic, piece.run, piece.settled, piece.missing)
            case Void(first=first, count=count):
                for number in range(first, first + count):
                    self.world.note("void", topic=self.world.topic_name(topic), number=number)

    def _merge(self, topic: Topic, run: Run, settled: tuple[Topic, ...], missing: tuple[Topic, ...] | None) -> None:
        key = (topic, run.first)
        if key in self.noted:
            return
        if missing is not None and key not in self.open:
            self.open[key] = _Open(run, dict(run.entries), dict.fromkeys(missing))
            for entries, names in self.early.pop(key, []):
                self._settle(key, entries, names)
        elif missing is None and key not in self.open:
            self.early.setdefault(key, []).append((run.entries, settled))
            return
        self._settle(key, run.entries, settled)

    def _settle(self, key: tuple[Topic, int], entries: Entries, settled: tuple[Topic, ...]) -> None:
        found = self.open[key]
        found.entries.update(entries)
        for x in settled:
            found.missing.pop(x, None)
        if not found.missing:
            self._note(key[0], found.run, found.entries)

    def _note(self, topic: Topic, run: Run, entries: Entries) -> None:
        if (topic, run.first) in self.noted:
            return
        self.noted[topic, run.first] = None
        name = self.world.topic_name
        clock = {name(x): number for x, number in entries.items() if x != topic}
        for i in range(run.count):
            event = self.events.get((run.publisher, topic, run.request + i))
            if event is None:
                raise MisuseError(f"number {run.first + i} of {name(topic)} was issued for a payload nobody published")
            self.world.note("timestamp", topic=name(topic), number=run.first + i, event=event, clock=clock)
