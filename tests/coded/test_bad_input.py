"""Spec 5.8: malformed, mismatching and polluted packets never deliver a wrong byte, and liars are found."""

import zlib
from random import Random

import pytest
from msgspec.structs import replace

from tests.coded.bench import PUBLISHER, TOPIC, Bench, direct, forged, key_of, opened, publication
from unisono.machine import Heard, Joined, Publish, Subscribe
from unisono.model.ids import Address, Topic
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import (
    Advert,
    Adverts,
    AskPackets,
    MemberHello,
    Members,
    Nothing,
    PacketPiece,
    Seen,
)
from unisono.protocols.coded.node import CodedNode
from unisono.protocols.coded.wire import digest, pack, shape
from unisono.structures.decoder import encode, split

CONTENT = bytes(range(256)) * 40
N = shape(len(CONTENT) + 3)[0]
PEERS = tuple(Address(f"peer{i}") for i in range(6))
ASKING = CodedConfig(seeds=PEERS)


def test_malformed_packets_are_counted_and_change_nothing() -> None:
    bench = Bench()
    before = bench.node.snapshot()
    data = publication(CONTENT)[0][0]
    for bad in (b"", b"x" * 100, data[:-1], data[:100] + b"?" + data[101:], b"\0" + data[1:]):
        bench.give(direct(bad))
    assert bench.node.snapshot() == before
    assert sum(bench.node.counters.values()) == 5


def test_a_packet_of_another_topic_than_it_came_on_is_dropped() -> None:
    bench = Bench(topics=(TOPIC, Topic(8)))
    for data in publication(CONTENT)[0]:
        bench.give(direct(data, Topic(8)))
    assert bench.heard == []
    assert bench.node.counters == {"foreign topic": N + 2}


def test_the_first_geometry_counts() -> None:
    bench = Bench()
    packets = publication(CONTENT)[0]
    bench.give(direct(packets[0]))
    other = replace(opened(packets[1]).geometry, digest=b"?" * 16)
    bench.give(PacketPiece(forged(packets[1], geometry=other), PEERS[0]))
    assert bench.node.counters == {"geometry mismatch": 1}
    for data in packets[1:]:
        bench.give(direct(data))
    assert bench.heard == [CONTENT]


def test_the_publishers_own_geometry_beats_a_peers() -> None:
    bench = Bench()
    packets = publication(CONTENT)[0]
    other = replace(opened(packets[0]).geometry, digest=b"?" * 16)
    for data in packets[:4]:
        bench.give(PacketPiece(forged(data, geometry=other), PEERS[0]))
    for data in packets:
        bench.give(direct(data))
    assert bench.node.counters["geometry reset"] == 1
    assert bench.heard == [CONTENT]


def polluted(data: bytes) -> bytes:
    payload = opened(data).payload
    return forged(data, payload=bytes([payload[0] ^ 1]) + payload[1:])


def test_one_flipped_bit_in_one_of_n_plus_two_is_never_delivered() -> None:  # 200 generations
    dice, content = Random(1), bytes(range(200))
    config = CodedConfig(packet_bytes=80, rows_max=12, style="none")
    caught = {"polluted": 0, "inconsistent": 0}
    for _ in range(200):
        bench = Bench(config)
        packets = publication(content, replace(config, redundancy=2))[0]
        packet = opened(packets[0])
        whole = b"\0\0\1" + content
        rows = split(whole, packet.geometry.n, packet.geometry.row_bytes)
        coded = [
            pack(replace(packet, coefficients=line, payload=payload))
            for line, payload in encode(rows, packet.geometry.n + 2, dice)
        ]
        victim = dice.randrange(len(coded))
        coded[victim] = polluted(coded[victim])
        for data in coded:
            bench.give(PacketPiece(data, PEERS[0]))
        assert bench.heard in ([], [content])
        for name in caught:
            caught[name] += bench.node.counters.get(name, 0) > 0
    assert caught["polluted"] + caught["inconsistent"] >= 190


def test_an_inconsistent_packet_puts_the_peers_under_suspicion_and_keeps_the_publishers_rows() -> None:
    bench = Bench(ASKING)
    packets = publication(CONTENT)[0]
    for data in packets[:4]:
        bench.give(direct(data))
    for data in packets[4:6]:
        bench.give(PacketPiece(polluted(data), PEERS[0]))
    bench.give(direct(packets[4]))  # the truth contradicts what the peer said
    assert bench.node.counters["inconsistent"] == 1
    for data in packets[4:N]:
        bench.give(direct(data))
    assert bench.heard == [CONTENT]


