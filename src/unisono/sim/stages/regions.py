"""Regions: trees of brokers, their roots connected, clients on them, publishers that connect to whom they find.

Links and direct connections are the simulator's FIFO links in *connections*: what was sent over a lost one may still
arrive before the news of the loss, never after. A broker that crashes comes back as a new broker and dials; whoever
has lost the broker above dials another of its region after `redial`. Brokers come from the deployment, else each region
gets `roots` brokers at the top and `levels` more below, `fan` times as many per level.
"""

from functools import partial
from typing import Any

from unisono.machine import Advertise, Effect, Machine, Send
from unisono.model.ids import Address
from unisono.model.predicate import EVERY_EVENT, Filter, parse, to_text
from unisono.model.time import Micros
from unisono.protocols.regions.broker import RegionBroker
from unisono.protocols.regions.client import RegionClient
from unisono.protocols.regions.config import RegionsConfig
from unisono.protocols.regions.messages import (
    DirectConnect,
    DirectLost,
    DirectSaid,
    Recover,
    RegionLinkDown,
    RegionLinkUp,
    ReplayStream,
    Side,
    StirEntourage,
)
from unisono.sim.host import SimulatedHost
from unisono.sim.scenario import Scenario
from unisono.sim.spec import Span, Spec
from unisono.sim.stages import Operation, Operations
from unisono.sim.world import World
from unisono.structures.connections import Carried, Connected, Connections

ENDS = (RegionLinkDown, DirectLost)


class RegionsStageOptions(Spec, frozen=True):
    """What a scenario may say about regions."""

    config: RegionsConfig = RegionsConfig()
    roots: int = 1
    """Brokers at the top of each region."""
    levels: int = 1
    """Levels below them."""
    fan: int = 2
    """Brokers below each."""
    content: bool = True
    """Every client narrows its topics to a random interval of the workload's attribute x; without, topics are all."""
    width: int = 0
    """How wide that interval is; 0: any width."""
    at_leaves: bool = False
    """Clients are at the lowest level; without, at any."""
    publishers_in: str = ""
    """The region of all publishers; without, they are spread."""
    subscribers_in: str = ""
    direct_clients: bool = True
    """Subscribers take direct connections, too."""
    is_advertised: bool = True
    """Publishers say what they will publish; without, it is inferred."""
    copy_us: Span = Span(0)
    """How long a host is busy with each message it sends: what makes many direct connections slow."""
    cuts_per_s: float = 0.0
    """Random connections lost while the workload lasts, both ends alive."""
    redial: Span = Span(150_000)
    """Whoever has lost the broker above dials another after this."""


def build(world: World, scenario: Scenario) -> Operations:
    return _Stage(world, scenario).build()


class _Lines:
    """Names the direct connections of a machine: peer and stream, as far as connections are concerned."""

    def __init__(self, inside: RegionBroker | RegionClient, stage: "_Stage", host: str) -> None:
        self.inside = inside
        self._stage, self._host = stage, host

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if isinstance(message, DirectLost):
            peer, _, stream = message.peer.partition("|")
            message = DirectLost(Address(peer), Address(stream))
        return [self._named(effect) for effect in self.inside.handle(message, now)]

    def _named(self, effect: Effect) -> Effect:
        if not isinstance(effect, Send) or not self._is_direct(effect):
            return effect
        message = effect.message
        line = Address(f"{effect.to}|{message.stream}")
        if isinstance(message, DirectConnect):
            self._stage.open_direct(self._host, effect.to, message.stream)
        return Send(line, message)

    def _is_direct(self, effect: Send) -> bool:
        match effect.message:
            case DirectSaid() | StirEntourage():
                return True
            case Recover(way=()) | ReplayStream(way=()):
                near = self.inside.links if isinstance(self.inside, RegionBroker) else (self.inside.broker,)
                return effect.to not in near
            case _:
                return False


