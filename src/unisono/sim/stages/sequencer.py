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
from unisono.machine import Broadcast, Effect, Send
from unisono.model.event import Payload
from unisono.model.grid import Grid, cell_name
from unisono.model.ids import Address, Topic
from unisono.model.predicate import EVERY_EVENT, Filter, parse, to_text
from unisono.model.settings import NodeSpec
from unisono.planning.homes import HomesConfig
from unisono.protocols.content.selector import Cells, Selector
from unisono.protocols.sequencer.admission import AdmissionConfig
from unisono.protocols.sequencer.arrangements import ClientArrangement, NodeArrangement
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig, ordered
from unisono.protocols.sequencer.inputs import HomeReborn, Migrate
from unisono.protocols.sequencer.lives import Lives
from unisono.protocols.sequencer.messages import (
    BrokerMessage,
    Creates,
    Entries,
    Fill,
    PeerMessage,
    Pieces,
    Run,
    Stamps,
    Void,
    repeats,
)
from unisono.protocols.sequencer.named import NamedConfig, NamedPublications
from unisono.protocols.sequencer.node import TopicManager
from unisono.sim.feeds import NamedFeed
from unisono.sim.host import SimulatedHost
from unisono.sim.scenario import Scenario
from unisono.sim.spec import Span, Spec
from unisono.sim.stages import Client, Operation, Operations
from unisono.sim.stages.listening import Absences, Listening, Witnessing, manager_of
from unisono.sim.stages.placer import Placer
from unisono.sim.trees import random_tree
from unisono.sim.world import World
from unisono.structures.sessions import Frame, Reborn, Reconnected, Sessions, SessionsConfig
from unisono.structures.stored import StoredPublications

AGAIN_US = 500_000
"""Within this time after a node was reborn clients hear of it."""
ARRIVED_US = 300_000
"""After this no message is on its way any more."""


class SequencerStageOptions(Spec, frozen=True):
    """What a scenario may say about the sequencer."""

    config: SequencerConfig = SequencerConfig()
    """Waiting times and bounds; how order is made is said by the deployment, as for real nodes."""
    sessions: SessionsConfig = SessionsConfig()
    named: bool = False
    """The workload's publishers have names for ever, and say again what has no certain outcome."""
    publisher: NamedConfig = NamedConfig()
    """Of those."""
    listens: bool = False
    """Nodes listen before they serve and show how far their logs are, everybody hands back what was shown, and a person
    lets go on only who was found to have forgotten (`protocols.sequencer.admission`)."""
    admission: AdmissionConfig = AdmissionConfig()
    """Of those."""
    dials_again_us: Span = Span(1_500_000)
    """With `listens`: how long after a start the others reach it at most."""
    absences: tuple[Span, ...] = ()
    """With `listens`: for each of these spans a client reaches no node, some time during the workload. Nodes forget
    it when its lease (`config.subscriber_lease_us`) is over."""
    stored: bool = False
    """The broker keeps what it confirms (`ens.keep_us`), and an event is accepted when it is kept as well."""
    nodes_max: int = 7
    """How many nodes a random tree has at most, when the deployment names none."""
    moves_per_s: float = 0.0
    """Random moves of a topic over one link, while the workload lasts."""
    homes: HomesConfig | None = None
    """Homes move to where their topics are used; every node is a region, and clients change theirs twice a second."""
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


_Issued = tuple[Topic, int, Address, int]


def _issued(topic: Topic, run: Run) -> _Issued:
    """What makes two runs the same: one that gets the numbers of another is told as well, and judged."""
    return topic, run.first, run.publisher, run.request