def ask_and_answer(bench: Bench, liars: tuple[Address, ...], rounds: int = 40) -> None:
    """Peers answer the questions of a bench: honest ones with the truth, liars with pollution under valid checksums."""
    holder = Bench()
    for data in publication(CONTENT)[0]:
        holder.give(direct(data))
    for _ in range(rounds):
        bench.sent.clear()
        bench.wait(bench.config.ask_every_us)
        holder.now = bench.now
        for to, ask in bench.asks():
            holder.sent.clear()
            holder.give(ask)
            for send in holder.sent:
                if isinstance(send.message, PacketPiece):
                    data = send.message.data
                    bench.give(PacketPiece(polluted(data) if to in liars else data, to))
        if bench.heard:
            return


@pytest.mark.parametrize("liars", [PEERS[:1], PEERS[:3], PEERS[:5]])
@pytest.mark.parametrize("fanout", [1, 2])
def test_pollution_is_healed_and_who_was_in_every_failure_is_banned(liars: tuple[Address, ...], fanout: int) -> None:
    bench = Bench(replace(ASKING, fanout=fanout, deadline_us=60_000_000, keep_us=61_000_000))
    for data in publication(CONTENT)[0][:3]:
        bench.give(direct(data))
    ask_and_answer(bench, liars)
    assert bench.heard == [CONTENT]
    banned = bench.node._topics[TOPIC].banned
    assert set(banned) <= set(liars)
    for liar in banned:
        bench.give(PacketPiece(publication(CONTENT, count=2)[1][0], liar))
        assert bench.node.counters["banned source"] > 0


def test_a_liar_is_banned_for_the_topic() -> None:
    bench = Bench(replace(ASKING, seeds=PEERS[:2]))
    for data in publication(CONTENT)[0][:3]:
        bench.give(direct(data))
    ask_and_answer(bench, PEERS[:1])
    assert bench.heard == [CONTENT]
    if bench.node.counters.get("polluted"):
        assert list(bench.node._topics[TOPIC].banned) == [PEERS[0]]


def test_rows_of_a_wrong_digest_from_the_publisher_itself_are_a_gap() -> None:
    bench = Bench()
    for data in publication(CONTENT)[0]:
        bench.give(direct(forged(data, geometry=replace(opened(data).geometry, digest=b"?" * 16))))
    bench.wait(20_000_000)
    assert bench.heard == []
    assert len(bench.gaps) == 1


@pytest.mark.parametrize("envelope", [b"\0\0\0", b"\0\0\2", b"\1\0\1"])
def test_a_true_digest_over_a_senseless_envelope_delivers_nothing(envelope: bytes) -> None:
    bench = Bench()
    content = envelope + b"\xc1 is no msgpack"
    named = digest(TOPIC, key_of(1).publisher, 1, 0, content)
    geometry = replace(opened(publication(b"x")[0][0]).geometry, length=len(content), digest=named)
    payload = content.ljust(geometry.row_bytes, b"\0")
    bench.give(direct(forged(publication(b"x")[0][0], geometry=geometry, payload=payload)))
    bench.wait(20_000_000)
    assert bench.heard == []
    assert len(bench.gaps) == 1


def test_with_a_key_a_strangers_packets_do_not_exist() -> None:
    config = CodedConfig(key=b"group")
    bench = Bench(config)
    for data in publication(CONTENT, CodedConfig())[0]:
        bench.give(direct(data))
    assert bench.node.counters == {"bad check": N + 2}
    for data in publication(CONTENT, config)[0]:
        bench.give(direct(data))
    assert bench.heard == [CONTENT]


