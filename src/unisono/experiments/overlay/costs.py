"""What ordering costs in a broker overlay: extra messages and delay per publication, beside plain FIFO forwarding.

The paper's topology: core brokers in a chain, five edge brokers each, a publisher and a subscriber of one class at
every edge. Links take one unit of time and up to a tenth more. The sequencers' figures are computed from paths: routed
through the root, or a number fetched from it first; they ignore queues and gaps, so the second one is a lower bound.
"""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import Annotated, Any

from msgspec import Meta, Struct

from unisono.audit.metrics import ordering_degree
from unisono.audit.trace import Trace
from unisono.errors import MisuseError
from unisono.experiments.baselines.lamport_overlay import LamportBroker
from unisono.experiments.baselines.literal_overlay import LiteralBroker
from unisono.experiments.experiment import Experiment, ResultRow
from unisono.machine import Machine, Send
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.journal import Header, Journal, Record
from unisono.model.predicate import Filter, parse
from unisono.model.time import Micros
from unisono.protocols.overlay.broker import Broker
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.messages import Adv, LinkUp, OverlayDelivery, Pub, Sub
from unisono.protocols.overlay.tables import Tables

UNIT_US = 1_000
EDGES_PER_CORE = 5


class OverlayCostsOptions(Struct, frozen=True):
    """The spec's setting by default."""

    cores: Annotated[int, Meta(ge=1, description="core brokers in the chain, five edge brokers each")] = 4
    publications: Annotated[int, Meta(ge=1, description="per publisher")] = 10
    only: Annotated[str, Meta(description="one workload instead of all")] = ""
    seed: int = 0


class BrokerTree(Struct, frozen=True):
    """A rooted tree of brokers; the root is a core in the middle."""

    above: tuple[int, ...]

    def depth(self, i: int) -> int:
        return 0 if self.above[i] < 0 else 1 + self.depth(self.above[i])

    def upwards(self, i: int) -> list[int]:
        return [i] if self.above[i] < 0 else [i, *self.upwards(self.above[i])]

    def links_to(self, source: int, targets: list[int]) -> int:
        """Links of the smallest subtree that holds the source and all targets."""
        used: dict[tuple[int, int], None] = {}
        for target in targets:
            up, down = self.upwards(source), self.upwards(target)
            meeting = up[-1]
            while up and down and up[-1] == down[-1]:
                meeting = up.pop()
                down.pop()
            for way in ([*up, meeting], [*down, meeting]):
                used.update(dict.fromkeys(pairwise(way)))
        return len(used)

    def towards(self, here: int, there: int) -> int:
        way = self.upwards(there)
        return way[way.index(here) - 1] if here in way else self.above[here]


Workload = tuple[list[tuple[str, int, Filter]], list[tuple[str, int, Filter]]]


def topology(cores: int) -> BrokerTree:
    root = (cores - 1) // 2
    chain = [core + 1 if core < root else core - 1 if core > root else -1 for core in range(cores)]
    return BrokerTree((*chain, *(core for core in range(cores) for _ in range(EDGES_PER_CORE))))


