"""Brokers and clients on connections without latency: every schedule is a sequence of choices of what is read next.

A connection is two FIFO queues that begin with the news of it and may end, anywhere, with the news of its loss. Each
end has its own view: one may dial again while the other has not noticed; the other then closes the one it has, and who
dialled reads of that. Nothing of a connection is read after its end.
"""

from collections import deque
from typing import Any

from unisono.machine import (
    Accepted,
    CancelTimer,
    CutOff,
    Deliver,
    Fired,
    Heard,
    Joined,
    Machine,
    Publish,
    Refuse,
    Refused,
    Select,
    Selected,
    Send,
    SetTimer,
    Subscribe,
)
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.predicate import Filter, parse
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
    StirEntourage,
)

WireKind = str
"""`link`, or the stream that a direct connection is for."""
FOR_EVER = 10**15
QUIET = RegionsConfig(
    gone_us=Micros(FOR_EVER), discovery_us=Micros(0), skew_us=Micros(0), recover_us=Micros(400_000), buffer_max=1_000
)
"""Nobody is given up, nobody counts: what is left are streams and hand-overs."""


class Wire:
    """One connection; `queues` by the end that reads."""

    def __init__(self, a: Address, b: Address, kind: WireKind) -> None:
        self.ends = (a, b)
        self.kind: WireKind = kind
        self.queues: dict[Address, deque[Any]] = {a: deque(), b: deque()}
        self.is_lost = False

    def other(self, end: Address) -> Address:
        return self.ends[1] if end == self.ends[0] else self.ends[0]


