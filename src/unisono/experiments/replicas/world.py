"""The setting of the thesis' section 4.3: two data centres of five replicas, 21 ms apart, operations as they come.

Latencies between the sites are drawn from 0.8 to 1.6 times 21 ms, within a site 1 ms; messages may overtake. A manager
of a topic lives beside a replica, the first five topics in the first site. Operations cost no time at all unless
`service_us` says so; then a replica has a queue, and loses what finds it full.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from statistics import fmean

from msgspec import Struct

from unisono.experiments.baselines.chain import ChainSite, ChainTicketed
from unisono.experiments.baselines.chain_rollback import ChainReplica
from unisono.machine import Restarted
from unisono.model.ids import Address, Topic
from unisono.model.time import MILLISECOND, SECOND, Micros
from unisono.protocols.uec.config import UecConfig
from unisono.protocols.uec.log import KeyedRollbacks
from unisono.protocols.uec.messages import Ordered, Placed
from unisono.protocols.uec.site import UecSite
from unisono.sim.host import SimulatedHost
from unisono.sim.links import LinkRule, LinkSpec, Uniform
from unisono.sim.service import ServiceSpec
from unisono.sim.spec import Span
from unisono.sim.world import World

REPLICAS = 10
WAN = LinkSpec(Uniform(Span(16_800), Span(33_600)), fifo=False)
LAN = LinkSpec(Uniform(Span(800), Span(1_600)), fifo=False)


class ReplicaScheme(Struct, frozen=True):
    """How operations are ordered: by `sequencers` that do not ask each other, or with 0 by a chain of managers."""

    name: str
    sequencers: int = 0
    sync: bool = False
    topics: int = 5
    hold_us: int = 0
    hold_max: int = 100
    eager: bool = False
    """TO: what is held back is applied when no number is missing before it."""


class ReplicaRun(Struct, frozen=True):
    """What became of a run, over all replicas."""

    rollbacks: KeyedRollbacks
    latency_ms: float
    discarded: float
    """Share of what should have been applied somewhere and was not."""
    overflowed: float
    """Share of all messages to replicas that came when there was no room for them."""
    copies: float
    """Messages with an operation that reach a replica, per operation and replica that did not make it."""
    agree: bool


def play_replicas(
    scheme: ReplicaScheme, rate_per_s: float, operations: int, seed: int, service_us: int = 0
) -> ReplicaRun:
    """Operations at Poisson times from random replicas on random topics; then rest."""
    rules = (LinkRule("*-a*", "*-b*", WAN), LinkRule("*-b*", "*-a*", WAN))
    world = World(seed, links=LAN, rules=rules)
    names = tuple(Address(f"r-{'a' if i < REPLICAS // 2 else 'b'}{i}") for i in range(REPLICAS))
    topics = [world.topic(f"t{i:02d}") for i in range(scheme.topics)]
    latencies: list[int] = []
    copies = Counter[str]()
    managers: dict[Topic, Address] = {}
    if not scheme.sequencers:
        managers = {topic: Address(names[i % REPLICAS].replace("r-", "m-")) for i, topic in enumerate(topics)}
        for manager in dict.fromkeys(managers.values()):
            world.add(manager, _manager_of(manager, managers, topics))
    service = ServiceSpec(Span(service_us), queue_max=100) if service_us else None
    for name in names:
        host = world.add(name, _replica_of(name, names, managers, scheme, seed), service=service)
        host.on_deliver = partial(_note_latency, world, latencies)
        host.admits = partial(_note_copy, copies)
        if scheme.sequencers:
            host.tell(Restarted())
    dice, at = Random(f"{seed}/workload"), 0.0
    begin = SECOND  # sequencers have met by then
    world.at(0, _publish, world.host(names[0]), "t00")
    for _ in range(operations):
        at += dice.expovariate(rate_per_s / SECOND)
        host, topic = world.host(dice.choice(names)), f"t{dice.randrange(scheme.topics):02d}"
        world.at(begin + round(at), _publish, host, topic)
    world.run(until=begin + round(at) + 5 * SECOND)
    return _result(world, names, latencies, copies, operations + 1)


def _publish(host: SimulatedHost, topic: str) -> None:
    host.publish(topic)


def _note_latency(world: World, latencies: list[int], item: object) -> None:
    if isinstance(item, Placed):
        latencies.append(world.now - world.published_us[item.event.id])


def _note_copy(copies: Counter[str], message: object) -> bool:
    """Nothing is kept out, and all is counted; what carries an operation apart."""
    copies["operation" if isinstance(message, ChainTicketed | Ordered) else "other"] += 1
    return True


def _manager_of(name: Address, managers: dict[Topic, Address], topics: list[Topic]) -> Callable[[str], ChainSite]:
    return lambda _: ChainSite(name, managers, {topic: tuple(topics) for topic in topics})


def _replica_of(
    name: Address, names: tuple[Address, ...], managers: dict[Topic, Address], scheme: ReplicaScheme, seed: int
) -> Callable[[str], ChainReplica | UecSite]:
    hold = Micros(scheme.hold_us)
    if not scheme.sequencers:
        return lambda _: ChainReplica(name, names, managers, hold, scheme.hold_max, scheme.eager)
    config = UecConfig(scheme.sequencers, scheme.sync, hold_us=hold, hold_max=scheme.hold_max)
    return lambda _: UecSite(name, names, Topic(10_000), Random(f"{seed}/{name}"), config)


def _result(
    world: World, names: tuple[Address, ...], latencies: list[int], copies: Counter[str], operations: int
) -> ReplicaRun:
    machines = [_machine(world.host(name)) for name in names]
    total = KeyedRollbacks()
    for machine in machines:
        counts = machine.log.rollbacks
        total.arrivals += counts.arrivals
        total.with_undo += counts.with_undo
        total.undone += counts.undone
        total.undos += counts.undos
    missing = operations * len(names) - total.arrivals
    return ReplicaRun(
        total,
        fmean(latencies) / MILLISECOND if latencies else 0.0,
        max(missing, 0) / (operations * len(names)),
        sum(world.host(name).queue.dropped for name in names) / max(copies.total(), 1),
        copies["operation"] / (operations * (len(names) - 1)),
        all(machine.log.applied == machines[0].log.applied for machine in machines),
    )


def _machine(host: SimulatedHost) -> ChainReplica | UecSite:
    machine = host.machine
    assert isinstance(machine, ChainReplica | UecSite)
    return machine