def classes(cores: int, dice: Random) -> dict[str, list[int]]:
    """Which class every edge belongs to."""
    edges = cores * EDGES_PER_CORE
    shuffled = list(range(edges))
    dice.shuffle(shuffled)
    return {
        "100 %": [0] * edges,
        "50 %": [shuffled[i] % 2 for i in range(edges)],
        "25 %": [shuffled[i] % 4 for i in range(edges)],
        "50 % local": [2 * i // edges for i in range(edges)],
        "25 % local": [4 * i // edges for i in range(edges)],
    }


def workloads(cores: int, dice: Random) -> dict[str, Workload]:
    first = cores  # edge brokers come after the cores
    found: dict[str, Workload] = {}
    for name, kinds in classes(cores, dice).items():
        wants = [parse(f"kind = {kind}") for kind in kinds]
        ads = [(f"p{i}", first + i, want) for i, want in enumerate(wants)]
        found[name] = ads, [(f"s{i}", first + i, want) for i, want in enumerate(wants)]
    edges = cores * EDGES_PER_CORE
    for name, doubled in (("no conflict", 0), ("half of the classes conflict", edges // 2)):
        wants = [parse(f"kind = {kind}") for kind in range(edges)]
        ads = [(f"p{i}", first + i, want) for i, want in enumerate(wants)]
        ads += [(f"q{i}", first + dice.randrange(edges), wants[i]) for i in range(doubled)]
        subs = [(f"s{i}.{k}", first + dice.randrange(edges), want) for i, want in enumerate(wants) for k in range(5)]
        found[name] = ads, subs
    return found


class Measured(Struct):
    """One run: messages on links, and when each subscriber heard each event, in units after publication."""

    messages: int = 0
    delays: dict[tuple[str, str], float] = {}
    records: list[Record] = []


class Overlay:
    """Brokers of any kind on links that take a unit of time, with the order of each link kept."""

    def __init__(self, tree: BrokerTree, brokers: Mapping[Address, Machine], workload: Workload, dice: Random) -> None:
        self._brokers = brokers
        self._dice = dice
        self._heap: list[tuple[int, int, Address, Any]] = []
        self._count = 0
        self._last: dict[tuple[Address, Address], int] = {}
        self._homes = {name: address(at) for name, at, _ in (*workload[0], *workload[1])}
        self._published: dict[str, int] = {}
        self.measured = Measured()
        self._now = 0

    def tell(self, broker: Address, message: Any, at: int) -> None:
        self._count += 1
        heappush(self._heap, (at, self._count, broker, message))

    def publish(self, publisher: str, event: Event, at: int) -> None:
        self._published[event.id] = at
        self.tell(self._homes[publisher], Pub(Address(publisher), event), at)

    def run(self) -> None:
        while self._heap:
            self._now, _, name, message = heappop(self._heap)
            for effect in self._brokers[name].handle(message, Micros(self._now)):
                if isinstance(effect, Send):
                    self._carry(name, effect.to, effect.message)

    def _carry(self, source: Address, to: Address, message: Any) -> None:
        if to in self._brokers:
            self.measured.messages += 1
            arrival = self._now + UNIT_US + self._dice.randint(0, UNIT_US // 10)
            arrival = self._last[source, to] = max(arrival, self._last.get((source, to), 0))
            self.tell(to, message, arrival)
        elif isinstance(message, OverlayDelivery):
            name = message.event.id
            self.measured.delays[to, name] = (self._now - self._published[name]) / UNIT_US
            position = len(self.measured.records) + 1
            self.measured.records.append(Record("deliver", self._now, to, to, name, position))


def address(i: int) -> Address:
    return Address(f"B{i}")


def link_and_advertise(overlay: Overlay, tree: BrokerTree, workload: Workload) -> None:
    """Links come up, then publishers say what they will publish; returns when nothing is under way."""
    for child, parent in enumerate(tree.above):
        if parent >= 0:
            overlay.tell(address(child), LinkUp(address(parent), True), 0)
            overlay.tell(address(parent), LinkUp(address(child), False), 0)
    overlay.run()
    for name, at, filter in workload[0]:
        overlay.tell(address(at), Adv(Address(name), f"{name}/1", name, filter), 1)
    overlay.run()


def ordering_brokers(tree: BrokerTree, workload: Workload, detection: Any, dice: Random) -> Overlay:
    brokers = {address(i): Broker(address(i), BrokerConfig(detection=detection)) for i in range(len(tree.above))}
    overlay = Overlay(tree, brokers, workload, dice)
    link_and_advertise(overlay, tree, workload)
    for name, at, filter in workload[1]:
        overlay.tell(address(at), Sub(Address(name), name, name, filter), 2)
    overlay.run()
    overlay.measured = Measured()
    return overlay


def known_brokers(tree: BrokerTree, workload: Workload, mode: Any, dice: Random) -> Overlay:
    """Brokers that know everything from the start: plain forwarding, the printed algorithm, Lamport keys."""
    brokers: dict[Address, Machine] = {}
    for i in range(len(tree.above)):
        tables = Tables()
        for name, at, filter in workload[0]:
            tables.add_ad(name, f"pub:{name}" if at == i else address(tree.towards(i, at)), name, filter)
        for name, at, filter in workload[1]:
            tables.add_sub(name, f"sub:{name}" if at == i else address(tree.towards(i, at)), name, filter)
        near = [address(j) for j, parent in enumerate(tree.above) if parent == i]
        near += [address(tree.above[i])] if tree.above[i] >= 0 else []
        lamport = mode == "lamport"
        brokers[address(i)] = (
            LamportBroker(address(i), near, tables) if lamport else LiteralBroker(address(i), near, tables, mode)
        )
    return Overlay(tree, brokers, workload, dice)


SCHEMES: dict[str, Callable[[BrokerTree, Workload, Random], Overlay]] = {
    "plain FIFO": lambda tree, workload, dice: known_brokers(tree, workload, "plain", dice),
    "exact": lambda tree, workload, dice: ordering_brokers(tree, workload, "exact", dice),
    "fast": lambda tree, workload, dice: ordering_brokers(tree, workload, "fast", dice),
    "clients": lambda tree, workload, dice: ordering_brokers(tree, workload, "clients", dice),
    "always": lambda tree, workload, dice: ordering_brokers(tree, workload, "always", dice),
    "printed, batch": lambda tree, workload, dice: known_brokers(tree, workload, "batch", dice),
    "printed, progressive": lambda tree, workload, dice: known_brokers(tree, workload, "progressive", dice),
    "printed, sorted queue": lambda tree, workload, dice: known_brokers(tree, workload, "sorted", dice),
    "Lamport keys": lambda tree, workload, dice: known_brokers(tree, workload, "lamport", dice),
}


def play(tree: BrokerTree, workload: Workload, scheme: str, options: OverlayCostsOptions) -> Measured:
    overlay = SCHEMES[scheme](tree, workload, Random(f"{options.seed}/links"))
    dice = Random(f"{options.seed}/publications")
    kinds = {name: int(filter.boxes[0].sides[0][1].numbers[0][0]) for name, _, filter in workload[0]}
    for name in kinds:
        times = sorted(dice.randrange(200 * UNIT_US) for _ in range(options.publications))
        for sequence, at in enumerate(times, start=1):
            event = Event(name, sequence, "t", attributes={"kind": kinds[name]})
            overlay.publish(name, event, 1_000 * UNIT_US + at)
    overlay.run()
    return overlay.measured


def run(options: OverlayCostsOptions) -> list[ResultRow]:
    tree = topology(options.cores)
    rows: list[ResultRow] = []
    found = workloads(options.cores, Random(f"{options.seed}/workloads"))
    if options.only and options.only not in found:
        raise MisuseError(f"--only: no workload {options.only!r}; there are: {', '.join(found)}")
    for name, workload in found.items():
        if options.only and name != options.only:
            continue
        plain = play(tree, workload, "plain FIFO", options)
        for scheme in SCHEMES:
            measured = plain if scheme == "plain FIFO" else play(tree, workload, scheme, options)
            rows.append(_row(name, scheme, tree, workload, plain, measured, options))
        rows += _sequencers(name, tree, workload)
    return rows


def _row(
    name: str,
    scheme: str,
    tree: BrokerTree,
    workload: Workload,
    plain: Measured,
    measured: Measured,
    options: OverlayCostsOptions,
) -> ResultRow:
    published = len(workload[0]) * options.publications
    extra = [delay - plain.delays[key] for key, delay in measured.delays.items()]
    homes = {client: at for client, at, _ in (*workload[0], *workload[1])}
    near = [delay for (client, event), delay in measured.delays.items() if homes[client] == homes[event.split(":")[0]]]
    ours = {
        "extra_messages_per_publication": round((measured.messages - plain.messages) / published, 2),
        "extra_hops_mean": round(sum(extra) / max(1, len(extra)), 2),
        "same_broker_hops": round(sum(near) / max(1, len(near)), 2),
        "missing": float(len(plain.delays) - len(measured.delays)),
        "ordering_degree": round(ordering_degree(Trace(Journal(Header(), measured.records))), 4),
    }
    return ResultRow({"workload": name, "scheme": scheme}, ours)


def _sequencers(name: str, tree: BrokerTree, workload: Workload) -> list[ResultRow]:
    root = next(i for i, parent in enumerate(tree.above) if parent < 0)
    messages: dict[str, float] = {"routed": 0.0, "first": 0.0}
    delays: dict[str, list[int]] = {"routed": [], "first": []}
    for _, home, filter in workload[0]:
        targets = [at for _, at, wanted in workload[1] if wanted.overlaps(filter)]
        up = tree.depth(home)
        messages["routed"] += up + tree.links_to(root, targets) - tree.links_to(home, targets)
        messages["first"] += 2 * up
        for at in targets:
            delays["routed"].append(up + tree.depth(at) - tree.links_to(home, [at]))
            delays["first"].append(2 * up)
    return [
        ResultRow(
            {"workload": name, "scheme": f"sequencer, {spelt}"},
            {
                "extra_messages_per_publication": round(messages[kind] / len(workload[0]), 2),
                "extra_hops_mean": round(sum(delays[kind]) / max(1, len(delays[kind])), 2),
            },
        )
        for kind, spelt in (("routed", "routed through the root"), ("first", "number first"))
    ]


EXPERIMENT = Experiment(
    title="What pairwise order costs in a broker overlay",
    source="paper 001, section V: its topology and workloads, with links of one unit of time instead of its cluster",
    options=OverlayCostsOptions,
    run=run,
)
