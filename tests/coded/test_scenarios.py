"""Coded nodes in the simulator: every event despite loss, once despite crashes, in every style and in every stack."""

from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from unisono.audit import judge
from unisono.machine import Broadcast, Heard, Machine, Publish, Stack, Subscribe
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.journal import Header, Journal
from unisono.model.time import Micros
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.envelope import Enveloped
from unisono.protocols.coded.messages import Piece
from unisono.protocols.coded.node import CodedNode
from unisono.protocols.fifo.machine import FifoConfig, FifoMachine, Numbered
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import BrokerMessage
from unisono.protocols.sequencer.node import TopicManager
from unisono.sim.ens import EnsSpec
from unisono.sim.links import Fixed, LinkSpec, Loss, Uniform
from unisono.sim.scenario import Scenario, load, play, stage, with_options
from unisono.sim.spec import Span
from unisono.sim.world import World
from unisono.structures import field


@pytest.fixture(autouse=True, scope="module")
def kernel() -> None:
    """Here the compiled kernel does the work where numba is installed; on the bench the tables do."""
    field.warm_up().join()


def holds(scenario: Scenario, seed: int) -> Journal:
    journal = play(scenario, seed)
    for verdict in judge(journal, scenario.promises):
        assert verdict.holds, f"{verdict.witness}\n  unisono simulate {scenario.name} --seeds {seed}"
    return journal


@pytest.mark.parametrize("seed", range(6))
def test_every_event_is_delivered_although_a_fifth_of_all_packets_is_lost(seed: int) -> None:
    journal = holds(load("coded/lossy"), seed)
    assert sum(record.kind == "deliver" for record in journal.records) > 200
    assert not any(record.kind == "gap" for record in journal.records)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_delivered_twice_across_crashes(seed: int) -> None:
    journal = holds(load("coded/crash"), seed)
    assert sum(record.kind == "crash" for record in journal.records) > 4


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1000, 1300))
@pytest.mark.parametrize("name", ["lossy", "crash"])
def test_many_seeds(name: str, seed: int) -> None:
    holds(load(f"coded/{name}"), seed)


def test_the_air_traffic_setting_delivers_everything_at_an_overhead_below_one_fifth() -> None:
    scenario = with_options(load("coded/air-traffic"), {"workload.duration": 8_000_000})
    world = stage(scenario, 1)
    pieces = 0

    def count(effect: object) -> None:
        nonlocal pieces
        pieces += "Piece" in type(getattr(effect, "message", None)).__name__ and hasattr(effect, "to")

    for host in world.hosts.values():
        host.on_effect = count
    world.run(until=60_000_000)
    delivered = sum(record.kind == "deliver" for record in world.records)
    assert delivered == 39 * 8
    assert (8 * 18 * 39 + pieces) / (8 * 16 * 39) < 1.2


STYLES = {
    "none, coded extras": ({"style": "none", "redundancy": 8}, 0.95),
    "push, coded": ({"style": "push", "fanout": 4, "redundancy": 2}, 0.93),
    "push, plain": ({"style": "push", "fanout": 4, "coded": False, "redundancy": 0}, 0.93),
    "push-pull, coded": ({"style": "push-pull", "fanout": 4, "redundancy": 2}, 0.95),
    "push-pull, plain": ({"style": "push-pull", "fanout": 4, "coded": False, "redundancy": 0}, 0.9),
    "pull, coded": ({"style": "pull", "fanout": 2, "fan_in": 2, "redundancy": 2}, 0.95),
    "pull, plain": ({"style": "pull", "fanout": 2, "fan_in": 2, "coded": False, "redundancy": 0}, 0.9),
    "need, plain": ({"style": "need", "coded": False, "redundancy": 0}, 0.9999),
    "need, two partners": ({"style": "need", "fanout": 2}, 0.9999),
}


@pytest.mark.parametrize("name", STYLES)
def test_each_style_recovers_what_it_should(name: str) -> None:
    options, least = STYLES[name]
    scenario = with_options(
        load("coded/air-traffic"),
        {"workload.duration": 4_000_000, **{f"options.{key}": value for key, value in options.items()}},
    )
    journal = play(scenario, 3)
    assert sum(record.kind == "deliver" for record in journal.records) / (39 * 4) >= least
    assert all(verdict.holds for verdict in judge(journal, ["exactly-once"]))


def test_the_publisher_learns_how_much_redundancy_its_receivers_need() -> None:
    options = {"workload.duration": 15_000_000, "options.adaptive": True}
    extras = {}
    for rate in (0.01, 0.1):
        world = stage(with_options(load("coded/air-traffic"), {**options, "ens.loss.rate": rate}), 2)
        sent: dict[int, int] = {}

        def count(effect: object, world: World = world, sent: dict[int, int] = sent) -> None:
            if isinstance(effect, Broadcast) and isinstance(effect.message, Piece):
                sent[world.now] = sent.get(world.now, 0) + 1

        world.host("p0").on_effect = count
        world.run(until=60_000_000)
        extras[rate] = [packets - 16 for packets in sent.values()]
        assert sum(record.kind == "deliver" for record in world.records) == 39 * 15
    assert extras[0.01][0] == extras[0.1][0] == 2
    assert extras[0.1][-1] >= 8
    assert sum(extras[0.01]) < sum(extras[0.1]) * 0.7