def fuzz(seed: int, packets: int) -> None:
    """Mutated true packets (checksums repaired half of the time) and senseless gossip, between true packets."""
    dice = Random(seed)
    config = CodedConfig(
        packet_bytes=120, rows_max=16, seeds=PEERS, live_max=50, live_per_publisher_max=30, kept_max=50, behind_max=8,
        finished_max=200, event_bytes_max=3000,
    )  # fmt: skip
    node = CodedNode(Address("me"), config, Random(seed))
    publishers = {a: CodedNode(a, config, Random(f"{a}{seed}")) for a in (PUBLISHER, Address("pub2"))}
    bench = Bench(config)
    bench.node = node
    bench.give(Subscribe((TOPIC,)))
    bench.give(Joined(TOPIC))
    truth: dict[bytes, None] = {}
    pool: list[bytes] = []
    for step in range(packets):
        if step % 40 == 0:
            content = dice.randbytes(dice.randrange(1, 600))
            truth[content] = None
            effects = publishers[dice.choice(list(publishers))].handle(Publish(TOPIC, content), bench.now)
            pool = [e.message.data for e in effects if isinstance(getattr(e, "message", None), PacketPiece)] + pool[:60]
        data = bytearray(dice.choice(pool))
        kind = dice.randrange(10)
        if kind < 4:
            for _ in range(dice.randrange(1, 4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            if dice.random() < 0.5:
                data[-4:] = pack_crc(bytes(data[:-4]))
        elif kind == 4:
            data = data[: dice.randrange(len(data))]
        message = bytes(data)
        if kind == 5:
            bench.give(dice.choice(gossip(dice)))
        elif kind < 8:
            bench.give(direct(message))
        else:
            bench.give(PacketPiece(message, dice.choice(PEERS)))
        bench.wait(dice.randrange(20_000))
        arrivals = bench.node._arrivals
        assert len(arrivals.live) <= config.live_max
        assert len(arrivals.kept) <= config.kept_max
        assert len(arrivals.finished) <= config.finished_max
        bench.log.clear()
        bench.sent.clear()
        bench.broadcasts.clear()
    assert bench.heard
    assert all(content in truth for content in bench.heard), "a wrong byte was delivered"  # J3
    assert len(bench.heard) == len({*bench.heard})  # J4


def pack_crc(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "big")


def gossip(dice: Random) -> list[object]:
    event = replace(key_of(dice.randrange(1, 2**63)), topic=dice.choice((TOPIC, Topic(9))))
    return [
        AskPackets(dice.choice(PEERS), event, dice.randrange(-1, 70000), dice.randrange(-5, 300), dice.randbytes(3)),
        Nothing(dice.choice(PEERS), event, 0),
        Adverts(dice.choice(PEERS), TOPIC, (Advert(event, dice.randrange(10**9)),) * 3),
        Members(dice.choice(PEERS), TOPIC, (Seen(Address("ghost"), 3),)),
        Heard(TOPIC, MemberHello(Address("stranger"), TOPIC)),
        Heard(Topic(9), MemberHello(Address("stranger"), TOPIC)),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_fuzzed_packets_deliver_no_wrong_byte_and_grow_nothing(seed: int) -> None:
    fuzz(seed, 2000)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(100, 110))
def test_a_million_fuzzed_packets(seed: int) -> None:
    fuzz(seed, 100_000)


def test_a_forged_generation_number_is_turned_away() -> None:
    bench = Bench(ASKING)
    bench.give(direct(forged(publication(CONTENT)[0][0], generation=60_000)))
    bench.wait(300_000)
    assert bench.node.counters["no such generation"] == 1
    assert max((ask.generation for _, ask in bench.asks()), default=0) == 0


def test_after_a_failure_only_the_publishers_own_rows_remain() -> None:
    bench = Bench(ASKING)
    packets = publication(CONTENT)[0]
    for data in packets[:5]:
        bench.give(direct(data))
    for data in packets[5:N]:
        bench.give(PacketPiece(polluted(data), PEERS[0]))
    assert bench.node.counters["polluted"] == 1
    assert bench.node._arrivals.live[key_of(1)].generations[0].decoder.rank == 5


def test_only_who_shared_in_every_failure_and_not_in_the_success_is_banned() -> None:
    membership = Bench(ASKING).node._topics[TOPIC]
    a, b, c, d = PEERS[:4]
    assert membership.judge([(a, b, c), (a, c, d)], [c]) == 1
    assert list(membership.banned) == [a]
    assert a not in membership.view
    assert membership.judge([], [c]) == 0


def test_one_forged_number_does_not_silence_a_publisher() -> None:
    bench = Bench(ASKING)
    events = publication(CONTENT, count=2)
    bench.give(direct(events[0][0]))
    bench.give(direct(forged(events[0][0], sequence=2**40)))
    bench.wait(4 * bench.config.keep_us)
    for data in events[1]:
        bench.give(direct(data))
    assert bench.heard == [CONTENT]