class _Stage:
    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world = world
        self.scenario = scenario
        self.options: RegionsStageOptions = scenario.config(RegionsStageOptions)
        self.dice = world.dice("regions")
        self.level: dict[str, int] = {}
        self.region: dict[str, str] = {}
        self.clients: dict[str, str] = {}  # host -> region
        self.connections: dict[tuple[str, str], int] = {}  # hosts, or the lines of a direct connection
        self.opened = 0
        self.wheres: dict[str, Filter] = {}

    def build(self) -> Operations:
        world, scenario = self.world, self.scenario
        world.network.sending_us = int(self.options.copy_us)
        self._plan()
        for name in self.level:
            host = world.add(name, partial(self._broker, name), region=self.region[name], service=scenario.service)
            host.on_down = partial(self._lose_all, host)
        for client in scenario.clients:
            where = self._where() if self.options.content and client.name.startswith("c") else EVERY_EVENT
            self.wheres[client.name] = where
            wanted = self.options.subscribers_in if client.name.startswith("c") else self.options.publishers_in
            region = self.clients[client.name] = wanted or client.region
            host = world.add(client.name, partial(self._client, client.name), region=region, service=scenario.service)
            host.where = None if where.is_everything else to_text(where)
            host.on_down = partial(self._lose_all, host)
        for name in self.level:
            self._join(name)
        for i, name in enumerate(self.clients):
            places = self._places(name)
            self._connect(name, places[i % len(places)], "client")
            if self.options.is_advertised:
                world.at(0, self._advertise, name)
        if self.options.cuts_per_s:
            world.at(scenario.workload.begin, self._cut_some)
        return {"cut": self._cut_by_script, "dial": self._dial_by_script}

    def _plan(self) -> None:
        nodes = self.scenario.deployment.nodes
        for node in nodes:
            above, self.region[node.name] = node, node.region
            while above.parent is not None:
                above = self.scenario.deployment.node(above.parent)
                self.level[node.name] = self.level.get(node.name, 0) + 1
            self.level.setdefault(node.name, 0)
        for region in [] if nodes else [r.name for r in self.scenario.deployment.regions] or ["local"]:
            width = self.options.roots
            for level in range(self.options.levels + 1):
                for i in range(width):
                    name = f"{region}-{level}-{i}"
                    self.level[name], self.region[name] = level, region
                width *= self.options.fan

    # machines

    def _broker(self, address: str, name: str) -> Machine:
        if self.world.hosts.get(Address(address)) is not None:  # a later life
            self.world.after(self.options.redial, self._join, address)
        return self._lines(RegionBroker(Address(name), self.level[address] == 0, self.options.config), address, name)

    def _client(self, address: str, name: str) -> Machine:
        if self.world.hosts.get(Address(address)) is not None:
            self.world.after(self.options.redial, self._redial, address)
        options = self.options
        inside = RegionClient(
            Address(name), self.world.topic_name, options.config, self.wheres[address], options.direct_clients
        )
        return self._lines(inside, address, name)

    def _lines(self, inside: RegionBroker | RegionClient, address: str, name: str) -> Machine:
        return Connections(_Lines(inside, self, address), Address(name), ENDS)

    def _inside(self, host: str) -> Any:
        machine: Any = self.world.host(host).machine
        return machine.inside.inside

    def _advertise(self, name: str) -> None:
        size = self.scenario.workload.attributes.get("x")
        where = EVERY_EVENT if size is None else parse(f"x between 0 and {size - 1}")
        host = self.world.host(name)
        for topic in self.scenario.topics:
            host.tell(Advertise(self.world.topic(topic), host.name, where))

    def _where(self) -> Filter:
        values = self.scenario.workload.attributes.get("x", 1)
        low = self.dice.randrange(values)
        return parse(f"x between {low} and {low + (self.options.width or self.dice.randint(2, values)) - 1}")

    # connections

    def _connect(self, lower: str, upper: str, side: Side) -> None:
        """A new link; `side` is what the lower end is to the upper."""
        below, above = self.world.host(lower), self.world.host(upper)
        self.opened += 1
        self.connections[lower, upper] = self.opened
        for me, peer, seen in ((below, above, "peer" if side == "peer" else "parent"), (above, below, side)):
            up = RegionLinkUp(Address(peer.name), seen)  # type: ignore[arg-type]
            me.receive(Connected(self.opened, Address(peer.name), up, peer.address, Address(me.name)))

    def open_direct(self, source: str, to: Address, stream: Address) -> None:
        """A publisher dials: both ends have the connection before anything is said on it."""
        target = next((h for h in self.world.hosts.values() if h.name == to), None)
        host = self.world.host(source)
        if target is None or not target.is_up:
            self.world.after(1_000, self._tell_lost, host, 0, f"{to}|{stream}")
            return
        lines = f"{host.name}|{stream}", f"{target.name}|{stream}"
        self.opened += 1
        self.connections[lines] = self.opened
        for me, peer, line in ((host, target, lines[1]), (target, host, lines[0])):
            me.machine.handle(
                Connected(
                    self.opened, Address(line), None, peer.address, Address(lines[0] if me is host else lines[1])
                ),
                Micros(self.world.now),
            )

    def _tell_lost(self, host: SimulatedHost, connection: int, line: str) -> None:
        peer = line.partition("|")[0]
        inside = self._inside(str(host.address))
        if host.is_up and isinstance(inside, RegionClient) and Address(peer) in inside.publisher.sessions:
            host.receive(Connected(connection, Address(line)))
            host.receive(Carried(connection, Address(line), DirectLost(Address(line))))

    def _lose(self, lower: str, upper: str) -> None:
        """Both ends read what is under way, then the loss."""
        connection = self.connections.pop((lower, upper))
        ends = [self._host_of(lower), self._host_of(upper)]
        for (source, name), (to, _) in ((ends[0], ends[1]), (ends[1], ends[0])):
            if source is None or to is None:
                continue
            lost: Any = DirectLost(Address(name)) if "|" in name else RegionLinkDown(Address(name))
            self.world.network.carry(source, to.address, Carried(connection, Address(name), lost))

    def _host_of(self, end: str) -> tuple[SimulatedHost | None, str]:
        """The host of an end, and the name it has in the connection."""
        if "|" not in end:
            return self.world.host(end), self.world.host(end).name
        name = end.partition("|")[0]
        return next((host for host in self.world.hosts.values() if host.name == name), None), end

    def _lose_all(self, host: SimulatedHost) -> None:
        for lower, upper in list(self.connections):
            if host.name in (lower.partition("|")[0], upper.partition("|")[0]) or host.address in (lower, upper):
                self._lose(lower, upper)
                if upper == host.address:
                    self.world.after(self.options.redial, self._redial, lower)

    # dialling

    def _join(self, name: str) -> None:
        """A broker that has just begun: its roots, or one above."""
        if self.level[name] > 0:
            self._redial(name)
            return
        for other in self.level:
            if self.level[other] == 0 and other != name:
                self._mesh(*sorted((name, other)))

    def _mesh(self, a: str, b: str) -> None:
        if (a, b) in self.connections:
            return
        if self._can_dial(a, b):
            self._connect(a, b, "peer")
        else:
            self.world.after(self.options.redial, self._mesh, a, b)

    def _redial(self, name: str) -> None:
        has_link = any(lower == name and self._is_upwards(lower, upper) for lower, upper in self.connections)
        if has_link or not self.world.host(name).is_up:
            return
        places = [place for place in self._places(name) if self._can_dial(name, place)]
        inside = self._inside(name)
        above = inside.parent if isinstance(inside, RegionBroker) else inside.broker
        if above is not None or not places:
            self.world.after(self.options.redial, self._redial, name)
            return
        self._connect(name, self.dice.choice(places), "broker" if name in self.level else "client")

    def _is_upwards(self, lower: str, upper: str) -> bool:
        return lower in self.clients or self.level.get(lower, 0) > self.level.get(upper, 0)

    def _can_dial(self, lower: str, upper: str) -> bool:
        ends = self.world.host(lower), self.world.host(upper)
        if not all(end.is_up for end in ends):
            return False
        below: Any = ends[0].machine
        above: Any = ends[1].machine
        return (
            below.connection(Address(ends[1].name)) is None
            and above.connection(Address(ends[0].name)) is None
            and ends[0].name not in above.inside.inside.links
        )

    def _places(self, name: str) -> list[str]:
        if name in self.level:
            region, level = self.region[name], self.level[name]
            return [b for b in self.level if self.region[b] == region and self.level[b] == level - 1]
        region = self.clients[name]
        mine = [b for b in self.level if self.region[b] == region] or list(self.level)
        lowest = max(self.level[b] for b in mine)
        return [b for b in mine if self.level[b] == lowest] if self.options.at_leaves else mine

    # faults

    def _cut_some(self) -> None:
        workload = self.scenario.workload
        if self.world.now > workload.begin + workload.duration:
            return
        if self.connections:
            lower, upper = self.dice.choice(sorted(self.connections))
            self._cut(lower, upper)
        gap = max(1, round(self.dice.expovariate(self.options.cuts_per_s / 1_000_000)))
        self.world.after(gap, self._cut_some)

    def _cut(self, lower: str, upper: str) -> None:
        self.world.note("fault", note=f"the connection {lower} - {upper} is lost")
        self._lose(lower, upper)
        if "|" not in lower:
            again = self._mesh if not self._is_upwards(lower, upper) else None
            if again is not None:
                self.world.after(self.options.redial, again, lower, upper)
            else:
                self.world.after(self.options.redial, self._redial, lower)

    def _cut_by_script(self, operation: Operation) -> None:
        upper = next(upper for lower, upper in self.connections if lower == operation.who)
        self._cut(operation.who, upper)

    def _dial_by_script(self, operation: Operation) -> None:
        self._connect(operation.who, operation.to, "broker" if operation.who in self.level else "client")
