"""The forwarder inside a tree (specs: coded gossip, 5.3): at once what comes, fresh ones for what did not."""

from random import Random

import pytest

from unisono.errors import MisuseError
from unisono.machine import Broadcast, Effect, Fired, Heard, Refuse, SetTimer
from unisono.model.ids import Topic
from unisono.model.time import Micros
from unisono.protocols.coded.arrivals import fragment
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.forwarder import Forwarder
from unisono.protocols.coded.messages import EventKey, MemberHello, PacketPiece
from unisono.protocols.coded.redundancy import sending_order
from unisono.protocols.coded.wire import OVERHEAD_BYTES, Packet, pack, unpack
from unisono.sim.ens import EnsSpec
from unisono.sim.world import World
from unisono.structures.decoder import Decoder

TOPIC, NOW = Topic(3), Micros(1_000)
CONFIG = CodedConfig(packet_bytes=OVERHEAD_BYTES + 64, rows_max=16, redundancy=3, live_max=4)
LATER = Micros(NOW + CONFIG.quiet_us)


def packets_of(sequence: int = 1, content: bytes = bytes(range(250))) -> list[bytes]:
    """Five rows and three extras, as their publisher sends them."""
    event = EventKey(TOPIC, 77, sequence)
    arrival = fragment(event, 0, content, CONFIG, NOW)
    generation = arrival.generations[0]
    order = sending_order(event, 0, generation.geometry.n)
    first = generation.first_packets(order, CONFIG.redundancy, coded=True, dice=Random(f"extras {sequence}"))
    return [arrival.packed(0, *packet, b"") for packet in first]


class Node:
    """A forwarder, what it sent on, and the timers it set."""

    def __init__(self, config: CodedConfig = CONFIG) -> None:
        self.machine = Forwarder(config, Random(5))
        self.timers: dict[str, int] = {}

    def give(self, data: bytes, now: Micros = NOW) -> list[bytes]:
        return self._sent(self.machine.handle(Heard(TOPIC, PacketPiece(data)), now))

    def quiet(self, now: Micros = LATER) -> list[bytes]:
        keys, self.timers = list(self.timers), {}
        return [data for key in keys for data in self._sent(self.machine.handle(Fired(key), now))]

    def _sent(self, effects: list[Effect]) -> list[bytes]:
        self.timers |= {effect.key: effect.at for effect in effects if isinstance(effect, SetTimer)}
        return [effect.message.data for effect in effects if isinstance(effect, Broadcast)]


def rank_of(packets: list[bytes]) -> int:
    parsed = [unpack(data, packet_bytes_max=CONFIG.packet_bytes) for data in packets]
    assert all(isinstance(packet, Packet) for packet in parsed)
    decoder: Decoder[int] = Decoder(parsed[0].geometry.n, parsed[0].geometry.row_bytes)
    for packet in parsed:
        decoder.put(packet.coefficients, packet.payload, 0)
    return decoder.rank


def test_every_packet_goes_on_at_once_and_as_it_came() -> None:
    node, packets = Node(), packets_of()
    assert [node.give(data) for data in packets] == [[data] for data in packets]
    assert node.quiet() == []
    assert not node.timers


def test_rows_that_did_not_come_are_replaced_as_soon_as_it_is_complete() -> None:
    node, packets = Node(), packets_of()
    n = len(packets) - CONFIG.redundancy
    sent = [node.give(data) for data in packets[2:]]  # two rows are lost
    assert [len(each) for each in sent] == [1] * (n - 1) + [3, 1]
    made = sent[n - 1][1:]
    assert not any(data in packets for data in made)
    children = [data for each in sent for data in each]
    assert len(children) == len(packets)
    assert rank_of(children[: n - 2] + made) == n  # combinations of all rows, not of those that came
    assert node.quiet() == []


def test_extras_that_did_not_come_are_replaced_when_the_event_is_quiet() -> None:
    node, packets = Node(), packets_of()
    for data in packets[: -CONFIG.redundancy]:
        assert node.give(data) == [data]
    made = node.quiet()
    assert len(made) == CONFIG.redundancy
    assert rank_of(made) == CONFIG.redundancy
    assert node.quiet() == []


def test_an_event_that_still_comes_is_not_quiet() -> None:
    node, packets = Node(), packets_of()
    node.give(packets[0])
    late = Micros(LATER - 1)
    for data in packets[1:-1]:
        node.give(data, late)
    assert node.quiet(LATER) == []
    assert list(node.timers.values()) == [late + CONFIG.quiet_us]
    assert len(node.quiet(Micros(late + CONFIG.quiet_us))) == 1


def test_nothing_is_made_of_what_is_incomplete_or_has_the_wrong_digest() -> None:
    node, packets = Node(), packets_of()
    for data in packets[4:]:
        node.give(data)
    assert node.quiet() == []
    node = Node()
    for data in packets[1:-1]:
        packet = unpack(data, packet_bytes_max=CONFIG.packet_bytes)
        assert isinstance(packet, Packet)
        wrong = bytes(len(packet.payload))
        spoilt = pack(Packet(TOPIC, 77, 1, 0, packet.geometry, packet.coefficients, wrong))
        assert len(node.give(spoilt)) == 1
    assert node.quiet() == []


def test_what_is_no_packet_goes_on_and_leaves_no_trace() -> None:
    node = Node()
    assert node.give(b"noise") == [b"noise"]
    hello = MemberHello("somebody", TOPIC, 1)
    assert node.machine.handle(Heard(TOPIC, hello, control=True), NOW) == [Broadcast(TOPIC, hello, control=True)]
    assert isinstance(node.machine.handle("nonsense", NOW)[0], Refuse)
    assert not node.timers


def test_the_same_packet_twice_counts_once() -> None:
    node, packets = Node(), packets_of()
    for data in packets[:-2]:
        node.give(data)
        node.give(data)
    assert len(node.quiet()) == 2


def test_it_holds_a_bounded_number_of_events() -> None:
    node = Node()
    for sequence in range(1, 10):
        for data in packets_of(sequence)[:-1]:
            node.give(data)
    assert len(node.quiet()) == CONFIG.live_max


def test_only_a_tree_has_interior_nodes() -> None:
    world = World(1, ens=EnsSpec(kind="direct"))
    with pytest.raises(MisuseError, match="no interior nodes"):
        world.ens.forward_by(lambda name: Forwarder(CONFIG, Random(name)))
