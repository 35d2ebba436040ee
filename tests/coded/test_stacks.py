"""Coding and orders on top of each other, both ways: complete, in one order, and through crashes of what is durable."""

from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from unisono.audit import judge
from unisono.machine import DurableMachine, Heard, Machine, Publish, Stack, Subscribe
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.journal import Header, Journal
from unisono.model.time import Micros
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.envelope import Enveloped
from unisono.protocols.coded.messages import PacketPiece
from unisono.protocols.coded.node import CodedNode
from unisono.protocols.fifo.machine import FifoConfig, FifoMachine, Numbered
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import BrokerMessage
from unisono.protocols.sequencer.node import TopicManager
from unisono.sim.ens import EnsSpec
from unisono.sim.faults import Crash, schedule_faults
from unisono.sim.links import Fixed, LinkSpec, Loss, Uniform
from unisono.sim.spec import Span
from unisono.sim.world import World
from unisono.structures import field
from unisono.structures.sessions import Sessions


@pytest.fixture(autouse=True, scope="module")
def kernel() -> None:
    """Here the compiled kernel does the work where numba is installed; on the bench the tables do."""
    field.warm_up().join()


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

    def stack(name: str, order: Machine) -> Machine:
        return Stack(coded=CodedNode(Address(name), CONFIG, Random(name), BrokerMessage), order=order)

    sequenced(seed, LOSSY, stack)


@pytest.mark.parametrize("seed", range(2))
def test_coding_above_the_sequencer_keeps_its_order(seed: int) -> None:
    def stack(name: str, order: Machine) -> Machine:
        if name == "home":
            return Stack(order=order)
        patient = replace(CONFIG, quiet_us=2_000_000)
        coded = CodedNode(Address(name), patient, Random(name), Event)
        return Stack(order=order, events=Enveloped(Address(name)), coded=coded)

    sequenced(seed, None, stack)


CRASHES = (Crash(at=Span(2_100_000), within=Span(900_000), times=4, who="home", down=Span(150_000)),)


@pytest.mark.parametrize("seed", range(4))
def test_coding_beneath_the_sequencer_brings_back_what_a_crashed_home_had_said(seed: int) -> None:
    """The home is one durable machine: its numbers are above, and what it published waits beneath to be asked for."""

    def stack(name: str, order: Machine) -> Machine:
        both = Stack(coded=CodedNode(Address(name), CONFIG, Random(name), BrokerMessage), order=order)
        assert isinstance(both, DurableMachine) == (name == "home")
        return both

    sequenced(seed, LOSSY, stack, CRASHES)


@pytest.mark.parametrize("seed", range(4))
def test_coding_above_the_sequencer_keeps_its_order_through_crashes_of_the_home(seed: int) -> None:
    def stack(name: str, order: Machine) -> Machine:
        if isinstance(order, TopicManager):
            return Sessions(Stack(order=order), Address(name), (), BrokerMessage, BrokerMessage)
        patient = replace(CONFIG, quiet_us=2_000_000)
        coded = CodedNode(Address(name), patient, Random(name), Event)
        return Stack(order=order, events=Enveloped(Address(name)), coded=coded)

    sequenced(seed, None, stack, CRASHES)


def sequenced(
    seed: int, loss: Loss | None, stack: Callable[[str, Machine], Machine], crashes: tuple[Crash, ...] = ()
) -> None:
    """Three clients subscribe to both topics of one home, two of them publish; all agree, and miss nothing."""
    world = World(
        seed,
        links=LinkSpec(Fixed(Span(5_000))),
        ens=EnsSpec(latency=Uniform(Span(1_000), Span(20_000)), fifo=False, loss=loss),
    )
    homes = {world.topic("t"): Address("home"), world.topic("u"): Address("home")}
    config = SequencerConfig(payload_wait_us=Micros(60_000_000), resend_us=Micros(100_000))

    def home(name: str) -> Machine:
        return stack(name, TopicManager(Address(name), None, (), tuple(homes), {}, config))

    world.add("home", home, snapshot_every=8 if crashes else 0)
    for name in ("a", "b", "c"):
        world.add(name, lambda name: stack(name, OrderingClient(Address(name), dict(homes), config)))
        world.host(name).subscribe("t", "u")
    for i in range(20):
        for name, topic in (("a", "t"), ("b", "u")):
            world.at(2_000_000 + 50_000 * i, world.host(name).publish, topic, bytes(2000))
    schedule_faults(world, crashes)
    world.run(until=200_000_000)
    world.note("end")
    journal = Journal(Header(), world.records)
    assert sum(record.kind == "crash" for record in world.records) >= min(1, len(crashes))
    for verdict in judge(journal, ["pairwise-order", "exactly-once", "complete"]):
        assert verdict.holds, verdict.witness
    assert sum(record.kind == "deliver" for record in world.records) == 3 * 40


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("coded_first", [True, False], ids=["coding beneath", "coding above"])
def test_a_stack_of_two_durable_blocks_delivers_nothing_twice_across_crashes(seed: int, coded_first: bool) -> None:
    """Coding, and the envelope that numbers what it wraps, over a broker that loses; everybody crashes."""
    world = World(
        seed,
        links=LinkSpec(Fixed(Span(5_000)), loss=LOSSY),
        ens=EnsSpec(latency=Uniform(Span(1_000), Span(20_000)), fifo=False, loss=LOSSY),
    )

    def build(name: str) -> Stack:
        me = Address(name)
        if coded_first:
            return Stack(coded=CodedNode(me, CONFIG, Random(name), Event), outer=Enveloped(me))
        return Stack(outer=Enveloped(me), coded=CodedNode(me, CONFIG, Random(name)))

    heard: dict[str, list[bytes]] = {}
    for name in ("a", "b", "c"):
        host = world.add(name, build, snapshot_every=16)
        into = heard[name] = []

        def keep(item: object, into: list[bytes] = into) -> None:
            if isinstance(item, Heard) and isinstance(item.message, PacketPiece):
                into.append(item.message.data)
            elif isinstance(item, Heard):
                into.append(item.message)

        host.on_deliver = keep
        host.tell(Subscribe((world.topic("t"),)))
    contents = [f"{name}{i}".encode() * 900 for i in range(20) for name in ("a", "b")]
    for i, content in enumerate(contents):
        message = PacketPiece(content) if coded_first else content
        host = world.host("ab"[i % 2])
        world.at(1_000_000 + 25_000 * i, host.tell, Publish(world.topic("t"), message))
    schedule_faults(world, (Crash(at=Span(1_100_000), within=Span(900_000), times=9, down=Span(100_000)),))
    world.run(until=200_000_000)
    assert sum(record.kind == "crash" for record in world.records) >= 3
    for events in heard.values():
        assert len(events) == len({*events})
        assert {*events} <= {*contents}
        assert len(events) > len(contents) // 2