class _Stage:
    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world = world
        self.scenario = scenario
        self.options: SequencerStageOptions = scenario.config(SequencerStageOptions)
        if (self.options.config.shared_subscriptions_min, self.options.config.causal) != (2, False):
            raise MisuseError(
                f"{scenario.name}: say shared_subscriptions_min and causal by deployment.sequencing.order"
            )
        how = scenario.deployment.sequencing
        self.config = ordered(replace(self.options.config, early=how.early, encoding=how.encoding), how.order)
        self.dice = world.dice("tree")
        self.taste = world.dice("content")  # filters do not depend on how topics are cut
        self.nodes = list(scenario.deployment.nodes) or random_tree(self.dice, 1, self.options.nodes_max)
        self.grids: dict[Topic, Cells] = {}
        self.homes = self._choose_homes()
        self.events: dict[tuple[Address, Topic, int], str] = {}
        self.open: dict[_Issued, _Open] = {}
        self.early: dict[_Issued, list[tuple[Entries, tuple[Topic, ...]]]] = {}
        self.noted: dict[_Issued, None] = {}
        self.climbing: dict[_Issued, Run] = {}
        self.unaware: dict[tuple[str, str], int] = {}  # node and client that does not know yet of this incarnation

    def build(self) -> Operations:
        world, scenario = self.world, self.scenario
        listening: list[Listening] = []
        for node in self.nodes:
            host = world.add(
                node.name,
                partial(self._node, node),
                region=node.region,
                service=scenario.service,
                snapshot_every=scenario.snapshot_every,
                arrange=lambda machine: NodeArrangement(manager_of(machine)),
            )
            host.on_effect = self._observe
            host.on_forgotten = partial(self._go_on, node)
            host.admits = partial(self._admits, node)
            if self.options.listens:
                near = [n.name for n in self.nodes if n.parent == node.name] + ([node.parent] if node.parent else [])
                options, lease = self.options, self.config.subscriber_lease_us
                listening.append(Listening(world, host, options.admission, options.dials_again_us, tuple(near), lease))
        if self.options.absences:
            names, workload = [client.name for client in scenario.clients], scenario.workload
            absences = Absences(world, listening, names, self.options.absences)
            absences.schedule(workload.begin, workload.duration)
        for client in scenario.clients:
            if self.options.named and client.name.startswith("p"):
                self._add_named(client)
                continue
            where = self._where() if self.options.content else EVERY_EVENT
            host = world.add(
                client.name,
                partial(self._client, where),
                region=client.region,
                service=scenario.service,
                arrange=lambda machine: ClientArrangement(),
            )
            host.on_effect = self._observe
            host.way = partial(self._way_to, client.name)
            host.where = None if where.is_everything else to_text(where)
            if self.options.listens:
                Witnessing(host)
        if self.options.selects_per_s:
            world.at(scenario.workload.begin, self._select_some)
        if self.options.moves_per_s:
            world.at(scenario.workload.begin, self._move_some)
        if self.options.homes is not None:
            Placer(world, self.nodes, self.options.homes, scenario.workload.begin + scenario.workload.duration).start()
        world.on_end = self._note_unfinished
        return {"move": self._move}

    # The tree.

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

    def _client(self, where: Filter, name: str) -> OrderingClient | Selector | StoredPublications:
        inside = OrderingClient(Address(name), dict(self.homes), self.config)
        if self.options.stored:
            return StoredPublications(inside, self.config.accept_us, frozenset((Creates,)))
        if not self.options.content:
            return inside
        selector = Selector(inside, where)
        for topic, cells in self.grids.items():
            selector.know(topic, cells)
        return selector

    def _add_named(self, client: Client) -> None:
        """A publisher with a name for ever, and an application that says again what it is not sure of."""
        world, name = self.world, Address(client.name)
        waits = len(self.nodes) > 1
        config = replace(self.options.publisher, is_causal=self.config.causal)

        def build(_: str) -> NamedPublications:
            if name in feeds:
                feeds[name].begin_life()
            return NamedPublications(name, dict(self.homes), waits, config)

        feeds: dict[Address, NamedFeed] = {}
        host = world.add(client.name, build, region=client.region, service=self.scenario.service)
        host.on_effect = self._observe
        feeds[name] = NamedFeed(host)

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

    def _node(self, node: NodeSpec, name: str) -> Sessions | Lives:
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
        sessions = Sessions(inside, me, peers, PeerMessage, BrokerMessage, self.options.sessions, repeats)
        return Lives(sessions) if self.options.listens else sessions

    # Data that was set back.

    def _go_on(self, node: NodeSpec) -> None:
        """What `--new-incarnation` does: the node is reborn, and whoever connects to it again hears of it first. Before
        that a client asks by way of the root, and is not heard by the node itself."""
        if self.options.listens:
            return  # whoever knows better says so, and a person is asked then
        host, incarnation = self.world.host(node.name), 1 + self.world.now // 1000
        host.receive(Reborn(incarnation))
        dice = self.world.dice("reborn")
        for client in self.scenario.clients:
            self.unaware[node.name, client.name] = incarnation
            self.world.after(dice.randint(0, AGAIN_US), self._meet_again, node, client, incarnation)
        for other in self.nodes:
            if other.name == node.parent or other.parent == node.name:
                self.world.after(1, self._connect, host, self.world.host(other.name))

    def _meet_again(self, node: NodeSpec, client: Client, incarnation: int) -> None:
        if self.unaware.get((node.name, client.name)) != incarnation:
            return
        host = self.world.host(client.name)
        host.tell(HomeReborn(Address(node.name)))
        # What it sent before was on a connection that is gone.
        self.world.after(ARRIVED_US, self._is_aware, node, client)

    def _is_aware(self, node: NodeSpec, client: Client) -> None:
        self.unaware.pop((node.name, client.name), None)

    def _admits(self, node: NodeSpec, message: Any) -> bool:
        return type(message) is not Creates or (node.name, message.publisher) not in self.unaware

    def _way_to(self, client: str, to: Address) -> Address:
        """A session hands what is for a node that it is not connected to over to the root, which knows the way."""
        root = Address(self.nodes[0].name)
        is_there = self.world.host(to).is_up and (to, client) not in self.unaware
        return to if is_there or not self.world.host(root).is_up else root

    def _connect(self, a: SimulatedHost, b: SimulatedHost) -> None:
        a.tell(Reconnected(b.address))
        b.tell(Reconnected(a.address))

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
            if host.is_up and topic in manager_of(machine).hosted:
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
            if isinstance(effect, Send) and isinstance(effect.message, Frame):
                fill = effect.message.message
                if isinstance(fill, Fill):
                    self.climbing[_issued(fill.topic, fill.run)] = fill.run
            return
        topic = effect.topic
        match effect.message:
            case Payload(publisher=publisher, request=request, event=event):
                self.events[publisher, topic, request] = event.id
            case Stamps(runs=runs):
                for run in runs:
                    self._note(topic, run, self._whole(topic, run).entries)
            case Pieces(pieces=pieces):
                for piece in pieces:
                    self._merge(topic, self._whole(topic, piece.run), piece.settled, piece.missing)
            case Void(first=first, count=count):
                for number in range(first, first + count):
                    self.world.note("void", topic=self.world.topic_name(topic), number=number)

    def _whole(self, topic: Topic, run: Run) -> Run:
        """What a short timestamp stands for: its home keeps it whole."""
        if run.short:
            for node in self.nodes:
                home = manager_of(self.world.host(node.name).machine).hosted.get(topic)
                if home is not None and run.first in home.issued:
                    return home.whole(run)
        return run

    def _merge(self, topic: Topic, run: Run, settled: tuple[Topic, ...], missing: tuple[Topic, ...] | None) -> None:
        key = _issued(topic, run)
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

    def _settle(self, key: _Issued, entries: Entries, settled: tuple[Topic, ...]) -> None:
        found = self.open[key]
        found.entries.update(entries)
        for x in settled:
            found.missing.pop(x, None)
        if not found.missing:
            self._note(key[0], found.run, found.entries)

    def _note_unfinished(self) -> None:
        """Numbers that were issued, and whose timestamps a node that has forgotten never let be complete."""
        self.world.ens.note_kept()
        runs = {**self.climbing, **{key: found.run for key, found in self.open.items()}}
        for key, run in runs.items():
            if key not in self.noted:
                self._note(key[0], run, None)

    def _note(self, topic: Topic, run: Run, entries: Entries | None) -> None:
        key = _issued(topic, run)
        if key in self.noted:
            return
        self.noted[key] = None
        name = self.world.topic_name
        clock = None if entries is None else {name(x): number for x, number in entries.items() if x != topic}
        for i in range(run.count):
            event = self.events.get((run.publisher, topic, run.request + i))
            if event is None:
                continue  # its publisher has asked for the number, and crashed before the payload left
            self.world.note("timestamp", topic=name(topic), number=run.first + i, event=event, clock=clock)