LOSSY = Loss(0.15, 2.0)


def stacked(build, seed: int) -> dict[str, list[bytes]]:
    """Three clients over a broker that loses and reorders; all subscribe, two publish; what each one heard."""
    world = World(
        seed,
        links=LinkSpec(Fixed(Span(5_000)), loss=LOSSY),
        ens=EnsSpec(latency=Uniform(Span(1_000), Span(20_000)), fifo=False, loss=LOSSY),
    )
    topic, heard = world.topic("t"), {}
    for name in ("a", "b", "c"):
        host = world.add(name, build)
        heard[name] = []

        def keep(item: object, into: list[bytes] = heard[name]) -> None:
            if isinstance(item, Heard) and isinstance(item.message, bytes):
                into.append(item.message)

        host.on_deliver = keep
        host.tell(Subscribe((topic,)))
    for i in range(30):
        for name in ("a", "b"):
            world.at(1_000_000 + 50_000 * i, world.host(name).tell, Publish(topic, f"{name}{i}".encode() * 900))
    world.run(until=200_000_000)
    return heard


CONFIG = CodedConfig(deadline_us=20_000_000, keep_us=30_000_000, ask_every_us=50_000)


@pytest.mark.parametrize("seed", range(3))
def test_an_order_above_coding_is_complete_and_in_order(seed: int) -> None:
    def build(name: str) -> Stack:
        coded = CodedNode(Address(name), CONFIG, Random(name), Numbered)
        return Stack(coded=coded, fifo=FifoMachine(Address(name), FifoConfig(deadline_us=30_000_000)))

    for events in stacked(build, seed).values():
        for publisher in "ab":
            mine = [event for event in events if event.startswith(publisher.encode())]
            assert mine == [f"{publisher}{i}".encode() * 900 for i in range(30)]


@pytest.mark.parametrize("seed", range(3))
def test_coding_above_an_order_is_complete(seed: int) -> None:
    def build(name: str) -> Stack:
        fifo = FifoMachine(Address(name), FifoConfig(deadline_us=100_000))
        return Stack(fifo=fifo, coded=CodedNode(Address(name), CONFIG, Random(name)))

    for events in stacked(build, seed).values():
        assert sorted(events) == sorted(f"{p}{i}".encode() * 900 for p in "ab" for i in range(30))


@pytest.mark.parametrize("seed", range(3))
def test_the_sequencer_above_coding_gives_one_complete_order(seed: int) -> None:
    """The broker loses 15 % of everything that clients and home publish."""

    def stack(name: str, order: Machine) -> Stack:
        return Stack(coded=CodedNode(Address(name), CONFIG, Random(name), BrokerMessage), order=order)

    sequenced(seed, LOSSY, stack)


@pytest.mark.parametrize("seed", range(2))
def test_coding_above_the_sequencer_keeps_its_order(seed: int) -> None:
    def stack(name: str, order: Machine) -> Stack:
        if name == "home":
            return Stack(order=order)
        patient = replace(CONFIG, quiet_us=2_000_000)
        coded = CodedNode(Address(name), patient, Random(name), Event)
        return Stack(order=order, events=Enveloped(Address(name)), coded=coded)

    sequenced(seed, None, stack)


def sequenced(seed: int, loss: Loss | None, stack: Callable[[str, Machine], Stack]) -> None:
    """Three clients subscribe to both topics of one home, two of them publish; all agree, and miss nothing."""
    world = World(
        seed,
        links=LinkSpec(Fixed(Span(5_000))),
        ens=EnsSpec(latency=Uniform(Span(1_000), Span(20_000)), fifo=False, loss=loss),
    )
    homes = {world.topic("t"): Address("home"), world.topic("u"): Address("home")}
    config = SequencerConfig(payload_wait_us=Micros(60_000_000))
    home = TopicManager(Address("home"), None, (), tuple(homes), {}, config)
    world.add("home", lambda name: stack(name, home))
    for name in ("a", "b", "c"):
        world.add(name, lambda name: stack(name, OrderingClient(Address(name), dict(homes), config)))
        world.host(name).subscribe("t", "u")
    for i in range(20):
        for name, topic in (("a", "t"), ("b", "u")):
            world.at(2_000_000 + 50_000 * i, world.host(name).publish, topic, bytes(2000))
    world.run(until=200_000_000)
    world.note("end")
    journal = Journal(Header(), world.records)
    assert sum(record.kind == "deliver" for record in world.records) == 3 * 40
    for verdict in judge(journal, ["pairwise-order", "exactly-once", "complete"]):
        assert verdict.holds, verdict.witness