class RegionNet:
    """Machines by address, their connections, timers, and what clients were told."""

    def __init__(self, config: RegionsConfig = QUIET) -> None:
        self.config = config
        self.now = Micros(1_000_000)
        self.nodes: dict[Address, Machine] = {}
        self.roots: dict[Address, None] = {}
        self.wires: list[Wire] = []
        self.view: dict[tuple[Address, Address, WireKind], Wire] = {}
        self.timers: dict[tuple[Address, str], int] = {}
        self.heard: dict[Address, list[Event]] = {}
        self.cuts: dict[Address, list[tuple[int, CutOff]]] = {}
        self.joined: dict[Address, None] = {}
        self.selecting: dict[Address, list[Filter]] = {}
        self.where: dict[Address, Filter] = {}
        self.owed: dict[Address, list[Event]] = {}
        self.published: list[Event] = []
        self.sequences: dict[Address, int] = {}
        self.outcomes: dict[Address, list[Any]] = {}
        self.refused: list[str] = []
        self.messages: dict[str, int] = {}
        self.held: dict[type, list[tuple[Address, Address, Any]]] = {}

    # -- building

    def broker(self, name: str, root: bool = False) -> Address:
        address = Address(name)
        self.nodes[address] = RegionBroker(address, root, self.config)
        if root:
            self.roots[address] = None
        return address

    def client(self, name: str, where: str = "", accepts_direct: bool = True) -> Address:
        address = Address(name)
        chosen = parse(where) if where else Filter()
        self.nodes[address] = RegionClient(address, topic_name, self.config, chosen, accepts_direct=accepts_direct)
        self.where[address] = chosen
        self.heard[address], self.cuts[address], self.owed[address] = [], [], []
        self.outcomes[address] = []
        return address

    def link(self, lower: Address, upper: Address, is_peer: bool = False) -> None:
        """`lower` dials; the other end hears of it in its own time."""
        is_client = isinstance(self.nodes[lower], RegionClient)
        wire = Wire(lower, upper, "link")
        self.wires.append(wire)
        wire.queues[upper].append(RegionLinkUp(lower, "peer" if is_peer else "client" if is_client else "broker"))
        self.view[lower, upper, "link"] = wire
        self.tell(lower, RegionLinkUp(upper, "peer" if is_peer else "parent"))

    def mesh(self) -> None:
        roots = list(self.roots)
        for i, a in enumerate(roots):
            for b in roots[i + 1 :]:
                self.link(a, b, is_peer=True)

    # -- what people do

    def subscribe(self, client: Address) -> None:
        self.tell(client, Subscribe((Topic(0),)))

    def select(self, client: Address, where: str) -> None:
        self.selecting.setdefault(client, [self.where[client]])
        self.where[client] = parse(where)
        self.selecting[client].append(self.where[client])
        # What is under way and no longer wanted may or may not arrive.
        self.owed[client] = [e for e in self.owed[client] if self.where[client].matches(e.attributes)]
        self.tell(client, Select(self.where[client]))

    def publish(self, client: Address, **attributes: int) -> Event:
        self.sequences[client] = number = self.sequences.get(client, 0) + 1
        event = Event(str(client), number, "t", attributes=attributes)
        before = len(self.outcomes[client])
        self.tell(client, Publish(Topic(0), event, request=number))
        if not any(isinstance(item, Refused) for item in self.outcomes[client][before:]):
            self.published.append(event)
            for other in self.joined:
                if other in self.nodes and all(where.matches(attributes) for where in self.wanted(other)):
                    self.owed[other].append(event)
        return event

    def wanted(self, client: Address) -> list[Filter]:
        return self.selecting.get(client, [self.where[client]])

    def connect(self, publisher: Address, target: Address) -> None:
        self._ask(publisher, "connect", target)

    def disconnect(self, publisher: Address, target: Address) -> None:
        self._ask(publisher, "disconnect", target)

    def break_off(self, publisher: Address, target: Address) -> None:
        self._ask(publisher, "break_off", target)

    def _ask(self, publisher: Address, what: str, target: Address) -> None:
        client: Any = self.nodes[publisher]
        client._out.begin(self.now)
        getattr(client.publisher, what)(target)
        self.perform(publisher, client._out.effects)

    def session(self, publisher: Address, target: Address) -> str | None:
        client: Any = self.nodes[publisher]
        session = client.publisher.sessions.get(target)
        return session.state if session is not None else None

    def mode(self, node: Address, stream: Address) -> str | None:
        port = self.ports(node).get(stream)
        return port.mode if port is not None else None

    def ports(self, node: Address) -> dict[Address, Any]:
        machine: Any = self.nodes[node]
        return machine.ports if isinstance(machine, RegionBroker) else machine.subscriber.ports.ports

    # -- what happens

    def tell(self, name: Address, message: Any) -> None:
        self.perform(name, self.nodes[name].handle(message, self.now))

    def perform(self, name: Address, effects: list[Any]) -> None:
        for effect in list(effects):
            match effect:
                case Send(to=to, message=inner):
                    self.carry(name, to, inner)
                case Deliver(item=item):
                    self._hear(name, item)
                case SetTimer(key=key, at=at):
                    self.timers[name, key] = at
                case CancelTimer(key=key):
                    self.timers.pop((name, key), None)
                case Refuse(reason=reason):
                    self.refused.append(f"{name}: {reason}")
                case _:
                    raise AssertionError(effect)

    def carry(self, source: Address, to: Address, message: Any) -> None:
        kind: WireKind = "link"
        if isinstance(message, DirectSaid | StirEntourage):
            kind = message.stream
        elif isinstance(message, Recover | ReplayStream) and not message.way:
            is_direct = (source, to, message.stream) in self.view and (source, to, "link") not in self.view
            kind = message.stream if is_direct else "link"
        if isinstance(message, DirectConnect) and (source, to, kind) not in self.view and to in self.nodes:
            wire = Wire(source, to, kind)
            self.wires.append(wire)
            self.view[source, to, kind] = wire
            wire.queues[to].append("direct")
        known = self.view.get((source, to, kind))
        self.messages[type(message).__name__] = self.messages.get(type(message).__name__, 0) + 1
        if known is not None and not known.is_lost and to in self.nodes:
            known.queues[to].append(message)

    def _hear(self, client: Address, item: Any) -> None:
        match item:
            case Heard(message=event):
                self.heard[client].append(event)
            case CutOff():
                self.cuts[client].append((len(self.heard[client]), item))
            case Joined():
                self.joined[client] = None
            case Selected():
                self.selecting.pop(client, None)
            case _:
                self.outcomes[client].append(item)

    def waiting(self) -> list[tuple[Wire, Address]]:
        return [(wire, end) for wire in self.wires for end in wire.ends if wire.queues[end]]

    def step(self, wire: Wire, end: Address) -> None:
        """One end of a connection reads the oldest thing."""
        message, source = wire.queues[end].popleft(), wire.other(end)
        key = (end, source, wire.kind)
        if message == "down":
            if self.view.get(key) is wire:
                del self.view[key]
                self.tell(end, _down(wire, source))
        elif message == "direct" or isinstance(message, RegionLinkUp):
            older = self.view.get(key)
            if older is not None:  # the other end dialled again before we noticed
                self.tell(end, _down(wire, source))
            self.view[key] = wire
            if older is not None and not older.is_lost:
                # As nodes do: who replaces a connection closes it. Of two that are read late the newer may come first.
                self.lose(older)
            if message != "direct":
                self.tell(end, message)
        elif self.view.get(key) is wire:
            self.tell(end, message)
        self.wires = [w for w in self.wires if not w.is_lost or any(w.queues.values())]

    def settle(self) -> None:
        """Reads everything there is; no timer fires."""
        while ready := self.waiting():
            self.step(*ready[0])

    def settle_but(self, kind: str) -> None:
        """The same, and what is of this kind is lost."""
        for wire in self.wires:
            for queue in wire.queues.values():
                lost = [message for message in queue if type(message).__name__ == kind]
                for message in lost:
                    queue.remove(message)
        while ready := self.waiting():
            self.step(*ready[0])
            for wire in self.wires:
                for queue in wire.queues.values():
                    for message in [message for message in queue if type(message).__name__ == kind]:
                        queue.remove(message)

    def fire(self, name: Address, key: str) -> None:
        self.now = Micros(max(self.now, self.timers.pop((name, key))))
        self.tell(name, Fired(key))

    def pass_time(self, us: int) -> None:
        """Everything is read and every timer fires until then."""
        until = self.now + us
        self.settle()
        while due := [(at, name, key) for (name, key), at in self.timers.items() if at <= until]:
            _, name, key = min(due)
            self.fire(name, key)
            self.settle()
        self.now = Micros(until)

    def lose(self, wire: Wire, keeps: dict[Address, int] | None = None) -> None:
        """Each end reads some of what is under way, then the loss."""
        wire.is_lost = True
        for end in wire.ends:
            if end in self.nodes:
                kept = len(wire.queues[end]) if keeps is None else keeps[end]
                wire.queues[end] = deque([*list(wire.queues[end])[:kept], "down"])
            else:
                wire.queues[end].clear()

    def wire(self, a: Address, b: Address, kind: WireKind = "link") -> Wire:
        return next(w for w in self.wires if not w.is_lost and w.kind == kind and {a, b} == {*w.ends})

    def crash(self, name: Address, keeps: Any = None) -> None:
        del self.nodes[name]
        self.roots.pop(name, None)
        self.timers = {key: at for key, at in self.timers.items() if key[0] != name}
        self.view = {key: wire for key, wire in self.view.items() if key[0] != name}
        for wire in [w for w in self.wires if name in w.ends]:
            other = wire.other(name)
            kept = keeps(len(wire.queues[other])) if keeps is not None else len(wire.queues[other])
            if wire.is_lost:
                wire.queues[name].clear()
            else:
                self.lose(wire, {other: kept, name: 0})
        self.joined.pop(name, None)

    # -- what must hold

    def problems(self, may_miss: bool = False) -> list[str]:
        """Every broken promise in words; none is the right answer."""
        found: list[str] = []
        for client, events in self.heard.items():
            last: dict[str, int] = {}
            for event in events:
                if event.sequence <= last.get(event.publisher, 0):
                    found.append(f"{client} hears {event.id} after {last[event.publisher]}")
                last[event.publisher] = event.sequence
            if client not in self.nodes:
                continue
            names = {event.id: None for event in events}
            owed = [e for e in self.owed[client] if e.id not in names and self.is_promised(e)]
            missing = [e for e in owed if not self.is_excused(client, e)]
            if missing:
                found.append(f"{client} misses {[event.id for event in missing]}")
            if self.cuts[client] and not may_miss:
                found.append(f"{client} is told {self.cuts[client][0]}")
        return found

    def is_promised(self, event: Event) -> bool:
        """A publisher that was killed was promised only what has been accepted."""
        publisher = Address(event.publisher)
        return publisher in self.nodes or Accepted(event.sequence) in self.outcomes[publisher]

    def is_excused(self, client: Address, event: Event) -> bool:
        heard = [(i, e.sequence) for i, e in enumerate(self.heard[client]) if e.publisher == event.publisher]
        for place, cut in self.cuts[client]:
            named = dict(cut.publishers)
            after = [sequence for i, sequence in heard if i >= place]
            if event.publisher in named:
                if named[event.publisher] < event.sequence and (not after or after[0] > event.sequence):
                    return True
            elif not heard:
                return True
        return False

    def stuck(self) -> list[str]:
        found = []
        for name in self.nodes:
            for stream, port in self.ports(name).items():
                if stream in self.nodes and port.mode not in ("O", "D"):
                    found.append(f"{name} is in {port.mode} with {stream} from {port.src}")
        return found

    def half_open(self) -> list[str]:
        """Connections that one end believes in and the other has no part in: links report their own loss, so none."""
        found = []
        for (end, other, kind), wire in self.view.items():
            if self.view.get((other, end, kind)) is not wire and not any(wire.queues.values()):
                found.append(f"{end} has a connection with {other} ({kind}) that {other} does not have")
        return found


def _down(wire: Wire, source: Address) -> RegionLinkDown | DirectLost:
    return RegionLinkDown(source) if wire.kind == "link" else DirectLost(source, Address(wire.kind))


def topic_name(topic: Topic) -> str:
    return "t"
